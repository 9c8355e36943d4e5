"""The tools that come along, as an agent uses them: asked about, run, recorded, and ended with the turn."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from harness.agent import AgentHarness
from harness.approvals import ApprovalRequest, Decision
from harness.events import AgentEvent, ToolProgress
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import ScriptedModel, tool_call
from harness.testing.replies import Scripted
from harness.tools import Tool, workspace_tools
from storage.entries import MessageEntry, ToolStartEntry
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage
from storage.messages import ImageContent, ToolResultMessage
from tests.agent.agents import check_well_formed, history, results
from tests.agent.cancelling import run_cancelled
from tests.tools.processes import is_running, processes_in

pytestmark = pytest.mark.anyio

IMAGE = Path(__file__).parent.parent / "data" / "images" / "red.png"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def tools(folder: Path) -> list[Tool]:
    return workspace_tools(folder, write=True, bash=True)


async def yes(request: ApprovalRequest) -> Decision:
    return Decision.approve()


async def test_a_small_task_from_end_to_end(session: Session, folder: Path) -> None:
    """Write, edit, run and read: each is asked about with what it would do, done, shown to the model and recorded."""
    asked: list[tuple[str, str | None]] = []

    async def approve(request: ApprovalRequest) -> Decision:
        asked.append((request.tool.name, request.preview))
        return Decision.approve()

    model = ScriptedModel(
        [
            tool_call("write", "w", path="src/hello.sh", content="echo hello\n"),
            tool_call("edit", "e", path="src/hello.sh", edits=[{"old": "hello", "new": "goodbye"}]),
            [tool_call("bash", "b", command="sh src/hello.sh"), tool_call("read", "r", path="src/hello.sh")],
            "Done.",
        ]
    )
    async with AgentHarness(session, model, tools=tools(folder), approve=approve) as harness:
        assert (await harness.prompt("Go")).text == "Done."
    diff = "--- src/hello.sh\n+++ src/hello.sh\n@@ -1 +1 @@\n-echo hello\n+echo goodbye"
    assert asked == [
        ("write", "--- src/hello.sh\n+++ src/hello.sh\n@@ -0,0 +1 @@\n+echo hello"),
        ("edit", diff),
        ("bash", f"sh src/hello.sh\n(in {folder}, for 120.0 seconds at most)"),
    ]
    found = await results(session)
    assert {name: (result.text, result.is_error) for name, result in found.items()} == {
        "w": ("src/hello.sh: created, 1 line, 11 bytes", False),
        "e": (f"src/hello.sh: one edit made\n{diff}", False),
        "b": ("goodbye", False),
        "r": ("echo goodbye", False),
    }
    assert found["b"].details["exitCode"] == 0
    assert found["e"].details["diff"] == diff
    check_well_formed(await session.entries())
    shown = [message.text for message in model.requests[-1].messages if isinstance(message, ToolResultMessage)]
    assert shown == [found[name].text for name in ("w", "e", "b", "r")]


CALLS = [
    tool_call("write", "w", path="new.txt", content="x"),
    tool_call("edit", "e", path="file.txt", edits=[{"old": "one", "new": "two"}]),
    tool_call("bash", "b", command="touch made"),
]


@pytest.mark.parametrize("way", ["nobody", "denied"])
async def test_nothing_happens_without_approval(session: Session, folder: Path, way: str) -> None:
    """Denied, or with nobody to ask: nothing is begun, the model is told, and the turn goes on."""

    async def no(request: ApprovalRequest) -> Decision:
        return Decision.deny("not today")

    (folder / "file.txt").write_text("one")
    model = ScriptedModel([CALLS, "As you like."])
    approve = no if way == "denied" else None
    async with AgentHarness(session, model, tools=tools(folder), approve=approve) as harness:
        assert (await harness.prompt("Go")).text == "As you like."
    found = await results(session)
    assert all(found[name].is_error for name in ("w", "e", "b"))
    assert way == "nobody" or all("not today" in result.text for result in found.values())
    assert not any(isinstance(entry, ToolStartEntry) for entry in await session.entries())
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"file.txt": "one"}
    check_well_formed(await session.entries())


async def test_a_picture_is_shown_to_the_model(session: Session, folder: Path) -> None:
    """Read needs no approval; the image is recorded as it is, and sent with the next request."""
    (folder / "red.png").write_bytes(IMAGE.read_bytes())
    model = ScriptedModel([tool_call("read", "r", path="red.png"), "It is red."])
    async with AgentHarness(session, model, tools=tools(folder)) as harness:
        await harness.prompt("Look")
    shown = model.requests[-1].messages[-1]
    assert isinstance(shown, ToolResultMessage)
    assert isinstance(shown.content, list)
    assert shown.text == "red.png: image/png, 5 x 3 pixels, 77 bytes"
    data = base64.b64encode(IMAGE.read_bytes()).decode()
    assert shown.content[1] == ImageContent(data=data, mime_type="image/png")


async def test_long_output_is_read_from_its_blob(session: Session, folder: Path) -> None:
    """The result names the blob, the record too, and read gives any part of it; also after opening the session anew."""

    def second(request: ModelRequest) -> Scripted:
        text = request.messages[-1].text
        name = text.partition("read blob:")[2].partition(" ")[0]
        return tool_call("read", "r", path=f"blob:{name}", offset=15_000, limit=2)

    model = ScriptedModel([tool_call("bash", "b", command="seq 20000"), second, "Done."])
    async with AgentHarness(session, model, tools=tools(folder), approve=yes) as harness:
        await harness.prompt("Go")
    found = await results(session)
    (name,) = found["b"].blobs or []
    assert found["b"].details["blob"] == name
    assert found["r"].text == "15000\n15001\n[lines 15000 to 15001; more follow, go on with offset=15002]"
    assert await session.read_blob(name) == "".join(f"{number}\n" for number in range(1, 20_001)).encode()


async def test_edits_of_one_reply_are_all_made(session: Session, folder: Path) -> None:
    """Ten edits of one file, called side by side, are made one after the other: none overwrites another."""
    (folder / "file.txt").write_text("".join(f"<{number}>\n" for number in range(10)))
    calls = [
        tool_call("edit", f"e{number}", path="file.txt", edits=[{"old": f"<{number}>", "new": f"{number}"}])
        for number in range(10)
    ]
    model = ScriptedModel([calls, "Done."])
    unasked = [replace(tool, needs_approval=False) for tool in tools(folder)]
    async with AgentHarness(session, model, tools=unasked) as harness:
        await harness.prompt("Go")
    found = await results(session)
    assert not any(result.is_error for result in found.values())
    assert (folder / "file.txt").read_text() == "".join(f"{number}\n" for number in range(10))


async def test_calls_of_one_reply_see_what_was_before_them(session: Session, folder: Path) -> None:
    """A command in the reply that edits what it reads runs after the edit, however long it would take."""
    calls = [
        tool_call("bash", "a", command="sleep 0.1; echo one > file.txt"),
        tool_call("edit", "b", path="file.txt", edits=[{"old": "one", "new": "two"}]),
        tool_call("bash", "c", command="cat file.txt"),
    ]
    unasked = [replace(tool, needs_approval=False) for tool in tools(folder)]
    async with AgentHarness(session, ScriptedModel([calls, "Done."]), tools=unasked) as harness:
        await harness.prompt("Go")
    assert (await results(session))["c"].text == "two"


async def test_progress_reaches_who_watches(session: Session, folder: Path) -> None:
    """Lines of a running command are events of the turn."""
    model = ScriptedModel([tool_call("bash", "b", command="echo one; until [ -e go ]; do sleep 0.01; done"), "Done."])
    events: list[AgentEvent] = []
    async with AgentHarness(session, model, tools=tools(folder), approve=yes) as harness:
        async with harness.stream("Go") as stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, ToolProgress):
                    (folder / "go").touch()
    assert [event.message for event in events if isinstance(event, ToolProgress)] == ["one"]


async def test_a_limit_for_tools_leaves_the_output(folder: Path) -> None:
    """A harness's own limit ends a command a moment before, so that what it said is in the result."""
    text = ""
    for limit in (2.5, 10, 40):  # until a shell has time enough to begin
        model = ScriptedModel([tool_call("bash", "b", command="echo said; sleep 300"), "Done."])
        settings = AgentSettings(tool_timeout=limit)
        async with Session.open(MemoryStorage.create()) as session:
            async with AgentHarness(session, model, tools=tools(folder), approve=yes, settings=settings) as harness:
                await harness.prompt("Go")
            result = (await results(session))["b"]
        assert result.is_error
        text = result.text
        if "said" in text:
            break
    assert text.startswith("said\n[killed after ")


