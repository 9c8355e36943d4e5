"""The scripted server is a real one: for other processes, other clients, and tests that block."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from harness.models import AnthropicModel, OpenAIChatModel, RetryPolicy
from harness.testing import HttpAnswer, Reply, ScriptedServer
from storage.errors import ModelError
from tests.models.asking import model_at, reply


def post(server: ScriptedServer, body: Any = None) -> tuple[int, bytes]:
    host = server.base_url.removeprefix("http://").removesuffix("/v1")
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body or {"model": "m", "messages": []}))
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_plain_bytes_on_the_wire() -> None:
    """What it sends is what OpenAI sends: one chunk an event, the usage when it is asked for, and [DONE]."""
    with ScriptedServer(["Hello"]) as server:
        status, sent = post(server, {"model": "m", "messages": [], "stream_options": {"include_usage": True}})
    events = sent.decode().split("\n\n")
    assert status == 200
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == "Hello"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] > 0


def test_another_process_can_ask() -> None:
    """A command line under test, in a process of its own, reaches it."""
    program = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], b'{}', timeout=60).read().decode())"
    with ScriptedServer(["Hello"]) as server:
        url = f"{server.base_url}/chat/completions"
        done = subprocess.run(
            [sys.executable, "-c", program, url], capture_output=True, text=True, timeout=60, check=True
        )
    assert "Hello" in done.stdout


def test_status_headers_and_body() -> None:
    """An ``HttpAnswer`` gives its status, its headers and its body, bytes, text or an object."""
    with ScriptedServer(
        [HttpAnswer(429, {"a": 1}, {"Retry-After": "7"}), HttpAnswer(500, "ä"), HttpAnswer(200, b"\xff")]
    ) as s:
        assert post(s) == (429, b'{"a": 1}')
        assert post(s) == (500, "ä".encode())
        assert post(s) == (200, b"\xff")


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [OpenAIChatModel, AnthropicModel])
async def test_a_rate_limit(kind: type[OpenAIChatModel | AnthropicModel]) -> None:
    """More requests than the limit allows get 429 and the seconds to wait, use up no reply, and come through later."""
    with ScriptedServer(["One.", "Two."], rate_limit=(1, 1.0)) as server:
        model = kind("m", base_url=server.base_url, api_key="any-key", retry=RetryPolicy(3, 60))
        texts = [(await reply(model)).text for _ in range(2)]
        assert len(server.requests) == 3
    assert texts == ["One.", "Two."]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [OpenAIChatModel, AnthropicModel])
async def test_keys(kind: type[OpenAIChatModel | AnthropicModel]) -> None:
    """A server with keys refuses others, in either protocol's header."""
    with ScriptedServer(["Yes."], keys={"right-key"}) as server:
        with pytest.raises(ModelError, match="HTTP 401"):
            await reply(kind("m", base_url=server.base_url, api_key="wrong-key"))
        assert (await reply(kind("m", base_url=server.base_url, api_key="right-key"))).text == "Yes."


@pytest.mark.anyio
async def test_a_connection_that_is_closed_without_a_word() -> None:
    """Status 0 is no answer at all: a lost connection, which is tried again."""
    with ScriptedServer([HttpAnswer(0), "Yes."]) as server:
        assert (await reply(model_at(server))).text == "Yes."
        assert len(server.requests) == 2


def test_a_cut_body() -> None:
    """A cut connection is seen as one by any client."""
    with ScriptedServer([Reply("Hello, world", cut=True)]) as server, pytest.raises(http.client.IncompleteRead):
        post(server)


def test_what_it_got() -> None:
    """Requests are kept with path, headers and body."""
    with ScriptedServer(["x"]) as server:
        post(server, {"model": "m", "messages": [{"role": "user", "content": "ä"}]})
        (request,) = server.requests
    assert request.messages == [{"role": "user", "content": "ä"}]
    assert request.path == "/v1/chat/completions"
    assert "host" in request.headers


def test_models_are_listed() -> None:
    """A client that asks for the list of models gets one."""
    with ScriptedServer([]) as server:
        host = server.base_url.removeprefix("http://").removesuffix("/v1")
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("GET", "/v1/models")
        assert json.loads(connection.getresponse().read())["data"]
        connection.close()


def test_a_failure_in_the_script_reaches_the_test() -> None:
    """What a function of the script raises, an assertion say, is raised again on leaving."""

    def strict(request: Any) -> str:
        raise AssertionError(f"unexpected {request.body['model']}")

    with pytest.raises(AssertionError, match="unexpected m"), ScriptedServer(strict) as server:
        assert post(server)[0] == 400


@pytest.mark.parametrize("script", [Reply("x", delay=60), Reply("hello, world", pause=60), HttpAnswer(200, [60.0])])
def test_closing_breaks_off_what_is_being_answered(script: Any) -> None:
    """Closing waits for nothing, and leaves no thread behind."""
    before = set(threading.enumerate())
    server = ScriptedServer([script])
    with server:
        client = socket.create_connection(("127.0.0.1", int(server.base_url.split(":")[2].split("/")[0])))
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        while not server.requests:
            time.sleep(0.001)
    client.close()
    assert set(threading.enumerate()) == before


def test_closing_ends_connections_that_are_kept() -> None:
    """A client that keeps its connection open does not hold the server up."""
    with ScriptedServer(["x"]) as server:
        host = server.base_url.removeprefix("http://").removesuffix("/v1")
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("POST", "/v1/chat/completions", "{}")
        connection.getresponse().read()
        begun = time.monotonic()
    assert time.monotonic() - begun < 50  # the client would keep it for 60
    connection.close()


def test_closing_without_entering() -> None:
    """A server that was never entered can be closed, and gives its port back."""
    server = ScriptedServer([])
    server.close()
    server.close()
