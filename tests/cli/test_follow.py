"""``branchline follow``: what another process commits is shown as it comes, in every place, and nobody is disturbed."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.session import Session
from storage.messages import AssistantMessage, TextContent, ToolCall, UserMessage
from tests.cli.conftest import Command
from tests.cli.shelves import section_of


class Following:
    """A process that follows, and the lines that it writes."""

    def __init__(self, command: Command, *arguments: str) -> None:
        self.process = command.start("follow", *arguments, stdin=subprocess.DEVNULL)
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode())

    def line(self) -> str:
        """The next line."""
        return self._lines.get(timeout=60).rstrip("\n")

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it said."""
        assert self.process.stderr is not None
        said = self.process.stderr.read().decode()
        code = self.process.wait(60)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return code, said

    def interrupted(self) -> tuple[int, str]:
        """What becomes of it after Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()


@pytest.fixture
def started(command: Command) -> Iterator[list[Following]]:
    """Those that were started, which are ended after the test."""
    made: list[Following] = []
    yield made
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.ended()


def test_what_is_added_is_shown(command: Command, kind: str, root: str, started: list[Following]) -> None:
    """Each entry is there as soon as it is committed, in order, whole; Ctrl-C leaves with 130; the writer never notices."""

    async def write() -> None:
        repository = section_of(kind, root).repository
        async with Session.open(repository.create("live")) as session:
            await session.append_message(UserMessage(content="before"))
            both = Following(command, "live", "--after", "0", "--json", "--root", root)
            people = Following(command, "li", "--all", "--root", root)
            started.extend((both, people))
            assert "user " in await anyio.to_thread.run_sync(people.line)
            assert await anyio.to_thread.run_sync(people.line) == "  before"
            ids = [await session.append_message(UserMessage(content=f"message {number}")) for number in range(3)]
            call = ToolCall(id="c", name="read", arguments={"path": "a.txt"})
            said = AssistantMessage(content=[TextContent(text="I look\x1b[2J\nthere."), call], provider="p", model="m")
            ids.append(await session.append_message(said))
            lines = [json.loads(await anyio.to_thread.run_sync(both.line)) for _ in ids]
            assert [line["id"] for line in lines] == ids and [line["seq"] for line in lines] == [1, 2, 3, 4]
            assert lines[3]["message"]["content"][0]["text"] == "I look\x1b[2J\nthere."
            text = [await anyio.to_thread.run_sync(people.line) for _ in range(10)]
            assert [re.sub(r" [0-9a-f]{8}$", "", line) for line in text] == [
                "user", "  message 0", "user", "  message 1", "user", "  message 2",
                "assistant", "  I look\\x1b[2J", "  there.", '  -> read(path="a.txt")',
            ]  # fmt: skip
            await session.move_to(ids[0])
            assert await anyio.to_thread.run_sync(people.line) == f"(goes on from {ids[0][-8:]})"
            for following in (both, people):
                assert await anyio.to_thread.run_sync(following.interrupted) == (130, "")
            await session.append_message(UserMessage(content="and on"))

    anyio.run(write)
    assert command("verify", "--root", root).code == 0


def test_deleted_meanwhile(command: Command, kind: str, root: str, started: list[Following]) -> None:
    """A session that is deleted while it is followed: that is said, and it is a failure."""

    async def make() -> None:
        async with Session.open(section_of(kind, root).repository.create("gone")) as session:
            await session.append_message(UserMessage(content="hello"))

    anyio.run(make)
    following = Following(command, "gone", "--all", "--root", root)
    started.append(following)
    following.line()
    assert command("delete", "gone", "--yes", "--root", root).code == 0
    code, said = following.ended()
    assert code == 1 and "the session was deleted" in said and said.count("\n") == 1


def test_where_it_begins(command: Command, tmp_path: Path, started: list[Following]) -> None:
    """Behind an entry, a label or a place; without any, with what comes from now on."""
    root = str(tmp_path / "chats")

    async def write() -> None:
        async with Session.open(section_of("jsonl", root).repository.create("live")) as session:
            first = await session.append_message(UserMessage(content="one"))
            await session.append_label(first, "here")
            await session.append_message(UserMessage(content="two"))
            begun: dict[str, Any] = {
                "id": Following(command, "live", "--json", "--after", first[-8:], "--root", root),
                "label": Following(command, "live", "--json", "--after", "here", "--root", root),
                "place": Following(command, "live", "--json", "--after", "1", "--root", root),
                "path": Following(command, f"{root}/live.jsonl", "--json", "--after", "1"),
                "now": Following(command, "live", "--json", "--after", "2", "--root", root),
            }
            started.extend(begun.values())
            seen = {name: [await anyio.to_thread.run_sync(each.line)] for name, each in begun.items() if name != "now"}
            await session.append_message(UserMessage(content="three"))
            seen["now"] = [await anyio.to_thread.run_sync(begun["now"].line)]
            places = {name: [json.loads(line)["seq"] for line in lines] for name, lines in seen.items()}
            assert places == {"id": [1], "label": [1], "place": [2], "path": [2], "now": [3]}

    anyio.run(write)
    for arguments in (("--after", "99"), ("--after", "nothing"), ("--after", "0", "--all")):
        ran = command("follow", "live", *arguments, "--root", root)
        assert ran.code == 2 and ran.error


def test_a_reader_that_went_away(command: Command, tmp_path: Path, started: list[Following]) -> None:
    """``branchline follow | head -1`` ends when there is more to write, as other commands do."""
    root = str(tmp_path / "chats")

    async def write() -> int:
        async with Session.open(section_of("jsonl", root).repository.create("live")) as session:
            await session.append_message(UserMessage(content="one"))
            line = command.line("follow", "live", "--all", "--json", "--root", root)
            process = subprocess.Popen(
                line, cwd=command.folder, env=command.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            await anyio.to_thread.run_sync(process.stdout.readline)
            process.stdout.close()
            await session.append_message(UserMessage(content="two"))
            return await anyio.to_thread.run_sync(process.wait)

    assert anyio.run(write) == 141
