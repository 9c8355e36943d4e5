"""Entry ids as people see and type them.

Ids are UUIDv7: those of one turn share their beginning, so what is shown is an *ending*, as short as is unique in the
session. Accepted is more: the whole id, a label, or whatever is unique of beginnings and endings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.cli.failures import CommandLineError
from storage.errors import EntryNotFoundError

SHORTEST = 8
MATCHES_SHOWN = 8


class ShortIds:
    """The short form of each id of one session, all of one length, at least ``SHORTEST`` characters."""

    def __init__(self, ids: Iterable[str]) -> None:
        whole = set(ids)
        longest = max((len(each) for each in whole), default=SHORTEST)
        length = SHORTEST
        while length < longest and len({each[-length:] for each in whole}) < len(whole):
            length += 1
        self._length = length

    def __call__(self, entry_id: str) -> str:
        """The short form of ``entry_id``."""
        return entry_id[-self._length :]


def find_entry(given: str, ids: Sequence[str], labels: Mapping[str, str]) -> str:
    """The id of the entry that ``given`` names: an id, a label, or a unique beginning or ending of an id.

    ``labels`` maps entry ids to labels. Raises ``EntryNotFoundError``, and ``CommandLineError`` where several match.
    """
    if given in ids:
        return given
    labelled = [entry_id for entry_id, label in labels.items() if label == given]
    if labelled:
        return _only(labelled, given, "label")
    matches = [each for each in ids if given and (each.startswith(given) or each.endswith(given))]
    if not matches:
        raise EntryNotFoundError(f"no entry {given!r:.80} in this session; 'branchline tree' shows the ids and labels")
    return _only(matches, given, "entry id")


def _only(matches: Sequence[str], given: str, what: str) -> str:
    if len(matches) > 1:
        listed = ", ".join(matches[:MATCHES_SHOWN]) + (", ..." if len(matches) > MATCHES_SHOWN else "")
        raise CommandLineError(f"{what} {given!r:.80} is not unique, give more of it; it matches {listed}")
    return matches[0]
