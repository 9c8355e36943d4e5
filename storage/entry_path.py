"""A path through the tree, root to leaf, decoded only where one looks at it."""

from __future__ import annotations

from array import array
from typing import Protocol

from storage.decode import decode_entry
from storage.entries import Entry
from storage.in_force import State
from storage.index import NONE, EntryIndex


class EntryPath(Protocol):
    """**Protocol:** the entries from the root (position 0) to a leaf. What a context is built from.

    Pointers are positions on this path, or ``None`` where there is no such entry; none of them decodes anything.
    """

    def __len__(self) -> int: ...

    def entry(self, position: int) -> Entry:
        """The entry, decoded anew each time."""
        ...

    def line(self, position: int) -> bytes:
        """The committed bytes."""
        ...

    def entry_id(self, position: int) -> str:
        """The entry's id."""
        ...

    def entry_type(self, position: int) -> str:
        """The entry's type."""
        ...

    def role(self, position: int) -> str:
        """The message's role; "" for other types."""
        ...

    def glance(self, position: int) -> tuple[str, str, bytes]:
        """Type, id and committed bytes at once: a walk over many entries asks for all three."""
        ...

    def size(self, position: int) -> int:
        """Bytes of the committed line."""
        ...

    def position_of(self, entry_id: str) -> int | None:
        """Where an entry is on this path; ``None`` if it is not on it."""
        ...

    def opener(self, position: int) -> int | None:
        """The user message that opened the turn which the entry belongs to (R19)."""
        ...

    @property
    def compaction(self) -> int | None:
        """The newest compaction."""
        ...

    @property
    def model(self) -> int | None:
        """The newest model change, or the newest reply that changed the model."""
        ...

    @property
    def thinking_level(self) -> int | None:
        """The newest thinking level change."""
        ...

    @property
    def active_tools(self) -> int | None:
        """The newest active tools change."""
        ...

    @property
    def request_header(self) -> int | None:
        """The newest request header."""
        ...

    @property
    def unknown(self) -> int | None:
        """The newest entry of an unknown type or role that may not be ignored."""
        ...

    def working_memory(self) -> list[int]:
        """The working memory entries since the newest ``clear``, it included, oldest first."""
        ...

    def edits(self) -> list[int]:
        """The context edits, oldest first."""
        ...

    def system_messages(self) -> list[int]:
        """pi's system messages, oldest first."""
        ...


class IndexedPath:
    """The path to an entry of a log's index. The committed lines never change, so it stays right while others append."""

    def __init__(self, index: EntryIndex, leaf: int) -> None:
        """``leaf``: the place (``seq``) of the last entry, or ``NONE`` for the empty path before the first entry."""
        self._index = index
        self._leaf = leaf
        self._length = index.depths[leaf] + 1 if leaf >= 0 else 0
        self._backwards = array("q", [leaf] if leaf >= 0 else [])
        self._known: dict[int, int] = {}
        """Places that a pointer gave away, so that looking there needs no walk."""
        self._state = index.state(leaf)

    @property
    def place(self) -> str | None:
        """Where the session lies, for errors about the path."""
        return self._index.place

    @property
    def in_force(self) -> State:
        """All pointers: where these are equal for two paths of a session, so is what they say."""
        return self._state

    def __len__(self) -> int:
        return self._length

    def _seq(self, position: int) -> int:
        """The place of the entry at ``position``: the walk goes from the leaf up only as far as somebody asks."""
        behind = self._length - 1 - position
        backwards = self._backwards
        if behind >= len(backwards):
            known = self._known.get(position)
            if known is not None:
                return known
            parents = self._index.parents
            seq = backwards[-1]
            for _ in range(behind - len(backwards) + 1):
                seq = parents[seq]
                backwards.append(seq)
        return backwards[behind]

    def check(self) -> None:
        """Raise ``BrokenPathError`` if the path reaches no root. O(1), but for a file whose first entry is in a cycle."""
        if self._state.broken != NONE:
            self._index.raise_broken(self._state.broken)
        if self._index.circular_root != NONE and self._length and self._seq(0) == self._index.circular_root:
            self._index.raise_broken(self._index.circular_root)

    def _position(self, seq: int) -> int | None:
        if seq == NONE:
            return None
        position = self._index.depths[seq]
        self._known[position] = seq
        return position

    def _positions(self, newest: int) -> list[int]:
        if newest == NONE:
            return []
        chain = self._index.chain(newest)
        positions = [self._index.depths[seq] for seq in chain]
        self._known.update(zip(positions, chain, strict=True))
        return positions

    def entry(self, position: int) -> Entry:
        return decode_entry(self._index.line(self._seq(position)))

    def line(self, position: int) -> bytes:
        return self._index.line(self._seq(position))

    def entry_id(self, position: int) -> str:
        return self._index.names[self._seq(position)]

    def entry_type(self, position: int) -> str:
        return self._index.kind(self._seq(position))[0]

    def role(self, position: int) -> str:
        return self._index.kind(self._seq(position))[1]

    def glance(self, position: int) -> tuple[str, str, bytes]:
        index = self._index
        backwards = self._backwards
        behind = self._length - 1 - position
        seq = backwards[behind] if behind < len(backwards) else self._seq(position)
        return index.kind(seq)[0], index.names[seq], index.lines[seq] or index.line(seq)

    def size(self, position: int) -> int:
        return len(self._index.line(self._seq(position)))

    def position_of(self, entry_id: str) -> int | None:
        index = self._index
        seq = index.ids.get(entry_id)
        if seq is None:
            return None
        position = index.depths[seq]
        behind = self._length - 1 - position
        if behind < 0:
            return None
        backwards = self._backwards
        there = backwards[behind] if behind < len(backwards) else self._seq(position)
        return position if there == seq else None

    def opener(self, position: int) -> int | None:
        return self._position(self._index.openers[self._seq(position)])

    @property
    def compaction(self) -> int | None:
        return self._position(self._state.compaction)

    @property
    def model(self) -> int | None:
        return self._position(self._state.model)

    @property
    def thinking_level(self) -> int | None:
        return self._position(self._state.thinking_level)

    @property
    def active_tools(self) -> int | None:
        return self._position(self._state.active_tools)

    @property
    def request_header(self) -> int | None:
        return self._position(self._state.request_header)

    @property
    def unknown(self) -> int | None:
        return self._position(self._state.unknown)

    def working_memory(self) -> list[int]:
        return self._positions(self._state.working_memory)

    def edits(self) -> list[int]:
        return self._positions(self._state.edit)

    def system_messages(self) -> list[int]:
        return self._positions(self._state.system)
