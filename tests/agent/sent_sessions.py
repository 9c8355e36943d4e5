"""Sessions made by chance, through a harness and a real server, for what must hold of every request that was answered.

A program is a list of steps: prompts (with replies, calls, steers, budgets, hooks and what others append meanwhile), and
what happens between them: notes, working memory, compactions, context edits, branches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from harness.agent import AgentHarness
from harness.events import AgentEvent, MessageFinished
from harness.hooks import Hook
from harness.models.events import TextDelta
from harness.models.protocol import ChatModel, ModelRequest
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import Reply, ScriptedServer
from harness.tools import tool
from storage.entries import ContextEditEntry, MessageEntry, Replacement
from storage.errors import BudgetError, ModelError
from storage.messages import AssistantMessage, ToolCall, UserMessage

TEXTS = st.sampled_from(["yes", "  ", "Grüße", "漢字" * 20, "word " * 60, "a line\nanother"])
SOME_TEXTS = TEXTS.filter(str.strip)
PLACES = st.floats(0, 1)


@dataclass(frozen=True)
class Round:
    """One reply: its text, and how large the results of its calls are."""

    text: str
    results: Sequence[int] = ()


@dataclass(frozen=True)
class Ask:
    """A turn. ``meanwhile``: what others append while the model speaks."""

    text: str
    rounds: Sequence[Round]
    last: str
    max_chars: int | None = None
    max_tokens: int | None = None
    hook: str = ""
    meanwhile: str = ""
    steer: str = ""
    thinking: str | None = None


@dataclass(frozen=True)
class Do:
    """Something else that happens in a session; ``place`` says to which entry, as a fraction of the path."""

    what: str
    text: str = "note"
    place: float = 0.0


ROUNDS = st.builds(Round, TEXTS, st.lists(st.sampled_from([0, 3, 400]), min_size=1, max_size=3).map(tuple))
ASKS = st.builds(
    Ask,
    SOME_TEXTS,
    st.lists(ROUNDS, max_size=2).map(tuple),
    SOME_TEXTS,
    max_chars=st.sampled_from([None, None, 900, 2500]),
    max_tokens=st.sampled_from([None, None, 700, 1500]),
    hook=st.sampled_from(["", "", "remind", "redact", "both ends", "header", "in place"]),
    meanwhile=st.sampled_from(["", "", "", "note", "remember", "forget", "label", "edit"]),
    steer=st.sampled_from(["", "", "wait", "steer " * 30]),
    thinking=st.sampled_from([None, None, "low"]),
)
DOINGS = st.builds(
    Do,
    st.sampled_from(["note", "remember", "forget", "compact", "compact to nothing", "compact with tail", "hide", "replace",
                     "move", "move with summary", "label"]),
    SOME_TEXTS,
    PLACES,
)  # fmt: skip
PROGRAMS = st.lists(st.one_of(ASKS, DOINGS, ASKS), min_size=2, max_size=9).filter(
    lambda steps: any(isinstance(step, Ask) for step in steps)
)


@tool
async def give(length: int) -> str:
    """Give so many characters."""
    return "r" * length


class Changing(Hook):
    """Changes requests in one way."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def before_request(self, request: ModelRequest) -> ModelRequest | None:
        messages = list(request.messages)
        reminder = UserMessage(content="(A reminder.)", timestamp=1)
        match self.how:
            case "remind":
                return replace(request, messages=[*messages, reminder])
            case "both ends":
                return replace(request, messages=[reminder, *messages, reminder])
            case "redact":
                return replace(request, messages=[_redacted(message) for message in messages])
            case "header":
                return replace(request, system_prompt="Another prompt.", options={"temperature": len(messages) % 2})
            case _:  # in place
                for message in messages:
                    if isinstance(message, UserMessage):
                        message.content = "changed in place"
                        break
        return None


def _redacted(message: Any) -> Any:
    if isinstance(message, UserMessage):
        return UserMessage(content=message.text.replace("word", "****") or "-", timestamp=message.timestamp)
    return message


