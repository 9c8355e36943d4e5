"""``branchline label``: a name for an entry, by which it can be named wherever an entry is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from harness.cli.failures import DONE, CommandLineError
from harness.cli.json_facts import json_facts
from harness.cli.places import Place
from harness.cli.plain_text import given_text
from harness.cli.reading import named_entry, open_to_read, open_to_write
from harness.cli.screen import Screen, Span
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.session import Session


@dataclass(frozen=True, slots=True)
class Labelled:
    """An entry, the label it has now and the one it had; ``None`` is none. ``also`` has the same label, if one has."""

    session: str
    entry: str
    label: str | None
    before: str | None
    also: str | None = None


def run_label(screen: Screen, given: str, entry: str, label: str | None, *, remove: bool, root: str | None) -> int:
    """Set, show or take away the label of the entry that a person named."""
    text = checked_text(label, remove=remove, what="label")
    place = find_session_or_file(given, shelf_at(root))
    done = anyio.run(_label, screen, place, entry, text, remove)
    if screen.as_json:
        screen.show_json(json_facts(done))
    elif text is None and not remove:
        if done.label is None:
            screen.note(f"entry {done.entry} has no label")
        else:
            screen.show([Span(done.label)], cut=False)
    else:
        screen.note(told(done))
    return DONE


async def _label(screen: Screen, place: Place, entry: str, label: str | None, remove: bool) -> Labelled:
    if label is None and not remove:
        async with open_to_read(place) as session:
            entry_id = await named_entry(session, entry)
            now = await session.label(entry_id)
            return Labelled(session.id, entry_id, now, now)
    async with open_to_read(place) as session:
        await named_entry(session, entry)  # what is not there is told before anything is locked or repaired
    async with open_to_write(place, screen.note) as session:
        return await label_entry(session, entry, label)


async def label_entry(session: Session, given: str, label: str | None) -> Labelled:
    """Label the entry that ``given`` names; ``None`` takes its label away. What is so already is not written again.

    Raises ``EntryNotFoundError``, ``CommandLineError`` (several entries match), and what appending raises.
    """
    entry_id = await named_entry(session, given)
    labels = await session.labels()
    before = labels.get(entry_id)
    also = next((each for each, other in labels.items() if other == label and each != entry_id), None)
    if label != before:
        await session.append_label(entry_id, label)
    return Labelled(session.id, entry_id, label, before, also)


def told(done: Labelled) -> str:
    """What was done, as a line."""
    if done.label is None:
        return f"entry {done.entry} has no label now" + ("; it had none before" if done.before is None else "")
    again = "is labelled" if done.before == done.label else "is labelled now:"
    text = f"entry {done.entry} {again} {done.label}"
    return text if done.also is None else f"{text} (as entry {done.also} is; name these two by their ids)"


def checked_text(text: str | None, *, remove: bool, what: str) -> str | None:
    """A name or label as it was typed, on one line; ``None`` where none was given. Raises ``CommandLineError``."""
    if text is None:
        return None
    if remove:
        raise CommandLineError(f"--remove takes the {what} away: give no new one with it")
    line = " ".join(given_text(text).split())
    if not line:
        raise CommandLineError(f"the {what} is empty; --remove takes it away")
    return line
