"""The lock files beside a database: gone with their sessions' writers, and never two writers because of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from harness import MessageEntry, Session, SessionLockedError, SqliteStorage, UserMessage

pytestmark = pytest.mark.anyio

ROUNDS, PROCESSES = 25, 4

PROGRAM = """
    import os, sys
    import anyio
    from harness import Session, SqliteStorage, UserMessage

    async def main(path, name, rounds):
        for number in range(rounds):
            storage = SqliteStorage.open(path, session_id="s", durability="os", lock_timeout=60)
            async with Session.open(storage) as session:
                mark = os.open(path + ".mine", os.O_CREAT | os.O_EXCL)  # fails where two hold the lock
                await session.append_message(UserMessage(content=f"{name} {number}"))
                os.close(mark)
                os.unlink(path + ".mine")
            print(number, flush=True)
        if name == "killed":
            async with Session.open(SqliteStorage.open(path, session_id="s", lock_timeout=60)):
                print("held", flush=True)
                await anyio.sleep_forever()

    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def start(path: Path, name: str, rounds: int) -> subprocess.Popen[str]:
    """A process that opens, appends and closes so many times."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(path), name, str(rounds)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=path.parent
    )


def locks(path: Path) -> list[str]:
    """The lock files that are there."""
    return sorted(os.listdir(f"{path}.locks"))


async def test_a_lock_file_goes_with_its_writer(tmp_path: Path) -> None:
    """It is there while the session is open to write, and named for others; closed, forked or refused, none is left."""
    path = tmp_path / "chats.sqlite"
    async with Session.open(SqliteStorage.create(path, session_id="one")) as session:
        await session.append_message(UserMessage(content="Hello."))
        assert locks(path) == ["one.lock"]
        with pytest.raises(SessionLockedError, match=f"process {os.getpid()}"):
            await SqliteStorage.open(path, session_id="one")
        assert locks(path) == ["one.lock"]
        async with await session.fork(into=lambda **given: SqliteStorage.create(path, session_id="two", **given)):
            assert locks(path) == ["one.lock", "two.lock"]
        assert locks(path) == ["one.lock"]
    assert locks(path) == []
    async with Session.open(SqliteStorage.open_or_create(path, session_id="one")):
        assert locks(path) == ["one.lock"]
    async with Session.open(SqliteStorage.open(path, session_id="one", mode="read")):
        assert locks(path) == []
    assert locks(path) == []


async def test_a_folder_that_lets_nothing_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the file stays, the session closes all the same, and the next writer is not held up."""
    path = tmp_path / "chats.sqlite"
    session = await Session.open(SqliteStorage.create(path, session_id="one"))

    def refused(place: str) -> None:
        raise PermissionError(f"no deleting here: {place}")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refused)
        await session.aclose()
    assert locks(path) == ["one.lock"]
    async with Session.open(SqliteStorage.open(path, session_id="one")):
        pass
    assert locks(path) == []


async def test_processes_that_take_turns(tmp_path: Path) -> None:
    """Each removes the file that the others wait at: never two writers, nothing lost, nobody left out, no file left."""
    path = tmp_path / "chats.sqlite"
    async with Session.open(SqliteStorage.create(path, session_id="s")):
        pass

    def run() -> None:
        processes = [start(path, name, ROUNDS) for name in "abcd"[:PROCESSES]]
        for process in processes:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors

    await anyio.to_thread.run_sync(run)
    async with Session.open(SqliteStorage.open(path, session_id="s", mode="read")) as session:
        said = [entry.message.text for entry in await session.branch() if isinstance(entry, MessageEntry)]
    assert len(said) == ROUNDS * PROCESSES
    for name in "abcd"[:PROCESSES]:
        assert [text for text in said if text.startswith(name)] == [f"{name} {number}" for number in range(ROUNDS)]
    assert locks(path) == []


async def test_the_file_of_a_killed_writer_goes_with_the_next(tmp_path: Path) -> None:
    """It blocks nobody meanwhile."""
    path = tmp_path / "chats.sqlite"
    async with Session.open(SqliteStorage.create(path, session_id="s")):
        pass

    def run_and_kill() -> None:
        with start(path, "killed", 1) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(2)] == ["0\n", "held\n"]
            process.send_signal(signal.SIGKILL)

    await anyio.to_thread.run_sync(run_and_kill)
    assert locks(path) == ["s.lock"]
    async with Session.open(SqliteStorage.open(path, session_id="s")) as session:
        await session.append_message(UserMessage(content="on"))
    assert locks(path) == []
