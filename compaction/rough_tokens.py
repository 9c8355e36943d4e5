"""The rough estimate: characters, weighed by script (R21, first level). No vocabulary, no model, never an error.

UTF-8 tells the script by a character's first byte. So classes of bytes are taken out one after the other, and each time
the length tells how many characters went: two microseconds for a kilobyte. The weights are those of cl100k_base and
o200k_base on samples of each script, with little exception the higher of the two, so that the estimate errs on the high
side.
"""

from __future__ import annotations

import math
from typing import Final


def _bytes(*spans: tuple[int, int]) -> bytes:
    return bytes(byte for first, last in spans for byte in range(first, last + 1))


_WORDS: Final = _bytes((0x61, 0x7A), (0x20, 0x20), (0x09, 0x09))
"""Small Latin letters and blanks: most of any prose or code in ASCII."""

_WORD_WEIGHT: Final = 0.25

_ASCII: Final = (
    (_bytes((0x00, 0x1F), (0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7F)), 0.7),  # punctuation, line breaks
    (_bytes((0x30, 0x39)), 0.8),  # digits
    (_bytes((0x41, 0x5A)), 1.2),  # capitals: rare in prose, dense in base64
)

_NO_OTHERS: Final = _bytes((0x00, 0xBF))
"""All bytes that do not begin a character beyond ASCII. Those that go on with one count nothing."""

_NO_ASCII: Final = _bytes((0x80, 0xFF))

_OTHERS: Final = (
    (_bytes((0xE4, 0xE9)), 1.3),  # Han
    (_bytes((0xE3, 0xE3)), 1.1),  # kana, and the punctuation around it
    (_bytes((0xEA, 0xED)), 1.4),  # Hangul
    (_bytes((0xD0, 0xD3)), 0.7),  # Cyrillic
    (_bytes((0xC2, 0xC8)), 1.3),  # Latin letters with accents, which break words up
    (_bytes((0xD8, 0xDB)), 0.9),  # Arabic
    (_bytes((0xE0, 0xE0)), 1.6),  # the scripts of India, Thai
    (_bytes((0xE2, 0xE2)), 1.6),  # typographic punctuation, arrows, mathematics, boxes
    (_bytes((0xCE, 0xCF)), 1.1),  # Greek
    (_bytes((0xD6, 0xD7)), 1.2),  # Hebrew
    (_bytes((0xEF, 0xEF)), 1.5),  # full-width forms, variation selectors
    (_bytes((0xC9, 0xCD), (0xD4, 0xD5), (0xDC, 0xDF)), 2.3),  # combining marks, phonetic letters, small scripts
    (_bytes((0xE1, 0xE1), (0xEE, 0xEE)), 3.0),  # Georgian, Ethiopic, small scripts, private use
    (_bytes((0xF0, 0xF4)), 4.0),  # emoji, and what else is beyond the first 65,536
)


_EAST_ASIAN: Final = _bytes((0x00, 0xE2), (0xEE, 0xFF))


def fewest_of_text(text: str) -> int:
    """Tokens that a text has at least: a fifth of its characters, half of those in Chinese, Japanese, Korean."""
    if text.isascii():
        return len(text) // 5
    east_asian = len(text.encode("utf-8", "surrogatepass").translate(None, _EAST_ASIAN))
    return (2 * len(text) + 3 * east_asian) // 10


class RoughEstimator:
    """Estimates tokens from characters: a Han character is about one, a Latin letter about a quarter."""

    def count(self, text: str) -> int:
        """Tokens of ``text``, rounded up; 0 for no text."""
        if text.isascii():
            data = text.encode()
            tokens = 0.0
        else:
            data = text.encode("utf-8", "surrogatepass")
            tokens = _tokens(data.translate(None, _NO_OTHERS), _OTHERS)
            data = data.translate(None, _NO_ASCII)
        rest = data.translate(None, _WORDS)
        tokens += (len(data) - len(rest)) * _WORD_WEIGHT
        return math.ceil(tokens + _tokens(rest, _ASCII))


def _tokens(data: bytes, classes: tuple[tuple[bytes, float], ...]) -> float:
    """The tokens that the bytes of these classes count."""
    tokens = 0.0
    for members, weight in classes:
        if not data:
            break
        rest = data.translate(None, members)
        tokens += (len(data) - len(rest)) * weight
        data = rest
    return tokens
