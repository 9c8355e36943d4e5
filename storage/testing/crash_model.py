"""What a disk may hold after a crash: a model of files, names and what has been synced.

**Bytes.** What was written to a file or cut off it since its last sync may be there or not, each call by itself and
whatever the order of the calls; a write may be there up to any byte, or as a hole of NULs that is as long. What is behind
a lost write lies where it was written. A sync that returned keeps all that came before it.

**Names.** A name in a folder that was made, removed or changed since the folder's last sync may be as it was, or as it
was after any of the changes, each change by itself. A rename within a folder happens whole or not at all; one from folder
to folder may also leave both names, and never neither. A file's sync keeps its bytes, not its name.

This is more than journalling file systems do to us (ext4, XFS and APFS keep the order of names), and what POSIX allows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple


@dataclass(eq=False, slots=True)
class File:
    """A file, whatever names it has; ``data`` is what the disk holds of it for certain."""

    data: bytes = b""


@dataclass(eq=False, slots=True)
class Folder:
    """A folder; ``names`` are those that the disk holds for certain."""

    names: dict[str, File | Folder] = field(default_factory=dict[str, "File | Folder"])


Node = File | Folder


class Written(NamedTuple):
    """Bytes were written at an offset."""

    file: File
    offset: int
    data: bytes


class Cut(NamedTuple):
    """The file was made this long."""

    file: File
    length: int


class Synced(NamedTuple):
    """A sync of a file, or of a folder, returned."""

    node: Node


class Named(NamedTuple):
    """A name was given (``node``), or taken away (``None``); within a folder ``old`` went with it."""

    folder: Folder
    name: str
    node: Node | None
    old: str | None = None
    only_after: int | None = None
    """The step of another change without which this one is never there."""


class Marked(NamedTuple):
    """The program said something, such as that an entry was acknowledged."""

    what: Any


Step = Written | Cut | Synced | Named | Marked

WHOLE = -1
LOST = -2
HOLE = -3
Fate = int
"""What became of a change that was not synced: ``WHOLE``, ``LOST``, a ``HOLE``, or how many bytes of it are there.

Below ``HOLE``: so many bytes less are NULs, and the others there. No promise of ours covers that: it takes a disk that
writes the pages of one write in another order.
"""

Tree = dict[str, bytes | None]
"""Relative paths, each with its bytes, or ``None`` for a folder."""


class Disk:
    """The disk at one moment of a recorded run: what it holds for certain, and what is still on its way."""

    def __init__(self, root: Folder, *, lying: bool = False) -> None:
        """As it was before the run began. ``lying``: syncs return, and do nothing."""
        self.root = root
        self.lying = lying
        self.data: dict[File, bytes] = {}
        self.names: dict[Folder, dict[str, Node]] = {}
        self.bytes_on_their_way: dict[File, list[Written | Cut]] = {}
        self.names_on_their_way: list[tuple[int, Named]] = []
        self.marks: list[Any] = []

    def advance(self, number: int, step: Step) -> None:
        """The next step of the run happens."""
        match step:
            case Written() | Cut():
                self.bytes_on_their_way.setdefault(step.file, []).append(step)
            case Named():
                self.names_on_their_way.append((number, step))
            case Marked():
                self.marks.append(step.what)
            case Synced():
                if not self.lying:
                    self._sync(step.node)

    def _sync(self, node: Node) -> None:
        if isinstance(node, Folder):
            self._sync_names(node)
        else:
            steps = self.bytes_on_their_way.pop(node, [])
            self.data[node] = content(self.data.get(node, node.data), steps, [WHOLE] * len(steps))

    def _sync_names(self, folder: Folder) -> None:
        names = dict(self.names.get(folder, folder.names))
        kept: list[tuple[int, Named]] = []
        for number, step in self.names_on_their_way:
            if step.folder is folder:
                rename(names, step)
            else:
                kept.append((number, step))
        self.names[folder] = names
        self.names_on_their_way = kept

    def tree(self, there: Sequence[bool], fates: dict[File, list[Fate]]) -> Tree:
        """What is on the disk, if of the names those are there, and of each file's bytes these."""
        names = self._names(there)
        found: Tree = {}
        waiting: list[tuple[str, Folder]] = [("", self.root)]
        while waiting:
            path, folder = waiting.pop()
            for name, node in names.get(folder, folder.names).items():
                below = os.path.join(path, name)
                if isinstance(node, Folder):
                    found[below] = None
                    waiting.append((below, node))
                else:
                    found[below] = self.content(node, fates.get(node))
        return found

    def content(self, file: File, fates: list[Fate] | None) -> bytes:
        """A file's bytes; without ``fates`` all that is on its way is there."""
        steps = self.bytes_on_their_way.get(file, [])
        return content(self.data.get(file, file.data), steps, fates or [WHOLE] * len(steps))

    def reachable(self, there: Sequence[bool]) -> list[File]:
        """The files that have a name, and bytes on their way."""
        names = self._names(there)
        found: list[File] = []
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            for node in names.get(folder, folder.names).values():
                if isinstance(node, Folder):
                    waiting.append(node)
                elif node in self.bytes_on_their_way and node not in found:
                    found.append(node)
        return found

    def _names(self, there: Sequence[bool]) -> dict[Folder, dict[str, Node]]:
        names = dict(self.names)
        done: set[int] = set()
        lost: set[int] = set()
        for (number, step), is_there in zip(self.names_on_their_way, there, strict=True):
            if not is_there or step.only_after in lost:
                lost.add(number)
                continue
            done.add(number)
            if step.folder not in names or names[step.folder] is self.names.get(step.folder):
                names[step.folder] = dict(names.get(step.folder, step.folder.names))
            rename(names[step.folder], step)
        return names


