"""A conversation through the real command, a real server and real files: ask, come back, branch."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness.testing import HttpAnswer, Reply, ScriptedServer, tool_call
from tests.cli.answers import lasting
from tests.cli.conftest import Command, Ran, texts


def test_ask_come_back_and_branch(command: Command) -> None:
    """Three processes have one conversation; each sees what came before on its branch, and the tree shows both ways."""
    with ScriptedServer(["It is Branchline.", "Its authors.", "C'est Branchline."]) as server:
        model = ("--base-url", server.base_url, "--no-tools")
        first = command.process("chat", "What is it called?", *model)
        assert (first.code, first.out) == (0, "It is Branchline.\n")
        second = command.process("chat", "--session", "last", "Who wrote it?", *model)
        assert (second.code, second.out) == (0, "Its authors.\n")
        answer = entry(command("tree", "--json"), "assistant", "It is Branchline.")
        third = command.process("chat", "--session", "last", "--at", answer[-8:], "And in French?", *model)
        assert (third.code, third.out) == (0, "C'est Branchline.\n")

    asked = ("user", "What is it called?")
    answered = ("assistant", "It is Branchline.")
    assert texts(server.requests[1].messages) == [asked, answered, ("user", "Who wrote it?")]
    assert texts(server.requests[2].messages) == [asked, answered, ("user", "And in French?")]
    lines = [re.sub(r" [0-9a-f]{8} ", " ID ", line) for line in command("tree").out.splitlines()[1:]]
    assert lines == [
        "● ID user      What is it called?",
        "● ID assistant It is Branchline.",
        "├─○ ID user      Who wrote it?",
        "│ ○ ID assistant Its authors.",
        "● ID user      And in French?",
        "● ID assistant (here) C'est Branchline.",
    ]
    assert len(list(command.root.glob("*.jsonl"))) == 1
    assert command("verify").code == 0


def hint(ran: Ran) -> list[str]:
    """The command line that was suggested, without the program's name."""
    found = re.search(r"go on with: branchline (chat .*)$", ran.err, re.MULTILINE)
    assert found is not None, ran.err
    return shlex.split(found[1])


