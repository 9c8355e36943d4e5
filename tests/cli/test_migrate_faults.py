"""``branchline migrate`` killed, cut off, several at once, from a source that is written to, with forks of every shape."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from harness.cli.places import kind_of_place
from harness.cli.shelf import places_on
from harness.session import Session
from storage.messages import UserMessage
from tests.cli.conftest import Command
from tests.cli.made_sessions import make_tree
from tests.cli.migrations import blobs_in, large, lines_in, options, some_sessions, state_of
from tests.cli.shelves import KINDS, new_root, section_of

# --- order


def test_what_was_written_last_is_last_of_all_kinds(command: Command, tmp_path: Path) -> None:
    """Files and folders of entry files lie side by side, and ``last`` means the same in the target; none comes twice."""
    source = str(tmp_path / "from")
    for number, kind in enumerate(["jsonl", "entry files", "jsonl", "entry files", "jsonl"]):

        async def make(number: int = number, kind: str = kind) -> None:
            async with Session.open(section_of(kind, source).repository.create(f"s{number}")) as session:
                await session.append_message(UserMessage(content="x"))

        anyio.run(make)
        time.sleep(0.02)
    target = str(tmp_path / "to.sqlite")
    ran = command("migrate", source, target, "--json")
    assert ran.code == 0 and [row["session"] for row in ran.rows] == [f"s{number}" for number in range(5)]
    listed = [row["id"] for row in command("sessions", "--json", "--root", target).rows]
    assert listed == [f"s{number}" for number in reversed(range(5))]
    named = command("migrate", source, str(tmp_path / "named"), "s3", "s0", "last", "s3", "--json")
    assert [row["session"] for row in named.rows] == ["s0", "s3", "s4"]


def test_forks_of_every_shape(command: Command, tmp_path: Path) -> None:
    """A long chain of forks, forks whose parent is gone, two that name each other, and one that names itself."""
    source = tmp_path / "from"
    source.mkdir()
    lines = large(source / "c000.jsonl", 3).read_text().splitlines()

    def fork(name: str, parent: str) -> None:
        header = {**json.loads(lines[0]), "id": name, "parentSession": parent}
        (source / f"{name}.jsonl").write_text("\n".join([json.dumps(header), *lines[1:], ""]))

    for number in range(299, 0, -1):  # each is older than its parent
        fork(f"c{number:03}", f"c{number - 1:03}")
    fork("orphan", "gone")
    fork("one", "two")
    fork("two", "one")
    fork("itself", "itself")
    target = str(tmp_path / "to.sqlite")
    ran = command("migrate", str(source), target, "--json")
    names = [row["session"] for row in ran.rows]
    assert ran.code == 0 and len(names) == len(set(names)) == 304
    assert [name for name in names if name.startswith("c")] == [f"c{number:03}" for number in range(300)]
    assert command("verify", "--root", target).code == 0
    back = command("migrate", target, str(tmp_path / "back"), "--json")
    assert back.code == 0 and {row["outcome"] for row in back.rows} == {"migrated"}


# --- two at once, and a source that is written to


@pytest.mark.parametrize("kind", KINDS)
def test_two_at_once(command: Command, tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """Several migrations of the same sessions: at the end all is there once and whole, and each says what it found."""
    (tmp_path / "to").mkdir()
    source, target = str(tmp_path / "from"), new_root(kind, tmp_path / "to", request)
    lines = some_sessions(source, "jsonl", 25, blob=1000)
    before = state_of(tmp_path / "from")
    processes = [command.start("migrate", source, target, "--json", *options(kind)) for _ in range(4)]
    results: list[dict[str, dict[str, object]]] = []
    for process in processes:
        out, err = process.communicate(timeout=240)
        assert b"Traceback" not in err and process.returncode in (0, 1), err
        results.append({row["session"]: row for row in map(json.loads, out.splitlines())})
        problems = [str(row["problem"]) for row in results[-1].values() if row["problem"] is not None]
        assert (process.returncode == 1) == bool(problems)
        assert all("being written" in problem or "locked" in problem or "holds" in problem for problem in problems), (
            problems
        )
    for name, expected in lines.items():
        assert lines_in(target, name) == expected
        assert [result[name]["outcome"] for result in results].count("migrated") == 1
        assert blobs_in(target, name) == blobs_in(source, name)
    again = command("migrate", source, target, "--json", *options(kind))
    assert again.code == 0 and {row["outcome"] for row in again.rows} == {"already_there"}
    assert command("verify", "--root", target).code == 0 and state_of(tmp_path / "from") == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_is_written_to_all_the_time(
    command: Command, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    """Entries and large outputs come while it runs: each time it is there as at one moment, and in the end all is there."""
    (tmp_path / "from").mkdir()
    source, target = new_root(kind, tmp_path / "from", request), str(tmp_path / "to.sqlite")
    program = (
        "import sys, anyio\nfrom harness.session import Session\nfrom storage.messages import ToolResultMessage\n"
        "from tests.cli.shelves import section_of\n"
        "async def write():\n"
        "    async with Session.open(section_of(sys.argv[1], sys.argv[2]).repository.create('live')) as session:\n"
        "        number = 0\n"
        "        while True:\n"
        "            blob = await session.write_blob(b'x' * 10_000)\n"
        "            message = ToolResultMessage(tool_call_id='c', tool_name='t', content='long', blobs=[blob])\n"
        "            await session.append_message(message)\n"
        "            if not number: print('begun', flush=True)\n"
        "            number += 1\n"
        "anyio.run(write)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, kind, source], env=command.environment(), stdout=subprocess.PIPE
    )
    try:
        assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"
        begun = time.monotonic()
        outcomes: list[str] = []
        while time.monotonic() < begun + 4 or outcomes.count("finished") < 3:
            ran = command("migrate", source, target, "--json")
            assert ran.code == 0, ran.err
            outcomes.append(ran.rows[0]["outcome"])
            assert command("verify", "--root", target).code == 0
    finally:
        writer.kill()
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()
    assert outcomes[0] == "migrated"
    assert set(outcomes[1:]) <= {"finished", "already_there"}  # the writer may not have had its turn
    command("migrate", source, target)
    found = lines_in(source, "live")
    assert lines_in(target, "live") == found and blobs_in(target, "live") == blobs_in(source, "live")


# --- killed


PAIRS = [
    ("jsonl", "sqlite"),
    ("sqlite", "postgres"),
    ("postgres", "entry files"),
    ("entry files", "jsonl"),
    ("jsonl", "jsonl"),
]


@pytest.mark.heavy
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("source_kind", "target_kind"), PAIRS)
def test_fifty_kills(
    command: Command, tmp_path: Path, request: pytest.FixtureRequest, source_kind: str, target_kind: str
) -> None:
    """Killed fifty times at random instants, the target holds nothing half; run to its end, all is there to the byte."""
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    source = new_root(source_kind, tmp_path / "from", request)
    lines = some_sessions(source, source_kind, 30, blob=200_000, text=2000)
    blobs = {name: blobs_in(source, name) for name in lines}
    before = state_of(tmp_path / "from") if source_kind != "sqlite" else {}
    target = new_root(target_kind, tmp_path / "to", request)
    line = ("migrate", source, target, "--json", *options(target_kind))
    kills = there = 0
    while kills < 50:
        process = command.start(*line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        told = [json.loads(process.stdout.readline())] if random.random() < 0.7 else []
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        told += [json.loads(text) for text in process.stdout.read().splitlines() if text.endswith(b"}")]
        kills += process.wait() < 0
        process.stdout.close()
        found = [place.name for place in places_on(kind_of_place(target))]
        assert {row["session"] for row in told} <= set(found)
        there = len(found)
        for name in random.sample(found, min(len(found), 3)):
            assert lines_in(target, name) == lines[name] and blobs_in(target, name) == blobs[name]
        if there == len(lines):
            for name in found:
                assert command("delete", name, "--yes", "--root", target).code == 0
    ran = command.process(*line)
    assert ran.code == 0, ran.err
    for name, expected in lines.items():
        assert lines_in(target, name) == expected and blobs_in(target, name) == blobs[name]
    assert command("verify", "--root", target).code == 0
    left = [
        path.name
        for path in (tmp_path / "to").rglob("*")
        # A file that was given its name, and killed before it lost the other, is whole under both.
        if "ing-" in path.name or (".tmp" in path.name and path.stat().st_nlink == 1)
    ]
    assert left == []
    if before:
        assert state_of(tmp_path / "from") == before


def test_the_reader_of_the_output_goes_away(command: Command, tmp_path: Path) -> None:
    """``branchline migrate … | head -1``: the exit code is that of a broken pipe, and what was told of is whole."""
    source, target = str(tmp_path / "from"), str(tmp_path / "to.sqlite")
    lines = some_sessions(source, "jsonl", 40)
    process = command.start("migrate", source, target, stdin=subprocess.DEVNULL)
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(60) in (0, 141) and err.count(b"\n") <= 1 and b"Traceback" not in err
    process.stderr.close()
    there = [place.name for place in places_on(kind_of_place(target))]
    assert first.decode().split()[0] in there and all(lines_in(target, name) == lines[name] for name in there)
    assert command("migrate", source, target).code == 0


def test_it_looks_the_same_without_a_terminal_or_utf_8(command: Command, tmp_path: Path) -> None:
    """In the C locale, with no standard input, and with a name of a folder that no locale can write."""
    source = tmp_path / "fröm 界"
    make_tree(source)
    ran = command.process(
        "migrate", str(source), str(tmp_path / "tö.sqlite"), environment={"LC_ALL": "C", "PYTHONUTF8": "0"}, stdin=b""
    )
    assert ran.code == 0 and "tree-1  migrated" in ran.out and ran.err == ""
