"""Entries are found by what a person types, and never guessed."""

from __future__ import annotations

import pytest

from harness.cli.entry_ids import ShortIds, find_entry
from harness.cli.failures import CommandLineError
from storage.errors import EntryNotFoundError

IDS = [
    "0199a1b2-0001-7000-8000-00000000aaaa",
    "0199a1b2-0001-7000-8000-00000000bbbb",
    "0199a1b3-0002-7000-8000-0000cccc",
]


@pytest.mark.parametrize("given", [IDS[2], "0199a1b3", "cccc", "0000cccc", "end"])
def test_one_match_is_found(given: str) -> None:
    """A whole id, a unique beginning, a unique ending and a label each name the entry."""
    assert find_entry(given, IDS, {IDS[2]: "end"}) == IDS[2]


def test_several_matches_are_listed() -> None:
    """What is not unique is refused, with the matches."""
    with pytest.raises(CommandLineError, match="0000aaaa.*0000bbbb"):
        find_entry("0199a1b2", IDS, {})


@pytest.mark.parametrize("given", ["", "nothing", "0199a1b4"])
def test_no_match_is_an_error(given: str) -> None:
    """What names nothing is refused; the empty text matches nothing."""
    with pytest.raises(EntryNotFoundError, match="branchline tree"):
        find_entry(given, IDS, {})


def test_a_label_on_two_entries_is_not_unique() -> None:
    """A label that two entries have is refused."""
    with pytest.raises(CommandLineError, match="label"):
        find_entry("x", IDS, {IDS[0]: "x", IDS[1]: "x"})


def test_short_forms_are_unique_and_found_again() -> None:
    """What is shown of an id is unique in its session and names the entry when it is typed."""
    ids = [f"0199a1b2-0001-7000-8000-{number:012x}" for number in range(0, 3 << 32, 1 << 30)]
    short = ShortIds(ids)
    assert len({short(each) for each in ids}) == len(ids)
    assert [find_entry(short(each), ids, {}) for each in ids] == ids
    assert ShortIds(["abc", "abd"])("abc") == "abc"
