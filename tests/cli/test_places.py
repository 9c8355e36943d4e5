"""Every command does in every kind of place what it does in a folder of files."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from harness.session import Session
from harness.testing import ScriptedServer
from tests.cli.conftest import REPOSITORY, Command
from tests.cli.made_sessions import said, written
from tests.cli.shelves import new_root, section_of

PI = REPOSITORY / "tests" / "data" / "pi-files"


def talk(command: Command, kind: str, root: str) -> str:
    """A conversation of two questions, begun by ``chat`` (or, for entry files, for it to go on with); its id."""
    with ScriptedServer(["It is Branchline.", "Its authors."]) as server:
        model = ("--base-url", server.base_url, "--no-tools", "--root", root)
        if kind == "entry files":  # new sessions in a folder are files; so one is put there

            async def begin() -> None:
                async with Session.open(section_of(kind, root).repository.create("talk")):
                    pass

            anyio.run(begin)
            first = command("chat", "--session", "talk", "What is it called?", *model)
        else:
            first = command("chat", "What is it called?", *model)
        assert (first.code, first.out) == (0, "It is Branchline.\n"), first.err
        second = command("chat", "--session", "last", "Who wrote it?", *model)
        assert (second.code, second.out) == (0, "Its authors.\n"), second.err
    hint = re.search(r"go on with: branchline chat --session (\S+) --root (\S+)", second.err)
    assert hint is not None
    (session,) = command("sessions", "--json", "--root", root).rows
    assert session["id"].startswith(hint[1]) and session["firstMessage"] == "What is it called?"
    return session["id"]


def test_a_life_in_every_place(command: Command, kind: str, root: str) -> None:
    """Chat, look, branch, fork, label, name, export, verify, delete."""
    session = talk(command, kind, root)
    place = ("--root", root)
    for given in (session, session[:-1] if kind != "entry files" else "tal", "last"):
        assert "It is Branchline." in command("tree", given, *place).out
    rows = command("tree", session, "--json", *place).rows
    answer = next(row["id"] for row in rows if row["text"] == "It is Branchline.")
    assert "Who wrote it?" in command("context", session, *place).out
    assert "It is Branchline." in command("show", session, answer, *place).out
    assert json.loads(command("show", session, answer, "--raw", *place).out)["id"] == answer
    assert command("label", session, answer, "first", *place).code == 0
    assert command("name", session, "about names", *place).code == 0
    with ScriptedServer(["C'est Branchline."]) as server:
        branched = command(
            "chat", "-s", "last", "--at", "first", "In French?", "--base-url", server.base_url, "--no-tools", *place
        )
    assert branched.out == "C'est Branchline.\n"
    fork = command("fork", session, "first", *place)
    fork_id = fork.out.strip()
    assert fork.code == 0 and "It is Branchline." in command("export", fork_id, *place).out
    assert "C'est" not in command("export", fork_id, *place).out
    checked = [row for row in command("verify", "--json", *place).rows if "session" in row]
    unit = {"jsonl": "line", "entry files": "entry file"}.get(kind, "row")
    assert {row["session"]: (row["ok"], row["unit"]) for row in checked} == {
        session: (True, unit),
        fork_id: (True, unit),
    }
    listed = {row["id"]: row for row in command("sessions", "--deep", "--json", *place).rows}
    assert listed[fork_id]["parentSession"] == session and listed[session]["name"] == "about names"
    assert command("delete", session, "--yes", *place).code == 0
    assert [row["id"] for row in command("sessions", "--json", *place).rows] == [fork_id]
    assert command("verify", fork_id, *place).code == 0
    assert command("tree", session, *place).code == 2
    assert command.files() == {}  # nothing went to the default place


def test_a_turn_that_was_cut_off_is_mended(command: Command, kind: str, root: str) -> None:
    """``repair`` gives an open turn its end, in every place."""
    from storage.entries import TurnStartEntry
    from storage.messages import UserMessage

    async def cut_off() -> None:
        async with Session.open(section_of(kind, root).repository.create("cut")) as session:
            await session.append_entry(TurnStartEntry(turn=1))
            await session.append_message(UserMessage(content="hello?"))

    anyio.run(cut_off)
    ran = command("repair", "cut", "--yes", "--root", root)
    assert ran.code == 0 and "turn 1 was cut off" in ran.out, ran.err
    assert "nothing to repair" in command("repair", "cut", "--yes", "--root", root).out


def test_conversations_from_elsewhere(command: Command, kind: str, root: str) -> None:
    """pi's sessions and plain messages are imported into every place, and read there as they were."""
    source = written(command.folder / "talk.jsonl", [said("user", "Hi pi."), said("assistant", "Hi.")])
    messages = command.folder / "plain.jsonl"
    messages.write_text('{"role":"user","content":"plain"}\n')
    branched = PI / "coding-agent-0.74.2-branched.jsonl"
    ran = command("import", str(source), str(messages), str(branched), "--json", "--root", root)
    assert ran.code == 0, ran.err
    assert [row["imported"] for row in ran.rows] == [True, True, True] and ran.rows[0]["session"] == "talk"
    assert "Hi pi." in command("tree", "talk", "--root", root).out
    again = command("import", str(source), "--json", "--root", root).rows[0]
    assert (again["alreadyThere"], again["imported"]) == (True, False)
    with ScriptedServer(["It goes on."]) as server:
        on = command("chat", "-s", "talk", "And?", "--base-url", server.base_url, "--no-tools", "--root", root)
    assert on.out == "It goes on.\n"
    assert command("verify", "--root", root).code == 0
    elsewhere = command("export", ran.rows[2]["session"], "--format", "openai", "--root", root)
    (command.folder / "in").mkdir()
    assert command("import", str(branched), "--root", str(command.folder / "in")).code == 0
    here = command("export", "last", "--format", "openai", "--root", str(command.folder / "in"))
    assert json.loads(elsewhere.out) == json.loads(here.out)


