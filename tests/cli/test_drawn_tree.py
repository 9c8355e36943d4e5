"""A tree is drawn so that one sees where one is, whatever its shape."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from harness.cli.drawn_tree import ASCII, draw, tree_of
from harness.cli.screen import plain
from storage.entries import Entry, LabelEntry, LeafEntry, MessageEntry, TurnEndEntry, TurnStartEntry
from storage.messages import AssistantMessage, TextContent, UserMessage


def user(entry_id: str, parent_id: str | None, text: str = "q") -> Entry:
    """A user's message."""
    return MessageEntry(id=entry_id, parent_id=parent_id, message=UserMessage(content=text))


def reply(entry_id: str, parent_id: str | None, text: str = "a") -> Entry:
    """A model's message."""
    return MessageEntry(id=entry_id, parent_id=parent_id, message=AssistantMessage(content=[TextContent(text=text)]))


def drawn(
    entries: Sequence[Entry], leaf: str | None, labels: dict[str, str] | None = None, *, everything: bool = False
) -> list[str]:
    """The lines, as a pipe gets them."""
    names = labels or {}
    tree = tree_of(entries, leaf, labels=names, everything=everything)
    return [plain(line) for line in draw(tree, labels=names, glyphs=ASCII)]


def test_active_path_goes_straight_down() -> None:
    """Branches that were left are drawn before the active one and further in; labels and the leaf are marked."""
    entries = [
        user("u1", None, "first"),
        reply("a1", "u1", "one"),
        user("u2", "a1", "left"),
        reply("a2", "u2", "two"),
        user("u3", "a1", "taken"),
        reply("a3", "u3", "three"),
        user("u4", "a1", "left too"),
    ]
    assert drawn(entries, "a3", {"a1": "start"}) == [
        "* u1 user      first",
        "* a1 assistant [start] one",
        "|-o u2 user      left",
        "| o a2 assistant two",
        "|-o u4 user      left too",
        "* u3 user      taken",
        "* a3 assistant (here) three",
    ]


def test_the_active_path_wins_over_the_longer_one() -> None:
    """Where one is goes straight on, however much lies on the branch that was left later."""
    entries = [user("r", None), user("here", "r"), user("x", "r"), user("y", "x"), user("z", "y")]
    assert [line.split(" user")[0] for line in drawn(entries, "here")] == ["* r", "|-o x", "| o y", "| o z", "* here"]


def test_a_branch_of_a_branch() -> None:
    """Nested branches go one step further in each, and the longer one goes straight on."""
    entries = [
        user("r", None),
        user("x", "r"),
        user("y", "x"),
        user("z", "x"),
        user("zz", "z"),
        user("here", "r"),
    ]
    assert [line.split(" user")[0] for line in drawn(entries, "here")] == [
        "* r",
        "|-o x",
        "| |-o y",
        "| o z",
        "| o zz",
        "* here",
    ]


def test_bookkeeping_is_bridged() -> None:
    """Turn facts, labels and leaves are left out, what follows them hangs on the entry before, and --all shows them."""
    entries: list[Entry] = [
        TurnStartEntry(id="t1", parent_id=None, turn=1),
        user("u1", "t1"),
        reply("a1", "u1"),
        TurnEndEntry(id="e1", parent_id="a1", turn=1, reason="completed"),
        LabelEntry(id="l1", parent_id="e1", target_id="u1", label="x"),
        LeafEntry(id="f1", parent_id="u1", target_id="u1"),
        user("u2", "u1"),
    ]
    assert [line[:9].rstrip() for line in drawn(entries, "u2")] == ["* u1 user", "|-o a1 as", "* u2 user"]
    assert len(drawn(entries, "u2", everything=True)) == len(entries)


