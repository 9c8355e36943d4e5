"""The judge of compactions: written from the rules alone, over raw entries and contexts in plain data.

A compaction parts what is shown: what it summarises and what is kept are together just what was shown before, in order,
each message once. The cut lies between units; a turn that it cuts is said to be cut; no call that waits for an approval
is summarised away; no more turns are kept than wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from tests.properties.checker import Plain, Violation
from tests.properties.record import fold, openers, path_to, role_of
from tests.properties.wire import Json, calls_of, compact


@dataclass
class PlainPlan:
    """A plan in plain data."""

    first_kept: str
    messages: list[Json]
    turn_prefix: int
    previous_summary: str | None


def body(entries: list[Json], leaf: str | None, context: Plain) -> tuple[list[Json], list[str | None]]:
    """The messages of a context that was built without a budget, without summary, placeholder and working memory."""
    messages, ids = list(context.messages), list(context.entry_ids)
    if messages and fold(path_to(entries, leaf)).working_memory:
        messages.pop()
        ids.pop()
    if messages and (ids[0] is None or context.compaction_id is not None):
        messages.pop(0)
        ids.pop(0)
    return messages, ids


def check_plan(
    entries: list[Json], leaf: str | None, before: Plain, plan: PlainPlan, after: Plain, *, turns: int
) -> list[Violation]:
    """Every violation of ``plan``, made at ``leaf``, where ``before`` was shown; ``after`` is shown with its summary."""
    path = path_to(entries, leaf)
    found: list[Violation] = []
    if plan.first_kept not in {entry["id"] for entry in path}:
        found.append(Violation("first kept", f"{plan.first_kept} is not on the path"))
    shown, ids = body(entries, leaf, before)
    kept = list(after.messages[1:])
    if fold(path).working_memory:
        kept = kept[:-1]
    if shown != plan.messages + kept:
        found.append(
            Violation("parted", f"{len(plan.messages)} + {len(kept)} are not the {len(shown)} that were shown")
        )
        return found
    count = len(plan.messages)
    if not count:
        found.append(Violation("nothing summarised", plan.first_kept))
        return found
    if kept and kept[0].get("role") == "toolResult":
        found.append(Violation("half a unit", f"{compact(kept[0])[:100]} is kept without its call"))
    previous = next((entry["summary"] for entry in reversed(path) if entry["type"] == "compaction"), None)
    if plan.previous_summary != previous:
        found.append(Violation("previous summary", f"{plan.previous_summary!r} for {previous!r}"))
    waiting = open_approvals(path)
    gone = [entry_id for entry_id in ids[:count] if entry_id in waiting]
    if gone:
        found.append(Violation("waiting call", f"{gone} would be summarised away"))
    if kept:
        # A result tells no turn of its own: it stands with its call, however late it came.
        for index, message in enumerate(shown):
            if message.get("role") == "toolResult":
                ids[index] = ids[index - 1]
        asked = any(entry["type"] == "approval_requested" for entry in path)
        found.extend(_check_turns(path, ids, count, plan, turns, is_moved=asked))
    return found


def _check_turns(
    path: list[Json], ids: list[str | None], count: int, plan: PlainPlan, turns: int, *, is_moved: bool
) -> list[Violation]:
    position_of = {entry["id"]: position for position, entry in enumerate(path)}
    by_position = openers(path)
    if any(entry_id is None or path[position_of[entry_id]]["type"] == "compaction" for entry_id in ids):
        return []  # of what lies in a retained tail the rules name no turn
    turn_of = [by_position[position_of[entry_id]] for entry_id in ids if entry_id is not None]
    found: list[Violation] = []
    cut_turn = turn_of[count]
    prefix = 0
    while prefix < count and turn_of[count - 1 - prefix] == cut_turn:
        prefix += 1
    if prefix != plan.turn_prefix:
        found.append(
            Violation("split turn", f"{prefix} messages of the turn are summarised, {plan.turn_prefix} are said")
        )
    kept_turns = sum(1 for _ in groupby(turn_of[count:]))
    if kept_turns > turns and not is_moved:
        found.append(Violation("too many turns", f"{kept_turns} are kept, {turns} are wanted"))
    return found


def open_approvals(path: list[Json]) -> set[str]:
    """Entries of replies with a call whose approval is open and can still come; only where ids tell without doubt."""
    calls = [call["id"] for entry in path if role_of(entry) for call in calls_of(entry["message"])]
    found: set[str] = set()
    for position, entry in enumerate(path):
        later = path[position + 1 :]
        if not role_of(entry) or any(other["type"] in ("turn_start", "turn_end") for other in later):
            continue
        for call in calls_of(entry["message"]):
            about = [other["type"] for other in later if other.get("callId") == call["id"]]
            answered = any(
                role_of(other) == "toolResult" and other["message"]["toolCallId"] == call["id"] for other in later
            )
            is_open = about.count("approval_requested") > about.count("approval_resolved")
            if calls.count(call["id"]) == 1 and is_open and not answered:
                found.add(entry["id"])
    return found
