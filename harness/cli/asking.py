"""Asking a person before something that cannot be undone, and refusing where there is nobody to ask."""

from __future__ import annotations

from harness.cli.failures import CommandLineError
from harness.cli.screen import Screen


def is_confirmed(screen: Screen, question: str, *, yes: bool, what: str) -> bool:
    """Whether to go on: ``yes`` was given, or a person says so. Anything but a clear yes is a no.

    Raises ``CommandLineError`` where nobody can be asked; ``what`` is what was not done, for that message.
    """
    if yes:
        return True
    if not screen.can_ask:
        raise CommandLineError(f"{what}: there is nobody to ask here; say --yes if it is meant")
    answer = screen.ask(f"{question} [y/N]")
    return answer is not None and answer.lower() in ("y", "yes")
