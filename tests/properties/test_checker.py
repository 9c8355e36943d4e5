"""The checker itself: it finds nothing in good contexts, and every kind of fault in mutated ones."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.properties.budgets import check_budgeted, must_show, within
from tests.properties.checker import Plain, Shown, Violation, check, take_apart
from tests.properties.items import pair
from tests.properties.record import openers
from tests.properties.samples import PLACEHOLDER, Raw, plain, reply, result, rich, user
from tests.properties.wire import Json, characters, compact

Pairs = list[tuple[str | None, Json]]


def rules(violations: list[Violation]) -> set[str]:
    return {violation.rule for violation in violations}


def test_a_good_context_has_no_violation() -> None:
    """Summary, kept range, repeated and empty ids, made-up results, dropped orphans, memory last: all as R18-R22 say."""
    raw, leaf, shown, state = rich()
    assert check(raw.entries, leaf, plain(shown, **state)) == []


def remove(at: int) -> Callable[[Pairs, Json], None]:
    return lambda shown, state: shown.__delitem__(at)


def swap(one: int, two: int) -> Callable[[Pairs, Json], None]:
    def mutate(shown: Pairs, state: Json) -> None:
        shown[one], shown[two] = shown[two], shown[one]

    return mutate


def insert(at: int, entry_id: str | None, message: Json) -> Callable[[Pairs, Json], None]:
    return lambda shown, state: shown.insert(at, (entry_id, message))


def member(at: int, name: str, value: object) -> Callable[[Pairs, Json], None]:
    return lambda shown, state: shown[at][1].__setitem__(name, value)


def relabel(at: int, entry_id: str | None) -> Callable[[Pairs, Json], None]:
    return lambda shown, state: shown.__setitem__(at, (entry_id, shown[at][1]))


def fact(name: str, value: object) -> Callable[[Pairs, Json], None]:
    return lambda shown, state: state.__setitem__(name, value)


BLANK = {"type": "text", "text": " "}
OLD_SUMMARY = {"role": "user", "content": "Summary: old summary", "timestamp": 5}

MUTATIONS: list[tuple[str, Callable[[Pairs, Json], None], str]] = [
    ("the summary is missing", remove(0), "R18 order"),
    ("the summary is not first", swap(0, 1), "R18 order"),
    ("the older summary is shown", insert(0, "c0", OLD_SUMMARY), "R18 order"),
    ("an older summary among the kept", insert(1, "c0", OLD_SUMMARY), "R18 order"),
    ("the summary is the older one's text", member(0, "content", "Summary: old summary"), "R18 text"),
    ("an entry before the kept range", insert(1, "u0", user("before everything")), "R18 order"),
    ("the first kept entry is missing", remove(1), "R18 order"),
    ("an entry after the compaction is missing", remove(11), "R18 order"),
    ("an entry of another branch", insert(13, "u9", user("another branch")), "entry ids"),
    ("the branch summary says only its text", member(7, "content", "the other road"), "R18 text"),
    ("a message was changed", member(1, "content", "first question!"), "R18 text"),
    ("a message lost a member", lambda shown, state: shown[2][1].pop("model"), "R18 text"),
    ("results out of call order", swap(3, 5), "R20 call order"),
    ("results of one id exchanged", swap(3, 4), "R19 pairing"),
    ("a result is missing", remove(3), "R20 call without result"),
    ("the last result is missing", remove(5), "R20 call without result"),
    ("a result after another message", swap(5, 6), "R20 result without call"),
    ("an orphan is shown", insert(6, "r4", result("k", "three of k: there is no third call")), "R20 result without call"),
    ("an orphan is not listed", fact("dropped", []), "R20 orphan not listed"),
    ("a made-up result says something else", member(9, "content", "(gone)"), "R20 state of call"),
    ("a made-up result names another entry", relabel(9, "s1"), "entry ids"),
    ("a result says nothing", member(10, "content", []), "R20 empty text"),
    ("an empty text", lambda shown, state: shown[8][1]["content"].insert(0, BLANK), "R20 empty text"),
    ("a failed reply is shown", insert(11, "a3", {**reply(), "stopReason": "error"}), "R20 empty text"),
    ("a placeholder before a user's message", insert(0, None, PLACEHOLDER), "R20 placeholder"),
    ("a role that no vendor knows", member(11, "role", "custom"), "R20 role"),
    ("an id that is none", relabel(6, None), "entry ids"),
    ("a wrong id", relabel(6, "u1"), "R18 order"),
    ("an id of nowhere", relabel(6, "zz"), "entry ids"),
    ("working memory is missing", remove(13), "R18 working memory"),
    ("working memory is not last", swap(12, 13), "R18 working memory"),
    ("working memory holds what was deleted", member(13, "content", 'goal {"speed":3} gone-key x'), "R22 working memory"),
    ("working memory lacks a value", member(13, "content", "goal"), "R22 working memory"),
    ("model of another branch", fact("model", ("p", "other")), "R22 state"),
    ("thinking level forgotten", fact("thinking_level", None), "R22 state"),
    ("tools forgotten", fact("active_tools", None), "R22 state"),
    ("compaction id of the older one", fact("compaction_id", "c0"), "R18 compaction id"),
    ("a warning without a reason", fact("warnings", 1), "R18 needless warning"),
    ("something behind the end", insert(12, "a4", reply("last words")), "R18 not offered"),
]  # fmt: skip


@pytest.mark.parametrize(("mutate", "rule"), [case[1:] for case in MUTATIONS], ids=[case[0] for case in MUTATIONS])
def test_every_fault_is_found(mutate: Callable[[Pairs, Json], None], rule: str) -> None:
    """Each way to break a good context is a violation of the rule it breaks."""
    raw, leaf, shown, state = copy.deepcopy(rich())
    mutate(shown, state)
    assert rule in rules(check(raw.entries, leaf, plain(shown, **state)))


def test_a_wrong_character_count_is_found() -> None:
    """R21: the count is of code points of the JSON as shown, plus 1 for each message; bytes or escapes are wrong."""
    raw = Raw()
    raw.user("u", "ä\u2028漢😀\n")
    good = plain([("u", user("ä\u2028漢😀\n"))], model=None)
    assert good.chars == len('{"role":"user","content":"ä\u2028漢😀\\n","timestamp":1}') + 1
    assert check(raw.entries, "u", good) == []
    for wrong in (good.chars - 1, len(compact(good.messages[0]).encode()) + 1):
        good.chars = wrong
        assert rules(check(raw.entries, "u", good)) == {"R21 characters"}


def test_a_lost_first_kept_entry_needs_a_warning() -> None:
    """R18: a first kept entry that is not before the compaction on its path keeps nothing, and a warning says so."""
    raw = Raw()
    raw.user("u", "one")
    raw.add("c", "compaction", summary="sum", firstKeptEntryId="elsewhere", tokensBefore=1)
    summary: Json = {"role": "user", "content": "Summary: sum", "timestamp": 1}
    context = plain([("c", summary)], model=None, compaction_id="c")
    assert rules(check(raw.entries, "c", context)) == {"R18 no warning"}
    context.warnings = 1
    assert check(raw.entries, "c", context) == []


def test_a_retained_tail_wins_over_the_first_kept_entry() -> None:
    """R18: the retained tail's messages carry the compaction's id, and its calls pair within what is shown."""
    raw = Raw()
    raw.user("u", "one")
    tail = [user("kept"), reply("", "x"), reply("", "y")]
    raw.add("c", "compaction", summary="sum", firstKeptEntryId="u", retainedTail=tail, tokensBefore=1)
    raw.result("r", "x", "late")
    summary: Json = {"role": "user", "content": "Summary: sum", "timestamp": 1}
    shown: Pairs = [("c", summary), ("c", tail[0]), ("c", tail[1]), ("r", result("x", "late")), ("c", tail[2]),
                    ("c", result("y", "not run on this branch"))]  # fmt: skip
    assert check(raw.entries, "r", plain(shown, compaction_id="c", model=None)) == []
    shown.insert(1, ("u", user("one")))
    assert rules(check(raw.entries, "r", plain(shown, compaction_id="c", model=None))) == {"R18 order"}


def test_pairing_prefers_the_nearest_open_call() -> None:
    """R19: nearest earlier reply with an unanswered call of the id, in it the first in call order; else none."""
    messages = [reply("", "a", "a"), reply("", "a"), *(result("a", str(number)) for number in range(4))]
    assert pair(messages)[2:] == [(1, 0), (0, 0), (0, 1), None]


def test_turns_begin_at_turn_start_else_at_a_user_message() -> None:
    """R19: steers, summaries and custom messages begin no turn."""
    raw = Raw()
    raw.user("u0", "plain")
    raw.reply("a0", "x")
    raw.add("t1", "turn_start", turn=1)
    raw.user("u1", "opens")
    raw.reply("a1", "x")
    raw.user("u2", "steers")
    raw.reply("a2", "x")
    raw.add("e1", "turn_end", turn=1, reason="completed")
    raw.add("m1", "custom_message", customType="n", content="note")
    raw.user("u3", "plain again")
    raw.reply("a3", "x")
    assert openers(raw.entries) == [0, 0, None, 3, 3, 3, 3, 3, 3, 9, 9]


def turns() -> tuple[Raw, Plain, Shown]:
    """Two turns of two units each after a reply that no user opened, with working memory, taken apart."""
    raw = Raw()
    raw.reply("a0", "hello")
    raw.user("u1", "first")
    raw.reply("a1", "", "x", "y")
    raw.result("r1", "x", "one")
    raw.result("r2", "y", "two")
    raw.reply("a2", "answer")
    raw.user("u2", "second")
    raw.reply("a3", "", "x")
    raw.result("r3", "x", "three")
    raw.add("w", "working_memory", op="set", key="goal", value="win")
    memory: Json = {"role": "user", "content": "Memory: goal = win", "timestamp": 1}
    shown: Pairs = [
        (None, PLACEHOLDER), ("a0", reply("hello")), ("u1", user("first")), ("a1", reply("", "x", "y")),
        ("r1", result("x", "one")), ("r2", result("y", "two")), ("a2", reply("answer")),
        ("u2", user("second")), ("a3", reply("", "x")), ("r3", result("x", "three")), (None, memory),
    ]  # fmt: skip
    full = plain(shown)
    parts, found = take_apart(raw.entries, "w", full)
    assert found == []
    return raw, full, parts


EXPECTED_BY_UNITS = [
    ["u2", "a3", "r3", None],
    ["u2", "a3", "r3", None],
    ["u1", "a2", "u2", "a3", "r3", None],
    ["u1", "a1", "r1", "r2", "a2", "u2", "a3", "r3", None],
    ["u1", "a1", "r1", "r2", "a2", "u2", "a3", "r3", None],
    [None, "a0", "u1", "a1", "r1", "r2", "a2", "u2", "a3", "r3", None],
]


def test_the_reference_keeps_whole_units_with_their_opener() -> None:
    """R19: newest first, whole units, each with the user message that opened its turn, memory last."""
    _, full, parts = turns()
    seen: list[list[str | None]] = []
    for budget in range(full.chars + 10):
        choice = must_show(parts, within(budget), PLACEHOLDER)
        ids = choice.entry_ids if choice else []
        if not seen or seen[-1] != ids:
            seen.append(ids)
    unique = [ids for at, ids in enumerate(EXPECTED_BY_UNITS) if at == 0 or EXPECTED_BY_UNITS[at - 1] != ids]
    assert seen == [[], *unique]


def budgeted(full: Plain, ids: list[str | None]) -> Plain:
    """The context of those ids, in the order of the full one; a doubled None is the placeholder and the memory."""
    wanted = list(ids)
    pairs: Pairs = []
    for at, (entry_id, message) in enumerate(zip(full.entry_ids, full.messages, strict=True)):
        if entry_id is None and at == 0 and wanted.count(None) < 2:
            continue
        if entry_id in wanted:
            pairs.append((entry_id, message))
    return plain(pairs)


def test_a_budgeted_context_as_the_rules_say_has_no_violation() -> None:
    """What the reference tells is accepted for every budget, and a refusal where even the newest unit is too much."""
    raw, full, parts = turns()
    for budget in range(0, full.chars + 10, 7):
        choice = must_show(parts, within(budget), PLACEHOLDER)
        context = budgeted(full, choice.entry_ids) if choice else None
        assert check_budgeted(raw.entries, "w", parts, within(budget), context, PLACEHOLDER) == []


BUDGET_FAULTS: list[tuple[str, list[str | None], int, str]] = [
    ("one unit fewer than fits", ["u2", "a3", "r3", None], 2, "R19 too few units"),
    ("one unit more than fits", ["u1", "a1", "r1", "r2", "a2", "u2", "a3", "r3", None], 2, "R19 over budget"),
    ("without the opener", ["a2", "u2", "a3", "r3", None], 2, "R19 too few units"),
    ("half a unit", ["u1", "r2", "a2", "u2", "a3", "r3", None], 2, "R20 result without call"),
    ("half a unit, well formed", ["u1", "a1", "u2", "a3", "r3", None], 3, "R20 call without result"),
    ("without the newest unit", ["u1", "a1", "r1", "r2", "a2", None], 3, "R19 newest unit"),
    ("a hole in the middle", ["u1", "a1", "r1", "r2", "u2", "a3", "r3", None], 3, "R19 too few units"),
    ("one that fits behind one that does not", [None, "a0", "u1", "a2", "u2", "a3", "r3", None], 2, "R19 over budget"),
    ("working memory trimmed", ["u1", "a2", "u2", "a3", "r3"], 2, "R18 working memory"),
    ("nothing at all", [], 2, "R19 newest unit"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ids", "units", "rule"), [case[1:] for case in BUDGET_FAULTS], ids=[case[0] for case in BUDGET_FAULTS]
)
def test_every_fault_of_trimming_is_found(ids: list[str | None], units: int, rule: str) -> None:
    """R19: each way to trim wrongly under the budget of a good context is a violation."""
    raw, full, parts = turns()
    budget = characters(budgeted(full, EXPECTED_BY_UNITS[units]).messages)
    context = budgeted(full, ids)
    if ids[:1] == ["a2"]:
        context = plain([(None, PLACEHOLDER), *zip(context.entry_ids, context.messages, strict=True)])
    found = rules(check_budgeted(raw.entries, "w", parts, within(budget), context, PLACEHOLDER))
    assert rule in found or (rule == "R19 newest unit" and "R18 working memory" in found)


def test_nothing_is_kept_behind_the_first_that_does_not_fit() -> None:
    """R19: trimming stops at the first unit that is too large, though an older one would fit."""
    raw = Raw()
    raw.user("u1", "small")
    raw.user("u2", "large " * 50)
    raw.user("u3", "new")
    shown: Pairs = [(entry["id"], entry["message"]) for entry in raw.entries]
    parts, found = take_apart(raw.entries, "u3", plain(shown, model=None))
    assert found == []
    budget = within(200)
    assert check_budgeted(raw.entries, "u3", parts, budget, plain(shown[2:], model=None), PLACEHOLDER) == []
    kept = plain([shown[0], shown[2]], model=None)
    assert rules(check_budgeted(raw.entries, "u3", parts, budget, kept, PLACEHOLDER)) == {"R19 too many units"}


def test_a_refusal_must_be_justified_and_must_come() -> None:
    """R19: an error exactly where what is pinned and the newest unit do not fit."""
    raw, full, parts = turns()
    least = characters(budgeted(full, EXPECTED_BY_UNITS[0]).messages)
    assert check_budgeted(raw.entries, "w", parts, within(least - 1), None, PLACEHOLDER) == []
    assert rules(check_budgeted(raw.entries, "w", parts, within(least), None, PLACEHOLDER)) == {"R19 refused"}
    shown = budgeted(full, EXPECTED_BY_UNITS[0])
    found = rules(check_budgeted(raw.entries, "w", parts, within(least - 1), shown, PLACEHOLDER))
    assert found == {"R19 over budget", "R19 not refused"}


def test_a_unit_with_a_foreign_text_is_no_whole_unit() -> None:
    """R19: what is shown under a budget is, unit for unit, what is shown without one."""
    raw, full, parts = turns()
    context = copy.deepcopy(budgeted(full, EXPECTED_BY_UNITS[2]))
    context.messages[1]["content"][0]["text"] = "ANSWER"
    budget = within(context.chars)
    found = rules(check_budgeted(raw.entries, "w", parts, budget, context, PLACEHOLDER))
    assert found == {"R19 half a unit"}
