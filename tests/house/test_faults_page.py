"""The table of faults is made of commands: each selects tests that are there, and heavy ones where it says so."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.house.pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "faults.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| fault")]

COUNT = """
import contextlib, io, json, shlex, sys, pytest

class Count:
    heavy = []
    def pytest_collection_finish(self, session):
        self.heavy = [item.get_closest_marker("heavy") is not None for item in session.items]

found = []
for command in json.loads(sys.argv[1]):
    count = Count()
    arguments = shlex.split(command)[1:]
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main([*arguments, "--collect-only", "-qq"], plugins=[count])
    found.append([int(code), len(count.heavy), sum(count.heavy)])
print(json.dumps(found))
"""


def test_each_row_is_a_command_that_runs_something() -> None:
    """Each row ends with a command, and pytest finds tests for it; a row is marked as heavy if any of them is."""
    commands: list[str] = []
    for row in ROWS:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        match = re.fullmatch(r"`(pytest tests/[^`]+)`( \(heavy\))?", cells[-1].strip("| "))
        assert match is not None, f"this row ends with no command: {row}"
        commands.append(match[1])
    assert len(commands) > 25
    done = subprocess.run(
        [sys.executable, "-c", COUNT, json.dumps(commands)], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for row, command, (code, count, heavy) in zip(
        ROWS, commands, json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        assert code == 0, f"{command} selects nothing"
        assert count > 0
        assert bool(heavy) == row.endswith("(heavy) |"), f"{command}: {heavy} of {count} tests are heavy"


@pytest.mark.parametrize("backend", ["JSONL, entry files", "SQLite", "PostgreSQL", "Memory"])
def test_each_backend_has_its_rows(backend: str) -> None:
    """Each backend has a table of its own."""
    part = PAGE.split(f"## {backend}")[1].split("\n## ")[0]
    assert re.search(r"^\| .*`pytest ", part, re.MULTILINE)
