"""``branchline migrate`` into a place that takes nothing, that is full, or that is the source: told, nothing is half."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Ran
from tests.cli.migrations import can, large, options, some_sessions, state_of
from tests.cli.shelves import new_root
from tests.postgres_server import PostgresServer

# --- a target in which nothing can be made


def impossible(case: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """A place in which nothing can be made."""
    if case == "below a file":
        (folder / "a file").write_text("mine")
        return str(folder / "a file" / "chats")
    if case == "database below a file":
        (folder / "a file").write_text("mine")
        return str(folder / "a file" / "chats.sqlite")
    if case == "another program's database":
        with closing(sqlite3.connect(folder / "theirs.db")) as connection:
            connection.execute("CREATE TABLE mine (x)")
            connection.commit()
        return str(folder / "theirs.db")
    if case == "no database":
        (folder / "text.db").write_text("no database at all " * 100)
        return str(folder / "text.db")
    if case == "no server":
        return "postgresql://me@127.0.0.1:9/none?connect_timeout=1"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    address = server.new_schema()
    if case == "server that only reads":
        made = some_sessions(address, "postgres", 1)
        assert made
        return address + "%20-cdefault_transaction_read_only%3Don"
    import psycopg

    name = f"stranger_{os.getpid()}_{case.replace(' ', '_')}"
    schema = address.rpartition("%3D")[2]
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"DROP ROLE IF EXISTS {name}".encode())
        connection.execute(f"CREATE ROLE {name} LOGIN".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}".encode())
        if case == "tables of somebody else":
            assert some_sessions(address, "postgres", 1)
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}".encode())
    return address.replace("postgres@", f"{name}@")


@pytest.mark.parametrize(
    "case",
    [
        "below a file",
        "database below a file",
        "another program's database",
        "no database",
        "no server",
        "server that only reads",
        "schema of somebody else",
        "tables of somebody else",
    ],
)
def test_an_impossible_target_is_told_once(
    command: Command, tmp_path: Path, request: pytest.FixtureRequest, case: str
) -> None:
    """Before anything is begun, in one line, whatever the number of sessions."""
    source = tmp_path / "from"
    some_sessions(str(source), "jsonl", 5)
    before = state_of(source)
    target = impossible(case, command.folder, request)
    here = state_of(command.folder)
    for more in ((), ("--json",)):
        ran = command("migrate", str(source), target, *more)
        assert ran.code == 1 and ran.error and ran.out == "" and len(ran.err.splitlines()) == 1, ran
    assert state_of(source) == before and state_of(command.folder) == here


@pytest.mark.parametrize("kind", ["jsonl", "entry files", "sqlite", "sqlite file"])
def test_a_target_that_may_not_be_written(command: Command, tmp_path: Path, kind: str) -> None:
    """The same, as a user for whom modes count."""
    source, target = tmp_path / "from", tmp_path / "to"
    some_sessions(str(source), "jsonl", 5)
    target.mkdir()
    name = str(target / "chats.sqlite") if kind.startswith("sqlite") else str(target)
    if kind == "sqlite file":
        some_sessions(name, "sqlite", 1)
        Path(name).chmod(0o444)
    for path in [*tmp_path.parents, tmp_path, *source.rglob("*"), source]:
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o555)
    target.chmod(0o555 if kind != "sqlite file" else 0o777)
    warm = command.folder / Path(name).name
    code = (  # first as root somewhere else: what is imported may lie where only root can read
        "import os, sys\nfrom harness.cli import main\nmain(['migrate', sys.argv[3], sys.argv[1], *sys.argv[5:]])\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print('*' * 10, flush=True)\nprint('*' * 10, file=sys.stderr, flush=True)\nsys.exit(main(sys.argv[2:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(warm), "migrate", str(source), name, *options(kind)],
        env=command.environment(),
        cwd=command.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    ran = Ran(done.returncode, *(text.rpartition("*\n")[2] for text in (done.stdout, done.stderr)))
    assert ran.code == 1 and "nothing can be written here" in ran.error and ran.out == "", ran
    assert kind == "sqlite file" or list(target.iterdir()) == []


# --- a target that is the source


@pytest.mark.parametrize("kind", ["jsonl", "sqlite", "postgres"])
def test_a_target_that_is_the_source(
    command: Command, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    """However it is spelled: a symlink, a way round, a hard link, another form of the same address."""
    (tmp_path / "place").mkdir()
    root = new_root(kind, tmp_path / "place", request)
    some_sessions(root, kind, 2)
    if kind == "postgres":
        address, _, rest = root.partition("?")
        names = [
            f"{address.replace('postgresql://', 'postgres://')}?{rest}",
            f"{address.replace('127.0.0.1', 'localhost')}?{rest}",
            f"{address.replace('postgres@', 'postgres:x@')}?application_name=other&{rest}",
        ]
    else:
        path = Path(root)
        link = tmp_path / f"link{path.suffix}"
        link.symlink_to(path)
        (tmp_path / "folder").symlink_to(path.parent)
        names = [str(link), str(tmp_path / "folder" / path.name), f"{path.parent}/../place/./{path.name}"]
        names += [f"{root}/"] if kind == "jsonl" else []
        if kind == "sqlite":
            os.link(path, tmp_path / "hard.sqlite")
            names.append(str(tmp_path / "hard.sqlite"))
    for name in names:
        for line in ((root, name), (name, root)):
            ran = command("migrate", *line)
            assert ran.code == 2 and "both where from and where to" in ran.error and ran.out == "", (line, ran)


# --- a target that is full, or goes away


@pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux has")
@pytest.mark.parametrize("kind", ["jsonl", "entry files", "sqlite"])
def test_a_target_that_is_full(command: Command, tmp_path: Path, kind: str) -> None:
    """What fits is there and whole, nothing is left of what does not, it is said once, and with room all the rest comes."""
    if not can("unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"):
        pytest.skip("no mount name spaces here")
    source = tmp_path / "from"
    count = 60
    some_sessions(str(source), "jsonl", count, blob=50_000, text=20_000)
    target = tmp_path / "small"
    target.mkdir()
    name = str(target / "chats.sqlite") if kind == "sqlite" else str(target / "chats")
    line = " ".join([*command.line("migrate", str(source), name, *options(kind)), "--json"])
    verify = " ".join(command.line("verify", "--json", "--root", name))
    script = (
        f"mount -t tmpfs -o size=4m tmpfs {target}\n{line} > full.json 2> full.txt; echo $? > full.code\n"
        f"{verify} > whole.json\nfind {target} > left.txt\n"
        f"mount -o remount,size=40m {target} && {line} > room.json; echo $? > room.code\n{verify} > end.json\n"
    )
    ran = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script], env=command.environment(), cwd=command.folder, check=False
    )
    assert ran.returncode == 0

    def rows(file: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (command.folder / file).read_text().splitlines()]

    assert (command.folder / "full.code").read_text() == "1\n"
    full, error = rows("full.json"), (command.folder / "full.txt").read_text()
    made = [row["session"] for row in full if row["problem"] is None]
    assert len(full) == count and 5 < len(made) < count
    assert len(error.splitlines()) == 1 and "not tried" in error and "Traceback" not in error
    assert "o space left" in error or "is full" in error
    whole = [row for row in rows("whole.json") if "session" in row]
    assert [row["session"] for row in whole] == sorted(str(name) for name in made) and all(row["ok"] for row in whole)
    left = (command.folder / "left.txt").read_text()
    assert ".tmp" not in left and ".creating" not in left
    if kind == "jsonl":
        assert len([line for line in left.splitlines() if line.endswith(".blobs")]) == len(made)
    assert (command.folder / "room.code").read_text() == "0\n"
    end = [row for row in rows("end.json") if "session" in row]
    assert len(end) == count and all(row["ok"] and row["blobs"] == 1 for row in end)


@pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux has")
def test_no_room_for_what_is_on_its_way(command: Command, tmp_path: Path) -> None:
    """The temporary file that a session is read into finds no room: that is said, with the way out, and once."""
    if not can("unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"):
        pytest.skip("no mount name spaces here")
    source, small = tmp_path / "from", tmp_path / "small"
    for number in range(3):
        large(source / f"large-{number}.jsonl", 5000)
    some_sessions(str(source), "jsonl", 1)
    small.mkdir()
    line = command.line("migrate", str(source), str(tmp_path / "to.sqlite"))
    script = f'mount -t tmpfs -o size=2m tmpfs {small}; exec "$@"'
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script, "sh", *line],
        env=command.environment({"TMPDIR": str(small)}),
        cwd=command.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    ran = Ran(done.returncode, done.stdout, done.stderr)
    assert ran.code == 1 and str(small) in ran.error and "TMPDIR" in ran.error and "3 of 4 sessions" in ran.error
    assert "s0000  migrated" in ran.out
