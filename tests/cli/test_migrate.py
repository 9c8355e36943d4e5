"""``branchline migrate``: between any two places, told and checked; killed at any moment, it leaves no half session."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import anyio
import pytest

from harness.cli.places import kind_of_place
from harness.cli.shelf import places_on
from harness.session import Session
from tests.cli.conftest import CORRUPT, Command
from tests.cli.made_sessions import make_tree, said, written
from tests.cli.migrations import large, lines_in
from tests.cli.shelves import KINDS, new_root, section_of


def filled(kind: str, root: str) -> list[str]:
    """A session with a blob, and a fork of it, in a place; their ids."""
    from storage.messages import UserMessage

    async def fill() -> list[str]:
        repository = section_of(kind, root).repository
        async with Session.open(repository.create("talk", cwd="/proj")) as session:
            await session.write_blob(b"kept")
            for number in range(5):
                await session.append_message(UserMessage(content=f"é {number}"))
            async with await session.fork(into=repository) as fork:
                return [session.id, fork.id]

    return anyio.run(fill)


@pytest.mark.parametrize("target_kind", KINDS)
@pytest.mark.parametrize("source_kind", KINDS)
def test_between_any_two_places(
    command: Command, tmp_path: Path, request: pytest.FixtureRequest, source_kind: str, target_kind: str
) -> None:
    """All sessions, or those that are named; told, compared, and there as they were."""
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    source = new_root(source_kind, tmp_path / "from", request)
    target = new_root(target_kind, tmp_path / "to", request)
    ids = filled(source_kind, source)
    files = ("--entry-files",) if target_kind == "entry files" else ()
    one = command("migrate", source, target, "tal", "--json", *files)
    assert one.code == 0 and [(row["session"], row["outcome"], row["blobs"]) for row in one.rows] == [
        ("talk", "migrated", 1)
    ]
    both = command("migrate", source, target, *files)
    assert both.code == 0 and "talk  already there: 5 entries" in both.out and f"{ids[1]}  migrated: " in both.out
    for session_id in ids:
        assert lines_in(target, session_id) == lines_in(source, session_id)
    rows = {row["session"]: row for row in command("verify", "--json", "--root", target).rows if "session" in row}
    assert rows.keys() == set(ids) and all(row["ok"] for row in rows.values()) and rows["talk"]["blobs"] == 1
    listed = {row["id"]: row["parentSession"] for row in command("sessions", "--json", "--root", target).rows}
    assert listed == {"talk": None, ids[1]: "talk"}


def test_what_cannot_be_migrated_is_told(command: Command, tmp_path: Path) -> None:
    """pi's sessions and damaged ones stay, with the way out; the others go; the exit code is 1."""
    source = tmp_path / "from"
    make_tree(source)
    written(source / "pis.jsonl", [said("user", "Hi pi.")])
    for name in ("damaged-1", "damaged-2"):
        shutil.copy(CORRUPT / "03_corrupt_middle_line.jsonl", source / f"{name}.jsonl")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    target = str(tmp_path / "to.sqlite")
    ran = command("migrate", str(source), target, "--json")
    rows = {row["session"]: row for row in ran.rows}
    assert ran.code == 1 and "of 4 sessions were not migrated" in ran.error
    assert rows["tree-1"]["outcome"] == "migrated" and "branchline import" in rows["pis"]["problem"]
    assert [row["id"] for row in command("sessions", "--json", "--root", target).rows] == ["tree-1"]
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    assert command("import", str(source / "pis.jsonl"), "--root", target).code == 0
    assert "Hi pi." in command("tree", "pis", "--root", target).out


def test_another_session_of_that_id(command: Command, tmp_path: Path) -> None:
    """What is under the id in the target is never touched."""
    source, target = tmp_path / "from", tmp_path / "to"
    make_tree(source)
    make_tree(target)
    before = (target / "tree-1.jsonl").read_bytes()
    ran = command("migrate", str(source), str(target))
    assert ran.code == 1 and "another session under the id 'tree-1'" in ran.error
    assert (target / "tree-1.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("gone", "to.sqlite"), "is not there"),
        (("gone.sqlite", "to"), "is not there"),
        (("from", "from"), "both where from and where to"),
        (("from/tree-1.jsonl", "to"), "is no place with sessions"),
        (("from", "to.sqlite", "--entry-files"), "is a database"),
        (("from", "to.sqlite", "nobody"), "no session 'nobody'"),
        (("from", "mysql://x/y"), "is no place for sessions"),
    ],
)
def test_what_makes_no_sense(command: Command, line: tuple[str, ...], says: str) -> None:
    """Nothing is made, and it is said what is wrong."""
    make_tree(command.folder / "from")
    ran = command("migrate", *line)
    assert ran.code == 2 and says in ran.error
    assert sorted(path.name for path in command.folder.iterdir()) == ["from"]