COMMAND = """
echo $$ >> pids
(sleep 300 & echo $! >> pids; wait) &
timeout 300 sleep 300 & echo $! >> pids
wait
"""


@pytest.mark.parametrize("way", ["scope", "native", "abort"])
async def test_a_cancelled_turn_leaves_no_process(session: Session, folder: Path, way: str, anyio_backend: Any) -> None:
    """When the turn is over, its command's children and grandchildren are gone, and the history is whole."""
    if way == "native" and anyio_backend[0] == "trio":
        pytest.skip("trio has no other cancellation than that of scopes")
    model = ScriptedModel([tool_call("bash", "b", command=COMMAND), "Again."])
    running: list[bool] = []

    async with AgentHarness(session, model, tools=tools(folder), approve=yes) as harness:

        async def work(cancel: Callable[[], object]) -> None:
            async def watch() -> None:
                await anyio.to_thread.run_sync(processes_in, folder / "pids", 3)
                if way == "abort":
                    await harness.abort()
                else:
                    cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(watch)
                try:
                    await harness.prompt("Go")
                finally:
                    running.extend(is_running(process) for process in processes_in(folder / "pids", 3))

        ended = await run_cancelled("scope" if way == "abort" else way, work)
        assert way == "abort" or ended == "cancelled"
        assert running == [False] * 3
        entries = await session.entries()
        check_well_formed(entries)
        said = await history(session)
        assert said[-1] == "turn_end 1 cancelled"
        assert said[-2].startswith("error b: ")
        assert (await harness.prompt("Go on")).text == "Again."


