"""The bytes of an answered request, from the record alone: through a session, a server, and no setting of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness import AgentHarness, AgentSettings, MemoryStorage, Session
from harness.models import AnthropicModel, OpenAIChatModel, RecordedModel
from harness.rebuilding import rebuild_request
from harness.testing import HttpAnswer, Reply, ScriptedServer, tool_call
from storage.entries import MessageEntry, RequestHeaderEntry
from storage.errors import ModelError
from storage.messages import AssistantMessage
from tests.models.asking import QUICK, asking

pytestmark = pytest.mark.anyio

Maker = Callable[[str], OpenAIChatModel | AnthropicModel]


def openai(**settings: Any) -> Maker:
    return lambda url: OpenAIChatModel("m", base_url=url, api_key="any-key", retry=QUICK, provider="p", **settings)


def anthropic(model_id: str = "claude-sonnet-5", **settings: Any) -> Maker:
    return lambda url: AnthropicModel(model_id, base_url=url, api_key="any-key", retry=QUICK, **settings)


def look(path: str) -> str:
    """Look at a path."""
    return f"{path} is there"


MODELS: dict[str, tuple[Maker, AgentSettings]] = {
    "openai": (openai(), AgentSettings()),
    "openai with options": (openai(options={"temperature": 0.25, "seed": 1}), AgentSettings(options={"seed": 7})),
    "openai without usage": (openai(include_usage=False), AgentSettings(thinking_level="low")),
    "openai that gets its reasoning back": (openai(return_reasoning=True), AgentSettings()),
    "openai that is told in the settings": (openai(), AgentSettings(options={"include_usage": False})),
    "anthropic": (anthropic(), AgentSettings(thinking_level="high")),
    "anthropic without marks": (anthropic(prompt_caching=False, max_tokens=5_000), AgentSettings()),
    "anthropic with a budget": (anthropic("claude-3-7-sonnet", max_tokens=9_000), AgentSettings(thinking_level="low")),
}


@pytest.mark.parametrize("name", MODELS)
async def test_the_record_gives_the_bytes(name: str) -> None:
    """R26: header and reply alone make the model whose payload is what the server got, for every setting of a model."""
    make, settings = MODELS[name]
    script = [
        Reply("Let me see.", [tool_call("look", "c1", path="a")], thinking="hm"),
        Reply("It is there.", thinking="aha"),
        "Bye.",
    ]
    with ScriptedServer(script) as server:
        async with Session.open(MemoryStorage.create()) as session:
            harness = AgentHarness(
                session, make(server.base_url), tools=[look], system_prompt="Be brief.", settings=settings
            )
            await harness.prompt("Is a there?")
            await harness.prompt("Thanks.")
            assert await rebuilt(session) == [request.raw for request in server.requests]


async def test_what_a_server_made_it_send_is_on_record() -> None:
    """The bytes that follow a refusal of ``stream_options`` can be rebuilt too: the reply says what was changed."""

    def strict(request: Any) -> Any:
        if "stream_options" in request.body:
            return HttpAnswer(400, {"error": {"message": "Unrecognized request argument: stream_options"}})
        return "Yes."

    with ScriptedServer(strict) as server:
        async with Session.open(MemoryStorage.create()) as session:
            harness = AgentHarness(session, openai()(server.base_url))
            await harness.prompt("One?")
            await harness.prompt("Two?")
            assert await rebuilt(session) == [request.raw for request in server.requests[1:]]


async def rebuilt(session: Session) -> list[bytes]:
    """The body of each answered request, from the record alone."""
    entries = await session.entries()
    headers = {entry.id: entry for entry in entries if isinstance(entry, RequestHeaderEntry)}
    bodies: list[bytes] = []
    for entry in entries:
        if isinstance(entry, MessageEntry) and entry.request is not None:
            assert isinstance(entry.message, AssistantMessage)
            model = RecordedModel(headers[str(entry.request.header_id)], entry.message)
            bodies.append(model.payload(await rebuild_request(session, entry.id)))
    return bodies


@pytest.mark.parametrize("name", ["include_usage", "return_reasoning"])
def test_switches_are_true_or_false(name: str) -> None:
    """An option of ours that is neither is refused before anything is sent."""
    with pytest.raises(ModelError, match=name):
        openai()("http://127.0.0.1:1").payload(asking(options={name: "yes"}))


def test_the_marks_switch_is_true_or_false() -> None:
    """The same for Anthropic's."""
    with pytest.raises(ModelError, match="prompt_caching"):
        anthropic()("http://127.0.0.1:1").payload(asking(options={"prompt_caching": 1}))


def test_what_the_reply_says_wins() -> None:
    """What was sent otherwise than the header says stands in the reply, and counts over header and request."""
    header = RequestHeaderEntry(model={"provider": "p", "modelId": "m"}, options={"include_usage": True, "seed": 1})
    members = {"role": "assistant", "content": [], "timestamp": 0, "sentOptions": {"include_usage": False}}
    reply = AssistantMessage.model_validate(members)
    body = RecordedModel(header, reply).payload(asking(options={"include_usage": True, "seed": 2}))
    assert b"stream_options" not in body
    assert b'"seed":2' in body