class Meanwhile(Hook):
    """Appends something once in a turn, while the model speaks; and steers once."""

    def __init__(self, session: Session, harness: AgentHarness, ask: Ask) -> None:
        self.session = session
        self.harness = harness
        self.what = ask.meanwhile
        self.steer = ask.steer

    async def on_event(self, event: AgentEvent) -> None:
        if self.what and isinstance(event, TextDelta):
            what, self.what = self.what, ""
            await do(self.session, Do(what, "meanwhile", 0.5))
        if self.steer and isinstance(event, MessageFinished):
            text, self.steer = self.steer, ""
            self.harness.steer(text)


async def do(session: Session, step: Do) -> None:
    """Let it happen, where it can."""
    branch = await session.branch()
    entry = branch[int(step.place * (len(branch) - 1))] if branch else None
    match step.what:
        case "note":
            await session.append_custom_message("note", step.text)
        case "remember":
            await session.append_working_memory("set", step.text[:8].strip(), step.text)
        case "forget":
            await session.append_working_memory("clear")
        case "compact to nothing":
            await session.append_compaction("All of it.", tokens_before=1)
        case "compact with tail":
            messages = [one.message for one in branch[-12:] if isinstance(one, MessageEntry)]
            await session.append_compaction("The beginning.", retained_tail=messages, tokens_before=1)
        case _ if entry is None:
            return
        case "compact":
            await session.append_compaction("The beginning.", first_kept_entry_id=entry.id, tokens_before=1)
        case "hide" | "edit":
            await session.append_entry(ContextEditEntry(target_id=entry.id, replacement=None))
        case "replace":
            await session.append_entry(ContextEditEntry(target_id=entry.id, replacement=Replacement(content=step.text)))
        case "label":
            await session.append_label(entry.id, "here")
        case "move":
            await session.move_to(entry.id)
        case "move with summary":
            await session.move_to(entry.id, step.text)
        case _:
            raise AssertionError(step.what)


@dataclass
class Sent:
    """What a program sent."""

    bodies: list[bytes] = field(default_factory=list[bytes])
    replies: list[str] = field(default_factory=list[str])
    """For each body the id of the entry that holds its reply."""


async def run_program(
    session: Session, steps: Sequence[Ask | Do], server: ScriptedServer, script: deque[Reply], model: ChatModel
) -> Sent:
    """Run it; each turn has a harness of its own. Checks that each request was answered, and each reply was asked for."""
    sent = Sent()
    for step in steps:
        if isinstance(step, Do):
            await do(session, step)
            continue
        first = len(server.requests)
        script.clear()
        script.extend(_replies_of(step))
        settings = AgentSettings(
            max_chars=step.max_chars,
            max_tokens=step.max_tokens,
            thinking_level=step.thinking,
            options={"temperature": 0.5},
        )
        harness = AgentHarness(session, model, tools=[give], system_prompt="Be brief.", settings=settings)
        seq = len(session.log.index)
        async with harness:
            if step.hook:
                harness.on(Changing(step.hook))
            harness.on(Meanwhile(session, harness, step))
            with suppress(BudgetError, ModelError):  # what must be shown does not fit; a hook hid the only message
                await harness.prompt(step.text)
            await harness.abort()  # a steer that came too late
        sent.bodies += [request.raw for request in server.requests[first:]]
        entries = await session.entries(after_seq=seq - 1)
        sent.replies += [
            entry.id
            for entry in entries
            if isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage) and entry.request
        ]
        assert len(sent.bodies) == len(sent.replies)
    return sent


def _replies_of(step: Ask) -> list[Reply]:
    replies: list[Reply] = []
    for number, one in enumerate(step.rounds):
        calls = [
            # Ids repeat from reply to reply, and one of them is empty.
            ToolCall(id=f"c{place}" if place or number else "", name="give", arguments={"length": length})
            for place, length in enumerate(one.results)
        ]
        replies.append(Reply(one.text, tool_calls=calls, thinking="Let me see."))
    return [*replies, Reply(step.last), Reply("And that.")]


def next_reply(script: deque[Reply]) -> Callable[[Any], Reply]:
    """The server's script: the next reply of the turn that runs."""
    return lambda _request: script.popleft()
