"""The command in a real terminal: the prompt loop, Ctrl-C, pasted text, and drawing within the width."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import uuid

import pytest

from harness.testing import ScriptedServer, tool_call
from tests.cli.answers import lasting
from tests.cli.conftest import Command
from tests.cli.terminal import CTRL_C, CTRL_D, PASTE_BEGINS, PASTE_ENDS, Terminal


def test_a_conversation_at_the_prompt(command: Command, terminals: list[Terminal]) -> None:
    """Prompts are asked for one by one in one session; Ctrl-D leaves, with the way back."""
    with ScriptedServer(["First answer.", "Second answer."]) as server:
        terminal = Terminal(command, "chat", "--base-url", server.base_url, "--model", "m")
        terminals.append(terminal)
        terminal.expect("\n>")
        assert f"{server.base_url.split('/')[2]}/m" in terminal.text
        terminal.type(b"one\r")
        terminal.expect("First answer.")
        terminal.expect("\n>")
        terminal.type(b"two\r")
        terminal.expect("Second answer.")
        terminal.expect("\n>")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert "go on with: branchline chat --session" in terminal.text
    assert [message["content"] for message in server.requests[1].messages[1:]] == ["one", "First answer.", "two"]
    assert len(list(command.root.glob("*.jsonl"))) == 1


def test_ctrl_c_stops_the_answer_and_then_leaves(command: Command, terminals: list[Terminal]) -> None:
    """Ctrl-C in an answer cancels that turn and asks for the next prompt; in an empty line it leaves with 130."""
    with ScriptedServer([lasting("Hello, this will take long"), "Fine."]) as server:
        terminal = Terminal(command, "chat", "--base-url", server.base_url)
        terminals.append(terminal)
        terminal.expect("\n>")
        terminal.type(b"one\r")
        terminal.expect("Hello")
        terminal.type(CTRL_C)
        terminal.expect("recorded as cancelled")
        terminal.expect("\n>")
        assert server.wait_for_hang_up(timeout=60)
        terminal.type(b"typed, not sent" + CTRL_C)
        terminal.type(b"two\r")
        terminal.expect("Fine.")
        terminal.expect("\n>")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.text
    assert server.requests[1].messages[-1]["content"] == "two"
    tree = command("tree").out
    assert "turn 1 cancelled" in tree and "Fine." in tree


def test_leaving_at_once_leaves_nothing(command: Command, terminals: list[Terminal]) -> None:
    """A loop in which nothing was asked makes no session."""
    terminal = Terminal(command, "chat", "--base-url", "http://127.0.0.1:9")
    terminals.append(terminal)
    terminal.expect("\n>")
    terminal.type(b"  \r")
    terminal.expect("\n>")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    assert command.files() == {} and "go on with" not in terminal.text


def test_a_pasted_text_is_one_prompt(command: Command, terminals: list[Terminal]) -> None:
    """Many lines that are pasted are sent together, when Enter is pressed."""
    with ScriptedServer(["Read."]) as server:
        terminal = Terminal(command, "chat", "--base-url", server.base_url)
        terminals.append(terminal)
        terminal.expect("\n>")
        terminal.type(PASTE_BEGINS + b"line 1\rline 2\r" + PASTE_ENDS)
        terminal.type(b"and this\r")
        terminal.expect("Read.")
    assert server.requests[0].messages[-1]["content"] == "line 1\nline 2\nand this"


def test_a_failure_at_the_prompt_is_not_the_end(command: Command, terminals: list[Terminal]) -> None:
    """A model that fails is told, and the next prompt works."""
    with ScriptedServer([ValueError("out of order"), "Better."]) as server:
        terminal = Terminal(command, "chat", "--base-url", server.base_url)
        terminals.append(terminal)
        terminal.expect("\n>")
        terminal.type(b"one\r")
        terminal.expect("out of order")
        terminal.expect("\n>")
        terminal.type(b"two\r")
        terminal.expect("Better.")


def test_ctrl_c_in_one_shot_ends_it(command: Command, terminals: list[Terminal]) -> None:
    """With the prompt as an argument Ctrl-C cancels and leaves with 130."""
    with ScriptedServer([lasting("Hello, this will take long")]) as server:
        terminal = Terminal(command, "chat", "hi", "--base-url", server.base_url)
        terminals.append(terminal)
        terminal.expect("Hello")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
    assert "Traceback" not in terminal.text and "cancelled" in command("tree").out


def test_a_window_that_is_closed(command: Command, terminals: list[Terminal]) -> None:
    """Closing the window in the middle of an answer cancels the turn, on record."""
    with ScriptedServer([lasting("Hello, this will take long")]) as server:
        terminal = Terminal(command, "chat", "hi", "--base-url", server.base_url)
        terminals.append(terminal)
        terminal.expect("Hello")
        assert terminal.hang_up() in (1, 143)
        assert server.wait_for_hang_up(timeout=60)
    assert "turn 1 cancelled" in command("tree").out


def test_a_window_that_is_closed_at_the_prompt(command: Command, terminals: list[Terminal]) -> None:
    """Closing the window while it waits for a prompt leaves the session whole and no process behind."""
    with ScriptedServer(["Hello", "Welcome back"]) as server:
        terminal = Terminal(command, "chat", "--base-url", server.base_url)
        terminals.append(terminal)
        terminal.expect("\n>")
        terminal.type(b"hi\r")
        terminal.expect("Hello")
        terminal.expect("\n>")
        assert terminal.hang_up() in (0, 143)
        assert command("chat", "-s", "last", "hi", "--base-url", server.base_url).out == "Welcome back\n"
    assert "Hello" in command("tree").out and command("verify").code == 0


def test_lines_are_styled_and_cut_to_the_width(command: Command, terminals: list[Terminal]) -> None:
    """A terminal gets colours and lines no wider than it is; what a message says cannot colour or move anything."""
    with ScriptedServer(["\x1b]0;title\x07" + "wide " * 60]) as server:
        command("chat", "hi", "--base-url", server.base_url)
    terminal = Terminal(command, "tree", columns=50)
    terminals.append(terminal)
    assert terminal.wait() == 0
    assert b"\x1b[1" in terminal.raw
    assert b"\x1b]0;" not in terminal.raw and b"\x07" not in terminal.raw
    assert "\\x1b]0;title" in terminal.text
    assert all(len(line) <= 50 for line in terminal.text.splitlines())
    assert "…" in terminal.text


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_in_tmux(command: Command) -> None:
    """In a real terminal program: ask, leave, and see the answer and the tree as a person does."""
    name = f"branchline-{uuid.uuid4().hex[:8]}"
    tmux = ["tmux", "-L", name, "-f", "/dev/null"]
    environment = command.environment()

    def run(*arguments: str) -> str:
        return subprocess.run([*tmux, *arguments], env=environment, capture_output=True, text=True, check=True).stdout

    def expect(text: str) -> None:
        end = time.monotonic() + 60
        while text not in (shown := run("capture-pane", "-p", "-t", name)):
            assert time.monotonic() < end, shown
            time.sleep(0.1)

    with ScriptedServer(["It is called Branchline."]) as server:
        try:
            run("new-session", "-d", "-s", name, "-x", "90", "-y", "30", "env PS1='$ ' sh")
            line = " ".join(command.line("chat", "--base-url", server.base_url))
            run("send-keys", "-t", name, f"cd {command.folder}; clear; {line}", "Enter")
            expect("\n>")
            run("send-keys", "-t", name, "What is it called?", "Enter")
            expect("It is called Branchline.\n>")
            run("send-keys", "-t", name, "C-d")
            expect("go on with")
            run("send-keys", "-t", name, " ".join(["clear;", *command.line("tree")]), "Enter")
            expect("(here) It is called Branchline.")
        finally:
            subprocess.run([*tmux, "kill-server"], env=environment, capture_output=True, check=False)


STUBBORN = """
import sys
import anyio
import harness.cli.conversation_settings
from harness.tools import tool
from harness.cli import main

@tool
async def wait() -> str:
    '''Waits, and does not stop when it is asked to.'''
    with anyio.CancelScope(shield=True):
        await anyio.sleep(600)
    return ""

harness.cli.conversation_settings.workspace_tools = lambda folder, **options: [wait]
sys.exit(main())
"""


def test_a_stop_that_hangs_can_be_left(command: Command, terminals: list[Terminal]) -> None:
    """Ctrl-C twice leaves at once, even while a tool does not stop; the next chat tells what was cut off."""
    with ScriptedServer([tool_call("wait"), "fine"]) as server:
        arguments = ("chat", "hi", "--base-url", server.base_url)
        terminal = Terminal(command, *arguments, line=[sys.executable, "-c", STUBBORN, *arguments])
        terminals.append(terminal)
        terminal.expect("wait()")
        terminal.type(CTRL_C)
        terminal.expect("Ctrl-C again")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
        ran = command("chat", "-s", "last", "again", "--base-url", server.base_url)
    assert (ran.code, ran.out) == (0, "fine\n")
    assert "cut off" in ran.err and "interrupted" in command("tree").out
