"""What to append after a crash, so that every call has its result and every turn its end (R24). Pure: it decides only.

The last turn on the active path is closed if it has a ``turn_start`` and no ``turn_end`` on any branch, if nothing but
labels, names, metadata and custom entries follows it at the leaf, and if no approval is open in it. Nothing is run
again, nothing is changed, and once what it decided is appended it decides nothing more.

What else comes last means that somebody went on without the turn, and nobody can tell otherwise after a crash: a custom
message (which is shown to the model, and is no custom entry), a branch summary, a compaction that is not the turn's own
(``details.turn``), an unknown entry, and a user message besides the turn's own and those that were queued and
delivered. Such a turn stays as it is, also where a tool of that very turn appended the custom message; the projection
answers its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from storage.entries import (
    ApprovalRequestedEntry,
    ApprovalResolvedEntry,
    CompactionEntry,
    DeliveredEntry,
    Entry,
    MessageEntry,
    RequestHeaderEntry,
    ToolStartEntry,
    TurnEndEntry,
    TurnStartEntry,
)
from storage.entry_path import EntryPath
from storage.messages import AssistantMessage, ToolCall, ToolResultMessage

NOT_STARTED = "This call was not run: the turn was interrupted before it was started."
"""The result of a call that was certainly not begun."""

OUTCOME_UNKNOWN = (
    "This call was begun, but the turn was interrupted before its result was there: whether it took effect is unknown. "
    "Look before you make it again."
)
"""The result of a call that was begun and may have done anything."""

MAY_FOLLOW = frozenset(
    {
        "label",
        "session_info",
        "metadata",
        "custom",
        "leaf",
        "queued",
        "delivered",
        "model_change",
        "thinking_level_change",
        "active_tools_change",
    }
)
"""What says nothing about whether somebody went on: a turn writes some of it, and so does who only prepares to go on."""

OF_A_TURN = frozenset(
    {
        "turn_start",
        "message",
        "request_header",
        "tool_start",
        "working_memory",
        "approval_requested",
        "approval_resolved",
    }
)
"""What a turn itself writes. Anything else at the leaf, but for the above, means that somebody went on without it."""

_ROLES_OF_A_TURN = frozenset({"user", "assistant", "toolResult"})

_OF_A_RUNNING_TURN = (RequestHeaderEntry, ToolStartEntry, ApprovalRequestedEntry, ApprovalResolvedEntry)
"""What nobody but a turn at work writes; beside replies that say what they were asked."""


@dataclass(slots=True)
class _Reply:
    """A reply's calls: which ones wait for a result, and which ones for their ``tool_start``."""

    unanswered: list[ToolCall]
    not_begun: list[ToolCall]


def interrupted_result(call: ToolCall, *, begun: bool) -> ToolResultMessage:
    """The error result of a call that will not get another one."""
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=OUTCOME_UNKNOWN if begun else NOT_STARTED,
        details={"interrupted": True, "begun": begun},
        is_error=True,
    )


def plan_recovery(path: EntryPath, *, has_ended: Callable[[str], bool] = lambda _: False) -> list[Entry]:
    """The entries to append at the leaf of ``path``, in order; none if there is nothing to recover.

    ``has_ended`` says of a ``turn_start``'s id whether a ``turn_end`` of that turn is anywhere in the session (see
    ``ended_turns``); it is asked only about a turn that would be closed. Decodes no entry before the last turn.
    """
    start, turn = open_turn(path, has_ended=has_ended)
    if start is None or _has_open_approval(turn):
        return []
    results = [MessageEntry(message=interrupted_result(call, begun=begun)) for call, begun in open_calls(turn)]
    return [*results, TurnEndEntry(turn=start.turn, reason="interrupted")]


def went_on_otherwise(turn: Sequence[Entry]) -> bool:
    """Whether somebody appended a message of their own when the turn had stopped, or arrived from another branch.

    A turn has one user message of its own. Those that were queued before have their ids in ``delivered`` entries; and
    what came before an entry that only a running turn writes was said while it ran.
    """
    delivered = {entry.message_id for entry in turn if isinstance(entry, DeliveredEntry)}
    own = 0
    for entry in turn:
        if is_of_a_running_turn(entry):
            own = min(own, 1)
        elif isinstance(entry, MessageEntry) and entry.message.role == "user":
            own += entry.id not in delivered
    return own > 1 or any(entry.type == "branch_summary" for entry in turn)


