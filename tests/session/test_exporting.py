"""Conversations for elsewhere: what is exported is accepted there, says the same, and comes back the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given

from harness import (
    AssistantMessage,
    ImageContent,
    MemoryStorage,
    Message,
    Session,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    export_anthropic,
    export_openai,
    import_messages,
    whole_conversation,
)
from harness.models.payload_parts import EMPTY_RESULT, IMAGES_OF_RESULTS
from tests.models.anthropic_rules import refused
from tests.properties.growing import grow
from tests.properties.profiles import examples
from tests.properties.steps import Step, conversations

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "trio"])
NOTHING = (EMPTY_RESULT, "(an image, shown below)")
"""What stands in a result without a text."""

Said = tuple[str, str, tuple[tuple[str, str], ...]]


def texts(message: Message, between: str) -> str:
    content: Any = message.content  # pyright: ignore[reportAttributeAccessIssue] - only these roles are exported
    if isinstance(content, str):
        return content
    parts = [part.text or "" for part in content or () if isinstance(part, TextContent)]
    return between.join(text for text in parts if text.strip())


def said(messages: Sequence[Message]) -> list[Said]:
    """Role, text and calls of each message; ids are the vendor's affair. What only an export adds is left out."""
    found: list[Said] = []
    for message in messages:
        calls: tuple[tuple[str, str], ...] = ()
        text = texts(message, "\n" if isinstance(message, ToolResultMessage) else "")
        if isinstance(message, AssistantMessage):
            calls = tuple((call.name, json.dumps(call.arguments, sort_keys=True)) for call in message.tool_calls)
            if not text and not calls:
                continue
        if text.startswith(IMAGES_OF_RESULTS):
            continue
        found.append((message.role, "" if text in NOTHING else text, calls))
    return found


def merged(items: list[Said]) -> list[Said]:
    """Neighbours of one role as one, as Anthropic's API wants them; results stay apart."""
    found: list[Said] = []
    for role, text, calls in items:
        if found and role == found[-1][0] != "toolResult":
            found[-1] = (role, found[-1][1] + text, found[-1][2] + calls)
        else:
            found.append((role, text, calls))
    return found


def openai_refuses(messages: list[dict[str, Any]]) -> list[str]:
    """Why OpenAI's API would refuse the messages, from its documentation."""
    reasons: list[str] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                reasons.append("a result without its call before")
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            reasons.append(f"no result for {waiting}")
        calls = message.get("tool_calls", [])
        waiting = [call["id"] for call in calls]
        if len(set(waiting)) != len(waiting) or any(not 0 < len(call_id) <= 40 for call_id in waiting):
            reasons.append("a bad id")
        for call in calls:
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                reasons.append("arguments that are no object")
        if not calls and not message.get("content"):
            reasons.append("no content")
    return reasons + ([f"no result for {waiting}"] if waiting else [])


@LOOPS
@examples(100)
@given(steps=conversations(max_steps=25))
def test_what_is_exported_is_accepted_and_comes_back(loop: str, steps: list[Step]) -> None:
    """Any session, with compactions, cut-off turns, repeated ids, images: both formats, out and in again."""

    async def run() -> None:
        async with Session.open(MemoryStorage.create()) as session:
            await grow(session, steps)
            conversation = await whole_conversation(session)
            shown = await session.build_context()
        for messages, prompt in (
            (conversation.messages, conversation.system_prompt),
            (list(shown.messages), shown.system_prompt),
        ):
            openai = json.loads(json.dumps(export_openai(messages, system_prompt=prompt)))
            assert openai_refuses(openai) == []
            back = import_messages(openai)
            if prompt and prompt.strip():
                assert back.pop(0).text == prompt
            assert said(back) == said(messages)
            body = export_anthropic(messages, system_prompt=prompt)
            assert refused({**body, "messages": with_next_prompt(body["messages"])}) == []
            assert merged(said(import_messages(body["messages"]))) == merged(said(messages))

    anyio.run(run, backend=loop)


def with_next_prompt(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, and what a person would say next, as the API wants it said."""
    asked = {"type": "text", "text": "Go on."}
    if messages and messages[-1]["role"] == "user":
        return [*messages[:-1], {**messages[-1], "content": [*messages[-1]["content"], asked]}]
    return [*messages, {"role": "user", "content": [asked]}]


CONVERSATION: list[Message] = [
    UserMessage(content="Read a."),
    AssistantMessage(
        content=[
            ThinkingContent(thinking="hm", thinking_signature="s"),
            TextContent(text="Yes."),
            ToolCall(id="c1", name="read", arguments={"path": "ä"}),
        ],
        provider="anthropic",
        model="claude",
    ),
    ToolResultMessage(tool_call_id="c1", tool_name="read", content="no", is_error=True, details={"x": 1}, blobs=["b"]),
    AssistantMessage(content=[TextContent(text="It failed.")]),
]


def test_the_whole_of_both() -> None:
    """Exactly this; thinking belongs to the model that signed it, and does not go along."""
    assert export_openai(CONVERSATION, system_prompt="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read a."},
        {
            "role": "assistant",
            "content": "Yes.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"ä"}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "no"},
        {"role": "assistant", "content": "It failed."},
    ]
    body = export_anthropic(CONVERSATION, system_prompt="Be brief.")
    assert body["system"] == [{"type": "text", "text": "Be brief."}]
    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Read a."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Yes."},
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "ä"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "no"}],
                    "is_error": True,
                }
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "It failed."}]},
    ]
    assert sorted(body) == ["messages", "system", "tool_choice", "tools"]


def test_nothing_to_export() -> None:
    """An empty conversation is an empty list, not an error."""
    assert export_openai([]) == []
    assert export_openai([], system_prompt="x") == [{"role": "system", "content": "x"}]
    assert export_anthropic([]) == {"messages": []}
    assert export_anthropic([], system_prompt="x")["messages"] == []


def test_images_go_along_and_come_back() -> None:
    """A person's images stay where they are; those of results follow them, where the format has no other place."""
    png = ImageContent(data="iVBORw0KGgoAAAA=", mime_type="image/png")
    messages: list[Message] = [
        UserMessage(content=[TextContent(text="see"), png]),
        AssistantMessage(content=[ToolCall(id="c", name="read", arguments={})]),
        ToolResultMessage(tool_call_id="c", tool_name="read", content=[TextContent(text="and"), png]),
    ]
    for exported in (export_openai(messages), export_anthropic(messages)["messages"]):
        back = import_messages(exported)
        images = [
            part for message in back for part in getattr(message, "content", []) if isinstance(part, ImageContent)
        ]
        assert images == [png, png]


@pytest.mark.anyio
async def test_the_whole_conversation_has_what_was_compacted() -> None:
    """Neither a compaction nor the working memory stands between the export and what was said; the prompt is in force."""
    async with Session.open(MemoryStorage.create()) as session:
        await session.append_message(UserMessage(content="first"))
        await session.append_message(AssistantMessage(content=[TextContent(text="one")]))
        await session.append_working_memory("set", "goal", "x")
        kept = await session.append_message(UserMessage(content="second"))
        await session.append_compaction("summary", first_kept_entry_id=kept, tokens_before=9)
        fork = await session.append_message(AssistantMessage(content=[TextContent(text="two")]))
        await session.append_message(UserMessage(content="third"))
        conversation = await whole_conversation(session)
        assert [message.text for message in conversation.messages] == ["first", "one", "second", "two", "third"]
        at_fork = await whole_conversation(session, leaf_id=fork)
        assert [message.text for message in at_fork.messages] == ["first", "one", "second", "two"]
        assert (await whole_conversation(session, leaf_id=None)).messages == []
