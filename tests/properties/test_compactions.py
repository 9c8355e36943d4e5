"""Random trees with several compactions: each parts what is shown, loses nothing, and R18-R22 hold afterwards."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import (
    CompactionError,
    CompactionPlan,
    CompactionSettings,
    PendingCallError,
    Session,
    measure_context,
    prepare_compaction,
    run_with_pauses,
    should_compact,
)
from tests.properties.checker import Plain
from tests.properties.compacting import PlainPlan, body, check_plan, open_approvals
from tests.properties.growing import grow, plain_message, plain_of, raw_entries
from tests.properties.profiles import TIMEOUT_SECONDS, examples
from tests.properties.record import path_to
from tests.properties.steps import Recorded, Step, conversations
from tests.properties.test_contexts import Backend, create, judged, placeholder, reopen
from tests.properties.wire import Json

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS)

PLACEHOLDER_TOKENS = 25
"""What deciding does not look for: whether a fixed message stands before the first."""

SETTINGS = st.builds(
    CompactionSettings,
    context_window=st.integers(80, 900),
    reserve_tokens=st.just(0),
    keep_recent_turns=st.integers(1, 4),
    target_ratio=st.sampled_from([0.1, 0.3, 0.5]),
)


def plain_plan(plan: CompactionPlan) -> PlainPlan:
    messages = [plain_message(message) for message in plan.messages]
    return PlainPlan(plan.first_kept_entry_id, messages, plan.turn_prefix, plan.previous_summary)


async def compacted(session: Session, settings: CompactionSettings, recorded: Recorded, number: int) -> bool:
    """Compact at the leaf if there is anything to compact, judged by the checker."""
    path = await session.log.path()
    entries, leaf = raw_entries(session.storage), session.leaf_id
    before = plain_of(await session.build_context())
    facts = await run_with_pauses(measure_context(path))
    assert facts.tokens <= (before.tokens or 0) <= facts.tokens + PLACEHOLDER_TOKENS
    try:
        is_due = should_compact(facts, settings)
        plan = await run_with_pauses(prepare_compaction(path, settings))
    except PendingCallError:
        assert any(entry["type"] == "approval_requested" for entry in entries)
        return False
    except CompactionError as error:
        if error.details["reason"] in ("does_not_fit", "settings"):
            return False
        raise
    if plan is None:
        assert not is_due or nothing_to_gain(entries, leaf, before)
        return False
    summary = f"sum {number}"
    write = session.append_compaction(
        summary, first_kept_entry_id=plan.first_kept_entry_id, tokens_before=plan.tokens_before
    )
    await write
    recorded.accept(
        {
            "id": write.entry_id,
            "parentId": recorded.leaf,
            "type": "compaction",
            "summary": summary,
            "firstKeptEntryId": plan.first_kept_entry_id,
        }
    )
    after = plain_of(await session.build_context())
    found = check_plan(entries, leaf, before, plain_plan(plan), after, turns=settings.keep_recent_turns)
    assert not found, "\n".join([*map(str, found), str(plain_plan(plan)), *map(json.dumps, path_to(entries, leaf))])
    return True


def nothing_to_gain(entries: list[Json], leaf: str | None, context: Plain) -> bool:
    """Whether there is one unit only, next to nothing before the newest, or a call that must not be summarised."""
    messages, _ = body(entries, leaf, context)
    units = [index for index, message in enumerate(messages) if message["role"] != "toolResult"]
    old = messages[: units[-1]] if units else []
    return len(str(old)) < 64 * 16 or bool(open_approvals(path_to(entries, leaf)))


@pytest.mark.parametrize("backend", ["memory", "jsonl"])
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@examples(50)
@given(
    chunks=st.lists(st.tuples(conversations(max_steps=18), SETTINGS), min_size=1, max_size=4),
    is_forked=st.booleans(),
)
def test_compactions_part_what_is_shown(
    loop: str, backend: Backend, chunks: list[tuple[list[Step], CompactionSettings]], is_forked: bool
) -> None:
    """After each chunk of a random tree; then R18-R22 hold at every leaf, and the same after reopening and forking."""

    async def run(folder: Path) -> None:
        storage = await create(backend, folder, "one")
        async with Session.open(storage) as session:
            recorded = Recorded()
            for number, (steps, settings) in enumerate(chunks):
                await grow(session, steps, recorded=recorded)
                await compacted(session, settings, recorded, number)
            _, contexts = await judged(session, budgets_for=1)
            if is_forked:
                into = functools.partial(create, backend, folder, "fork")
                async with await session.fork(into=into) as fork:
                    expected = plain_of(await session.build_context())
                    assert plain_of(await fork.build_context()) == expected
        async with Session.open(reopen(backend, folder, "one", storage)) as again:
            for leaf_id, context in contexts.items():
                assert plain_of(await again.build_context(leaf_id=leaf_id)) == context

    placeholder()
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder), backend=loop)


def message(role: str, text: str, **members: Any) -> Json:
    return {"role": role, "content": text, "timestamp": 1, **members}


def judge(**changed: Any) -> set[str]:
    """What the checker says about a good compaction in which one thing is changed."""
    entries: list[Json] = []
    for number in range(4):
        parent = entries[-1]["id"] if entries else None
        entries.append(
            {"id": f"u{number}", "parentId": parent, "type": "message", "message": message("user", f"{number}")}
        )
        call = [{"type": "toolCall", "id": f"c{number}", "name": "look", "arguments": {}}]
        reply = {"role": "assistant", "content": call, "timestamp": 1}
        entries.append({"id": f"a{number}", "parentId": f"u{number}", "type": "message", "message": reply})
        result = message("toolResult", "ok", toolCallId=f"c{number}", toolName="look")
        if number != changed.get("unanswered"):
            entries.append({"id": f"r{number}", "parentId": f"a{number}", "type": "message", "message": result})
        else:
            asked = {"id": f"q{number}", "parentId": f"a{number}", "type": "approval_requested", "callId": f"c{number}"}
            entries.append(asked)
    shown = [entry["message"] for entry in entries if entry["type"] == "message"]
    ids = [entry["id"] for entry in entries if entry["type"] == "message"]
    cut = changed.get("cut", 6)
    plan = PlainPlan(changed.get("first", "u2"), shown[:cut], changed.get("prefix", 0), changed.get("previous"))
    kept = shown[changed.get("kept", cut) :]
    before = Plain(shown, list(ids), 0)
    after = Plain([message("user", "sum"), *kept], ["new"], 0, compaction_id="new")
    found = check_plan(entries, ids[-1], before, plan, after, turns=changed.get("turns", 2))
    return {violation.rule for violation in found}


@pytest.mark.parametrize(
    "changed, rule",
    [
        ({}, None),
        ({"first": "elsewhere"}, "first kept"),
        ({"kept": 7}, "parted"),
        ({"kept": 5}, "parted"),
        ({"cut": 0}, "nothing summarised"),
        ({"cut": 8, "prefix": 2}, "half a unit"),
        ({"previous": "old"}, "previous summary"),
        ({"unanswered": 1, "cut": 5}, "waiting call"),
        ({"cut": 7}, "split turn"),
        ({"prefix": 1}, "split turn"),
        ({"turns": 1}, "too many turns"),
    ],
)
def test_the_judge_finds_each_fault(changed: dict[str, Any], rule: str | None) -> None:
    """A good compaction has none; with one thing changed, that is found."""
    assert judge(**changed) >= ({rule} if rule else set())
    if rule is None:
        assert judge() == set()
