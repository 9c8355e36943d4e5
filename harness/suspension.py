"""A turn that waits for a person: found at the leaf, in this process or a new one, and taken up again or closed.

What an app says meanwhile does not leave it behind, a user's message no more than a note: the question is still open,
and whoever answers it goes on with all that was said. What does is another branch, a compaction, and a reply that
somebody else gave in the model's place: then ``resume`` says so, and where the turn waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from harness.message_queue import append_in_time
from harness.recovery import (
    MAY_FOLLOW,
    OF_A_TURN,
    interrupted_result,
    is_of_a_running_turn,
    open_calls,
    open_turn,
)
from harness.session import Session
from harness.turn_record import CallState
from storage.entries import (
    ApprovalRequestedEntry,
    ApprovalResolvedEntry,
    Entry,
    MessageEntry,
    TurnEndEntry,
    TurnStartEntry,
)
from storage.entry_log import EntryLog
from storage.entry_path import EntryPath
from storage.errors import NothingToResumeError, PendingCallError
from storage.index import NONE
from storage.messages import AssistantMessage, ToolCall, UserMessage

_MAY_FOLLOW_A_QUESTION: Final = frozenset({"custom_message"})
"""What an app says meanwhile, besides what may follow any open turn."""


@dataclass(frozen=True, slots=True)
class SuspendedTurn:
    """The open turn at the leaf, in which somebody has to decide on a call."""

    number: int
    entries: Sequence[Entry]
    """All entries after its ``turn_start``."""
    reply: AssistantMessage
    calls: list[CallState]
    """The calls of ``reply`` that have no result, in call order."""

    @property
    def replies(self) -> list[AssistantMessage]:
        """The replies that it got so far."""
        messages = [entry.message for entry in self.entries if isinstance(entry, MessageEntry)]
        return [message for message in messages if isinstance(message, AssistantMessage)]

    @property
    def waiting(self) -> list[ToolCall]:
        """The calls that wait for a decision."""
        return [state.call for state in self.calls if state.is_waiting]

    def error(self) -> PendingCallError:
        """What to say to who wants to begin another turn."""
        return pending_calls(self.number, self.waiting)

    def closing(self) -> list[Entry]:
        """The entries that end it: every question taken back, a result for each call, and the ``turn_end``."""
        entries: list[Entry] = []
        for state in self.calls:
            if state.is_waiting:
                entries.append(ApprovalResolvedEntry(call_id=state.call.id, decision="cancelled", ignorable=True))
            entries.append(MessageEntry(message=interrupted_result(state.call, begun=state.begun)))
        return [*entries, TurnEndEntry(turn=self.number, reason="cancelled")]


def pending_calls(turn: int, calls: Sequence[ToolCall]) -> PendingCallError:
    """The error that names the calls which wait for a person."""
    named = ", ".join(f"{call.name} ({call.id})" for call in calls) or "a call"
    return PendingCallError(
        f"turn {turn} waits for a person's decision on {named}; resume() asks again and goes on, abort() closes it",
        turn=turn,
        call_ids=[call.id for call in calls],
    )


async def suspended_turn(log: EntryLog) -> SuspendedTurn | None:
    """The turn that is suspended at the leaf, or ``None``. Decodes only that turn."""
    await log.settled()
    index = log.index
    leaf = NONE if index.leaf_id is None else index.seq_of(index.leaf_id)
    if index.state(leaf).turn == NONE:
        return None  # nearly always
    path = await log.path()
    start, turn = open_turn(
        path,
        has_ended=lambda entry_id: index.ids[entry_id] in index.ended_turns,
        may_follow=_MAY_FOLLOW_A_QUESTION,
        went_on=_somebody_answered,
    )
    questions = _questions(turn)
    replies = [
        (entry, entry.message)
        for entry in turn
        if isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage) and entry.request is not None
    ]
    if start is None or not questions or not replies:
        return None
    entry, reply = replies[-1]
    calls: list[CallState] = []
    for call, begun in open_calls(turn):
        if not any(call is other for other in reply.tool_calls):
            continue
        state = CallState(call, entry.id)
        state.begun = begun
        question = questions.pop(call.id, None)
        if question is not None:
            state.question_id = question.id
            state.preview = question.preview
            state.asked_arguments = question.arguments
        calls.append(state)
    return SuspendedTurn(start.turn, turn, reply, calls)


async def open_questions(log: EntryLog) -> list[ApprovalRequestedEntry]:
    """The questions of the turn that is suspended at the leaf which nobody has answered, in call order."""
    turn = await suspended_turn(log)
    if turn is None:
        return []
    asked = {entry.id: entry for entry in turn.entries if isinstance(entry, ApprovalRequestedEntry)}
    return [asked[state.question_id] for state in turn.calls if state.is_waiting]


async def beginning(log: EntryLog, message: UserMessage | None, *, can_ask: bool) -> UserMessage | SuspendedTurn:
    """What a turn begins with: the message, where nothing waits, or without one the turn that waits.

    Raises ``PendingCallError`` where a prompt comes while a turn waits, or where there is nobody to ask, and
    ``NothingToResumeError`` where no turn waits.
    """
    turn = await suspended_turn(log)
    if message is not None:
        if turn is not None:
            raise turn.error()
        return message
    if turn is None:
        raise _left_behind(await log.path()) or NothingToResumeError(
            "there is no turn to resume at the leaf: none waits for a person there; prompt() begins a new one"
        )
    if turn.waiting and not can_ask:
        raise PendingCallError(
            f"{turn.error().message}; to resume it, make the harness with approve=…, which asks somebody",
            **turn.error().details,
        )
    return turn


async def close_suspended(session: Session) -> None:
    """End a turn that waits for a person: its questions are cancelled, each call gets its result."""
    turn = await suspended_turn(session.log)
    if turn is not None:
        for write in [await append_in_time(session, entry) for entry in turn.closing()]:
            await write


async def next_turn_number(log: EntryLog, begins_with: UserMessage | SuspendedTurn) -> int:
    """The number of the turn: turns are counted on the path, from 1."""
    if isinstance(begins_with, SuspendedTurn):
        return begins_with.number
    await log.settled()
    leaf_id = log.leaf_id
    return 1 if leaf_id is None else log.index.state(log.index.seq_of(leaf_id)).turns + 1


def _somebody_answered(turn: Sequence[Entry]) -> bool:
    """Whether a reply was given in the model's place since the turn stopped, or one arrived from another branch."""
    answered = False
    for entry in turn:
        role = entry.message.role if isinstance(entry, MessageEntry) else ""
        if is_of_a_running_turn(entry) or role == "toolResult":
            answered = False  # what came before was said while the turn ran
        elif role == "assistant":
            answered = True
    return answered or any(entry.type == "branch_summary" for entry in turn)


