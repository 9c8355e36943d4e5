"""The examples run as they stand, with warnings as errors, and print what they are there to show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.pages import REPOSITORY

EXAMPLES = REPOSITORY / "examples"

PRINTED = {
    "branch_and_compare.py": [
        "first: ['Name a data structure for conversations.', 'A list.']",
        "second: ['Name a data structure for conversations. One can go back in them.', 'A tree.']",
        "it was told: The other answer was a list.",
        "forked: Structures, 5 messages, the last: Because one can go back.",
    ],
    "fastapi_endpoint.py": [
        '{"text": "Let "}, and the client leaves',
        "turns: completed, cancelled, completed",
    ],
    "fifteen_lines.py": ["I am a script. What I say is written in chat.jsonl."],
    "first.py": ["It is called Atlas."],
    "own_backend.py": ["Remember me.", "the conformance suite found nothing wrong"],
    "own_tool.py": [
        "asked: Order a coat for Lagos.",
        "toolResult: 4 degrees celsius",
        "toolResult: KeyError: 'Atlantis'",
        "assistant: Lagos is warmer, and a coat for Oslo is on its way.",
        "ordered: ['Oslo']",
    ],
    "swap_backends.py": [
        f"{name}: Of six times seven. It was shown: ['What is six times seven?', 'Forty-two.', 'What did we talk about?']"
        for name in ("memory", "jsonl", "entry_files", "sqlite")
    ],
}


def run(example: Path, folder: Path) -> list[str]:
    """What ``example`` prints when it is run in ``folder``, without keys and with this repository installed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "ANTHROPIC_"))}
    environment["PYTHONPATH"] = str(REPOSITORY)
    result = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.parametrize("example", [pytest.param(path, id=path.name) for path in sorted(EXAMPLES.glob("*.py"))])
def test_examples_run(example: Path, tmp_path: Path):
    """Each example runs in an empty folder and prints its lines, in order; none is without such lines here."""
    printed = run(example, tmp_path)
    expected = PRINTED[example.name]
    assert [line for line in printed if line in expected] == expected


def test_the_smallest_app_is_small():
    """The app of fifteen lines has no more than that."""
    text = (EXAMPLES / "fifteen_lines.py").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip() and not line.strip().startswith('"""')]) <= 15


def test_the_first_example_remembers(tmp_path: Path):
    """A second process finds what the first one left: twice as many entries."""
    counts = [int(run(EXAMPLES / "first.py", tmp_path)[-1].split()[0]) for _ in range(2)]
    assert counts[0] > 0
    assert counts[1] == 2 * counts[0] - 1, "the request header is written once"
