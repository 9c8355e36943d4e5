"""What is typed at the prompt besides prompts, in a real terminal, with a real server and real files behind it."""

from __future__ import annotations

import re
import sys
import threading

from harness.testing import ScriptedServer
from tests.cli.answers import lasting
from tests.cli.conftest import Command, texts
from tests.cli.terminal import CTRL_C, CTRL_D, TAB, Terminal, chat


def test_look_label_and_branch(command: Command, terminals: list[Terminal]) -> None:
    """/tree shows the ids, /label names one, /branch goes there; the next prompt goes on from it."""
    with ScriptedServer(["First answer.", "Second answer.", "Another way."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.ask("one", "First answer.")
        terminal.ask("two", "Second answer.")
        terminal.ask("/tree", "(here) Second answer.")
        first = re.search(r"● (\w{8}) assistant First answer", terminal.text)
        assert first is not None
        terminal.ask(f"/label {first[1]} good start", "is labelled now: good start")
        terminal.ask("/branch good start", "here now: assistant First answer.")
        terminal.ask("three", "Another way.")
        terminal.ask("/name trying things", "is named now: trying things")
        terminal.ask("/tree", '"trying things" (')
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert texts(server.requests[2].messages) == [("user", "one"), ("assistant", "First answer."), ("user", "three")]
    assert "[good start] First answer." in command("tree").out
    assert command("verify").code == 0


def test_fork(command: Command, terminals: list[Terminal]) -> None:
    """/fork goes on in a new session; the old one stays as it is, and one is told how to go back to it."""
    with ScriptedServer(["First answer.", "In the fork."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.ask("one", "First answer.")
        (old,) = command.root.glob("*.jsonl")
        before = old.read_bytes()
        terminal.ask("/fork", f"the other is as it was: branchline chat --session {old.stem[:8]}")
        terminal.ask("two", "In the fork.")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    (new,) = [path for path in command.root.glob("*.jsonl") if path != old]
    assert old.read_bytes() == before
    assert texts(server.requests[1].messages) == [("user", "one"), ("assistant", "First answer."), ("user", "two")]
    assert f"go on with: branchline chat --session {new.stem[:8]}" in terminal.text.replace("\n", "")
    assert "In the fork." in command("tree", new.stem).out


def test_other_model_thinking_and_tools(command: Command, terminals: list[Terminal]) -> None:
    """/model, /thinking and /tools count from the next request on, before the first prompt as well as after it."""
    with ScriptedServer(["one", "two"]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url, "--model", "first")
        terminal.ask("/tools", "the model may use read, list, search")
        terminal.ask("/tools read", "the model may use read; it may not use list, search")
        terminal.ask("/thinking", "thinking: as the model does by itself")
        terminal.ask("/thinking low", "thinking: low")
        terminal.ask("hi", "one")
        terminal.ask("/context", ", thinking low, tools read")
        terminal.ask("/model second", "/second answers")
        terminal.ask("/thinking high", "thinking: high")
        terminal.ask("/tools none", "the model may use no tools")
        terminal.ask("again", "two")
    first, second = (request.body for request in server.requests)
    assert (first["model"], first["reasoning_effort"]) == ("first", "low")
    assert [tool["function"]["name"] for tool in first["tools"]] == ["read"]
    assert (second["model"], second["reasoning_effort"]) == ("second", "high")
    assert "tools" not in second


def test_a_thinking_level_that_nobody_set_is_none(command: Command, terminals: list[Terminal]) -> None:
    """Nothing was said about thinking: that is not "off", neither at the prompt nor in what the record says."""
    with ScriptedServer(["one"]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.ask("hi", "one")
        terminal.ask("/context", "thinking as the model does by itself")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
        terminal = chat(command, terminals, "--base-url", server.base_url, "-s", "last", "--thinking", "high")
        terminal.ask("/context", "thinking high")  # it is not on record yet, and what the next request asks for
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert "reasoning_effort" not in server.requests[0].body
    assert "thinking as the model does by itself" in command("context").out
    assert command("context", "--json").rows[0]["thinkingLevel"] is None


def test_what_is_wrong_is_told(command: Command, terminals: list[Terminal]) -> None:
    """A command that does not exist, or lacks something, says so; nothing is asked and nothing is recorded."""
    with ScriptedServer([]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.ask("/treee", "there is no command /treee; /help lists them")
        terminal.ask("/branch", "it is written /branch ENTRY")
        terminal.ask("/tree", "there is no session yet")
        terminal.ask("/thinking hard", "give one of off, minimal, low, medium, high")
        terminal.ask("/tools write", "'branchline chat --write' has more")
        terminal.ask("/model", "answers")
        terminal.ask("/help", "Alt+Enter")
        terminal.type(b"/quit\r")
        assert terminal.wait() == 0
        assert server.requests == []
    assert command.files() == {}
    assert all(word in terminal.text for word in ("/fork [ENTRY]", "/context", "/thinking [LEVEL]"))


def test_two_slashes_are_one(command: Command, terminals: list[Terminal]) -> None:
    """A prompt that begins with a slash is typed with two; over a pipe and as an argument it is as it is."""
    with ScriptedServer(["one", "two", "three"]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.ask("//etc/hosts?", "one")
        terminal.type(CTRL_D)
        terminal.wait()
        command("chat", "/help", "--base-url", server.base_url)
        command("chat", "--base-url", server.base_url, stdin="//x")
    assert [request.messages[-1]["content"] for request in server.requests] == ["/etc/hosts?", "/help", "//x"]


def test_what_a_command_shows_cannot_drive_the_terminal(command: Command, terminals: list[Terminal]) -> None:
    """Escapes in messages, labels and model names are shown as what they are, cut to the width; so in completions."""
    with ScriptedServer(["\x1b]0;x\x07 " + "wide " * 40]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url, "--model", "m\x1b]0;y\x07", columns=40)
        terminal.ask("hi", "wide")
        terminal.ask("/tree", "(here)")
        terminal.ask("/context", "characters")
        terminal.type(b"/branch ")
        terminal.expect("\\x1b]0;x\\x07")
        terminal.type(CTRL_C)
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert b"\x1b]0;" not in terminal.raw and b"\x07" not in terminal.raw
    tree = terminal.text[terminal.text.index("● ") :]
    assert len(tree.split("\n")[0]) <= 40


def test_completion(command: Command, terminals: list[Terminal]) -> None:
    """Tab completes the names of commands, and the labels and ids of entries."""
    with ScriptedServer(["First answer."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.ask("one", "First answer.")
        terminal.ask("/tree", "(here)")
        first = re.search(r"● (\w{8}) user", terminal.text)
        assert first is not None
        terminal.ask(f"/label {first[1]} beginning", "is labelled now")
        complete(terminal, "/br", "go on from this entry", "anch")
        complete(terminal, " begi", "user: one", "nning")
        terminal.type(b"\r")
        terminal.expect("here now: user one")
        terminal.expect("> one")
        terminal.type(CTRL_C)  # what is to be asked again is not wanted
        complete(terminal, "/thinking me", "medium", "dium")
        terminal.type(b"\r")
        terminal.expect("thinking: medium")


def complete(terminal: Terminal, typed: str, offered: str, then: str) -> None:
    """Type a beginning, see what is offered, and take it."""
    terminal.type(typed.encode())
    terminal.expect(offered)
    terminal.type(TAB)
    terminal.expect(then)


def test_a_command_that_is_typed_into_an_answer_waits_for_its_end(command: Command, terminals: list[Terminal]) -> None:
    """A command during an answer is no message for the model: it runs afterwards."""
    typed = threading.Event()
    with ScriptedServer([lasting("Hello, this takes a while.", typed.is_set)]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.type(b"hi\r")
        terminal.expect("Hello")
        terminal.type(b"/name quick\r")
        terminal.expect("quick\n")
        assert "is named" not in terminal.text
        typed.set()
        terminal.expect("is named now: quick")
        assert len(server.requests) == 1
    assert "while." in terminal.text


FAILS_TO_NOTE = """
import sys
from harness.agent import AgentHarness
from harness.cli import main
from storage.entries import ModelChangeEntry
from storage.errors import StorageError

note = AgentHarness._note

async def fail_to_note(self, entry, event):
    if isinstance(entry, ModelChangeEntry):
        raise StorageError("no room for it")
    await note(self, entry, event)

AgentHarness._note = fail_to_note
sys.exit(main(sys.argv[1:]))
"""


def test_a_model_that_could_not_be_recorded_is_asked_all_the_same(command: Command, terminals: list[Terminal]) -> None:
    """The failure is told; the model that is asked from then on is the one that is named, and closed at the end."""
    with ScriptedServer(["one", "two"]) as server:
        arguments = ("chat", "--base-url", server.base_url, "--model", "first")
        line = [sys.executable, "-c", FAILS_TO_NOTE, *arguments]
        terminal = chat(command, terminals, *arguments[1:], line=line)
        terminal.ask("hi", "one")
        terminal.ask("/model second", "no room for it")
        terminal.ask("again", "two")
        terminal.ask("/model", "/second answers")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert server.requests[1].body["model"] == "second"
