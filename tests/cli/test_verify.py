"""``branchline verify`` finds what is damaged, in every kind of place, names it, and never fails on it itself."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.cli import verify
from harness.cli.places import Place, Shelf
from harness.session import Session
from storage.messages import AssistantMessage, TextContent, ToolCall, ToolResultMessage, UserMessage
from tests.cli.conftest import Command, Ran
from tests.cli.shelves import new_root, section_of


def fill(kind: str, root: str, name: str = "talk", *, with_fork: bool = False) -> None:
    """A session with a bit of everything."""

    async def make() -> None:
        repository = section_of(kind, root).repository
        async with Session.open(repository.create(name)) as session:
            first = await session.append_message(UserMessage(content="frage é 界"))
            blob = await session.write_blob(b"large" * 20)
            call = ToolCall(id="c1", name="read", arguments={"path": "x"})
            await session.append_message(
                AssistantMessage(content=[TextContent(text="so"), call], provider="p", model="m")
            )
            result = ToolResultMessage(tool_call_id="c1", tool_name="read", content="long", blobs=[blob])
            last = await session.append_message(result)
            await session.append_label(first, "here")
            await session.append_compaction("summary", first_kept_entry_id=last, tokens_before=10)
            if with_fork:
                async with await session.fork(into=repository):
                    pass

    anyio.run(make)


def damage(kind: str, root: str, change: Any, number: int) -> str:
    """Let ``change`` have the bytes of the entry of that number; what an error about it names."""
    match kind:
        case "jsonl":
            path = Path(root) / "talk.jsonl"
            lines = path.read_bytes().split(b"\n")
            lines[number + 1] = change(lines[number + 1])
            path.write_bytes(b"\n".join(lines))
        case "entry files":
            path = next(each for each in Path(root).rglob("*.json") if b'{"seq":%d,' % number in each.read_bytes())
            path.write_bytes(change(path.read_bytes()))
            return path.name
        case "sqlite":
            with closing(sqlite3.connect(root)) as connection:
                place, data = connection.execute("SELECT place, data FROM entries ORDER BY place").fetchall()[number]
                connection.execute("UPDATE entries SET data = ? WHERE place = ?", (change(data), place))
                connection.commit()
        case _:
            import psycopg

            with psycopg.connect(root, autocommit=True) as connection:
                select = "SELECT data FROM branchline_entries WHERE seq = %s"
                (data,) = connection.execute(select, (number,)).fetchone() or (b"",)
                update = "UPDATE branchline_entries SET data = %s WHERE seq = %s"
                connection.execute(update, (change(bytes(data)), number))
    return f"line {number + 2}"


def verified(command: Command, root: str) -> tuple[Ran, dict[str, Any]]:
    """What ``verify`` says of the session ``talk``."""
    ran = command("verify", "--json", "--root", root)
    assert ran.code in (0, 1) and "internal error" not in ran.err and "Traceback" not in ran.err, ran
    return ran, next(row for row in ran.rows if row.get("session") == "talk")


def test_a_byte_that_is_gone(command: Command, kind: str, root: str) -> None:
    """A NUL anywhere in any entry is found, and its place is named."""
    chance = random.Random(7)
    for number in range(5):
        shutil.rmtree(root, ignore_errors=True)
        fill(kind, root)
        place = damage(kind, root, lambda data: with_byte(data, chance.randrange(len(data) - 1), b"\0"), number)
        ran, row = verified(command, root)
        assert ran.code == 1 and not row["ok"] and place in "".join(row["problems"]), (number, row)
        forget(kind, root, command)


def with_byte(data: bytes, at: int, byte: bytes) -> bytes:
    """``data`` with another byte there."""
    return data[:at] + byte + data[at + 1 :]


def forget(kind: str, root: str, command: Command) -> None:
    """Make room for the next one, in a database."""
    if kind in ("sqlite", "postgres"):
        assert command("delete", "talk", "--yes", "--root", root).code == 0


def test_bits_that_turn(command: Command, kind: str, root: str) -> None:
    """Whatever bit of an entry turns: it is told, or it is another entry that can be read; never an error of our own."""
    chance = random.Random(11)
    found = 0
    for _ in range(8):
        shutil.rmtree(root, ignore_errors=True)
        fill(kind, root)

        def turn(data: bytes) -> bytes:
            at = chance.randrange(len(data) - 1)
            return with_byte(data, at, bytes([data[at] ^ 1 << chance.randrange(8)]))

        damage(kind, root, turn, chance.randrange(5))
        ran, row = verified(command, root)
        assert (ran.code == 1) == bool(row["problems"])
        found += ran.code
        forget(kind, root, command)
    assert found >= 3


def without(member: str) -> Any:
    """Takes a member away."""
    return lambda data: data.replace(b'"' + member.encode(), b'"x' + member.encode())


@pytest.mark.parametrize(
    ("change", "number", "says"),
    [
        (without("parentId"), 1, "does not say what it hangs from"),
        (lambda data: data.replace(b'"timestamp":"2', b'"timestamp":"x'), 2, "is none"),
        (lambda data: data.replace(b'"firstKeptEntryId":"', b'"firstKeptEntryId":"x'), 4, "it keeps what follows"),
    ],
)
def test_what_can_be_read_and_cannot_be_ours(
    command: Command, kind: str, root: str, change: Any, number: int, says: str
) -> None:
    """A parent, a time, a first kept entry that an entry of ours always has; and a copy can be made that has them."""
    fill(kind, root)
    assert command("verify", "--root", root).code == 0
    damage(kind, root, change, number)
    ran, row = verified(command, root)
    assert ran.code == 1 and says in row["problems"][0], row
    repaired = command("repair", "talk", "--yes", "--json", "--root", root)
    assert repaired.code == 0 and says in repaired.rows[0]["plan"][0] and len(repaired.rows[0]["lost"]) == 1
    assert command("verify", repaired.rows[0]["salvaged"], "--root", root).code == 0


def test_an_entry_file_that_holds_another_entry(command: Command, tmp_path: Path) -> None:
    """Where it was the last one, the session is whole without it; a file of somebody else is none of that."""
    root = tmp_path / "chats"
    fill("entry files", str(root))
    (root / "talk" / "entries" / "notes.json").write_text('{"mine": 1}')
    assert command("verify", "--root", str(root)).code == 0
    name = damage("entry files", str(root), lambda data: data.replace(b'"id":"', b'"id":"f', 1), 4)
    ran, row = verified(command, str(root))
    assert ran.code == 1 and row["entries"] == 4 and name in row["problems"][0]


def test_a_session_whose_name_is_no_id(command: Command, tmp_path: Path) -> None:
    """It is read by its path: its damage is found, and it is not passed over when it is sound."""
    root = tmp_path / "chats"
    fill("jsonl", str(root))
    path = (root / "talk.jsonl").rename(root / "my talk.jsonl")
    (root / "talk.blobs").rename(root / "my talk.blobs")
    ran = command("verify", "--json", "--root", str(root))
    assert ran.code == 0 and [(row["path"], row["entries"]) for row in ran.rows] == [(str(path), 5)]
    path.write_bytes(path.read_bytes().replace(b'"role":"user"', b"\0", 1))
    ran = command("verify", "--root", str(root))
    assert ran.code == 1 and "my talk.jsonl" in ran.error and "line 2" in ran.error


def test_pages_that_are_lost(command: Command, tmp_path: Path) -> None:
    """Each page of a SQLite file, filled with other bytes: told in one line, with a way out that can be gone."""
    source = tmp_path / "chats.sqlite"
    fill("sqlite", str(source))
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    data = source.read_bytes()
    path = tmp_path / "bad.sqlite"
    for page in range(len(data) // size):
        path.write_bytes(data[: page * size] + b"\xa5" * size + data[(page + 1) * size :])
        before = path.read_bytes()
        ran = command("verify", "--json", "--root", str(path))
        assert ran.code == 1 and str(path) in ran.error, (page, ran)
        assert not page or (ran.rows and not all(row["ok"] for row in ran.rows))
        assert "branchline verify" not in ran.error and path.read_bytes() == before


def test_rows_that_are_lost_at_the_end(command: Command, kind: str, root: str) -> None:
    """A database knows how much there was: the newest entry, and one that a fork shares, are missed."""
    if kind not in ("sqlite", "postgres"):
        pytest.skip("a file that was cut at an entry's end is a shorter session")
    fill(kind, root, with_fork=True)
    assert command("verify", "--root", root).code == 0
    if kind == "sqlite":
        with closing(sqlite3.connect(root)) as connection:
            connection.execute("DELETE FROM entries WHERE place & 4294967295 = 4 AND place >> 32 = 1")
            connection.commit()
    else:
        import psycopg

        with psycopg.connect(root, autocommit=True) as connection:
            connection.execute(
                "DELETE FROM branchline_entries WHERE seq = 4 AND session IN (SELECT session FROM branchline_shares)"
            )
    ran = command("verify", "--json", "--root", root)
    assert ran.code == 1
    told = json.dumps(ran.rows)
    assert ("lost entries" in told and "which they share" in told) if kind == "postgres" else told.count("missing") > 1


def test_a_fork_that_nobody_knows_of(command: Command, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In PostgreSQL a parent's deletion leaves what its forks refer to, if that is written down."""
    import psycopg

    root = new_root("postgres", tmp_path, request)
    fill("postgres", root, with_fork=True)
    with psycopg.connect(root, autocommit=True) as connection:
        connection.execute("DELETE FROM branchline_shares")
    ran = command("verify", "--root", root)
    assert ran.code == 1 and "1 forks without their references" in ran.error


