"""The index of a session's tree: where each entry lies, what it hangs from, and what is in force there.

The bytes are the record; this only finds them. Each entry has a pointer to the state that holds at it (the newest
compaction, model, tools, … on its path), set when it is committed, so that nothing later depends on how deep it lies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import cast

from storage.decode import parse_record
from storage.errors import BrokenPathError, DamagedSessionError, EntryNotFoundError, NotOnPathError
from storage.in_force import NONE, ROOT, State
from storage.protocols import NO_FACTS, Facts, Record, SessionWarning
from storage.waiting import Waiting

_NOT_HERE = -3

BROKEN = -2
"""A parent that is missing or comes later."""


_SIMPLE = {
    "compaction": "compaction",
    "thinking_level_change": "thinking_level",
    "active_tools_change": "active_tools",
    "request_header": "request_header",
    "working_memory": "working_memory",
    "context_edit": "edit",
}


class EntryIndex:
    """All entries of one session. Not for threads: whoever fills it owns it."""

    def __init__(self, *, foreign: bool = False) -> None:
        """``foreign``: the file has no ``branchline`` header, so the first entry's missing parent makes it a root."""
        self.foreign = foreign
        self.place: str | None = None
        """Where the session lies, for the errors."""
        self.salvaged = False
        """Whether bad lines were skipped, so that there may be gaps."""
        self.ids: dict[str, int] = {}
        self.names: list[str] = []
        self.lines: list[bytes | None] = []
        self.parents: array[int] = array("q")
        self.depths: array[int] = array("l")
        self.openers: array[int] = array("l")
        """For each entry the user message that opened the turn it belongs to (R19), or ``NONE``."""
        self._kinds = array("H")
        self._kind_numbers: dict[tuple[str, str], int] = {}
        self._kind_names: list[tuple[str, str]] = []
        self._state_numbers = array("l")
        self._states: list[State] = [ROOT]
        self._models: dict[int, tuple[str | None, str | None]] = {}
        self._previous: dict[int, int] = {}
        """For working memory, context edits, system messages and the queue: the one before it on its path."""
        self._clears: set[int] = set()
        self._announced: set[str] = set()
        """Ids of messages that a ``delivered`` entry named, and that have not come yet."""
        self._waiting = Waiting()
        self.ended_turns: set[int] = set()
        """The turn starts that have an end on some branch."""
        self.labels: dict[str, int] = {}
        self.name_seq: int = NONE
        self.root_with_parent: int = NONE
        """The first entry, if it counts as a root although it names a parent (a fork of pi's)."""
        self._root_parent = ""
        self.circular_root: int = NONE
        """The first entry, if the parent it names came later after all: then it is no root, but part of a cycle."""
        self.leaf_id: str | None = None
        self.leaf_broken: str | None = None
        self.warnings: list[SessionWarning] = []
        self.broken: list[tuple[str, str, int | None]] = []
        """Entries whose parent, and leaf lines whose target, is not there: (id, what is missing, line)."""

    def __len__(self) -> int:
        """The next ``seq``."""
        return len(self.lines)

    def add(self, record: Record) -> None:
        """Take a committed record. Raises ``DamagedSessionError`` for a duplicate id or a place out of order."""
        seq, entry_id, parent_id, kind, data, facts, line = record
        if facts is None:
            record = parse_record(data, seq)
            if record.id != entry_id or record.parent_id != parent_id or record.type != kind:
                raise DamagedSessionError(
                    f"the storage says that entry {seq} is {kind} {entry_id!r}, its bytes say {record.type} {record.id!r}",
                    path=self.place,
                    entry_id=entry_id,
                )
            facts = record.facts or NO_FACTS
        if seq != len(self.lines):
            self._fill_gap(seq, line)
        ids = self.ids
        if entry_id in ids:
            raise DamagedSessionError(
                f"invalid session record at line {line or seq + 2}: the id {entry_id!r} was used before, by entry "
                f"{ids[entry_id]}; nothing was changed, and opening with on_corrupt='skip' shows the rest",
                path=self.place,
                line=line,
                entry_id=entry_id,
            )
        parent = NONE if parent_id is None else ids.get(parent_id, _NOT_HERE)
        if parent == _NOT_HERE:
            parent = self._missing_parent(cast("str", parent_id), entry_id, line)
        if entry_id == self._root_parent:
            self._break_root(entry_id)
        if parent >= 0:
            depth = self.depths[parent] + 1
            number = self._state_numbers[parent]
            opener = self.openers[parent]
        else:
            depth = 0
            number = 0 if parent == NONE else self._new_state(ROOT._replace(broken=seq))
            opener = NONE
        role = facts.role
        state = self._states[number]
        if self._announced and entry_id in self._announced:
            self._announced.discard(entry_id)
            state = state._replace(queue=self._after(state.queue, seq))
            number = self._new_state(state)
            is_delivered = True
        else:
            is_delivered = False
        if kind == "message" and role == "user":
            if (state.turn == NONE or opener < state.turn) and not is_delivered:
                opener = seq
        elif kind != "message" or facts.model is not None or role == "system" or facts.unknown:
            if kind == "turn_start":
                opener = NONE
            changed = self._next_state(state, seq, kind, facts)
            if changed is not state:
                number = self._new_state(changed)
        ids[entry_id] = seq
        self.names.append(entry_id)
        self.lines.append(data)
        self.parents.append(parent)
        self.depths.append(depth)
        self.openers.append(opener)
        self._state_numbers.append(number)
        key = (kind, role)
        self._kinds.append(self._kind_numbers[key] if key in self._kind_numbers else self._new_kind(key))
        if kind == "leaf":
            self._move_leaf(facts.target, entry_id, line)
        else:
            self.leaf_id = entry_id
            self.leaf_broken = None

    def is_one_path(self, last: int) -> bool:
        """Whether each entry up to ``last`` hangs from the one before it, and nothing about them is out of order."""
        in_order = not (self.salvaged or self.broken) and NONE == self.root_with_parent == self.circular_root
        return in_order and last >= 0 and self.depths[last] == last

    def beginning(self, records: Sequence[Record]) -> EntryIndex:
        """The index of ``records`` alone, the first ones of this index, which are one path.

        Its columns are taken over as they are. What depends on other branches and on later entries is not: that is read
        off the few entries that are no messages. To be called in any thread.
        """
        count = len(records)
        other = EntryIndex()
        other.names, other.lines = self.names[:count], self.lines[:count]
        other.ids = dict(zip(other.names, range(count), strict=True))
        other.parents, other.depths, other.openers = self.parents[:count], self.depths[:count], self.openers[:count]
        other._kinds, other._state_numbers = self._kinds[:count], self._state_numbers[:count]
        other._kind_numbers, other._kind_names = self._kind_numbers.copy(), self._kind_names.copy()
        other._states, other._models, other._previous = self._states[:], self._models.copy(), self._previous.copy()
        messages = {number for number, kind in enumerate(other._kind_names) if kind[0] == "message"}
        for seq in [seq for seq, number in enumerate(other._kinds) if number not in messages]:
            _, _, _, kind, _, facts, _ = records[seq]
            target = None if facts is None else facts.target
            if kind == "turn_end":
                other.ended_turns.add(other.state(seq - 1).turn)
            elif kind == "label" and target is not None:
                other.labels[target] = seq
            elif kind == "session_info":
                other.name_seq = seq
            elif kind == "working_memory" and target == "clear":
                other._clears.add(seq)
            elif kind == "delivered" and target is not None and target not in other.ids:
                other._announced.add(target)
        last = records[-1]
        other.leaf_id = last.facts.target if last.type == "leaf" and last.facts is not None else last.id
        return other

    def _new_state(self, state: State) -> int:
        self._states.append(state)
        return len(self._states) - 1

    def _new_kind(self, key: tuple[str, str]) -> int:
        number = self._kind_numbers[key] = len(self._kind_names)
        self._kind_names.append(key)
        return number

    def _fill_gap(self, seq: int, line: int | None) -> None:
        if seq < len(self.lines):
            raise DamagedSessionError(f"entry {seq} came twice; entry {len(self.lines)} was expected", line=line)
        if not self.salvaged:
            raise DamagedSessionError(
                f"entry {seq} came, but entry {len(self.lines)} was expected; entries between them are missing",
                line=line,
            )
        while len(self.lines) < seq:  # a bad line keeps its place
            self.lines.append(None)
            self.names.append("")
            self.parents.append(BROKEN)
            self.depths.append(0)
            self.openers.append(NONE)
            nothing = ("", "")
            self._kinds.append(
                self._kind_numbers[nothing] if nothing in self._kind_numbers else self._new_kind(nothing)
            )
            self._state_numbers.append(0)

    def _break_root(self, parent_id: str) -> None:
        root = self.circular_root = self.root_with_parent
        self.root_with_parent = NONE
        self._root_parent = ""
        self.parents[root] = BROKEN
        line = next((warning.line for warning in self.warnings if warning.code == "root_with_parent"), None)
        self.warnings = [warning for warning in self.warnings if warning.code != "root_with_parent"]
        self.broken.insert(0, (self.names[root], parent_id, line))

    def _missing_parent(self, parent_id: str, entry_id: str, line: int | None) -> int:
        if self.foreign and not self.ids and parent_id != entry_id:
            self.root_with_parent = len(self.lines)
            self._root_parent = parent_id
            self.warnings.append(
                SessionWarning(
                    "root_with_parent",
                    f"the first entry hangs from {parent_id!r}, which is not here (a fork of pi's); it counts as a root",
                    line,
                    entry_id,
                )
            )
            return NONE
        self.broken.append((entry_id, parent_id, line))
        return BROKEN

    def _move_leaf(self, target: str | None, entry_id: str, line: int | None) -> None:
        self.leaf_id = target
        self.leaf_broken = None
        if target is not None and target not in self.ids:
            self.leaf_broken = target
            self.broken.append((entry_id, target, line))

    def _after(self, previous: int, seq: int) -> int:
        self._previous[seq] = previous
        return seq

    def _next_state(self, state: State, seq: int, kind: str, facts: Facts) -> State:
        if facts.unknown:
            return state._replace(unknown=seq)
        if kind == "message":
            return self._after_message(state, seq, facts)
        if kind == "turn_start":
            return state._replace(turn=seq, turns=state.turns + 1)
        if kind == "turn_end":
            self.ended_turns.add(state.turn)
            return state._replace(turn=NONE)
        if kind == "model_change":
            return self._with_model(state, seq, facts)
        name = _SIMPLE.get(kind)
        if name is not None:
            if kind in ("working_memory", "context_edit"):
                self._previous[seq] = getattr(state, name)
                if facts.target == "clear" and kind == "working_memory":
                    self._clears.add(seq)
            return state._replace(**{name: seq})
        if kind in ("queued", "delivered"):
            if kind == "delivered" and facts.target is not None and facts.target not in self.ids:
                self._announced.add(facts.target)
            return state._replace(queue=self._after(state.queue, seq))
        if kind == "label":
            if facts.target is not None:
                self.labels[facts.target] = seq
        elif kind == "session_info":
            self.name_seq = seq
        return state

    def _after_message(self, state: State, seq: int, facts: Facts) -> State:
        if facts.model is not None:
            return self._with_model(state, seq, facts)
        if facts.role == "system":
            self._previous[seq] = state.system
            return state._replace(system=seq)
        return state

    def _with_model(self, state: State, seq: int, facts: Facts) -> State:
        model = facts.model
        if model is None or model == (None, None) or (state.model >= 0 and self._models[state.model] == model):
            return state
        self._models[seq] = model
        return state._replace(model=seq)

    def seq_of(self, entry_id: str) -> int:
        """The place of an entry. Raises ``EntryNotFoundError``."""
        seq = self.ids.get(entry_id)
        if seq is None:
            raise EntryNotFoundError(
                f"no entry {entry_id!r:.140} in this session; `entries()` lists them",
                path=self.place,
                entry_id=entry_id,
            )
        return seq

    def line(self, seq: int) -> bytes:
        """The committed bytes of an entry."""
        line = self.lines[seq]
        if line is None:
            raise EntryNotFoundError(f"entry {seq} is a bad line that was skipped", path=self.place)
        return line

    def kind(self, seq: int) -> tuple[str, str]:
        """An entry's type, and its message's role ("" for other types)."""
        return self._kind_names[self._kinds[seq]]

    def state(self, seq: int) -> State:
        """What is in force at an entry (``NONE``: before the first one)."""
        return self._states[self._state_numbers[seq]] if seq >= 0 else ROOT

    def model_at(self, seq: int) -> tuple[str | None, str | None] | None:
        """Provider and model id that are in force at an entry."""
        model = self.state(seq).model
        return self._models[model] if model >= 0 else None

    def chain(self, seq: int) -> list[int]:
        """A working memory or context edit entry and those before it on its path (back to a clear), oldest first."""
        chain: list[int] = []
        while seq >= 0:
            chain.append(seq)
            if seq in self._clears:
                break
            seq = self._previous[seq]
        chain.reverse()
        return chain

    def waiting(self, seq: int) -> list[int]:
        """The ``queued`` entries whose messages wait on the path to ``seq``, oldest first.

        One waits as long as no ``delivered`` entry of it is on the path that names no message (it was taken back), or
        one that is on the path too: what a crash cut off between these two is still waiting. Asked again further down
        the same path, it looks only at what is new.
        """
        newest = self.state(seq).queue
        if newest == NONE:
            return []
        known = self._waiting
        changes: list[int] = []
        place = newest
        while place not in (NONE, known.place):
            changes.append(place)
            place = self._previous[place]
        if place == NONE:
            known = self._waiting = Waiting()
        for place in reversed(changes):
            known.go_on(self, place)
        return list(known.queued.values())

    def path(self, seq: int) -> list[int]:
        """The places from the root to ``seq``. O(depth). Raises ``BrokenPathError``."""
        path: list[int] = []
        while seq >= 0:
            path.append(seq)
            seq = self.parents[seq]
        if seq == BROKEN:
            self.raise_broken(path[-1])
        path.reverse()
        return path

    def raise_broken(self, seq: int) -> None:
        """Raise the error that names the entry whose parent is not there."""
        for entry_id, missing, line in self.broken:
            if self.ids.get(entry_id) == seq:
                why = "comes only later or in a cycle" if missing in self.ids else "is missing"
                raise BrokenPathError(
                    f"the path breaks at entry {entry_id!r}: its parent {missing!r} {why}; other paths can be read",
                    path=self.place,
                    line=line,
                    entry_id=entry_id,
                )
        raise BrokenPathError(
            "the path breaks at a bad line that was skipped; other paths can be read", path=self.place
        )

    def is_on_path(self, seq: int, leaf: int) -> bool:
        """Whether ``seq`` is ``leaf`` or above it. O(the distance)."""
        depth = self.depths[seq]
        while leaf >= 0 and self.depths[leaf] > depth:
            leaf = self.parents[leaf]
        return leaf == seq

    def require_kept(self, entry_id: str) -> None:
        """Raise ``NotOnPathError`` unless a compaction at the leaf can keep what comes from ``entry_id`` on (R18)."""
        seq = self.ids.get(entry_id)
        if seq is None or self.leaf_id is None or not self.is_on_path(seq, self.ids[self.leaf_id]):
            raise NotOnPathError(
                f"the first kept entry {entry_id!r} is not on the path to the leaf {self.leaf_id!r}: someone navigated "
                "away; nothing was written; prepare the compaction anew",
                path=self.place,
                entry_id=entry_id,
            )


def build_index(records: Iterable[Record], *, foreign: bool = False) -> EntryIndex:
    """An index over records in order; for tests and pure functions."""
    index = EntryIndex(foreign=foreign)
    for record in records:
        index.add(record)
    return index
