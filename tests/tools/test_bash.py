"""The tool ``bash``: real commands, their output, and the end of all their processes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from harness.tools import Tool, ToolContext, ToolOutput, bash_tool, command_output, shell, workspace_tools
from harness.tools.bash import without_model_keys
from harness.tools.process_session import kill_session
from harness.tools.shell import shell_arguments
from storage.errors import ToolError
from tests.agent.cancelling import StoppedAtStep, run_cancelled
from tests.tools.processes import is_running, processes_in

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there is none on Windows")]

SLEEPERS = """
echo $$ >> pids
sleep 300 & echo $! >> pids
(sleep 300 & echo $! >> pids; wait) &
timeout 300 sleep 300 & echo $! >> pids
set -m; sleep 300 & echo $! >> pids
"""
"""A shell, a child, a grandchild, and two that have process groups of their own."""


async def call(tool: Tool, command: str, context: ToolContext | None = None, **more: Any) -> ToolOutput:
    """What the tool answers."""
    output = await tool.execute(tool.prepare({"command": command} | more), context or ToolContext())
    assert isinstance(output, ToolOutput)
    return output


def facts(output: ToolOutput) -> dict[str, Any]:
    """The details but for the time."""
    return {name: value for name, value in output.details.items() if name != "seconds"}


@pytest.fixture
def bash(tmp_path: Path) -> Tool:
    return bash_tool(tmp_path)


def test_it_asks_and_stands_alone(tmp_path: Path) -> None:
    """It needs approval unless told otherwise; the command is what a person is shown."""
    tool = bash_tool(tmp_path)
    assert (tool.name, tool.needs_approval, tool.parallel) == ("bash", True, False)
    assert bash_tool(tmp_path, needs_approval=False).needs_approval is False
    assert tool.preview is not None
    assert tool.preview({"command": "rm -rf build"}) == f"rm -rf build\n(in {tmp_path}, for 120.0 seconds at most)"
    assert tool.preview({"command": "x", "timeout": "5"}) == f"x\n(in {tmp_path}, for 5 seconds at most)"
    assert all(parameter["description"] for parameter in tool.parameters["properties"].values())


def test_which_tools_there_are(tmp_path: Path) -> None:
    """Reading is the default; what changes something is asked for by name."""
    names = {
        (write, bash): [tool.name for tool in workspace_tools(tmp_path, write=write, bash=bash)]
        for write in (False, True)
        for bash in (False, True)
    }
    assert names == {
        (False, False): ["read", "list", "search"],
        (False, True): ["read", "list", "search", "bash"],
        (True, False): ["read", "list", "search", "write", "edit"],
        (True, True): ["read", "list", "search", "write", "edit", "bash"],
    }
    asking = [tool.name for tool in workspace_tools(tmp_path, write=True, bash=True) if tool.needs_approval]
    assert asking == ["write", "edit", "bash"]


async def test_output_and_error_in_order(bash: Tool, tmp_path: Path) -> None:
    """Both together as they were written, in the working directory, without input and without a terminal."""
    output = await call(bash, "echo one; echo two >&2; echo three; pwd; cat; tty")
    assert output.content == f"one\ntwo\nthree\n{tmp_path}\nnot a tty\n[exit code 1]"
    assert facts(output) == {"endedBy": "exit", "bytes": 24 + len(str(tmp_path)) + 1, "lines": 5, "exitCode": 1}


@pytest.mark.parametrize(
    ("command", "content", "is_error", "more"),
    [
        ("true", "(no output)", False, {"exitCode": 0}),
        ("exit 3", "[exit code 3]", True, {"exitCode": 3}),
        ("echo x; kill -SEGV $$", "x\n[ended by signal SIGSEGV]", True, {"signal": "SIGSEGV"}),
        ("no-such-program", None, True, {"exitCode": 127}),
        ("printf 'no newline'", "no newline", False, {"exitCode": 0}),
        ("printf 'a\\0b\\377\\303\\251'", "a\ufffdb\ufffdé", False, {"exitCode": 0}),
        ("printf '\\n\\nx\\n\\n'", "\n\nx\n", False, {"exitCode": 0}),
        ("exec >/dev/null 2>&1; sleep 0.1; exit 4", "[exit code 4]", True, {"exitCode": 4}),
    ],
)
async def test_how_a_command_ends(
    bash: Tool, command: str, content: str | None, is_error: bool, more: dict[str, Any]
) -> None:
    """Exit codes and signals are in the text and in the details; anything but 0 is an error."""
    output = await call(bash, command)
    assert content is None or output.content == content
    assert output.is_error == is_error
    assert facts(output).items() >= {"endedBy": "exit", **more}.items()


@pytest.mark.parametrize(
    ("command", "says"), [("a\0b", "NUL"), ("x" * 200_000, "could not be run to its end: Argument list")]
)
async def test_what_cannot_be_a_command(bash: Tool, command: str, says: str) -> None:
    """The system's words, and no process."""
    with pytest.raises(ToolError, match=says):
        await call(bash, command)


