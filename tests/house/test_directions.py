"""The rules that the source follows: the direction of imports, one event-loop module, modules of one sitting."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("storage", "compaction", "harness")
SOURCES = sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """import-linter, with this repository's contracts, on the packages in ``root``."""
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def copied(destination: Path) -> Path:
    """The packages and the contracts, in another folder."""
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, destination / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "branchline_guard.py"):
        shutil.copy(REPOSITORY / name, destination)
    return destination


def test_imports_go_one_way():
    """harness imports compaction and storage, compaction imports storage, and nothing the other way round."""
    result = lint_imports(REPOSITORY)
    assert result.returncode == 0, result.stdout
    assert "0 broken" in result.stdout


@pytest.mark.parametrize(
    "module, line",
    [
        ("storage/models.py", "import compaction"),
        ("storage/models.py", "import harness"),
        ("compaction/broken.py", "import harness"),
        ("storage/models.py", "import httpx"),
    ],
)
def test_an_import_the_wrong_way_is_found(tmp_path: Path, module: str, line: str):
    """The contracts are wired: one import the wrong way breaks them."""
    root = copied(tmp_path)
    with (root / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    result = lint_imports(root)
    assert result.returncode != 0
    assert re.search(r"[1-9] broken", result.stdout)


def test_one_module_knows_the_event_loops():
    """Everything runs on asyncio and trio: only the event-loop modules of ``storage`` import either by name.

    And the one clause of the conformance suite that is about their own cancellation.
    """
    found = [
        str(path.relative_to(REPOSITORY))
        for path in SOURCES
        if re.search(r"^\s*(import|from) (asyncio|trio)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    loops = {"storage/asyncio_loop.py", "storage/event_loops.py", "storage/trio_loop.py"}
    assert set(found) <= {*loops, "storage/testing/native_cancelling.py"}


def test_modules_stay_short():
    """No module is longer than 420 lines: one that needs a table of contents is two modules."""
    lengths = {
        str(path.relative_to(REPOSITORY)): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES
    }
    assert {path: length for path, length in lengths.items() if length > 420} == {}
