"""The exact count, by tiktoken (R21, third level). Never a network, never an exception, never a stall."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Final

import tiktoken

from compaction.encodings import DEFAULT_ENCODING, encoding_name, is_loaded, load_encoding
from compaction.rough_tokens import RoughEstimator

PIECE_CHARACTERS: Final = 24_000
"""Text is fed in pieces of at most 96 KB: o200k_base panics on a million blanks in a row."""

SLOW_CHARACTERS: Final = 16_000
"""From here on counting takes a good part of a millisecond and belongs in a worker thread."""


KNOWN_TEXTS: Final = 65_536
"""How many texts an estimator knows the counts of; by length and hash, some eight megabytes at most."""


class TiktokenEstimator:
    """Counts with the encoding of ``model``, or with ``encoding`` ("cl100k_base", "o200k_base") where that is given.

    A model that tiktoken does not know is counted with o200k_base; where the rank file is not on disk, the rough
    estimate takes over. Either is said once, in ``warning``. Special tokens in text count as text.

    It remembers what it counted, so that of a growing conversation each text is encoded once: give all contexts of a
    session the same estimator. Safe from any thread.
    """

    def __init__(self, model: str | None = None, *, encoding: str | None = None) -> None:
        known = encoding or encoding_name(model)
        self.encoding: str = known or DEFAULT_ENCODING
        self._rough = RoughEstimator()
        self._known: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()
        self._warning: str | None = None
        if known is None:
            self._warning = (
                f"tiktoken knows no encoding for the model {model!r:.140}; tokens are counted with {DEFAULT_ENCODING}"
            )

    @property
    def warning(self) -> str | None:
        """Why the counts are not exact, as far as that is known by now; ``None`` if they are."""
        return self._warning

    def is_slow(self, characters: int) -> bool:
        """Whether so many characters should be counted in a worker thread: many, or the first ones."""
        return characters > SLOW_CHARACTERS or not is_loaded(self.encoding)

    def count(self, text: str) -> int:
        """Tokens of ``text``. Blocks: half a second at first, then about 50 ms for a million new characters."""
        encoding = load_encoding(self.encoding)
        if encoding is None:
            self._warning = (
                f"the rank file of {self.encoding} is not on this machine, so tokens are estimated roughly; "
                "pip install 'branchline[tokens]', or set TIKTOKEN_CACHE_DIR to a folder that holds it"
            )
            return self._rough.count(text)
        key = (len(text), hash(text))
        known = self._known.get(key)
        if known is None:
            known = self._encoded(encoding, text)
            self._remember(key, known)
        return known

    def _encoded(self, encoding: tiktoken.Encoding, text: str) -> int:
        total = 0
        for begin in range(0, len(text), PIECE_CHARACTERS):
            piece = text[begin : begin + PIECE_CHARACTERS]
            try:
                total += len(encoding.encode_ordinary(piece))
            except BaseException as error:
                # Rust's panic is no Exception. Everything else that comes here is not ours to stop.
                if type(error).__name__ != "PanicException":
                    raise
                total += self._rough.count(piece)
        return total

    def _remember(self, key: tuple[int, int], tokens: int) -> None:
        with self._lock:
            if len(self._known) >= KNOWN_TEXTS:
                for old in [*islice(self._known, KNOWN_TEXTS // 2)]:  # the oldest
                    del self._known[old]
            self._known[key] = tokens
