"""The judge of navigation: written from the rules alone, over raw entries before and after.

One entry takes the session elsewhere: a ``leaf``, or with a summary the ``branch_summary`` where it arrives. To a user
message means before it, and before the turn that it opened; what was delivered there does not wait once more. Somebody
is asked for a summary where something that was said is left behind, and is told all of that, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.properties.checker import Violation
from tests.properties.items import Item, offer
from tests.properties.record import before, openers, path_to, role_of, waiting
from tests.properties.wire import Json, compact

MARK = re.compile(r"#\d+#")
"""What a test puts into every text, so that it can be found again in a prompt."""


@dataclass
class Gone:
    """One navigation in plain data. ``summary`` is the text that was made, ``None`` where nobody made one."""

    target: str | None
    left: str | None
    arrived: str | None
    handed_back: Json | None
    prompt: str | None
    """What the summariser was told; ``None`` where it was not asked."""
    wants_summary: bool
    summary: str | None
    label: str | None


def check_navigation(entries: list[Json], added: list[Json], gone: Gone) -> list[Violation]:
    """Every violation in one navigation: ``entries`` were there before it, ``added`` it recorded."""
    found: list[Violation] = []
    to = _destination(entries, gone, found)
    moves = [entry for entry in added if entry["type"] in ("leaf", "branch_summary")]
    asked = gone.prompt is not None
    if to == gone.left:
        if moves or asked:
            found.append(Violation("already there", f"{[entry['type'] for entry in moves]}"))
    elif [(entry["type"], entry.get("parentId")) for entry in moves] != [
        ("branch_summary" if gone.summary is not None else "leaf", to)
    ]:
        found.append(Violation("one entry", f"{compact(moves)} for the way to {to}"))
    elif gone.summary is not None:
        entry = moves[0]
        if entry["fromId"] != gone.left or gone.summary not in entry["summary"]:
            found.append(Violation("branch summary", compact(entry)))
    elif moves[0]["targetId"] != to:
        found.append(Violation("one entry", compact(moves)))
    if to != gone.left and gone.wants_summary:
        found.extend(_check_summary(entries, gone, to))
    return [*found, *_check_rest(entries, added, gone, to)]


def _destination(entries: list[Json], gone: Gone, found: list[Violation]) -> str | None:
    """Where the rules say that one arrives; where they leave it open, where one did, if that may be."""
    path = path_to(entries, gone.target)
    if not path or role_of(path[-1]) != "user":
        if gone.handed_back is not None:
            found.append(Violation("handed back", compact(gone.handed_back)))
        return gone.target
    if gone.handed_back != path[-1]["message"]:
        found.append(Violation("handed back", f"{compact(gone.handed_back)} for {compact(path[-1]['message'])}"))
    if openers(path)[-1] == len(path) - 1:
        return before(path)
    # A message that opened no turn: before it, and nothing but what people said lies between.
    earlier = [entry["id"] for entry in path[:-1]]
    if gone.arrived is not None and gone.arrived not in earlier:
        found.append(Violation("before it", f"{gone.arrived} is not before {gone.target}"))
        return gone.arrived
    start = 0 if gone.arrived is None else earlier.index(gone.arrived) + 1
    between = {role_of(entry) or entry["type"] for entry in path[start:-1]}
    if between & {"assistant", "toolResult", "bashExecution", "compaction", "branch_summary"}:
        found.append(Violation("before it", f"{sorted(between)} lie between"))
    return gone.arrived


def _check_summary(entries: list[Json], gone: Gone, to: str | None) -> list[Violation]:
    left, there = path_to(entries, gone.left), path_to(entries, to)
    shared = {entry["id"] for entry in left} & {entry["id"] for entry in there}
    behind = [item for item in offer(left).items if item.entry_id not in shared]
    if gone.prompt is None:
        said = [item.entry_id for item in behind if not item.optional]
        return [Violation("not asked", f"{said} are left behind")] if said else []
    if not behind:
        return [Violation("asked for nothing", gone.prompt[:200])]
    told = set(MARK.findall(gone.prompt))
    must = {mark for item in behind if not item.optional for mark in _marks(item)}
    may = {mark for item in behind for mark in _marks(item)}
    found: list[Violation] = []
    if must - told:
        found.append(Violation("not told", f"{sorted(must - told)}"))
    if told - may:
        found.append(Violation("told of another branch", f"{sorted(told - may)}"))
    return found


def _marks(item: Item) -> list[str]:
    results = [answer.result for answer in item.answers if answer.result is not None]
    return MARK.findall(compact([item.content, *(result.get("content") for result in results)]))


def _check_rest(entries: list[Json], added: list[Json], gone: Gone, to: str | None) -> list[Violation]:
    """The label, the queue, and that nothing else was recorded."""
    found: list[Violation] = []
    others = [entry for entry in added if entry["type"] not in ("leaf", "branch_summary")]
    labels = [(entry["targetId"], entry["label"]) for entry in others if entry["type"] == "label"]
    summaries = [entry["id"] for entry in added if entry["type"] == "branch_summary"]
    labelled = summaries[0] if summaries else gone.target
    if labels != ([] if gone.label is None else [(labelled, gone.label)]):
        found.append(Violation("label", f"{labels} for {gone.label} at {labelled}"))
    if strange := [entry["type"] for entry in others if entry["type"] not in ("label", "delivered")]:
        found.append(Violation("recorded besides", f"{strange}"))
    path = path_to(entries, gone.target)
    came_from = {entry["entryId"] for entry in path if path and entry.get("messageId") == path[-1]["id"]}
    expected = [entry_id for entry_id in waiting(path_to(entries, to)) if entry_id not in came_from]
    last = added[-1] if added else None
    leaf = gone.left if last is None else last["targetId"] if last["type"] == "leaf" else last["id"]
    if waiting(path_to([*entries, *added], leaf)) != expected:
        found.append(Violation("queue", f"{expected} should wait"))
    return found