async def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    """Removed after the tool was made."""
    (tmp_path / "root").mkdir()
    tool = bash_tool(tmp_path / "root")
    (tmp_path / "root").rmdir()
    with pytest.raises(ToolError, match="could not be run to its end: No such file or directory"):
        await call(tool, "true")


async def test_model_keys_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands see the environment, but for the keys of models; a given environment is all they see."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "openrouter_api_key", "HF_TOKEN"):
        monkeypatch.setenv(name, "very-secret")
    monkeypatch.setenv("PLAIN", "kept")
    output = await call(bash_tool(tmp_path), "env")
    assert "very-secret" not in output.content
    assert "PLAIN=kept" in output.content
    output = await call(bash_tool(tmp_path, environment={"ONLY": "this"}), "echo $ONLY $PLAIN $HOME")
    assert output.content == "this"
    kept = {"HOME": "/", "SSH_AUTH_SOCK": "x", "KEYS": "x", "API_KEYBOARD": "x", "GITHUB_TOKEN": "x", "MY_TOKEN": "x"}
    removed = (
        "AZURE_OPENAI_API_KEY",
        "OPENAI_API_KEY_2",
        "GROQ_APIKEY",
        "REPLICATE_API_TOKEN",
        "AWS_BEARER_TOKEN_BEDROCK",
    )
    assert without_model_keys(kept | dict.fromkeys(removed, "x")) == kept


async def test_progress_is_whole_lines(bash: Tool) -> None:
    """Lines come as they are written, characters never in halves; of a flood only the last ones."""
    reports: list[str] = []
    context = ToolContext(report=reports.append)
    await call(bash, r"printf 'a\303'; sleep 0.1; printf '\251\nrest'; sleep 0.3; echo ' of it'; printf end", context)
    assert "\n".join(reports) == "aé\nrest of it"
    reports.clear()
    await call(bash, "seq 100000; printf 'no line'", context)
    assert reports[-1].endswith("\n99999\n100000")
    assert all(report.count("\n") < 20 for report in reports)
    reports.clear()
    await call(bash, r"head -c 3000 /dev/zero | tr '\0' x; echo", context)
    assert "\n".join(reports) == "x" * 500


async def test_progress_comes_while_it_runs(bash: Tool, tmp_path: Path) -> None:
    """A line is told before the command goes on to its end."""
    context = ToolContext(report=lambda line: (tmp_path / line).touch())
    output = await call(bash, "echo go; until [ -e go ]; do sleep 0.01; done; echo went", context, timeout=60)
    assert output.content == "go\nwent"


async def test_long_output_is_shown_in_part_and_kept(bash: Tool) -> None:
    """Its first and last lines, what is missing between them, and the name under which all of it can be read."""
    kept: list[bytes] = []

    async def keep(data: bytes) -> str:
        kept.append(data)
        return "name"

    output = await call(bash, "seq 20000; exit 2", ToolContext(write_blob=keep))
    assert kept == ["".join(f"{number}\n" for number in range(1, 20_001)).encode()]
    lines = output.content.split("\n")
    assert lines[:2] == ["1", "2"]
    assert lines[-3:] == [
        "20000",
        "[all 20,000 lines are kept: read blob:name with an offset and a limit]",
        "[exit code 2]",
    ]
    (note,) = [number for number, line in enumerate(lines) if "left out here" in line]
    first, last = int(lines[note - 1]) + 1, int(lines[note + 1]) - 1
    missing = len("".join(f"{number}\n" for number in range(first, last + 1)))
    assert lines[note] == f"[… {missing:,} of 108,894 bytes left out here: lines {first:,} to {last:,} of 20,000 …]"
    assert len(output.content) < 30_500
    assert output.blobs == ["name"]
    assert facts(output) == {"endedBy": "exit", "bytes": 108_894, "lines": 20_000, "exitCode": 2, "blob": "name"}


async def test_long_output_where_nothing_can_be_kept(bash: Tool) -> None:
    """The text says so, and why; a single long line is cut inside."""
    output = await call(bash, r"head -c 100000 /dev/zero | tr '\0' x")
    head, note, tail, why = output.content.split("\n")
    assert (head, tail) == ("x" * 10_000, "x" * 20_000)
    assert note == "[… 70,000 of 100,000 bytes left out here: line 1 of 1 …]"
    assert why.startswith("[the rest was not kept: the storage of this session keeps no blobs")
    assert not output.blobs
    assert not output.is_error