def test_blobs_are_read_and_counted(command: Command, kind: str, root: str) -> None:
    """``verify`` reads what is kept beside the entries: what is missing is a problem, what nobody names is not."""
    from storage.messages import ToolResultMessage

    async def make() -> None:
        async with Session.open(section_of(kind, root).repository.create("kept")) as session:
            there, unnamed = await session.write_blob(b"x" * 1000), await session.write_blob(b"y" * 10)
            del unnamed
            for names in ([there], ["gone"]):
                message = ToolResultMessage(tool_call_id="c", tool_name="t", content="long", blobs=names)
                await session.append_message(message)

    anyio.run(make)
    ran = command("verify", "kept", "--json", "--root", root)
    (row,) = ran.rows
    assert ran.code == 1 and (row["blobs"], row["blobBytes"], row["missingBlobs"]) == (2, 1010, ["gone"])
    assert len(row["unnamedBlobs"]) == 1 and "gone is missing" in row["problems"][0]
    assert "read 2 large outputs of 1,010 bytes" in command("verify", "kept", "--root", root).out


def test_a_damaged_row(command: Command, tmp_path: Path) -> None:
    """Damage in a database is found with its line, and what can be read is saved, blobs too."""
    root = str(tmp_path / "chats.sqlite")
    talk(command, "sqlite", root)
    with closing(sqlite3.connect(root)) as connection:
        rows = connection.execute("SELECT place FROM entries ORDER BY place").fetchall()
        connection.execute("UPDATE entries SET data = CAST('{broken' AS BLOB) WHERE place = ?", rows[2])
        connection.commit()
    ran = command("verify", "--root", root)
    assert ran.code == 1 and "line 4" in ran.error and f"{root}#" in ran.error
    mended = command("repair", "last", "--yes", "--json", "--root", root)
    assert mended.code == 0 and mended.rows[0]["salvaged"] is not None
    assert command("verify", mended.rows[0]["salvaged"], "--root", root).code == 0