def test_a_leaf_in_bookkeeping_is_where_it_hangs() -> None:
    """When the leaf itself is not drawn, the mark stands at the nearest entry above it."""
    entries: list[Entry] = [user("u1", None), TurnEndEntry(id="e1", parent_id="u1", turn=1, reason="completed")]
    assert "(here)" in drawn(entries, "e1")[0]


def test_a_turn_that_was_cut_off_is_shown() -> None:
    """Ends of turns other than completed are part of the story."""
    entries: list[Entry] = [user("u1", None), TurnEndEntry(id="e1", parent_id="u1", turn=1, reason="cancelled")]
    assert "turn 1 cancelled" in drawn(entries, "e1")[1]


def test_labelled_bookkeeping_is_shown() -> None:
    """A label has to be visible wherever it is."""
    entries: list[Entry] = [user("u1", None), TurnEndEntry(id="e1", parent_id="u1", turn=1, reason="completed")]
    assert "[done]" in drawn(entries, "e1", {"e1": "done"})[1]


def test_several_roots_share_a_beginning() -> None:
    """Conversations that begin anew in one session branch from before the first message."""
    lines = drawn([user("u1", None), user("u2", None), reply("a2", "u2")], "a2")
    assert lines[0].startswith("o (before the first message)")
    assert [line.split(" user")[0] for line in lines[1:3]] == ["|-o u1", "* u2"]


def test_going_back_to_the_beginning_is_marked() -> None:
    """With the leaf before the first entry no line says "here", and nothing is active but the beginning."""
    lines = drawn([user("u1", None), user("u2", None)], None)
    assert lines[0].startswith("* (before")
    assert all("(here)" not in line and "*" not in line for line in lines[1:])


def test_broken_links_are_drawn_and_said() -> None:
    """A missing parent, a cycle and an entry that is its own parent are drawn as roots that name what is missing."""
    entries = [user("a", "b"), user("b", "a"), user("self", "self"), user("lost", "gone"), user("child", "lost")]
    lines = drawn(entries, "b")
    text = "\n".join(lines)
    assert all(f"(its parent {name} is missing)" in text for name in ("b", "self", "gone"))
    assert len(lines) == len(entries) + 1


def test_content_cannot_draw() -> None:
    """Line feeds and escapes in text and labels stay on their line and show."""
    lines = drawn([user("u1", None, "\x1b[2Jhi\n* u9 user fake")], "u1", {"u1": "\x1b[31mred\n"})
    assert len(lines) == 1
    assert "\x1b" not in lines[0] and "[\\x1b[31mred\\n]" in lines[0]


def test_depth_needs_no_recursion_and_no_indentation() -> None:
    """A chain of 20,000 entries is drawn, at the left edge."""
    entries = [user("0", None)] + [user(str(number), str(number - 1)) for number in range(1, 20_000)]
    tree = tree_of(entries, "19999")
    begun = time.process_time()  # what else runs on this machine does not count
    lines = [plain(line) for line in draw(tree, labels={}, glyphs=ASCII)]
    assert len(lines) == 20_000 and all(line.startswith("* ") for line in lines)
    assert time.process_time() - begun < 5


def test_indentation_stays_small() -> None:
    """A branch at every step of a long path, and random trees, stay within the logarithm of their size."""
    comb = [user("0", None)]
    for number in range(1, 3000):
        comb += [user(f"side{number}", str(number - 1)), user(str(number), str(number - 1))]
    assert max(line.index("o") for line in drawn(comb, "2999") if "o" in line[:40]) <= 2
    late = [user("0", None), user("left", "0"), user("here", "0")]
    for number in range(1, 1000):
        late += [user(str(number), "left" if number == 1 else str(number - 1)), user(f"side{number}", str(number))]
    assert max(line.count("| ") for line in drawn(late, "here")) <= 2
    rng = random.Random(7)
    entries = [user("0", None)] + [user(str(n), str(rng.randrange(max(0, n - 5), n))) for n in range(1, 2000)]
    assert max(line.count("| ") for line in drawn(entries, "1999")) <= 12
