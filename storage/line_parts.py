"""The pieces of a line that are put together when an entry's turn comes."""

from __future__ import annotations

import json
import re

from storage.decode import facts_of, parse_entry
from storage.errors import DamagedSessionError, InvalidEntryError
from storage.protocols import Facts

_PLAIN_TEXT = re.compile(r"[!#-\[\]-~]+")


def read_back(what: str, entry_id: str, line: bytes) -> Facts:
    """What a reader will know of the line of this entry. Whatever a caller made of it, the session must stay readable."""
    try:
        return facts_of(parse_entry(line, None, None))
    except DamagedSessionError as error:
        why = error.message.split("; nothing was")[0]
        raise InvalidEntryError(f"this {what} could not be read again: {why}", entry_id=entry_id) from error


def json_or_null(text: str | None) -> bytes:
    """A text as JSON, or ``null``."""
    return b"null" if text is None else json_text(text)


def json_text(text: str) -> bytes:
    """A text as JSON; ids and types are nearly always plain ASCII."""
    if _PLAIN_TEXT.fullmatch(text):
        return b'"%b"' % text.encode()
    try:
        return json.dumps(text, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidEntryError(f"the id or type {text!r:.140} holds a lone surrogate", entry_id=text) from error
