"""A whole text file in memory, and the same text in the same bytes again: its encoding, mark and line ends are kept."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from storage.errors import ToolError

# UTF-32's marks are looked for first: they begin with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, ""),
    (codecs.BOM_UTF32_BE, ""),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class TextFile:
    """The text of a file, and how it is written.

    Where every line ends in CRLF, the text has LF in their place, and CRLF is written again. Otherwise its line ends are
    as they are in the file.
    """

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""
    has_crlf: bool = False

    def encoded(self, text: str) -> bytes:
        """The bytes of another text, written as this one is."""
        return self.mark + (text.replace("\n", "\r\n") if self.has_crlf else text).encode(self.encoding)

    def as_here(self, text: str) -> str:
        """What somebody wrote for this file, with the line ends that its text has here."""
        return text.replace("\r\n", "\n") if self.has_crlf else text


def text_file(data: bytes, path: str) -> TextFile:
    """Read UTF-8, or UTF-16 with its mark.

    Raises:
        ToolError: another encoding, or no text at all.
    """
    mark, encoding = next(((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", "utf-8"))
    if not encoding:
        raise ToolError(f"{path}: is UTF-32; only UTF-8, and UTF-16 with a byte order mark, can be edited")
    if encoding == "utf-8" and b"\0" in data:
        raise ToolError(f"{path}: a binary file of {len(data):,} bytes, which cannot be edited as text")
    try:
        text = data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, len(mark) + error.start) + 1 if encoding == "utf-8" else None
        place = f" (line {line:,})" if line is not None else ""
        raise ToolError(
            f"{path}: is not valid {encoding.upper()}{place}; only UTF-8, and UTF-16 with a byte order mark, can be edited"
        ) from error
    has_crlf = 0 < text.count("\n") == text.count("\r\n")
    return TextFile(text.replace("\r\n", "\n") if has_crlf else text, encoding, mark, has_crlf)