def _left_behind(path: EntryPath) -> NothingToResumeError | None:
    """Where the last turn asked a question and somebody went on without its answer: what to say to who would resume it."""
    start = next((at for at in range(len(path) - 1, -1, -1) if path.entry_type(at) == "turn_start"), len(path))
    entries = [path.entry(position) for position in range(start, len(path))]
    questions = _questions(entries)
    if not questions or not isinstance(entries[0], TurnStartEntry):
        return None
    asked = max(entries.index(question) for question in questions.values())
    went_on = next((entry for entry in entries[asked:] if _goes_on_otherwise(entry)), None)
    if went_on is None:
        return None  # the turn has ended on another branch
    named = ", ".join(f"{question.name} ({question.call_id})" for question in questions.values())
    return NothingToResumeError(
        f"turn {entries[0].turn} waits for a person's decision on {named}, but somebody went on without it (with an entry "
        f"of the type {went_on.type}); move_to({went_on.parent_id!r}) goes back to where it waits, and resume goes on there",
        entry_id=went_on.parent_id,
        turn=entries[0].turn,
        call_ids=[*questions],
    )


def _goes_on_otherwise(entry: Entry) -> bool:
    """Whether nothing waits any more where such an entry follows the question."""
    if isinstance(entry, MessageEntry):
        return entry.message.role == "assistant" and entry.request is None
    return entry.type not in OF_A_TURN | MAY_FOLLOW | _MAY_FOLLOW_A_QUESTION


def _questions(turn: Sequence[Entry]) -> dict[str, ApprovalRequestedEntry]:
    """The questions without an answer, by call id."""
    questions: dict[str, ApprovalRequestedEntry] = {}
    for entry in turn:
        if isinstance(entry, ApprovalRequestedEntry):
            questions[entry.call_id] = entry
        elif isinstance(entry, ApprovalResolvedEntry):
            questions.pop(entry.call_id, None)
    return questions