def test_what_is_left_over_in_a_database_without_sessions(command: Command, kind: str, root: str) -> None:
    """The whole is checked also where no session is left."""
    if kind not in ("sqlite", "postgres"):
        pytest.skip("for databases")
    fill(kind, root)
    assert command("delete", "talk", "--yes", "--root", root).code == 0
    if kind == "sqlite":
        with closing(sqlite3.connect(root)) as connection:
            connection.execute("INSERT INTO entries VALUES (?, ?)", (1000 << 32, b"{}"))
            connection.commit()
    else:
        import psycopg

        with psycopg.connect(root, autocommit=True) as connection:
            connection.execute("INSERT INTO branchline_entries VALUES (gen_random_uuid(), 0, '')")
    ran = command("verify", "--json", "--root", root)
    assert ran.code == 1 and "belong to no session" in ran.error and ran.rows[0]["ok"] is False


def test_a_session_that_is_deleted_meanwhile(
    command: Command, kind: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that somebody deletes after it was listed is gone, not damaged; the others are checked."""
    for name in ("talk", "stays"):
        fill(kind, root, name)
    listed = verify._all_places

    async def deleted_then(shelf: Shelf) -> list[Place]:
        places = await listed(shelf)
        await section_of(kind, root).repository.delete("talk")
        return places

    monkeypatch.setattr(verify, "_all_places", deleted_then)
    ran = command("verify", "--root", root)
    assert (ran.code, ran.err) == (0, "")
    assert "talk  was deleted meanwhile" in ran.out and "stays  ok" in ran.out


def test_somebody_elses_database(command: Command, tmp_path: Path) -> None:
    """It is named once, with the one way out that there is: nothing here repairs it."""
    root = tmp_path / "notes.sqlite"
    with closing(sqlite3.connect(root)) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
        connection.commit()
    for words in (["verify"], ["sessions"], ["tree", "last"]):
        ran = command(*words, "--root", str(root))
        assert ran.code == 1
        assert ran.error.count(str(root)) == 1
        assert "choose another file" in ran.error and "repair" not in ran.error
