"""Estimated tokens against exact ones, on text of several kinds: ``python -m benchmarks.token_estimates`` prints the table.

Each text is cut into the messages of a conversation. *Rough* estimates all of it; *anchored* takes the exact count of all
but the newest tenth, as a provider tells it, and estimates that tenth. Exact is o200k_base; beside it what cl100k_base
counts, which is how far apart two vendors' own counts may be.
"""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

from benchmarks.measuring import Figure
from compaction import RoughEstimator, TiktokenEstimator

_HERE = Path(__file__).parent.parent
_CHARACTERS = 20_000

_CHINESE = (
    "会话记录只会追加，不会修改。每条消息、每次工具调用和每个分支都是一个条目，崩溃之后可以从磁盘上重新读取。"  # noqa: RUF001
    "如果上下文超过了模型的窗口，较早的部分会被总结，而原始记录仍然保留，随时可以回到任何一点，换一种方法再试一次。"  # noqa: RUF001
    "开发者问：为什么测试失败了？助手回答：因为配置文件里的路径写错了，把第42行改成绝对路径就可以了。"  # noqa: RUF001
)
_EMOJI = "😀🎉👍🏽❤️🔥👨‍👩‍👧‍👦🇩🇪🚀✅🙏🏾🐍☕️🌍📦"


def samples() -> dict[str, str]:
    """Texts by kind, each of about the same length; nothing of them changes from run to run."""
    chance = random.Random(11)
    documents = sorted((_HERE / "docs").glob("*.md"))
    code = sorted((_HERE / "compaction").glob("*.py"))
    rows = [
        {
            "id": f"{chance.getrandbits(64):016x}",
            "path": f"src/part{number}/file_{number}.py",
            "lines": chance.randrange(10_000),
            "changed": number % 3 == 0,
            "score": round(chance.random(), 4),
        }
        for number in range(200)
    ]
    texts = {
        "English": "\n".join(path.read_text(encoding="utf-8") for path in documents),
        "code (Python)": "\n".join(path.read_text(encoding="utf-8") for path in code),
        "JSON": json.dumps(rows, separators=(",", ":")),
        "Chinese": _CHINESE * 200,
        "emoji": _EMOJI * 2_000,
        "base64": base64.b64encode(chance.randbytes(_CHARACTERS)).decode(),
    }
    return {name: text[:_CHARACTERS] for name, text in texts.items()}


def table() -> list[tuple[str, int, float, float, float, float]]:
    """For each kind: exact tokens, and by how much others differ: characters by four, rough, anchored, cl100k_base."""
    exact, other, rough = (
        TiktokenEstimator(encoding="o200k_base"),
        TiktokenEstimator(encoding="cl100k_base"),
        RoughEstimator(),
    )
    rows: list[tuple[str, int, float, float, float, float]] = []
    for name, text in samples().items():
        newest = len(text) * 9 // 10
        real = exact.count(text)
        estimates = (
            len(text) / 4,
            rough.count(text),
            exact.count(text[:newest]) + rough.count(text[newest:]),
            other.count(text),
        )
        by_four, roughly, anchored, elsewhere = (estimate / real - 1 for estimate in estimates)
        rows.append((name, real, by_four, roughly, anchored, elsewhere))
    for estimator in (exact, other):
        if estimator.warning is not None:
            raise SystemExit(f"nothing to compare with: {estimator.warning}")
    return rows


async def errors() -> list[Figure]:
    """The rough estimate's part of the exact count, for each kind: it may be high, and hardly ever low."""
    return [
        Figure(f"rough estimate of {name} / o200k_base", 1 + roughly, "×", 0.95, f"{real:,} tokens", at_least=True)
        for name, real, _, roughly, _, _ in table()
    ]


def main() -> None:
    """Print the table of ``docs/context.md``."""
    print("| text | tokens for 1,000 characters | characters / 4 | rough | anchored | cl100k_base |")
    print("|---|---|---|---|---|---|")
    lengths = {name: len(text) for name, text in samples().items()}
    for name, real, *differences in table():
        cells = " | ".join(f"{difference:+.0%}" for difference in differences)
        print(f"| {name} | {real * 1_000 / lengths[name]:.0f} | {cells} |")


if __name__ == "__main__":
    main()
