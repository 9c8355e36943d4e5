"""Opening a session, or making it where there is none, while others may be doing the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from storage.errors import SessionExistsError, SessionNotFoundError

T = TypeVar("T")

_ATTEMPTS = 3


async def open_or_make(open_it: Callable[[], Awaitable[T]], make_it: Callable[[], Awaitable[T]]) -> T:
    """What ``open_it`` opens; where there is no session, what ``make_it`` makes. Raises what these raise.

    A session that was asked for without an id, where there are several, is not made.
    """
    attempts_left = _ATTEMPTS
    while True:
        try:
            return await open_it()
        except SessionNotFoundError as error:
            if error.details.get("matches"):
                raise
            attempts_left -= 1
        try:
            return await make_it()
        except SessionExistsError:
            if not attempts_left:
                raise
            # Somebody made it between our two looks, so now it can be opened.