@pytest.mark.parametrize("where", ["argument", "environment"])
def test_a_password_is_not_shown(
    command: Command, request: pytest.FixtureRequest, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in answers, errors or hints, where the server answers and where it does not."""
    good = new_root("postgres", command.folder, request).replace("postgres@", "postgres:geheim@")
    bad = "postgresql://me:geheim@127.0.0.1:9/none?password=geheim&connect_timeout=1"
    for root in (good, bad):
        place = ("--root", root)
        if where == "environment":
            monkeypatch.setenv("BRANCHLINE_HOME", root)
            place = ()
        with ScriptedServer(["ok"]) as server:
            ran = command("chat", "hi", "--base-url", server.base_url, *place)
        others = [command(*line, *place) for line in (("sessions",), ("tree", "x"), ("verify", "--json"))]
        for each in (ran, *others):
            assert "geheim" not in each.out + each.err and "Traceback" not in each.err, each
        assert all(each.code == (0 if root == good else 1) for each in (ran, others[0]))


def test_where_there_is_no_driver(command: Command) -> None:
    """Without the extra, it says what to install."""
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from harness.cli import main; sys.exit(main(['sessions', '--root', 'postgresql://me:secret@host/x']))"
    )
    import subprocess

    ran = subprocess.run(
        [*command.line()[:1], "-c", code], env=command.environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2 and "branchline[postgres]" in ran.stderr and "secret" not in ran.stderr


def test_a_database_is_no_session(command: Command, tmp_path: Path) -> None:
    """The path of a database where a session is asked for says how to name one; a strange database is left alone."""
    root = str(tmp_path / "chats.sqlite")
    talk(command, "sqlite", root)
    ran = command("tree", root)
    assert ran.code == 2 and "--root" in ran.error
    for line in (("chat", "hi", "--file", "new.sqlite"), ("fork", "last", "--to", "new.db", "--root", root)):
        ran = command(*line)
        assert ran.code == 2 and "--root" in ran.error
    assert list(command.folder.iterdir()) == []
    strange = tmp_path / "strange.db"
    with closing(sqlite3.connect(strange)) as connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.commit()
    before = strange.read_bytes()
    with ScriptedServer(["ok"]) as server:
        for line in (("sessions",), ("chat", "hi", "--base-url", server.base_url), ("migrate", root, str(strange))):
            place = () if line[0] == "migrate" else ("--root", str(strange))
            ran = command(*line, *place)
            assert ran.code == 1 and "another program's database" in ran.error
    assert strange.read_bytes() == before


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_is_checked_as_a_whole(command: Command, kind: str, root: str) -> None:
    """What no session knows of is found by ``verify`` of all: rows that belong to nothing, and, in a file, bad pages."""
    session = talk(command, kind, root)
    fork = command("fork", session, "--root", root).out.strip()
    assert command("delete", session, "--yes", "--root", root).code == 0
    whole = command("verify", "--json", "--root", root)
    assert whole.code == 0 and whole.rows[0]["problems"] == [] and whole.rows[1]["session"] == fork
    if kind == "sqlite":
        with closing(sqlite3.connect(root)) as connection:
            connection.execute("INSERT INTO entries VALUES (?, ?)", (1000 << 32, b"{}"))
            connection.execute("INSERT INTO contents VALUES (?, ?)", (1000, b"lost"))
            connection.commit()
    else:
        import psycopg

        with psycopg.connect(root, autocommit=True) as connection:
            connection.execute("INSERT INTO branchline_entries VALUES (gen_random_uuid(), 0, '')")
            connection.execute("INSERT INTO branchline_blobs VALUES (gen_random_uuid(), 'x', '')")
    ran = command("verify", "--json", "--root", root)
    assert ran.code == 1 and root.split("?", maxsplit=1)[0] in ran.error and len(ran.rows[0]["problems"]) == 2, (
        ran.rows[0]
    )
    assert ran.rows[1]["ok"] is True
    assert command("verify", fork, "--root", root).code == 0
