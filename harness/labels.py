"""Labels and names: session-wide, the last in order counts, on whatever branch it lies."""

from __future__ import annotations

from typing import cast

from storage.decode import decode_entry
from storage.entries import LabelEntry, SessionInfoEntry
from storage.index import NONE, EntryIndex


def label_in_force(index: EntryIndex, entry_id: str) -> str | None:
    """The label of an entry; blank is none."""
    seq = index.labels.get(entry_id)
    if seq is None:
        return None
    return (cast("LabelEntry", decode_entry(index.line(seq))).label or "").strip() or None


def labels_in_force(index: EntryIndex) -> dict[str, str]:
    """All labels, by entry id."""
    found = {entry_id: label_in_force(index, entry_id) for entry_id in index.labels}
    return {entry_id: label for entry_id, label in found.items() if label is not None}


def name_in_force(index: EntryIndex) -> str | None:
    """The session's name; blank is none."""
    if index.name_seq == NONE:
        return None
    return (cast("SessionInfoEntry", decode_entry(index.line(index.name_seq))).name or "").strip() or None


def one_line(text: str) -> str:
    """Names and labels are one line, as pi keeps them."""
    return " ".join(text.splitlines()) if "\n" in text or "\r" in text else text