def rename(names: dict[str, Node], step: Named) -> None:
    """Do to a folder's names what ``step`` did."""
    if step.old is not None and names.get(step.old) is step.node:
        names.pop(step.old, None)
    if step.node is None:
        names.pop(step.name, None)
    else:
        names[step.name] = step.node


def what_is_there(data: bytes, fate: Fate) -> bytes:
    """What is on the disk of the bytes of a write."""
    if fate == WHOLE:
        return data
    if fate >= 0:
        return data[:fate]
    hole = len(data) if fate == HOLE else HOLE - fate
    return b"\0" * hole + data[hole:]


def content(data: bytes, steps: Sequence[Written | Cut], fates: Sequence[Fate]) -> bytes:
    """The bytes of a file after the steps, each of which came to what its fate says."""
    for step, fate in zip(steps, fates, strict=True):
        if fate == LOST:
            continue
        if isinstance(step, Cut):
            data = data[: step.length].ljust(step.length, b"\0")
            continue
        piece = what_is_there(step.data, fate)
        if piece:
            data = data[: step.offset].ljust(step.offset, b"\0") + piece + data[step.offset + len(piece) :]
    return data


_FEW_NAMES = 6
_FEW_FATES = 96


def choices_of_names(count: int) -> Iterator[list[bool]]:
    """Which of ``count`` changes are there: every subset of a few; of many, those that tell something."""
    if count <= _FEW_NAMES:
        yield from ([*some] for some in product((True, False), repeat=count))
        return
    for end in range(count + 1):
        yield [place < end for place in range(count)]
        yield [place >= end for place in range(count)]
    for one in range(count):
        yield [place == one for place in range(count)]
        yield [place != one for place in range(count)]


def choices_of_bytes(disk: Disk, files: Sequence[File], cuts: int) -> Iterator[dict[File, list[Fate]]]:
    """What became of the files' bytes: all combinations of a few fates, and each write cut at (up to ``cuts``) bytes."""
    steps = [(file, step) for file in files for step in disk.bytes_on_their_way[file]]
    coarse = [_coarse(step) for _, step in steps]
    every = 1
    for fates in coarse:
        every *= len(fates)
    if every <= _FEW_FATES:
        for fates in product(*coarse):
            yield _by_file(steps, fates)
    else:
        for fates in _some(coarse):
            yield _by_file(steps, fates)
    for place, (_, step) in enumerate(steps):
        if isinstance(step, Written):
            for fate in cut_places(len(step.data), cuts):
                before, after = [WHOLE] * place, len(steps) - place - 1
                yield _by_file(steps, [*before, fate, *[LOST] * after])
                yield _by_file(steps, [*before, fate, *[WHOLE] * after])


def _coarse(step: Written | Cut) -> list[Fate]:
    if isinstance(step, Cut):
        return [WHOLE, LOST]
    return [WHOLE, LOST, HOLE] if len(step.data) < 2 else [WHOLE, LOST, HOLE, len(step.data) // 2]


def _some(coarse: list[list[Fate]]) -> Iterator[list[Fate]]:
    count = len(coarse)
    for end in range(count + 1):
        yield [WHOLE if place < end else LOST for place in range(count)]
        yield [WHOLE if place >= end else LOST for place in range(count)]
    for one, fates in enumerate(coarse):
        for fate in fates[1:]:
            yield [fate if place == one else WHOLE for place in range(count)]


def _by_file(steps: Sequence[tuple[File, Written | Cut]], fates: Sequence[Fate]) -> dict[File, list[Fate]]:
    found: dict[File, list[Fate]] = {}
    for (file, _), fate in zip(steps, fates, strict=True):
        found.setdefault(file, []).append(fate)
    return found


def cut_places(length: int, most: int) -> Sequence[int]:
    """After how many of ``length`` bytes to cut: after each, or, of a long write, after ``most`` of them, ends included."""
    if length - 1 <= most:
        return range(1, length)
    places = {1 + place * (length - 2) // (most - 1) for place in range(most)}
    return sorted(places)
