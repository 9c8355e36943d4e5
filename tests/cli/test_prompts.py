"""What is typed at the prompt and into an answer: lines, history, and terminals that can do little."""

from __future__ import annotations

import re
import stat
import sys
import threading
from pathlib import Path

import pytest

from harness.cli.prompt_history import LARGEST_FILE, PromptHistory
from harness.testing import Reply, ScriptedServer, tool_call
from tests.cli.answers import lasting, queued
from tests.cli.conftest import Command, texts
from tests.cli.terminal import ALT_ENTER, CTRL_C, CTRL_D, CTRL_J, PASTE_BEGINS, PASTE_ENDS, UP, Terminal, chat


def test_a_prompt_of_many_lines(command: Command, terminals: list[Terminal]) -> None:
    """Alt+Enter, Ctrl-J and a backslash before Enter begin another line; Enter sends them all."""
    with ScriptedServer(["Read."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.type(b"one" + ALT_ENTER + b"two" + CTRL_J + b"three\\\rfour\r")
        terminal.expect("Read.")
    assert server.requests[0].messages[-1]["content"] == "one\ntwo\nthree\nfour"


def history_of(command: Command) -> Path:
    return Path(command.environment()["XDG_STATE_HOME"]) / "branchline" / "prompts"


def test_prompts_are_remembered(command: Command, terminals: list[Terminal]) -> None:
    """The next chat has the prompts of this one, with all their lines; the file is the user's alone."""
    with ScriptedServer(["one", "two", "three"]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.type("grüße".encode() + ALT_ENTER + b"line 2\r")
        terminal.expect("one")
        terminal.expect("\n>")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
        again = chat(command, terminals, "--base-url", server.base_url)
        again.type(UP)
        again.expect("line 2")
        again.type(b"!\r")
        again.expect("two")
    assert server.requests[1].messages[-1]["content"] == "grüße\nline 2!"
    path = history_of(command)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700


HOMELESS = """
import os, pwd, sys
from harness.cli import main
os.environ.pop("HOME")
def nobody(number):
    raise KeyError(number)
pwd.getpwuid = nobody  # the user is not in the system's list either
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("home", ["read-only", "none"])
def test_without_a_place_for_the_history(command: Command, terminals: list[Terminal], home: str) -> None:
    """With a folder that cannot be written, or no home at all, the prompt works; at most one quiet line says so."""
    with ScriptedServer(["one", "two"]) as server:
        arguments = ("chat", "--base-url", server.base_url)
        line = command.line(*arguments) if home == "read-only" else [sys.executable, "-c", HOMELESS, *arguments]
        (command.folder / "file").touch()
        state = str(command.folder / "file") if home == "read-only" else ""  # below a file nobody can make a folder
        terminal = Terminal(command, line=line, environment={"XDG_STATE_HOME": state})
        terminals.append(terminal)
        terminal.expect("/help helps")
        terminal.expect("\n>")
        terminal.ask("hi", "one")
        terminal.ask("again", "two")
        terminal.type(UP)
        terminal.expect("again")
        terminal.type(CTRL_C)
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert terminal.text.count("prompts are not kept") == (1 if home == "read-only" else 0)
    assert [path.name for path in command.folder.iterdir()] == ["file"]
    assert "Traceback" not in terminal.text


def test_a_history_of_any_size_and_kind(tmp_path: Path) -> None:
    """Only the newest part of a long history is read, and it is cut; what is no text is read as well as it can be."""
    path = tmp_path / "prompts"
    path.write_bytes(
        b"\n# x\n+first\n" + b"\n# x\n+" + b"a" * 2 * LARGEST_FILE + b"\n\n# x\n+caf\xe9\n+2\n\n# x\n+last\n"
    )
    history = PromptHistory(path)
    assert [*history.load_history_strings()] == ["last", "caf\ufffd\n2"]
    assert path.stat().st_size < LARGEST_FILE
    history.store_string("new \udce9")
    assert next(iter(PromptHistory(path).load_history_strings())) == "new \ufffd"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert history.problem is None
    broken = PromptHistory(tmp_path)
    assert [*broken.load_history_strings()] == [] and broken.problem is not None


def test_a_line_into_an_answer(command: Command, terminals: list[Terminal]) -> None:
    """What is typed while an answer runs is said at its next step; the answer goes on where it was, on a line of its own."""
    script = [lasting("Hello, this takes a little while to say.", queued(command, "be brief")), "As you say."]
    with ScriptedServer(script) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.type(b"hi\r")
        terminal.expect("Hello")
        terminal.type(b"be ")
        terminal.expect("\nsteer>")
        terminal.expect("be")
        terminal.type(b"brief\r")
        terminal.expect("little while to say.\nthe model is told: be brief\n")
        terminal.expect("As you say.\n>")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert texts(server.requests[1].messages)[-1] == ("user", "be brief")
    lines = terminal.text.splitlines()
    steered = next(place for place, line in enumerate(lines) if line.startswith("steer>"))
    assert lines[steered + 1].startswith("Hello") and lines[steered + 1].endswith("to say.")


def test_an_answer_that_goes_elsewhere_is_whole(command: Command, terminals: list[Terminal]) -> None:
    """With standard output in a file, lines into the answer, tools and prompts leave nothing in it but the answers."""
    first = lasting("Hello, this takes a while.", queued(command, "look around"))
    script = [first, [tool_call("list", path=".")], "As you say."]
    path = command.folder / "answers"
    with ScriptedServer(script) as server, path.open("wb") as output:
        terminal = chat(command, terminals, "--base-url", server.base_url, output=output.fileno())
        terminal.type(b"hi\r")
        terminal.until(lambda: b"Hello" in path.read_bytes())
        terminal.type(b"look around\r")
        terminal.expect("-> list(")
        terminal.expect("\n>")
        terminal.type(b"/tree\r")
        terminal.expect("(here)")
        terminal.expect("\n>")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert path.read_text() == "Hello, this takes a while.\n\nAs you say.\n"


def test_a_line_that_comes_too_late_is_the_next_prompt(command: Command, terminals: list[Terminal]) -> None:
    """Typed during the answer and sent after its end, it is asked at once; none of it is lost."""
    typed = threading.Event()
    with ScriptedServer([lasting("Hello there.", typed.is_set), "Second."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.type(b"hi\r")
        terminal.expect("Hello")
        terminal.type(b"and ")
        terminal.expect("steer>")
        terminal.expect("and")
        typed.set()
        terminal.until(lambda: "turn_end" in next(command.root.glob("*.jsonl")).read_text())
        terminal.type(b"then?\r")
        terminal.expect("asking now: and then?")
        terminal.expect("Second.")
    assert texts(server.requests[1].messages)[-1] == ("user", "and then?")


def test_a_stop_gives_back_what_was_not_said(command: Command, terminals: list[Terminal]) -> None:
    """A line that the model had not been told when Ctrl-C came stands at the next prompt, to be sent or changed."""
    with ScriptedServer([lasting("Hello, this takes a while."), "Second."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.type(b"hi\r")
        terminal.expect("Hello")
        terminal.type(b"be brief\r")
        terminal.until(queued(command, "be brief"))
        terminal.type(CTRL_C)
        terminal.expect("recorded as cancelled")
        terminal.expect("> be brief")
        terminal.type(b", please\r")
        terminal.expect("Second.")
    assert texts(server.requests[1].messages)[-1] == ("user", "be brief, please")
    assert "be brief, please" in command("tree").out


SLOW_TO_TAKE = """
import sys
import anyio
from harness.cli.conversation import Conversation
from harness.cli import main

steer = Conversation.steer

async def steer_slowly(self, text):
    print("it takes a while", file=sys.stderr, flush=True)
    await anyio.sleep(0.5)
    return await steer(self, text)

Conversation.steer = steer_slowly
sys.exit(main())
"""


def test_a_stop_loses_no_line_that_is_on_its_way(command: Command, terminals: list[Terminal]) -> None:
    """Ctrl-C between Enter and the moment in which the line is on record: it stands at the next prompt all the same."""
    with ScriptedServer([lasting("Hello, this takes a while."), "Second."]) as server:
        arguments = ("chat", "--base-url", server.base_url)
        line = [sys.executable, "-c", SLOW_TO_TAKE, *arguments]
        terminal = chat(command, terminals, *arguments[1:], line=line)
        terminal.type(b"hi\r")
        terminal.expect("Hello")
        terminal.type(b"be brief\r")
        terminal.expect("it takes a while")
        terminal.type(CTRL_C)
        terminal.expect("> be brief")
        terminal.type(b"\r")
        terminal.expect("Second.")
    assert texts(server.requests[1].messages)[-1] == ("user", "be brief")


FAILS_TO_TAKE = """
import sys
from harness.cli import main
from harness.cli.conversation import Conversation
from storage.errors import StorageError

async def steer(self, text):
    raise StorageError("no room for it")

Conversation.steer = steer
sys.exit(main(sys.argv[1:]))
"""


def test_a_line_that_cannot_be_recorded_stops_the_turn(command: Command, terminals: list[Terminal]) -> None:
    """The failure is told, the turn is over and its line given back, so that the next prompt is answered."""
    with ScriptedServer([lasting("Hello, this takes a while."), "Second."]) as server:
        arguments = ("chat", "--base-url", server.base_url)
        line = [sys.executable, "-c", FAILS_TO_TAKE, *arguments]
        terminal = chat(command, terminals, *arguments[1:], line=line)
        terminal.type(b"hi\r")
        terminal.expect("Hello")
        terminal.type(b"be brief\r")
        terminal.expect("no room for it")
        terminal.expect("> be brief")
        terminal.type(b"\r")
        terminal.expect("Second.")
    assert texts(server.requests[1].messages)[-1] == ("user", "be brief")


def test_a_failure_gives_back_what_was_not_said(command: Command, terminals: list[Terminal]) -> None:
    """So does a model that fails before it was told."""
    broken = lasting("Hello, this takes a while.", queued(command, "be brief"), error="out of order")
    with ScriptedServer([broken, "Second."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.type(b"hi\r")
        terminal.expect("Hello")
        terminal.type(b"be brief\r")
        terminal.expect("out of order")
        terminal.expect("> be brief")
        terminal.type(b"\r")
        terminal.expect("Second.")
    assert texts(server.requests[1].messages)[-1] == ("user", "be brief")


def test_a_paste_into_an_answer_is_one_line(command: Command, terminals: list[Terminal]) -> None:
    """Many lines that are pasted while an answer runs wait for Enter, as they do at the prompt."""
    with ScriptedServer([lasting("Hello, it takes a while.", queued(command, "line 2")), "Read."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.type(b"hi\r")
        terminal.expect("Hello")
        terminal.type(PASTE_BEGINS + b"line 1\rline 2" + PASTE_ENDS + b"\r")
        terminal.expect("Read.")
    answered = terminal.raw.index(b"Hello")
    # The terminal was asked again to mark what is pasted, after the prompt had ended that.
    assert terminal.raw.rindex(b"\x1b[?2004h", 0, answered) > terminal.raw.rindex(b"\x1b[?2004l", 0, answered)
    assert texts(server.requests[1].messages)[-1] == ("user", "line 1\nline 2")


def test_thinking_is_shown_if_asked(command: Command, terminals: list[Terminal]) -> None:
    """--show-thinking shows it dim, on lines of its own, neutralised; over a pipe it goes to standard error."""
    script = [Reply("So: yes.", thinking="Hm\x1b[31m,\nwell"), Reply("So: yes.", thinking="Hm"), "x"]
    with ScriptedServer(script) as server:
        terminal = chat(command, terminals, "--show-thinking", "--base-url", server.base_url)
        terminal.type(b"hi\r")
        terminal.expect("Hm\\x1b[31m,\nwell\nSo: yes.\n")
        assert b"\x1b[31m" not in terminal.raw and b"\x1b[2;3mHm" in terminal.raw
        ran = command("chat", "hi", "--show-thinking", "--base-url", server.base_url)
        assert ran.out == "So: yes.\n" and ran.err.startswith("Hm\n")
        assert "Hm" not in command("chat", "hi", "--base-url", server.base_url).err


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_a_terminal_that_can_do_little(command: Command, terminals: list[Terminal], kind: str) -> None:
    """With TERM=dumb or none it works line by line, in a C locale too, and sends no control sequence at all."""
    environment = {"TERM": kind, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with ScriptedServer(["Grüße.", tool_call("bash", command="echo hi > made"), "Made.", "Last."]) as server:
        terminal = chat(
            command, terminals, "--write", "--base-url", server.base_url, environment=environment, columns=40
        )
        terminal.type("ü one\\\n".encode())
        terminal.expect("...")
        terminal.type(b"two\n")
        terminal.expect("Gr\\xfc\\xdfe.")
        terminal.expect("\n>")
        terminal.type(b"go\n")
        terminal.expect("[a]lways")
        terminal.type(b"y\n")
        terminal.expect("Made.")
        terminal.expect("\n>")
        terminal.type(b"/name short\n")
        terminal.expect("is named now: short")
        terminal.expect("\n>")
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
    assert server.requests[0].messages[-1]["content"] == "ü one\ntwo"
    assert (command.folder / "made").read_text() == "hi\n"
    assert b"\x1b" not in terminal.raw


def test_options_reach_the_request(command: Command) -> None:
    """--system, --thinking and --max-steps count; a level that does not exist is refused."""
    with ScriptedServer(["one", tool_call("list", path="."), "never"]) as server:
        model = ("--base-url", server.base_url)
        command("chat", "hi", "--system", "Talk like a pirate.", "--thinking", "low", *model)
        assert command("chat", "hi", "--thinking", "hard", *model).code == 2
        ran = command("chat", "hi", "--max-steps", "1", *model)
    assert ran.code == 1 and re.search(r"limit of 1 request", ran.error) and "--max-steps" in ran.error
    body = server.requests[0].body
    assert body["messages"][0]["content"] == "Talk like a pirate." and body["reasoning_effort"] == "low"
    assert len(server.requests) == 2


def test_prompts_in_a_c_locale(command: Command, terminals: list[Terminal]) -> None:
    """What is typed arrives whole, whatever the locale can show; so does the history."""
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with ScriptedServer(["one", "two"]) as server:
        for _ in range(2):
            terminal = chat(command, terminals, "--base-url", server.base_url, environment=environment)
            terminal.type("grüße 😀".encode() if not server.requests else UP)
            terminal.expect("gr")
            terminal.type(b"\r")
            terminal.expect("two" if server.requests else "one")
            terminal.expect("\n>")
            terminal.type(CTRL_D)
            assert terminal.wait() == 0
    assert [request.messages[-1]["content"] for request in server.requests] == ["grüße 😀", "grüße 😀"]
