"""Text from a session cannot drive the terminal it is shown on."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from harness.cli.plain_text import NeutralStream, given_text, neutral, neutral_line, preview


def test_escape_sequences_are_shown_and_do_nothing() -> None:
    """ESC, C1, DEL, BEL and a carriage return become visible escapes."""
    assert neutral("\x1b]0;owned\x07\x9b31m\x7f\rx") == "\\x1b]0;owned\\x07\\x9b31m\\x7f\\rx".replace("\\r", "\\x0d")


def test_every_control_character_is_taken() -> None:
    """No character of a control category gets through, but tab, line feed and the joiners that scripts need."""
    kept = {"\t", "\n", "\u200c", "\u200d"}
    suspects = (chr(code) for code in range(sys.maxunicode + 1))
    passed = [
        character
        for character in suspects
        if (
            unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
            or unicodedata.bidirectional(character) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        )
        and character not in kept
        and neutral(character) == character
    ]
    assert passed == []


def test_ordinary_text_stays() -> None:
    """Letters of every script, emoji with joiners, tabs and line feeds are left alone."""
    text = "Grüße, 你好, שלום, नमस्ते, 👩\u200d💻\n\tend"
    assert neutral(text) == text


def test_windows_line_ends_are_line_feeds() -> None:
    """CRLF in content is a line end, not a control character."""
    assert neutral("a\r\nb") == "a\nb"


def test_a_line_is_one_line() -> None:
    """What goes on one line cannot begin another."""
    assert neutral_line("a\nb\tc\u2028d") == "a\\nb\\tc\\u2028d"


@pytest.mark.parametrize("cut", range(1, 8))
def test_pieces_give_what_the_whole_gives(cut: int) -> None:
    """A stream neutralises the same, wherever it is cut."""
    text = "a\r\nb\rc\x1b"
    stream = NeutralStream()
    assert stream.feed(text[:cut]) + stream.feed(text[cut:]) + stream.finish() == neutral(text)


def test_preview_is_short_and_flat() -> None:
    """A preview squeezes white space, marks its cut, and never looks at all of a long text."""
    assert preview("one\n  two\tthree", 40) == "one two three"
    assert preview("word " * 1_000_000, 12) == "word word..."
    assert len(preview("\x1b" * 100, 20)) <= 20


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("plain", "plain"),
        ("gr\udcc3\udcbc\udcc3\udc9fe", "grüße"),
        ("bad \udcff byte", "bad \ufffd byte"),
        ("half \ud83d emoji", "half ? emoji"),
    ],
)
def test_arguments_are_read_as_utf8(given: str, expected: str) -> None:
    """Bytes that a C locale could not decode are decoded; what is no text is replaced, never kept as a surrogate."""
    assert given_text(given) == expected
