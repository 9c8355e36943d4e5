"""Histories of any messages that ``build_context`` can give, for rules about what goes out."""

from __future__ import annotations

from hypothesis import strategies as st

from storage.messages import AssistantMessage, ImageContent, Message, UserMessage
from tests.models.asking_anthropic import call, result, text, thought

PNG = ImageContent(data="iVBORw0KGgoAAAA=", mime_type="image/png")

texts = st.sampled_from(["", " \n", "a", "b "])
images = st.sampled_from([PNG, ImageContent(data="QUFB", mime_type="image/tiff")])
contents = st.one_of(st.none(), texts, st.lists(st.one_of(st.builds(text, texts), images), max_size=3))
thoughts = st.builds(thought, texts, st.sampled_from([None, "", "sig"]), redacted=st.sampled_from([None, True]))
calls = st.builds(call, st.sampled_from(["", "c1", "c1", "c 2", "ü", "x" * 70]), st.sampled_from(["read", "", "a b"]))
replies = st.lists(st.one_of(thoughts, st.builds(text, texts), calls), max_size=5)
makers = st.sampled_from([("anthropic", "claude-opus-4-6"), ("openai", "gpt")])


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Any messages in an order that ``build_context`` can give: each call followed by its one result."""
    messages: list[Message] = []
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            messages.append(UserMessage(content=draw(contents)))
        provider, model = draw(makers)
        reply = AssistantMessage(content=draw(replies), provider=provider, model=model)
        messages.append(reply)
        for each in reply.tool_calls:
            messages.append(result(each.id, draw(contents), is_error=draw(st.booleans())))
    return messages


def is_sendable(message: Message) -> bool:
    """Whether there is anything in it to be sent: not in a reply of thoughts and blanks."""
    if not isinstance(message, AssistantMessage):
        return True
    return bool(message.tool_calls or message.text.strip())
