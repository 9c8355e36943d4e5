r"""Text from a session, made safe for a terminal.

A model, a tool, a label or a file name may hold anything: escape sequences that move the cursor or set the clipboard,
characters that turn the reading direction, line ends that fake a line of ours. They are shown as what they are
(``\x1b``, ``\u202e``) and do nothing.
"""

from __future__ import annotations

import re

# C0 without tab and line feed, DEL, C1; marks that turn the reading direction (bidi); separators that some terminals
# take as line ends; invisible format controls; the byte order mark; lone surrogates, which no encoding can write.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def neutral(text: str) -> str:
    """``text`` with every control character but tab and line feed shown as an escape; CRLF counts as a line feed."""
    return _UNSAFE.sub(_escaped, text.replace("\r\n", "\n"))


def neutral_json(text: str) -> str:
    """JSON in which every such character is written as JSON's own escape: the same values, and nothing to fear."""
    return _UNSAFE.sub(_json_escape, text)


def neutral_line(text: str) -> str:
    """``text`` on one line: line feeds and tabs become escapes too."""
    return neutral(text).replace("\n", "\\n").replace("\t", "\\t")


def preview(text: str, length: int) -> str:
    """The beginning of ``text`` on one line, at most ``length`` characters; ``...`` marks a cut."""
    # Only so much is looked at: a tool result can be megabytes long.
    squeezed = neutral(" ".join(text[: 4 * length + 64].split()))
    whole = len(text) <= 4 * length + 64
    if whole and len(squeezed) <= length:
        return squeezed
    return squeezed[: max(length - 3, 0)].rstrip() + "..."


def given_text(argument: str) -> str:
    """What a person typed as an argument, read as UTF-8 whatever the locale says.

    In a C locale Python hides the bytes it cannot decode in lone surrogates; here they are read again. Bytes that are
    no UTF-8 become U+FFFD.
    """
    if not any("\ud800" <= character <= "\udfff" for character in argument):
        return argument
    errors = "surrogateescape" if _only_escapes(argument) else "replace"
    return argument.encode("utf-8", errors).decode("utf-8", "replace")


def _only_escapes(text: str) -> bool:
    return all("\udc80" <= character <= "\udcff" for character in text if "\ud800" <= character <= "\udfff")


class NeutralStream:
    """``neutral`` for text that comes in pieces: a carriage return waits to see whether a line feed follows."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        text = self._held + piece
        self._held = ""
        if text.endswith("\r"):
            text, self._held = text[:-1], "\r"
        return neutral(text)

    def finish(self) -> str:
        """What was held back."""
        text, self._held = self._held, ""
        return neutral(text)
