"""``branchline name``: what a session is called in listings."""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from harness.cli.failures import DONE
from harness.cli.json_facts import json_facts
from harness.cli.label import checked_text
from harness.cli.places import Place
from harness.cli.reading import open_to_read, open_to_write
from harness.cli.screen import Screen, Span
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.session import Session


@dataclass(frozen=True, slots=True)
class Named:
    """A session, the name it has now and the one it had; ``None`` is none."""

    session: str
    name: str | None
    before: str | None


def run_name(screen: Screen, given: str, name: str | None, *, remove: bool, root: str | None) -> int:
    """Set, show or take away the name of the session that a person named."""
    text = checked_text(name, remove=remove, what="name")
    place = find_session_or_file(given, shelf_at(root))
    done = anyio.run(_name, screen, place, text, remove)
    if screen.as_json:
        screen.show_json(json_facts(done))
    elif text is None and not remove:
        if done.name is None:
            screen.note(f"session {done.session} has no name")
        else:
            screen.show([Span(done.name)], cut=False)
    else:
        screen.note(told(done))
    return DONE


async def _name(screen: Screen, place: Place, name: str | None, remove: bool) -> Named:
    if name is None and not remove:
        async with open_to_read(place) as session:
            now = await session.name()
            return Named(session.id, now, now)
    async with open_to_write(place, screen.note) as session:
        return await name_session(session, name)


async def name_session(session: Session, name: str | None) -> Named:
    """Name the session; ``None`` takes its name away. What is so already is not written again."""
    before = await session.name()
    if name != before:
        await session.append_session_name(name)
    return Named(session.id, name, before)


def told(done: Named) -> str:
    """What was done, as a line."""
    if done.name is None:
        return f"session {done.session} has no name now" + ("; it had none before" if done.before is None else "")
    again = "is named" if done.before == done.name else "is named now:"
    return f"session {done.session} {again} {done.name}"
