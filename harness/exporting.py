"""A conversation for elsewhere: messages as OpenAI's and Anthropic's APIs take them, made by the code that sends them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compaction.entry_list import ListPath
from compaction.projection import UnknownEntries
from compaction.state import fold_state
from harness.context import CURRENT, build_context
from harness.markdown_export import export_markdown
from harness.models.anthropic_payload import CONTINUED, anthropic_payload
from harness.models.openai_payload import openai_payload
from harness.models.protocol import ModelRequest
from harness.session import Session
from storage.assembling import LEAF
from storage.entries import CompactionEntry, Entry, WorkingMemoryEntry
from storage.entry_path import EntryPath
from storage.event_loops import Breath, run_in_worker
from storage.messages import AssistantMessage, Message

_NOBODY = "exported"
"""The provider and model that an export is made for: none, so that no vendor's signed thinking goes along."""


@dataclass(frozen=True, slots=True)
class WholeConversation:
    """All that was said on one path, and the system prompt in force at its end."""

    messages: list[Message]
    system_prompt: str | None


async def whole_conversation(
    session: Session, *, leaf_id: str | object | None = CURRENT, unknown_entries: UnknownEntries = "raise"
) -> WholeConversation:
    """What was said from the root to ``leaf_id``, what a compaction summarised included, in an order that can be sent.

    It is the projection of ``build_context`` without compactions and working memory: every call has its result, custom
    messages and branch summaries are user messages. For what the model is shown, export ``build_context``'s messages.
    Raises ``UnsupportedEntryError``, ``EntryNotFoundError`` and ``BrokenPathError``.
    """
    path = await session.log.path(LEAF if leaf_id is CURRENT else leaf_id)
    state = fold_state(path)
    said = await run_in_worker(lambda: _without_what_shortens(path))
    context = await build_context(said, unknown_entries=unknown_entries)
    return WholeConversation(list(context.messages), state.system_prompt)


def _without_what_shortens(path: EntryPath) -> ListPath:
    breath = Breath()
    entries: list[Entry] = []
    for position in range(len(path)):
        entry = path.entry(position)
        if not isinstance(entry, CompactionEntry | WorkingMemoryEntry):
            entries.append(entry)
        breath.take()
    return ListPath(entries)


def export_openai(messages: Sequence[Message], *, system_prompt: str | None = None) -> list[dict[str, Any]]:
    """``messages`` as OpenAI's chat completions take them (``json.dumps`` it, or send it as ``messages``).

    The messages are sendable, as ``build_context`` and ``whole_conversation`` give them. What the format has no place for
    is left out: thinking, usage, details, blobs, and that a result was an error; images of results follow as the user's.
    Raises ``ModelError`` for messages that cannot be sent.
    """
    if not messages:
        return [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    body: dict[str, Any] = json.loads(openai_payload(_NOBODY, ModelRequest(system_prompt, messages)))
    return body["messages"]


def export_anthropic(messages: Sequence[Message], *, system_prompt: str | None = None) -> dict[str, Any]:
    """``messages`` as Anthropic's messages API takes them: an object with ``messages`` and, if there is one, ``system``.

    Neighbours of one role are merged, as that API wants it. With calls among them the object declares their tools, and
    that none may be called. Left out are thinking (it belongs to the model that signed it), usage, details and blobs.
    Raises ``ModelError`` for messages that cannot be sent.
    """
    if not messages:
        return {"messages": []} if system_prompt is None else {"system": system_prompt, "messages": []}
    request = ModelRequest(system_prompt, messages)
    body: dict[str, Any] = json.loads(
        anthropic_payload(_NOBODY, request, provider=_NOBODY, defaults={"max_tokens": 1, "prompt_caching": False})
    )
    sent: list[dict[str, Any]] = body["messages"]
    if isinstance(messages[-1], AssistantMessage) and sent[-1]["content"] == [{"type": "text", "text": CONTINUED}]:
        sent.pop()  # nobody said it: it is there for a request, which must not end with the model's own words
    return {name: body[name] for name in ("system", "messages", "tools", "tool_choice") if name in body}


__all__ = ["WholeConversation", "export_anthropic", "export_markdown", "export_openai", "whole_conversation"]
