"""Which queued messages wait on a path: exactly those without a delivery that took effect there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.entry_list import ListPath
from storage.decode import facts_of
from storage.entries import DeliveredEntry, Entry, MessageEntry, MetadataEntry, QueuedEntry
from storage.index import EntryIndex
from storage.messages import UserMessage
from storage.protocols import Record
from storage.strict_json import encode_model


def queued(name: str) -> QueuedEntry:
    return QueuedEntry(id=name, kind="steer", message=UserMessage(content=name))


def delivered(name: str, message_id: str | None, entry_id: str = "d") -> DeliveredEntry:
    return DeliveredEntry(id=entry_id, entry_id=name, message_id=message_id)


def message(name: str) -> MessageEntry:
    return MessageEntry(id=name, message=UserMessage(content=name))


def indexed(tree: Sequence[tuple[Entry, str | None]]) -> EntryIndex:
    index = EntryIndex()
    for seq, (entry, parent) in enumerate(tree):
        index.add(Record(seq, entry.id, parent, entry.type, encode_model(entry), facts_of(entry)))
    return index


def waiting(index: EntryIndex, entry_id: str) -> list[str]:
    return [index.names[seq] for seq in index.waiting(index.ids[entry_id])]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([queued("q")], ["q"]),
        ([queued("q"), delivered("q", None)], []),
        ([queued("q"), delivered("q", "m")], ["q"]),
        ([queued("q"), delivered("q", "m"), message("m")], []),
        ([queued("q"), delivered("q", "m"), MetadataEntry(key="k", value=1), message("m")], []),
        ([queued("q"), delivered("q", "m"), message("other")], ["q"]),
        ([queued("q"), message("m"), delivered("q", "m")], []),
        ([queued("q"), delivered("q", "m"), delivered("q", "m2", "d2"), message("m2")], []),
        ([queued("q"), queued("r"), delivered("r", "m"), message("m")], ["q"]),
        ([queued("q"), delivered("nothing", None), delivered("nothing", "m", "d2"), message("m")], ["q"]),
        ([delivered("q", None), queued("q")], ["q"]),
    ],
)
def test_on_one_path(entries: list[Entry], expected: list[str]) -> None:
    """Taken back, or delivered by an entry that is there; in whatever order a file has them."""
    tree = [(entry, entries[at - 1].id if at else None) for at, entry in enumerate(entries)]
    assert waiting(indexed(tree), entries[-1].id) == expected


def test_on_each_branch_its_own() -> None:
    """A delivery on one branch takes nothing out on another, whichever is asked about first."""
    tree: list[tuple[Entry, str | None]] = [
        (queued("q"), None),
        (delivered("q", "m"), "q"),
        (message("m"), "d"),
        (queued("r"), "q"),
        (delivered("q", None, "d2"), "r"),
        (delivered("r", "m", "d3"), "d2"),
        (queued("s"), "m"),
    ]
    expected = {"q": ["q"], "d": ["q"], "m": [], "r": ["q", "r"], "d2": ["r"], "d3": ["r"], "s": ["s"]}
    for order in (list(expected), list(reversed(expected))):
        index = indexed(tree)
        for entry_id in order:
            assert waiting(index, entry_id) == expected[entry_id]


def test_a_delivered_message_opens_no_turn() -> None:
    """R19: steers begin none, also outside of a recorded turn."""
    path = ListPath([message("a"), queued("q"), delivered("q", "m"), message("m"), message("b")])
    assert [path.opener(position) for position in range(5)] == [0, 0, 0, 0, 4]


STEPS = st.lists(st.tuples(st.sampled_from(["queue", "deliver", "announce", "take back", "move"]), st.integers(0, 50)))


@given(STEPS)
def test_against_the_rule(steps: list[tuple[str, int]]) -> None:
    """On random trees, at every entry, in any order of asking: the rule, read off the path itself."""
    tree: list[tuple[Entry, str | None]] = []
    leaf: str | None = None
    for step, pick in steps:
        name = f"e{len(tree)}"
        names = [entry.id for entry, _ in tree if isinstance(entry, QueuedEntry)]
        target = names[pick % len(names)] if names else "none"
        if step == "move" and tree:
            leaf = tree[pick % len(tree)][0].id
            continue
        if step == "queue":
            added: list[Entry] = [queued(name)]
        elif step == "take back":
            added = [delivered(target, None, name)]
        else:
            added = [delivered(target, f"{name}m", name)]
            if step == "deliver":
                added.append(message(f"{name}m"))
        for entry in added:
            tree.append((entry, leaf))
            leaf = entry.id
    index = indexed(tree)
    for entry, _ in sorted(tree, key=lambda pair: hash(pair[0].id)):
        path = [tree[seq][0] for seq in index.path(index.ids[entry.id])]
        here = {one.id for one in path}
        gone: set[str] = set()
        for one in path:
            if isinstance(one, DeliveredEntry) and (one.message_id is None or one.message_id in here):
                gone.add(one.entry_id)
        assert waiting(index, entry.id) == [
            one.id for one in path if isinstance(one, QueuedEntry) and one.id not in gone
        ]