def is_of_a_running_turn(entry: Entry) -> bool:
    """Whether nobody but a turn at work writes such an entry."""
    return isinstance(entry, _OF_A_RUNNING_TURN) or (isinstance(entry, MessageEntry) and entry.request is not None)


def open_turn(
    path: EntryPath,
    *,
    has_ended: Callable[[str], bool] = lambda _: False,
    may_follow: frozenset[str] = frozenset(),
    went_on: Callable[[Sequence[Entry]], bool] = went_on_otherwise,
) -> tuple[TurnStartEntry | None, list[Entry]]:
    """The start of the last turn and the entries after it, if it can be closed or gone on with; else ``None``.

    ``may_follow``: further types that do not mean that somebody went on without it. ``went_on`` tells that from all
    entries after the start.
    """
    place = _last_start(path)
    if place is None or not _ends_inside_turn(path, may_follow):
        return None, []
    start, *turn = (path.entry(position) for position in range(place, len(path)))
    if not isinstance(start, TurnStartEntry) or went_on(turn) or has_ended(start.id):
        return None, []
    return start, turn


def ended_turns(entries: Iterable[Entry]) -> set[str]:
    """The ids of the ``turn_start`` entries that have a ``turn_end`` below them on some branch, before another one.

    ``entries``: the whole session, in order.
    """
    open_turn: dict[str, str | None] = {}
    ended: set[str] = set()
    for entry in entries:
        turn = open_turn.get(entry.parent_id) if entry.parent_id is not None else None
        if isinstance(entry, TurnStartEntry):
            turn = entry.id
        elif isinstance(entry, TurnEndEntry) and turn is not None:
            ended.add(turn)
            turn = None
        open_turn[entry.id] = turn
    return ended


def _last_start(path: EntryPath) -> int | None:
    """Where the last turn of the path begins; ``None`` if it has ended on this path, or there is none."""
    for position in range(len(path) - 1, -1, -1):
        kind = path.entry_type(position)
        if kind == "turn_end":
            return None
        if kind == "turn_start":
            return position
    return None


def _ends_inside_turn(path: EntryPath, may_follow: frozenset[str]) -> bool:
    for position in range(len(path) - 1, -1, -1):
        kind = path.entry_type(position)
        if kind not in MAY_FOLLOW and kind not in may_follow:
            if kind == "compaction":
                return _is_of_a_turn(path.entry(position))
            return kind in OF_A_TURN and (kind != "message" or path.role(position) in _ROLES_OF_A_TURN)
    return False


def _is_of_a_turn(compaction: Entry) -> bool:
    """Whether the running turn made it, between two requests: then it says so."""
    details: object = compaction.details if isinstance(compaction, CompactionEntry) else None
    return isinstance(details, dict) and "turn" in details


def _has_open_approval(turn: Sequence[Entry]) -> bool:
    waiting: list[str] = []
    for entry in turn:
        if isinstance(entry, ApprovalRequestedEntry):
            waiting.append(entry.call_id)
        elif isinstance(entry, ApprovalResolvedEntry) and entry.call_id in waiting:
            waiting.remove(entry.call_id)
    return bool(waiting)


def open_calls(turn: Sequence[Entry]) -> list[tuple[ToolCall, bool]]:
    """The calls without a result, in call order, each with whether it was begun.

    A result (and a ``tool_start``) belongs to the nearest earlier reply that has such a call waiting for it, and there
    to the first one: ids repeat.
    """
    replies: list[_Reply] = []
    for entry in turn:
        if isinstance(entry, ToolStartEntry):
            _take([reply.not_begun for reply in replies], entry.call_id)
        elif isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage):
            calls = entry.message.tool_calls
            replies.append(_Reply(list(calls), list(calls)))
        elif isinstance(entry, MessageEntry) and isinstance(entry.message, ToolResultMessage):
            _take([reply.unanswered for reply in replies], entry.message.tool_call_id)
    return [
        (call, not any(call is waiting for waiting in reply.not_begun))
        for reply in replies
        for call in reply.unanswered
    ]


def _take(waiting: list[list[ToolCall]], call_id: str) -> None:
    """Remove the first call of that id from the last list that has one."""
    for calls in reversed(waiting):
        for position, call in enumerate(calls):
            if call.id == call_id:
                del calls[position]
                return