def test_a_session_that_is_written_to(command: Command, tmp_path: Path) -> None:
    """A session that another program writes to is read all the same; once more, and the rest is there."""
    from storage.jsonl_repository import JsonlRepository
    from storage.messages import UserMessage

    source, target = tmp_path / "from", str(tmp_path / "to.sqlite")

    async def write() -> None:
        async with Session.open(JsonlRepository(source).create("live")) as session:
            await session.append_message(UserMessage(content="one"))
            assert (await anyio.to_thread.run_sync(command, "migrate", str(source), target)).code == 0
            await session.append_message(UserMessage(content="two"))

    anyio.run(write)
    ran = command("migrate", str(source), target)
    assert ran.code == 0 and "live  finished: 2 entries" in ran.out


def killed(command: Command, source: Path, target: str, seconds: float, *options: str) -> None:
    """Start a migration, and kill it after so long."""
    nowhere = subprocess.DEVNULL
    process = command.start("migrate", str(source), target, *options, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    time.sleep(seconds)
    process.kill()
    process.wait()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_random(command: Command, tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """Killed at any moment, what the target lists is whole; begun again, it comes to its end. The source is untouched."""
    source = tmp_path / "from"
    count = 300 if kind == "entry files" else 3000
    for number in range(4):
        large(source / f"large-{number}.jsonl", count)
    wholes = {path.stem: path.read_bytes().splitlines() for path in source.iterdir()}
    stamps = {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in source.iterdir()}
    target = new_root(kind, tmp_path / "to", request)
    (tmp_path / "to").mkdir()
    options = ("--entry-files",) if kind == "entry files" else ()
    begun = time.monotonic()
    rehearsal = new_root(kind, tmp_path / "rehearsal", request)
    (tmp_path / "rehearsal").mkdir()
    assert command.process("migrate", str(source), rehearsal, *options).code == 0
    whole = time.monotonic() - begun
    kills = 0
    while kills < 8:
        killed(command, source, target, random.uniform(0.3 * whole, 0.95 * whole), *options)
        kills += 1
        for place in places_on(kind_of_place(target)):
            assert lines_in(target, place.name) == wholes[place.name][1:]
        if kills % 4 == 0:  # from the beginning once more
            for place in places_on(kind_of_place(target)):
                assert command("delete", place.name, "--yes", "--root", target).code == 0
    ran = command.process("migrate", str(source), target, "--json", *options)
    assert ran.code == 0, ran.err
    assert {json.loads(line)["session"] for line in ran.out.splitlines()} == wholes.keys()
    assert command("verify", "--root", target).code == 0
    assert {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in source.iterdir()} == stamps


@pytest.mark.parametrize("kind", KINDS)
def test_killed_while_it_writes(command: Command, tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """Killed in the middle, it is run again and comes to its end, and nothing is left over."""
    source = tmp_path / "from"
    (tmp_path / "to").mkdir()
    path = large(source / "large.jsonl", 1000 if kind == "entry files" else 10_000)
    lines = path.read_bytes().splitlines()[1:]
    target = new_root(kind, tmp_path / "to", request)
    options = ("--entry-files",) if kind == "entry files" else ()
    killed(command, source, target, 0.9, *options)
    assert all(lines_in(target, place.name) == lines for place in places_on(kind_of_place(target)))
    assert command("migrate", str(source), target, *options).code == 0
    assert lines_in(target, "large") == lines
    left = [each.name for each in (tmp_path / "to").rglob(".*")]
    assert [name for name in left if name.endswith(".tmp") or ".creating-" in name] == []


def wait_until_it_writes(process: subprocess.Popen[bytes], kind: str, target: str) -> None:
    """Until there is something at ``target``, and a moment more: so long a process that starts takes."""
    until = time.monotonic() + 120
    while process.poll() is None and not has_begun(kind, target):
        assert time.monotonic() < until, "it does not begin"
        time.sleep(0.02)
    time.sleep(0.1)


def has_begun(kind: str, target: str) -> bool:
    """Whether a migration to ``target`` has made anything there."""
    if kind != "postgres":
        return any(Path(target).parent.iterdir())
    import psycopg

    with psycopg.connect(target) as connection:
        tables = "SELECT 1 FROM information_schema.tables WHERE table_schema = current_schema() LIMIT 1"
        return connection.execute(tables).fetchone() is not None


@pytest.mark.parametrize("kind", KINDS)
def test_interrupted(command: Command, tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    """Ctrl-C stops it within the session that is under way, of which nothing is left; the exit code is 130."""
    (tmp_path / "to").mkdir()
    lines = (
        large(tmp_path / "from" / "large.jsonl", 1000 if kind == "entry files" else 30_000).read_bytes().splitlines()
    )
    target = new_root(kind, tmp_path / "to", request)
    options = ("--entry-files",) if kind == "entry files" else ()
    process = command.start("migrate", str(tmp_path / "from"), target, *options, stdin=subprocess.DEVNULL)
    wait_until_it_writes(process, kind, target)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    there = [lines_in(target, place.name) == lines[1:] for place in places_on(kind_of_place(target))]
    assert all(there) and b"Traceback" not in said
    assert process.returncode == 130 or (there and process.returncode == 0)
    assert command("verify", "--root", target).code == 0
