"""``branchline migrate`` of what is large: one session, its outputs, and many sessions; measured in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from harness.cli.places import kind_of_place
from harness.cli.shelf import places_on
from harness.session import Session
from tests.cli.conftest import Command
from tests.cli.migrations import blobs_in, large, lines_in, options
from tests.cli.shelves import KINDS, new_root, section_of

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(sys.platform != "linux", reason="measures as Linux does")]

MEASURE = (
    "import re, sys\nfrom harness.cli import main\ncode = main(sys.argv[1:])\n"
    "print(code, int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)\n"
)


def megabytes(command: Command, *arguments: str) -> int:
    """The most memory that a command took, at once, which ends well."""
    line = [sys.executable, "-c", MEASURE, *arguments]
    ran = subprocess.run(
        line, cwd=command.folder, env=command.environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    code, most = ran.stdout.splitlines()[-1].split()
    assert code == "0", ran.stderr
    return int(most)


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_of_200_megabytes(
    command: Command, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    """There and back again, with a part of it in memory; only a folder of entry files is read whole."""
    (tmp_path / "to").mkdir()
    source, target, back = tmp_path / "from", new_root(kind, tmp_path / "to", request), tmp_path / "back"
    count = 3000 if kind == "entry files" else 100_000
    path = large(source / "large.jsonl", count, text=200_000_000 // count)
    assert path.stat().st_size > 200_000_000
    there = megabytes(command, "migrate", str(source), target, *options(kind))
    again = megabytes(command, "migrate", target, str(back))
    assert (back / "large.jsonl").read_bytes() == path.read_bytes()
    most = 150 if kind != "entry files" else 700  # such a folder is read whole, to compare it too
    assert there < most and again < most, (there, again)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_50_megabytes(command: Command, tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """One at a time is in memory, however many there are."""
    (tmp_path / "to").mkdir()
    source, target = str(tmp_path / "from"), new_root(kind, tmp_path / "to", request)

    async def make() -> None:
        async with Session.open(section_of("jsonl", source).repository.create("large")) as session:
            for _ in range(5):
                await session.write_blob(os.urandom(1_000_000) * 50)

    anyio.run(make)
    most = megabytes(command, "migrate", source, target, *options(kind))
    assert blobs_in(target, "large") == blobs_in(source, "large")
    assert most < 300, most


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_many_sessions(command: Command, tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """More than several pages of a listing; and once more, when all is there."""
    (tmp_path / "to").mkdir()
    source, target = tmp_path / "from", new_root(kind, tmp_path / "to", request)
    count = 1_500
    for number in range(count):
        large(source / f"s{number:04}.jsonl", 3)
    ran = command("migrate", str(source), target, "--json", *options(kind))
    assert ran.code == 0 and [row["outcome"] for row in ran.rows] == ["migrated"] * count
    again = command("migrate", str(source), target, "--json", *options(kind))
    assert again.code == 0 and [row["outcome"] for row in again.rows] == ["already_there"] * count
    assert len(places_on(kind_of_place(target))) == count
    assert lines_in(target, "s1321") == (source / "s1321.jsonl").read_bytes().splitlines()[1:]