def test_the_hint_goes_on_with_the_session(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed at the end is a command line that works as it is: it says again what the record does not keep."""
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    with ScriptedServer(["one", "two", "three"]) as server:
        ran = command("chat", "hi", "--model", "own", "--base-url", server.base_url, "--cwd", str(elsewhere))
        assert hint(ran)[3:] == ["--base-url", server.base_url, "--cwd", str(elsewhere)]
        again = command(*hint(ran), "again")
        assert (again.code, again.out) == (0, "two\n")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        from_environment = command(*hint(ran)[:3], "and again")
        assert (from_environment.out, hint(from_environment)[3:]) == ("three\n", [])
    assert [json.loads(request.raw)["model"] for request in server.requests] == ["own"] * 3


def test_the_hint_of_a_session_that_no_model_answered_names_the_model(command: Command) -> None:
    """Where the first turn failed, the record names no model yet, and going on would ask another one."""
    with ScriptedServer([HttpAnswer(401, {"error": {"message": "no such key"}}), "there"]) as server:
        ran = command("chat", "hi", "--model", "own", "--base-url", f"{server.base_url}?api-key=abc")
        assert ran.code == 1
        words = ["--model", "own", "--base-url", f"{server.base_url}?api-key="]
        assert hint(ran)[3:] == words  # a key is not shown
        assert command(*hint(ran), "again").out == "there\n"
    assert [json.loads(request.raw)["model"] for request in server.requests] == ["own"] * 2


def test_the_prompt_comes_over_a_pipe(command: Command) -> None:
    """Piped standard input is the prompt, whole, whatever lines and bytes it has."""
    with ScriptedServer(["ok"]) as server:
        ran = command.process("chat", "--base-url", server.base_url, stdin="grüße\nline 2\n".encode() + b"\xff")
    assert ran.code == 0
    assert server.requests[0].messages[-1]["content"] == "grüße\nline 2\n\ufffd"


@pytest.mark.parametrize("stdin", ["", "  \n"])
def test_an_empty_prompt_makes_nothing(command: Command, stdin: str) -> None:
    """Nothing to ask is an error, and leaves no session."""
    ran = command("chat", "--base-url", "http://127.0.0.1:9", stdin=stdin)
    assert ran.code == 2 and "empty" in ran.error
    assert command.files() == {}


@pytest.mark.parametrize("arguments", [(), ("--model", "gpt-5-mini")])
def test_without_a_way_to_a_model_it_says_how_to_choose(command: Command, arguments: tuple[str, ...]) -> None:
    """No key, no server: one message with all three ways, and no session."""
    ran = command("chat", "hi", *arguments)
    assert ran.code == 2 and "choose a model" in ran.error
    assert all(word in ran.err for word in ("OPENAI_API_KEY", "--base-url", "--model local", "--model-file"))
    assert command.files() == {}


def test_tools_read_the_working_folder(command: Command) -> None:
    """The model lists and reads below --cwd; what it does is told on standard error, the answer alone on output."""
    (command.folder / "note.txt").write_text("the secret is 42\n")
    with ScriptedServer([tool_call("read", path="note.txt"), "It is 42."]) as server:
        ran = command("chat", "What is the secret?", "--base-url", server.base_url)
    assert (ran.code, ran.out) == (0, "It is 42.\n")
    assert 'read(path="note.txt")' in ran.err
    assert "the secret is 42" in str(server.requests[1].messages[-1]["content"])
    assert {tool["function"]["name"] for tool in server.requests[0].body["tools"]} == {"read", "list", "search"}


def test_no_tools_offers_none(command: Command) -> None:
    """With --no-tools the request has no tools, and the prompt does not speak of any."""
    with ScriptedServer(["ok"]) as server:
        command("chat", "hi", "--no-tools", "--base-url", server.base_url)
    assert "tools" not in server.requests[0].body


def test_text_before_and_after_a_tool_are_paragraphs(command: Command) -> None:
    """Two messages of one turn do not run into each other."""
    with ScriptedServer([["Let me look.", tool_call("list", path=".")], "Nothing there."]) as server:
        ran = command("chat", "hi", "--base-url", server.base_url)
    assert ran.out == "Let me look.\n\nNothing there.\n"


def test_events_as_json(command: Command) -> None:
    """With --json each event is a line, the deltas make up the text, and the session is named first."""
    with ScriptedServer([tool_call("list", path="."), "Done \u202e\x1b[31m."]) as server:
        ran = command("chat", "hi", "--json", "--base-url", server.base_url)
    kinds = [row["type"] for row in ran.rows]
    assert kinds[0] == "session" and kinds[-1] == "turn_ended" and ran.rows[-1]["reason"] == "completed"
    assert {"turn_started", "prompt_recorded", "tool_started", "tool_finished", "message_finished"} <= set(kinds)
    assert "".join(row["text"] for row in ran.rows if row["type"] == "text_delta") == "Done \u202e\x1b[31m."
    assert ran.out.isascii() and "\x1b" not in ran.out
    assert Path(ran.rows[0]["path"]).is_file()


def test_content_cannot_drive_the_terminal(command: Command) -> None:
    """Escapes in a reply, in a tool's name and in its arguments are shown, on output and on standard error."""
    with ScriptedServer([tool_call("\x1b]0;x\x07", path="\x9b2J"), "\x1b[2Jgone\u202e"]) as server:
        ran = command("chat", "hi", "--base-url", server.base_url)
    everything = ran.out + ran.err + command("tree").out + command("context").out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", everything)
    assert ran.out == "\\x1b[2Jgone\\u202e\n"


def test_a_failing_model_keeps_the_question(command: Command) -> None:
    """A model that refuses is one line and exit code 1; the question is on record, and one goes on before it."""
    with ScriptedServer([HttpAnswer(401, {"error": {"message": "no such key"}})]) as server:
        ran = command("chat", "hi", "--base-url", server.base_url)
    assert ran.code == 1 and "no such key" in ran.error and ran.out == ""
    assert "go on with" in ran.err
    assert "turn 1 failed" in command("tree").out
    assert command("verify").code == 0


def test_a_failed_question_can_be_left_out(command: Command) -> None:
    """After a failed turn the way to go on without its question is told, and works."""
    with ScriptedServer(["one", HttpAnswer(400, {"error": {"message": "no"}}), "two"]) as server:
        model = ("--base-url", server.base_url)
        command("chat", "first", *model)
        failed = command("chat", "-s", "last", "too much", *model)
        place = re.search(r"--at (\S+)$", failed.err, re.MULTILINE)
        assert failed.code == 1 and place is not None
        assert command("chat", "-s", "last", "--at", place[1], "second", *model).out == "two\n"
    assert texts(server.requests[2].messages) == [("user", "first"), ("assistant", "one"), ("user", "second")]


def test_a_server_that_is_not_there(command: Command) -> None:
    """No connection is one line."""
    ran = command("chat", "hi", "--base-url", "http://127.0.0.1:9/v1", "--model", "x")
    assert ran.code == 1 and "127.0.0.1" in ran.error


def test_at_needs_a_session_and_an_entry(command: Command) -> None:
    """--at without a session, or with an entry that is not there, asks nothing and records nothing."""
    with ScriptedServer(["one"]) as server:
        model = ("--base-url", server.base_url)
        assert "--session" in command("chat", "--at", "x", "hi", *model).error
        command("chat", "hi", *model)
        before = command.files()
        ran = command("chat", "-s", "last", "--at", "nowhere", "hi", *model)
    assert ran.code == 2 and "nowhere" in ran.error
    assert command.files() == before
    assert len(server.requests) == 1


def test_ambiguous_lists_and_makes_nothing(command: Command) -> None:
    """A beginning that several sessions share is an error that lists them."""
    with ScriptedServer(["one", "two"]) as server:
        for _ in range(2):
            command("chat", "hi", "--base-url", server.base_url)
        before = command.files()
        ran = command("chat", "-s", "0", "hi", "--base-url", server.base_url)
    assert ran.code == 2
    assert all(path.stem in ran.error for path in command.root.glob("*.jsonl"))
    assert command.files() == before


def test_a_session_in_a_file_of_ones_own(command: Command) -> None:
    """--file begins a session at that path, goes on with it, and leaves the shelf alone."""
    with ScriptedServer(["one", "two"]) as server:
        for prompt in ("first", "second"):
            assert command("chat", "--file", "own.jsonl", prompt, "--base-url", server.base_url).code == 0
    assert len(server.requests[1].messages) >= 3
    assert command.files() == {}
    (command.folder / "empty.jsonl").touch()
    with ScriptedServer(["three"]) as server:
        assert command("chat", "--file", "empty.jsonl", "hi", "--base-url", server.base_url).out == "three\n"
    assert "second" in command("tree", "own.jsonl").out


def test_budgets_reach_the_request(command: Command) -> None:
    """--max-chars leaves the oldest out of the request; one that cannot hold the prompt is an error with the sizes."""
    with ScriptedServer(["a" * 3000, "b", "c"]) as server:
        model = ("--base-url", server.base_url, "--no-tools")
        command("chat", "x" * 3000, *model)
        ran = command("chat", "-s", "last", "short", "--max-chars", "2000", *model)
        assert ran.code == 0
        assert texts(server.requests[1].messages)[-1] == ("user", "short")
        assert len(server.requests[1].raw) < 3000
        ran = command("chat", "-s", "last", "y" * 500, "--max-tokens", "20", *model)
    assert ran.code == 1 and "--max-tokens" in ran.error and "20" in ran.error


def test_a_torn_tail_is_repaired_and_told(command: Command) -> None:
    """Bytes after the last newline are set aside, all of them, it is said, and the conversation goes on."""
    with ScriptedServer(["one", "two"]) as server:
        command("chat", "hi", "--base-url", server.base_url)
        (path,) = command.root.glob("*.jsonl")
        whole = path.read_bytes()
        torn = b'{"seq":9,"type":"message","id":"x'
        path.write_bytes(whole + torn)
        ran = command("chat", "-s", "last", "again", "--base-url", server.base_url)
    assert ran.code == 0 and f"{len(torn)} bytes" in ran.err
    assert path.read_bytes().startswith(whole) and torn not in path.read_bytes()
    assert [each.read_bytes() for each in command.root.glob("*.torn-*")] == [torn]


def test_a_crash_is_told_and_not_repeated(command: Command) -> None:
    """A turn that a kill cut off is closed by the next chat, which says so and goes on."""
    with ScriptedServer([Reply("never", delay=600), "fine"]) as server:
        process = command.start("chat", "hi", "--base-url", server.base_url)
        wait_until(lambda: len(server.requests) == 1)
        process.kill()
        process.communicate()
        ran = command("chat", "-s", "last", "again", "--base-url", server.base_url)
    assert ran.code == 0 and "cut off" in ran.err and ran.out == "fine\n"
    assert "turn 1 interrupted" in command("tree").out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_the_turn_cleanly(command: Command, number: signal.Signals, code: int) -> None:
    """Ctrl-C and its like cancel the request, record the end of the turn, and exit with a code of their own."""
    with ScriptedServer([lasting("Hello and so on"), "after"]) as server:
        process = command.start("chat", "hi", "--base-url", server.base_url, stdin=subprocess.DEVNULL)
        assert process.stdout is not None
        assert process.stdout.read(5) == b"Hello"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == code
        assert b"Traceback" not in err and b"go on with" in err
        assert server.wait_for_hang_up(timeout=60)
        assert "turn 1 cancelled" in command("tree").out
        assert command("chat", "-s", "last", "go on", "--base-url", server.base_url).out == "after\n"


def test_a_reader_that_goes_away_ends_the_turn(command: Command) -> None:
    """When nobody reads the answer any more, the turn is cancelled, on record, and it exits as a closed pipe does."""
    with ScriptedServer([Reply("x" * 40_000, chunk_size=10, pause=0.02)]) as server:
        process = command.start("chat", "hi", "--base-url", server.base_url, stdin=subprocess.DEVNULL)
        assert process.stdout is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        assert process.wait(60) == 141
        process.stderr.close()
        assert b"Traceback" not in err and b"Exception" not in err
    assert "cancelled" in command("tree").out


def test_two_writers(command: Command) -> None:
    """A session that another process talks in is refused with its owner, and can be looked at."""
    with ScriptedServer([Reply("slow", delay=600)]) as server:
        process = command.start("chat", "hi", "--base-url", server.base_url, stdin=subprocess.DEVNULL)
        wait_until(lambda: len(server.requests) == 1)
        ran = command("chat", "-s", "last", "me too", "--base-url", server.base_url)
        assert ran.code == 1 and str(process.pid) in ran.error
        assert command("tree").code == 0
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_the_model_that_answered_answers_again(command: Command) -> None:
    """Without --model, a session goes on with the model that it was last answered by."""
    with ScriptedServer(["one", "two"]) as server:
        command("chat", "hi", "--model", "qwen", "--base-url", server.base_url)
        command("chat", "-s", "last", "again", "--base-url", server.base_url)
    assert [request.body["model"] for request in server.requests] == ["qwen", "qwen"]


def test_a_key_is_never_shown(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in the environment is in no output and no file, even when the server says it back."""
    key = "sk-verysecretkey0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with ScriptedServer([HttpAnswer(401, {"error": {"message": f"bad key {key}"}})]) as server:
        ran = command("chat", "hi", "--base-url", server.base_url)
    assert ran.code == 1
    assert key not in ran.out + ran.err
    assert all(key.encode() not in data for data in command.files().values())


def entry(ran: Ran, kind: str, text: str) -> str:
    """The id of the entry that ``tree --json`` shows with that text."""
    return next(row["id"] for row in ran.rows if row["kind"] == kind and row["text"] == text)


def wait_until(condition: object, timeout: float = 60) -> None:
    """Wait for what another process does."""
    assert callable(condition)
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
