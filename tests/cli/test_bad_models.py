"""Bad models, bad ways to one, bad calls, at the command line: one line that says why, and the next prompt works."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.models import http_chat
from harness.testing import HttpAnswer, Reply, ScriptedServer, tool_call
from storage.messages import ToolCall
from tests.cli.conftest import Command, Ran
from tests.models.asking import call_delta, stream_of

KEY = "a-secret-nobody-may-see"
"""It does not look like a key, so that it is known only by being the one."""


def echo(request: Any) -> HttpAnswer:
    """A refusal that repeats the key."""
    key = request.headers["authorization"].removeprefix("Bearer ")
    return HttpAnswer(401, {"error": {"message": f"Incorrect API key provided: {key}"}})


def half(*more: Any, cut: bool = False) -> HttpAnswer:
    return HttpAnswer(200, [*stream_of({"content": "Half a"}, finish=None, done=False), *more], cut=cut)


FAILURES: dict[str, tuple[Callable[[], Any], str]] = {
    "a wrong key that is echoed": (lambda: echo, "Check the API key"),
    "no such model": (lambda: HttpAnswer(404, {"error": {"message": "No such model."}}), "No such model"),
    "a login page": (lambda: HttpAnswer(200, "<html>Log in</html>", {"Content-Type": "text/html"}), "base URL"),
    "an empty body": (lambda: HttpAnswer(200, b""), "without saying anything"),
    "an error under 200": (lambda: HttpAnswer(200, {"error": {"message": "it\nburns\x1b[31m"}}), "it burns"),
    "garbage": (lambda: HttpAnswer(200, ["data: \x1b]0;x\x07oops\n\n"]), "is no chunk"),
    "it stops half-way": (half, "in the middle"),
    "it breaks half-way": (lambda: half(cut=True), "broke in the middle"),
    "an error half-way": (lambda: half({"error": {"message": "it burns"}}), "it burns"),
    "it talks for ever": (lambda: "la " * 10_000, "without an end"),
    "it is filtered": (lambda: HttpAnswer(200, stream_of({"content": "x"}, finish="content_filter")), "content_filter"),
    "no money": (
        lambda: HttpAnswer(429, {"error": {"code": "insufficient_quota", "message": "Pay first."}}),
        "Pay first",
    ),
    "too long": (
        lambda: HttpAnswer(400, {"error": {"code": "context_length_exceeded", "message": "Too long."}}),
        "too long",
    ),
}


def check(command: Command, ran: Ran) -> None:
    """One line of error without secrets or control characters; what is recorded has none either, and is whole."""
    assert ran.code == 1
    assert KEY not in ran.out + ran.err
    assert "\x1b" not in ran.out + ran.err
    assert ran.error.isprintable()
    for data in command.files().values():
        assert KEY.encode() not in data
    assert command("verify").code == 0


@pytest.mark.parametrize("name", FAILURES)
def test_models_that_fail(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends with 1 and one line; the session is there, whole, and goes on with the next prompt."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_chat, "LARGEST_REPLY", 10_000)
    make, says = FAILURES[name]
    with ScriptedServer([make(), "It works again."]) as server:
        ran = command("chat", "Hello?", "--base-url", server.base_url)
        check(command, ran)
        assert says in ran.error
        again = command("chat", "--session", "last", "And now?", "--base-url", server.base_url)
    assert (again.code, again.out) == (0, "It works again.\n")
    assert [message["content"] for message in server.requests[-1].messages if message["role"] == "user"] == [
        "Hello?",
        "And now?",
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_no_network(host: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that refuses on this machine, and a host that does not exist, are said so at once: nobody waits for retries."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("anyio.sleep", None)  # a retry would wait
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://{host}:{taken.getsockname()[1]}/v1"
        ran = command("chat", "Hello?", "--base-url", url)
    check(command, ran)
    assert "cannot be reached" in ran.error
    assert host in ran.error
    monkeypatch.undo()


@pytest.mark.parametrize("url", ["notaurl", "ftp://host/v1", "http://", "http://[bad", "http://127.0.0.1:99999/v1"])
@pytest.mark.parametrize("is_told_by", ["option", "environment"])
def test_no_address(url: str, is_told_by: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base URL that is none is a wrong command line: nothing is begun."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    if is_told_by == "environment":
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        ran = command("chat", "Hello?")
    else:
        ran = command("chat", "Hello?", "--base-url", url)
    assert ran.code == 2
    assert "base URL" in ran.error
    assert command.files() == {}


BAD_CALLS: dict[str, Any] = {
    "unknown tool": ToolCall(id="c1", name="\x1b[31mrm", arguments={}),
    "no id and no object": HttpAnswer(200, stream_of(call_delta(0, "", "read", '["a"]'), finish="tool_calls")),
    "cut arguments": HttpAnswer(200, stream_of(call_delta(0, "c1", "read", '{"path": "a'), finish="length")),
    "wrong arguments": tool_call("read", wrong=1),
    "a file that is not there": tool_call("read", path="\x1b[2Jnot-there"),
    "a place outside": tool_call("read", path="../../../etc/passwd"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_calls_that_are_wrong(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that cannot be run is told to the model, and shown without its control characters; the turn goes on."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ScriptedServer([BAD_CALLS[name], "I see."]) as server:
        ran = command("chat", "Hello?", "--base-url", server.base_url)
    assert (ran.code, ran.out) == (0, "I see.\n")
    assert "\x1b" not in ran.err
    (result,) = [message for message in server.requests[1].messages if message["role"] == "tool"]
    assert result["content"].strip()
    (call,) = server.requests[1].messages[-2]["tool_calls"]
    assert isinstance(json.loads(call["function"]["arguments"]), dict)
    assert command("verify").code == 0


def test_no_way_to_a_model_for_an_old_session(command: Command) -> None:
    """Without key and server an old session is left as it is, and the message says how to choose."""
    with ScriptedServer(["Yes."]) as server:
        command("chat", "Hello?", "--base-url", server.base_url)
    before = command.files()
    ran = command("chat", "--session", "last", "And now?")
    assert ran.code == 2
    assert "--base-url" in ran.err
    assert command.files() == before


def test_stopping_a_model_that_never_stops(command: Command, tmp_path: Path) -> None:
    """Ctrl-C ends a reply without end: what was said is kept, the server is let go, and the next prompt works."""
    with ScriptedServer([Reply("la " * 100_000, pause=0.02), "It works again."]) as server:
        process = command.start("chat", "Hello?", "--base-url", server.base_url, stdin=subprocess.DEVNULL)
        assert process.stdout is not None
        assert process.stdout.read(2) == b"la"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b"Traceback" not in told
        assert server.wait_for_hang_up(timeout=60)
        again = command("chat", "--session", "last", "And now?", "--base-url", server.base_url)
    assert (again.code, again.out) == (0, "It works again.\n")
    assert server.requests[-1].messages[-2]["content"].startswith("la")
    assert command("verify").code == 0
