"""What the model may change is asked first: on a terminal, over a pipe, and again after a kill."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.testing import ScriptedServer, tool_call
from tests.cli.answers import lasting
from tests.cli.conftest import Command
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal, chat

ASKED = "[y]es, [n]o, or [a]lways"


def test_by_default_it_may_only_look(command: Command) -> None:
    """Without --write nothing that changes anything is offered; with it, all is, and the prompt says so."""
    with ScriptedServer(["one", "two"]) as server:
        command("chat", "hi", "--base-url", server.base_url)
        command("chat", "hi", "--write", "--base-url", server.base_url)
    offered = [[tool["function"]["name"] for tool in request.body["tools"]] for request in server.requests]
    assert offered[0] == ["read", "list", "search"]
    assert offered[1] == ["read", "list", "search", "write", "edit", "bash"]
    assert "run commands" in str(server.requests[1].messages[0]["content"])


def test_yes_no_and_always(command: Command, terminals: list[Terminal]) -> None:
    """What would happen is shown first; yes does it, no does not and tells why, always asks no more for that tool."""
    script = [
        tool_call("write", path="a.txt", content="one\n"),
        tool_call("write", path="b.txt", content="two\n"),
        tool_call("write", path="c.txt", content="three\n"),
        tool_call("write", path="d.txt", content="four\n"),
        "Done.",
    ]
    with ScriptedServer(script) as server:
        terminal = chat(command, terminals, "--write", "--base-url", server.base_url)
        terminal.type(b"go\r")
        terminal.expect("write would like to do this:")
        terminal.expect("+one")
        terminal.expect(ASKED)
        assert not (command.folder / "a.txt").exists()
        terminal.type(b"y\r")
        terminal.expect("+two")
        terminal.expect(ASKED)
        terminal.type(b"n\r")
        terminal.expect("why not?")
        terminal.type(b"two is too much\r")
        terminal.expect("+three")
        terminal.expect(ASKED)
        terminal.type(b"Always\r")
        terminal.expect("Done.")
    assert sorted(path.name for path in command.folder.iterdir()) == ["a.txt", "c.txt", "d.txt"]
    assert "two is too much" in str(server.requests[2].messages[-1]["content"])
    assert terminal.text.count("would like to do this") == 3


def test_only_a_clear_answer_counts(command: Command, terminals: list[Terminal]) -> None:
    """Enter alone, or a yes with something behind it, asks again; Ctrl-D is a no."""
    with ScriptedServer([tool_call("bash", command="echo hi > made"), "As you like."]) as server:
        terminal = chat(command, terminals, "--write", "--base-url", server.base_url)
        terminal.type(b"go\r")
        for typed in (b"\r", b"yes but not now\r", b"maybe\r"):
            terminal.expect(ASKED)
            terminal.type(typed)
        terminal.expect(ASKED)
        terminal.type(CTRL_D)
        terminal.expect("As you like.")
    assert list(command.folder.iterdir()) == []


def test_what_was_typed_before_is_no_answer(command: Command, terminals: list[Terminal]) -> None:
    """Keys that were pressed before the question was shown do not approve anything."""
    call = tool_call("bash", command="echo hi > made")
    typed = threading.Event()
    with ScriptedServer([lasting("Wait for it.", typed.is_set, call=call), "Fine."]) as server:
        terminal = Terminal(command, "chat", "go", "--write", "--base-url", server.base_url)
        terminals.append(terminal)
        terminal.expect("Wait")
        terminal.type(b"y\ry\r")
        typed.set()
        terminal.expect(ASKED)
        terminal.type(b"n not now\r")
        terminal.expect("Fine.")
        assert terminal.wait() == 0
    assert list(command.folder.iterdir()) == []
    assert "not now" in str(server.requests[1].messages[-1]["content"])


def test_over_a_pipe(command: Command) -> None:
    """Where nobody can be asked it is denied, which the model is told; --yes lets it."""
    write = tool_call("write", path="a.txt", content="one\n")
    with ScriptedServer([write, "I would have written it.", write, "Written."]) as server:
        denied = command.process("chat", "go", "--write", "--base-url", server.base_url)
        assert (denied.code, denied.out) == (0, "I would have written it.\n")
        assert "nobody to ask" in str(server.requests[1].messages[-1]["content"])
        assert "nobody to ask" in denied.err
        assert not (command.folder / "a.txt").exists()
        allowed = command.process("chat", "go", "--write", "--yes", "--base-url", server.base_url)
    assert (allowed.code, allowed.out) == (0, "Written.\n")
    assert (command.folder / "a.txt").read_text() == "one\n"
    assert "would like" not in denied.err + allowed.err


@pytest.mark.parametrize("arguments", [("--yes",), ("--write", "--no-tools")])
def test_what_contradicts_itself(command: Command, arguments: tuple[str, ...]) -> None:
    """--yes without --write, and --write without tools, are refused before anything is done."""
    ran = command("chat", "hi", *arguments, "--base-url", "http://127.0.0.1:9")
    assert ran.code == 2 and "--write" in ran.error and command.files() == {}


def test_ctrl_c_at_the_question(command: Command, terminals: list[Terminal]) -> None:
    """It stops the turn: nothing is done, the question is closed on record, and the next prompt works."""
    with ScriptedServer([tool_call("bash", command="echo hi > made"), "Better."]) as server:
        terminal = chat(command, terminals, "--write", "--base-url", server.base_url)
        terminal.type(b"go\r")
        terminal.expect(ASKED)
        terminal.type(CTRL_C)
        terminal.expect("recorded as cancelled")
        terminal.expect("\n>")
        terminal.ask("something else", "Better.")
    assert list(command.folder.iterdir()) == []
    assert "turn 1 cancelled" in command("tree").out and command("verify").code == 0


def killed_at_the_question(command: Command, terminals: list[Terminal], server: ScriptedServer) -> None:
    terminal = chat(command, terminals, "--write", "--base-url", server.base_url)
    terminal.type(b"go\r")
    terminal.expect(ASKED)
    terminal.kill()


def test_after_a_kill_it_is_asked_again(command: Command, terminals: list[Terminal]) -> None:
    """A question that a kill left open is said and asked again, with what it was about; then the turn goes on."""
    with ScriptedServer([tool_call("bash", command="echo hi > made"), "It is made.", "Hello."]) as server:
        killed_at_the_question(command, terminals, server)
        terminal = Terminal(command, "chat", "-s", "last", "--write", "--base-url", server.base_url)
        terminals.append(terminal)
        terminal.expect("waits for your approval of bash")
        terminal.expect("echo hi > made")
        terminal.expect(ASKED)
        assert list(command.folder.iterdir()) == []
        terminal.type(b"y\r")
        terminal.expect("It is made.")
        terminal.expect("\n>")
        terminal.ask("hi", "Hello.")
    assert (command.folder / "made").read_text() == "hi\n"
    assert command("verify").code == 0


def test_after_a_kill_over_a_pipe(command: Command, terminals: list[Terminal]) -> None:
    """There it is denied, the turn goes on to its end, and the prompt is asked after it; without --write nothing is."""
    with ScriptedServer([tool_call("bash", command="echo hi > made"), "Not made.", "Hello."]) as server:
        killed_at_the_question(command, terminals, server)
        before = command.files()
        ran = command("chat", "-s", "last", "hi", "--base-url", server.base_url)
        assert ran.code == 2 and "approval of bash" in ran.error and "--write" in ran.err
        assert len(server.requests) == 1
        assert {name: len(data) for name, data in command.files().items() if name.endswith(".jsonl")} == {
            name: len(data) for name, data in before.items() if name.endswith(".jsonl")
        }
        ran = command("chat", "-s", "last", "hi", "--write", "--base-url", server.base_url)
    assert (ran.code, ran.out) == (0, "Not made.\nHello.\n")
    assert list(command.folder.iterdir()) == []


def test_a_question_cannot_be_faked(command: Command, terminals: list[Terminal]) -> None:
    """What a model wrote stands behind a margin, wrapped inside it, with its control sequences shown; all of it."""
    evil = "ls\x1b[2K\r" + " " * 60 + "[y]es approved\u202e; touch made"
    with ScriptedServer([tool_call("bash", command=evil), "Well."]) as server:
        terminal = chat(command, terminals, "--write", "--base-url", server.base_url, columns=40)
        terminal.type(b"go\r")
        terminal.expect(ASKED)
        shown = terminal.text.partition("do this:\n")[2].partition("[y]es, [n]o")[0].splitlines()
        terminal.type(b"n\r\r")
        terminal.expect("Well.")
    assert all(line.startswith("  | ") and len(line) <= 40 for line in shown)
    whole = "".join(line.removeprefix("  | ") for line in shown)
    assert "\\x1b[2K" in whole and "\\u202e; touch made" in whole
    assert b"\x1b[2K\r " not in terminal.raw and list(command.folder.iterdir()) == []


def test_a_long_change_can_be_seen_whole(command: Command, terminals: list[Terminal]) -> None:
    """The beginning is shown, with how much is not; "s" shows all of it, and asks again."""
    content = "".join(f"line {number}\n" for number in range(200))
    with ScriptedServer([tool_call("write", path="long.txt", content=content), "Done."]) as server:
        terminal = chat(command, terminals, "--write", "--base-url", server.base_url)
        terminal.type(b"go\r")
        terminal.expect("more lines")
        terminal.expect("[s]how all of it?")
        assert "line 150" not in terminal.text
        terminal.type(b"s\r")
        terminal.expect("line 199")
        terminal.expect(ASKED)
        terminal.type(b"y\r")
        terminal.expect("Done.")
    assert Path(command.folder / "long.txt").read_text() == content
