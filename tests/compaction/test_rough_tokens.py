"""R21, first level: characters weighed by script, on the high side."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest

from compaction import RoughEstimator, TiktokenEstimator
from compaction.rough_tokens import fewest_of_text

RANDOM = random.Random(7)
HERE = Path(__file__).parent

SAMPLES = {
    "english": "The quick brown fox jumps over the lazy dog, and nobody knows why it would do such a thing. " * 10,
    "python": (HERE.parent.parent / "storage" / "index.py").read_text(),
    "json": json.dumps([{"id": f"{number:08x}", "name": f"entry {number}", "ok": True} for number in range(60)]),
    "base64": base64.b64encode(RANDOM.randbytes(3_000)).decode(),
    "hex": RANDOM.randbytes(2_000).hex(),
    "digits": "".join(RANDOM.choice("0123456789") for _ in range(2_000)),
    "numbers": "\n".join(",".join(f"{RANDOM.random():.4f}" for _ in range(8)) for _ in range(50)),
    "chinese": "人工智能助手可以帮助用户完成各种任务，例如编写代码、翻译文本以及回答问题。今天的天气很好。" * 10,
    "japanese": "人工知能は私たちの生活を大きく変えようとしています。カタカナとひらがなが混ざった文章です。" * 10,
    "korean": "인공지능은 우리의 삶을 크게 바꾸고 있습니다. 오늘 날씨가 참 좋네요." * 10,
    "russian": "Искусственный интеллект меняет нашу жизнь. Сегодня хорошая погода." * 10,
    "german": "Künstliche Intelligenz verändert unser Leben. Heute ist das Wetter schön für Äpfel." * 10,
    "hindi": "कृत्रिम बुद्धिमत्ता हमारे जीवन को बदल रही है। आज मौसम अच्छा है।" * 10,
    "arabic": "الذكاء الاصطناعي يغير حياتنا بشكل كبير. اليوم الطقس جميل." * 10,
    "emoji": "😀🎉👍🏽❤️🔥👨‍👩‍👧‍👦🇩🇪" * 30,
    "combining": "e\u0301a\u0300o\u0302u\u0308" * 100,
    "box": "┌──────┬──────┐\n│ text │ more │\n└──────┴──────┘\n" * 20,
}


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
@pytest.mark.parametrize("name", SAMPLES)
def test_it_errs_on_the_high_side(name: str, encoding: str) -> None:
    """Never below the real count on a sample of each script, and for the encodings of today not far above it."""
    exact = TiktokenEstimator(encoding=encoding)
    estimate, real = RoughEstimator().count(SAMPLES[name]), exact.count(SAMPLES[name])
    assert exact.warning is None
    assert real <= estimate
    assert estimate <= real * (5 if name in ("hindi", "arabic", "russian") else 2.5)


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_text_has_fewer_than_the_fewest(name: str, encoding: str) -> None:
    """The lower limit is one for every script and both encodings; that of real text is not far above it."""
    real = TiktokenEstimator(encoding=encoding).count(SAMPLES[name])
    assert 0 < fewest_of_text(SAMPLES[name]) <= real


def test_a_han_character_is_about_one_token() -> None:
    """Ten thousand of them are no 2,500: characters divided by four let such a context overflow."""
    assert 9_000 <= RoughEstimator().count("中文" * 5_000) <= 14_000


def test_a_latin_letter_is_about_a_quarter() -> None:
    """Plain words."""
    assert RoughEstimator().count("word " * 1_000) == 1_250


def test_a_sum_of_parts_is_about_the_whole() -> None:
    """It rounds up, so that no text with something in it is free; no text is."""
    rough = RoughEstimator()
    assert rough.count("") == 0
    assert rough.count("a") == 1
    assert rough.count("\ud800") >= 1
    text = SAMPLES["english"] + SAMPLES["chinese"]
    assert abs(rough.count(text) - rough.count(SAMPLES["english"]) - rough.count(SAMPLES["chinese"])) <= 1
