"""Ids: UUIDv7 for entries and sessions, and which session ids are safe as names in every backend."""

from __future__ import annotations

import os
import re
import time
from typing import TypeGuard

from storage.errors import InvalidIdError

_SAFE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_DEVICES = re.compile(r"(?i)(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")

_BATCH = 256

_endings: list[str] = []
_millisecond = -1
_beginning = ""


def new_id() -> str:
    """A UUIDv7 (RFC 9562): 48 bits of milliseconds, then 74 random bits. It sorts roughly by time; order never relies on it.

    The random parts of 256 ids are drawn at once, and the text of the millisecond is kept while it lasts: one by one,
    an id would cost as much as writing its entry.
    """
    global _millisecond, _beginning
    millisecond = time.time_ns() // 1_000_000
    if millisecond != _millisecond:
        _millisecond = millisecond
        stamp = f"{millisecond:012x}"
        _beginning = f"{stamp[:8]}-{stamp[8:]}-7"
    try:
        return _beginning + _endings.pop()
    except IndexError:
        _endings.extend(_draw_endings())
        return _beginning + _endings.pop()


def _draw_endings() -> list[str]:
    digits = os.urandom(10 * _BATCH).hex()
    return [
        f"{digits[at : at + 3]}-{'89ab'[int(digits[at + 3], 16) & 3]}{digits[at + 4 : at + 7]}-{digits[at + 7 : at + 19]}"
        for at in range(0, 20 * _BATCH, 20)
    ]


if hasattr(os, "register_at_fork"):
    # A forked child must not hand out the ids its parent is about to hand out.
    os.register_at_fork(after_in_child=_endings.clear)


def check_session_id(session_id: str) -> str:
    """Return ``session_id`` if it is a safe name everywhere, before any file is touched.

    The same rule for every backend: 1 to 128 letters, digits, ``.``, ``_`` and ``-``, beginning and ending with a letter
    or digit, without ``..``, and no device name of Windows. Raises ``InvalidIdError``.
    """
    if not is_safe_name(session_id):
        raise InvalidIdError(f"invalid session id {session_id!r:.140}: {what_to_choose(session_id)}")
    return session_id


def check_entry_name(entry_id: str) -> str:
    """The same rule for an entry id that becomes a file name. Raises ``InvalidIdError``."""
    if not is_safe_name(entry_id):
        raise InvalidIdError(
            f"invalid entry id {entry_id!r:.140}: this storage names a file after each entry; {what_to_choose(entry_id)}",
            entry_id=entry_id,
        )
    return entry_id


def absolute_place(path: str | os.PathLike[str]) -> str:
    """The absolute path that the caller means. Raises ``InvalidIdError`` for one that can name nothing."""
    place: str = os.path.abspath(os.fspath(path))
    if "\0" in place:
        raise InvalidIdError("a path with a NUL in it names no file", path=place)
    return place


def is_safe_name(name: object) -> bool:
    """Whether ``name`` may be a file name on every system we run on."""
    return _is_shaped(name) and _DEVICES.fullmatch(name) is None


def what_to_choose(name: object) -> str:
    """For a name that ``is_safe_name`` refuses: what it should be, or why one that looks right is not."""
    if _is_shaped(name):
        device = name.partition(".")[0]
        return (
            f"Windows keeps the name {device!r} for a device, whatever the case and whatever follows a dot, so no file can "
            f"be called that there; choose another one, such as 'chat-{device}'"
        )
    return "use 1 to 128 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit, without '..'"


def _is_shaped(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and _SAFE.fullmatch(name) is not None and ".." not in name