async def test_output_without_end_is_stopped(bash: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit the command is killed; what it wrote until then is there."""
    monkeypatch.setattr(command_output, "MAX_OUTPUT_BYTES", 3_000_000)
    output = await call(bash, "yes 0123456789")
    assert output.is_error
    assert "[killed, since it wrote more than" in output.content
    assert facts(output).items() >= {"endedBy": "output limit", "bytes": 3_000_000}.items()


async def test_output_is_on_disk_and_not_in_memory(bash: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What does not fit into a megabyte of memory is in a file; where there is no room for it, the command ends."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert (await call(bash, "echo small")).content == "small"
    with pytest.raises(ToolError, match="could not be run to its end: No such file"):
        await call(bash, f"echo $$ >> {tmp_path}/pids; yes")
    assert not is_running(processes_in(tmp_path / "pids", 1)[0])


@pytest.mark.parametrize("redirect", ["", ">/dev/null 2>&1"])
async def test_what_stays_in_the_background_is_killed(bash: Tool, tmp_path: Path, redirect: str) -> None:
    """It neither keeps the call waiting, holding the pipe open, nor outlives it; the text says how many there were."""
    output = await call(bash, f"for i in 1 2; do sleep 300 {redirect} & echo $! >> pids; done; echo begun")
    assert output.content == "begun\n[2 processes left running in the background, killed]"
    assert facts(output).items() >= {"exitCode": 0, "leftBehind": 2}.items()
    assert not output.is_error
    assert not any(is_running(process) for process in processes_in(tmp_path / "pids", 2))


async def test_what_a_background_process_says_shortly_after(bash: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest that comes within a moment is still there, and what then ends by itself was not left behind."""
    monkeypatch.setattr(shell, "_REST_SECONDS", 60)  # a moment on a machine of any speed
    monkeypatch.setattr(shell, "_LEAVE_SECONDS", 60)
    output = await call(bash, "(sleep 0.02; echo rest; exec >/dev/null 2>&1; sleep 0.01) & echo first")
    assert output.content == "first\nrest"


async def test_a_session_of_its_own_is_out_of_reach(bash: Tool, tmp_path: Path) -> None:
    """As documented: setsid leaves, and writing on for ever does not keep the call."""
    output = await call(
        bash, "setsid sh -c 'echo $$ >> pids; while sleep 0.001; do echo y; done' & until [ -e pids ]; do :; done"
    )
    (left,) = processes_in(tmp_path / "pids", 1)
    assert output.details["exitCode"] == 0
    os.kill(left, signal.SIGKILL) if is_running(left) else None


async def test_at_its_limit_everything_is_killed(bash: Tool, tmp_path: Path) -> None:
    """The whole session: children, grandchildren, those with groups of their own; and what was said until then stays."""
    for limit in (1, 5, 25):  # until there is time enough for all of them to begin
        (tmp_path / "pids").unlink(missing_ok=True)
        output = await call(bash, f"echo said; {SLEEPERS} wait", timeout=limit)
        if (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().count("\n") == 5:
            break
    assert output.is_error
    assert output.content.startswith(f"said\n[killed after {limit}")
    assert facts(output) == {"endedBy": "timeout", "bytes": 5, "lines": 1}
    assert not any(is_running(process) for process in processes_in(tmp_path / "pids", 5))


async def test_the_calls_own_deadline_comes_first(bash: Tool) -> None:
    """A harness's limit for tools below the command's: it ends in time to tell its output."""
    content = ""
    for seconds in (2.5, 10, 40):  # until a shell has time enough to begin
        context = ToolContext(deadline=anyio.current_time() + seconds)
        with anyio.move_on_at(context.deadline or 0):
            content = (await call(bash, "echo said; sleep 300", context)).content
        if "said" in content:
            break
    assert content.startswith("said\n[killed after ")


@pytest.mark.parametrize("timeout", [0, -1, 4_000, float("nan"), "soon"])
def test_impossible_limits_are_refused(bash: Tool, timeout: Any) -> None:
    """In the validator's words."""
    with pytest.raises(ToolError, match="timeout"):
        bash.prepare({"command": "true", "timeout": timeout})


@asynccontextmanager
async def on_pids(file: Path, count: int, cancel: Callable[[], object]) -> AsyncGenerator[None]:
    """Calls ``cancel`` as soon as all the processes run."""

    async def watch() -> None:
        await anyio.to_thread.run_sync(processes_in, file, count)
        cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        yield


@pytest.mark.parametrize("way", ["scope", "native"])
async def test_cancelled_everything_is_killed(bash: Tool, tmp_path: Path, way: str, anyio_backend: Any) -> None:
    """When the cancellation comes out of the call, no process of it runs any more."""
    if way == "native" and anyio_backend[0] == "trio":
        pytest.skip("trio has no other cancellation than that of scopes")
    running: list[bool] = []

    async def work(cancel: Callable[[], object]) -> None:
        async with on_pids(tmp_path / "pids", 5, cancel):
            try:
                await call(bash, f"{SLEEPERS} wait")
            finally:
                running.extend(is_running(process) for process in processes_in(tmp_path / "pids", 5))

    assert await run_cancelled(way, work) == "cancelled"
    assert running == [False] * 5


@pytest.mark.parametrize("way", ["scope", "native"])
async def test_cancelled_at_each_of_its_steps(tmp_path: Path, way: str, anyio_backend: Any) -> None:
    """Wherever it waits, for a thread or for the command or for the blob: nothing runs when it is over."""
    if way == "native" and anyio_backend[0] == "trio":
        pytest.skip("trio has no other cancellation than that of scopes")

    async def keep(data: bytes) -> str:
        await anyio.lowlevel.checkpoint()
        return "name"

    ended: list[str] = []
    tool = bash_tool(tmp_path)
    while "finished" not in ended:

        async def work(cancel: Callable[[], object]) -> None:
            one = call(tool, "echo $$ >> pids; seq 10000", ToolContext(write_blob=keep))
            await StoppedAtStep(one, len(ended) + 1, cancel)

        ended.append(await run_cancelled(way, work))
        if (tmp_path / "pids").exists():
            assert not any(is_running(int(word)) for word in (tmp_path / "pids").read_text().split())
    assert set(ended) == {"cancelled", "finished"}
    assert len(ended) > 3


async def test_cancelled_before_it_began(tmp_path: Path) -> None:
    """At once, and in the first moments: either it never runs, or what ran is gone."""
    for delay in (0, 0.001, 0.002, 0.004, 0.008):
        with anyio.CancelScope() as scope:
            scope.deadline = anyio.current_time() + delay
            await call(bash_tool(tmp_path), "echo $$ >> pids; sleep 300")
        assert scope.cancelled_caught
        await anyio.sleep(0.02)
        if (tmp_path / "pids").exists():
            assert not any(is_running(int(word)) for word in (tmp_path / "pids").read_text().split())


@pytest.mark.parametrize("command", ["true", "sleep 300 & sleep 300", "exit 1", "seq 50000", "x\0"])
async def test_nothing_is_left_open(tmp_path: Path, command: str) -> None:
    """No descriptor and no zombie remains, however it ended."""
    tool = bash_tool(tmp_path)
    await call(tool, "true")
    gc.collect()  # what other tests left is not closed in between
    before, ended_before = len(os.listdir("/dev/fd")), ended_children()
    for _ in range(3):
        with anyio.move_on_after(0.1):
            try:
                await call(tool, command)
            except ToolError:
                continue
    assert len(os.listdir("/dev/fd")) == before
    assert ended_children() <= ended_before


def ended_children() -> set[str]:
    """The process ids of our children that have ended and that nobody waited for, as Linux tells them."""
    found: set[str] = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # gone meanwhile
        if state == "Z" and int(parent) == os.getpid():
            found.add(stat.parent.name)
    return found


async def test_many_at_once(tmp_path: Path) -> None:
    """Commands side by side (of several sessions) do not get in each other's way."""
    said: list[str] = []

    async def one(number: int) -> None:
        said.append((await call(bash_tool(tmp_path), f"sleep 0.05; echo {number}")).content)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)
    assert sorted(said, key=int) == [str(number) for number in range(20)]


def test_sh_stands_in_for_bash() -> None:
    """Where there is no bash."""
    assert shell_arguments("x", lambda _: False) == ["/bin/sh", "-c", "x"]
    assert shell_arguments("x", lambda path: path == "/usr/bin/bash") == ["/usr/bin/bash", "-c", "x"]


def test_forks_without_end_are_caught(tmp_path: Path) -> None:
    """Processes that start others as fast as they are killed lose the race."""
    import subprocess

    program = "i=0; while :; do sleep 300 & echo $! >> pids; [ $((i=i+1)) -gt 400 ] && wait; done"
    shell = subprocess.Popen(["/bin/sh", "-c", program], cwd=tmp_path, start_new_session=True)
    processes_in(tmp_path / "pids", 50)
    killed = kill_session(shell.pid)
    shell.wait()
    assert len(killed) > 50
    assert not any(is_running(process) for process in processes_in(tmp_path / "pids", 50))
