"""Makes sure that ``storage``, ``compaction`` and ``harness`` are Branchline's own.

These are common names: an app may have a ``storage.py`` of its own, another distribution a package ``harness``. Each of
the three packages carries the line ``__branchline__ = "…"`` with the same text; each calls ``require`` for those it
imports before it imports anything from them. This module has a name that nobody else takes, so it is the real one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Final

MARKER: Final = "branchline: storage, compaction, harness"


def require(*names: str) -> None:
    """Raise ``ImportError``, naming the file and the way out, unless each of ``names`` is Branchline's own package.

    A stranger's file is recognised by its source and not run: it may do anything, such as import this library again.
    """
    for name in names:
        if _is_not_ours(name) or getattr(import_module(name), "__branchline__", None) != MARKER:
            place = _place(name)
            message = (
                f"branchline needs its own package {name!r}, but {place} took its place. "
                f"Rename that file or folder (or start Python where it is not found first); "
                f"if another distribution installed it, use one environment for each and reinstall branchline."
            )
            raise ImportError(message, name=name, path=place)


def _is_not_ours(name: str) -> bool:
    """Whether the source of a package that was not imported yet can be read, and lacks the marker."""
    if name in sys.modules:
        return False
    spec = find_spec(name)
    get_source: Callable[[str], str | None] | None = getattr(spec and spec.loader, "get_source", None)
    source = get_source(name) if get_source is not None else None
    return source is not None and MARKER not in source


def _place(name: str) -> str:
    module = sys.modules.get(name)
    spec = module.__spec__ if module is not None else find_spec(name)
    if spec is None:
        return str(getattr(module, "__file__", None) or f"a module {name!r} made while running")
    return str(spec.origin or next(iter(spec.submodule_search_locations or ()), f"a module {name!r} without a file"))
