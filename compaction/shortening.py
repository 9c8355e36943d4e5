"""The cheap step: old, large tool results are shown shortened (R26: from what the reply's entry says, the same again).

Which results are old is said by an entry of the path, not by a distance from its end. So the text of a result changes
at most when that entry is chosen anew, and a provider's prompt cache holds in between.
"""

from __future__ import annotations

from typing import Any, Final, cast

from compaction.sendable import is_blank
from compaction.shortened_text import shorten_text
from storage.entries import Shortening
from storage.entry_path import EntryPath
from storage.errors import NotOnPathError
from storage.messages import ImageContent, TextContent, ToolResultMessage

LEAST_RESULT_CHARS: Final = 500
"""No result is shortened to less: the words about what is left out would be most of it."""

IMAGE_LEFT_OUT: Final = "[an image ({kind}) is left out here; it is in entry {entry_id} of the session]"


class Shortener:
    """Shortens the results of one path that lie before ``shortening.before``."""

    def __init__(self, path: EntryPath, shortening: Shortening) -> None:
        """Raises ``NotOnPathError`` if the entry that is named is not on ``path``."""
        place = path.position_of(shortening.before)
        if place is None:
            raise NotOnPathError(
                f"tool results before entry {shortening.before!r:.140} are to be shortened, which is not on this path; "
                "name an entry of the path, or none",
                entry_id=shortening.before,
            )
        self._path = path
        self._before = place + 1 if shortening.inclusive else place
        self._max_chars = max(LEAST_RESULT_CHARS, shortening.max_chars)

    def shorten(self, entry_id: str, message: ToolResultMessage) -> bool:
        """Shorten the result from ``entry_id`` where it is old and large. ``True``: it was changed.

        What lies in a retained tail is as old as its compaction; what a transform made has no place and stays.
        """
        place = self._path.position_of(entry_id)
        return place is not None and place < self._before and shorten_result(entry_id, message, self._max_chars)


def shorten_result(entry_id: str, message: ToolResultMessage, max_chars: int) -> bool:
    """Shorten a result with more than ``max_chars`` characters of text, or with an image. ``True``: it was changed."""
    content: Any = message.content
    if content is None:
        return False
    source = _source(entry_id, message)
    if isinstance(content, str):
        if len(content) <= max_chars:
            return False
        message.content = shorten_text(content, max_chars, source)
        return True
    parts = cast("list[TextContent | ImageContent]", content)
    size = sum(len(part.text or "") for part in parts if isinstance(part, TextContent))
    if size <= max_chars and not any(isinstance(part, ImageContent) for part in parts):
        return False
    texts: list[str] = []
    for part in parts:
        if isinstance(part, ImageContent):
            texts.append(IMAGE_LEFT_OUT.format(kind=part.mime_type[:40], entry_id=entry_id))
        elif not is_blank(part.text):
            texts.append(part.text or "")
    message.content = [TextContent(text=shorten_text("\n".join(texts), max_chars, source))]
    return True


def _source(entry_id: str, message: ToolResultMessage) -> str:
    """Where the whole result is, in words for the model."""
    blobs = message.blobs
    if blobs:
        return f"the whole is in {', '.join(f'blob:{name}' for name in blobs[:3])}"
    return f"the whole is in entry {entry_id[:140]} of the session"