async def test_another_process_reads_the_blob(tmp_path: Path, folder: Path) -> None:
    """What a command said is there after the session was closed and opened again."""
    place = tmp_path / "chat.jsonl"
    model = ScriptedModel([tool_call("bash", "b", command="seq 20000"), "Done."])
    async with Session.open(JsonlStorage.create(place)) as session:
        async with AgentHarness(session, model, tools=tools(folder), approve=yes) as harness:
            await harness.prompt("Go")
        (name,) = (await results(session))["b"].blobs or []
    async with Session.open(JsonlStorage.open(place)) as session:
        model = ScriptedModel([tool_call("read", "r", path=f"blob:{name}", offset=20_000), "Done."])
        async with AgentHarness(session, model, tools=tools(folder)) as harness:
            await harness.prompt("Read")
        newest = [entry.message for entry in await session.branch() if isinstance(entry, MessageEntry)]
        assert newest[-2].text == "20000"


async def test_cancelled_in_the_middle_of_writing(session: Session, folder: Path) -> None:
    """Whatever the moment: the file is an old one or the new one, and no other is left."""
    (folder / "file.txt").write_text("old")
    for step in range(12):
        model = ScriptedModel([tool_call("write", "w", path="file.txt", content=f"new {step}"), "Done."])
        async with AgentHarness(session, model, tools=tools(folder), approve=yes) as harness:
            with anyio.move_on_after(step / 1_000):
                await harness.prompt("Go")
        assert (folder / "file.txt").read_text() in {"old", *(f"new {earlier}" for earlier in range(step + 1))}
        with anyio.fail_after(60):
            while os.listdir(folder) != ["file.txt"]:
                await anyio.sleep(0.001)
    check_well_formed(await session.entries())
