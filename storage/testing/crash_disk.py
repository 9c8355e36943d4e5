"""Every state that a power loss may leave a folder in, at any moment of a run that was recorded.

::

    with CrashDisk(folder) as disk:
        storage = MyStorage(folder / "chat")
        sync = storage.commit(records)
        sync()
        disk.mark("acknowledged")
    for state in disk.states():
        state.make(empty_folder)
        ...  # open it anew, and see that what was acknowledged is there
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from storage.testing.crash_model import (
    HOLE,
    LOST,
    WHOLE,
    Cut,
    Disk,
    Fate,
    File,
    Folder,
    Marked,
    Named,
    Node,
    Step,
    Synced,
    Tree,
    Written,
    choices_of_bytes,
    choices_of_names,
)
from storage.testing.file_calls import Call, FileCalls


class UnseenChangeError(RuntimeError):
    """Something below the folder was changed in a way that was not seen: nobody can say what a crash leaves of it."""


@dataclass(slots=True)
class CrashState:
    """What may lie in the folder after a crash.

    ``tree`` has the relative path of each file with its bytes, and of each folder with ``None``. Several moments may leave
    the same: ``first`` holds what was marked before the earliest of them, ``marks`` before the latest.
    """

    tree: Tree
    first: tuple[Any, ...]
    marks: tuple[Any, ...]

    def make(self, folder: str | os.PathLike[str]) -> None:
        """Make it in ``folder``, which is empty."""
        for path in sorted(self.tree):
            place = os.path.join(folder, path)
            data = self.tree[path]
            if data is None:
                os.mkdir(place, 0o700)
                continue
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)


class CrashDisk(FileCalls):
    """Records what this process does to the files below ``folder``, and replays what a crash may leave of it.

    What is there at the beginning counts as synced. Files that begin or end with ``quiet`` names (locks) are there or not
    like all others, but empty: nobody reads what a dead process wrote into them. See ``storage.testing.crash_model``
    for what may be lost, and for what not.
    """

    def __init__(self, folder: str | os.PathLike[str], *, quiet: Iterable[str] = (".lock",)) -> None:
        """``folder`` has to be there."""
        super().__init__(folder)
        self._quiet = tuple(quiet)
        self._root = self._load(self.folder)
        self._now: dict[Folder, dict[str, Node]] = {}
        self._nodes: dict[int, Node] = {}
        self.steps: list[Step] = []
        """What happened, in order."""

    def mark(self, what: Any) -> None:
        """Note that the program came to a point, such as that an entry was acknowledged."""
        with self.guard:
            self.steps.append(Marked(what))

    # --- recording

    def __enter__(self) -> Self:
        """Begin to record."""
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Record no more. Raises ``UnseenChangeError`` if something was changed in a way that was not seen."""
        super().__exit__(kind, error, traceback)
        if error is None:
            self._compare()

    def around(self, name: str, real: Call, paths: tuple[str, ...], descriptor: int | None, arguments: Any) -> Any:
        """Make the call, and note it if it worked."""
        if name == "open":
            return self._on_open(real, paths[0], arguments)
        if name == "close":
            if descriptor is not None:
                self._nodes.pop(descriptor, None)
            return real()
        node = self._nodes.get(descriptor) or self._find(paths[0]) if descriptor is not None else None
        result = real()
        match name:
            case "write" | "pwrite":
                self._on_write(descriptor, node, name, arguments, result)
            case "ftruncate":
                node = node or self._find(paths[0])
                if isinstance(node, File) and not self._is_quiet(paths[0]):
                    self.steps.append(Cut(node, arguments))
            case "fsync":
                if node is not None:
                    self.steps.append(Synced(node))
            case "mkdir" | "symlink":
                self._name(paths[0], Folder() if name == "mkdir" else File())
            case "unlink" | "rmdir":
                self._name(paths[0], None)
            case "link" if len(paths) == 2:
                self._name(paths[1], self._find(paths[0]))
            case "rename" if len(paths) == 2:
                self._on_rename(*paths)
            case _:
                raise UnseenChangeError(f"{name} leads into the folder, or out of it: {paths[0]}")
        return result

    def _on_open(self, real: Call, path: str, flags: int) -> int:
        was_there = os.path.lexists(path)
        descriptor: int = real()
        if not was_there:
            self._name(path, File())
        node = self._find(path)
        if node is not None:
            self._nodes[descriptor] = node
        if was_there and flags & os.O_TRUNC and isinstance(node, File):
            self.steps.append(Cut(node, 0))
        return descriptor

    def _on_write(self, descriptor: int | None, node: Node | None, name: str, arguments: Any, count: int) -> None:
        if not isinstance(node, File) or descriptor is None or self._is_quiet(self.path_of(descriptor) or ""):
            return
        if name == "pwrite":
            data, offset = arguments
        else:
            data, offset = arguments, os.lseek(descriptor, 0, os.SEEK_CUR) - count
        if count:
            self.steps.append(Written(node, offset, data[:count]))

    def _on_rename(self, source: str, target: str) -> None:
        node = self._find(source)
        here, old = self._folder_of(source)
        there, name = self._folder_of(target)
        if here is there:
            self._do(Named(here, name, node, old))
            return
        self._do(Named(there, name, node))
        self._do(Named(here, old, None, only_after=len(self.steps) - 1))

    def _name(self, path: str, node: Node | None) -> None:
        folder, name = self._folder_of(path)
        self._do(Named(folder, name, node))

    def _do(self, step: Named) -> None:
        self.steps.append(step)
        names = self._names(step.folder)
        if step.old is not None:
            names.pop(step.old, None)
        if step.node is None:
            names.pop(step.name, None)
        else:
            names[step.name] = step.node

    def _names(self, folder: Folder) -> dict[str, Node]:
        return self._now.setdefault(folder, dict(folder.names))

    def _find(self, path: str) -> Node | None:
        node: Node | None = self._root
        relative = os.path.relpath(path, self.folder)
        for part in [] if relative == os.curdir else relative.split(os.sep):
            node = self._names(node).get(part) if isinstance(node, Folder) else None
        return node

    def _folder_of(self, path: str) -> tuple[Folder, str]:
        above, name = os.path.split(path)
        folder = self._find(above)
        if not isinstance(folder, Folder):
            raise UnseenChangeError(f"{above} was not made by a call that could be seen")
        return folder, name

    def _is_quiet(self, path: str) -> bool:
        name = os.path.basename(path)
        return name.startswith(self._quiet) or name.endswith(self._quiet)

    def _load(self, path: str) -> Folder:
        folder = Folder()
        with os.scandir(path) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    folder.names[item.name] = self._load(item.path)
                elif item.is_symlink() or self._is_quiet(item.name):
                    folder.names[item.name] = File()
                else:
                    with open(item.path, "rb") as file:
                        folder.names[item.name] = File(file.read())
        return folder

    def _compare(self) -> None:
        disk = self._at(len(self.steps), lying=False)
        ours = disk.tree([True] * len(disk.names_on_their_way), {})
        real = Disk(self._load(self.folder)).tree([], {})
        different = sorted(path for path in ours.keys() | real.keys() if ours.get(path, b"") != real.get(path, b""))
        missing = sorted(ours.keys() ^ real.keys())
        if different or missing:
            raise UnseenChangeError(
                f"these were changed without a call of os that could be seen: {[*different, *missing][:5]}; write with "
                "open, or os.open and os.write, and rename with os.rename"
            )

    # --- replaying

    def states(self, *, lying: bool = False, cuts: int = 1_000_000) -> list[CrashState]:
        """Every state that a crash may leave, at any moment of what was recorded, each once.

        Of a few names that are on their way every subset is there, of many those that tell something; of the writes that
        are on their way all combinations of whole, lost, half and NULs as long as they are few; and each of them is cut
        at every byte, or at ``cuts`` places if it is longer. ``lying``: syncs did nothing.
        """
        found: dict[frozenset[tuple[str, bytes | None]], CrashState] = {}
        disk = Disk(self._root, lying=lying)
        self._collect(disk, cuts, found)
        for number, step in enumerate(self.steps):
            disk.advance(number, step)
            self._collect(disk, cuts, found)
        return [*found.values()]

    def sample(self, choose: Callable[[int], int], *, lying: bool = False) -> CrashState:
        """One state: ``choose(n)`` gives a number from 0 to n - 1, such as ``random.randrange``.

        ``lying``: syncs did nothing, and within a write the end may be there without the beginning.
        """
        disk = self._at(choose(len(self.steps) + 1), lying=lying)
        there = [choose(4) > 0 for _ in disk.names_on_their_way]
        fates: dict[File, list[Fate]] = {}
        for file in disk.reachable(there):
            fates[file] = [_fate(step, choose, lying=lying) for step in disk.bytes_on_their_way[file]]
        marks = tuple(disk.marks)
        return CrashState(disk.tree(there, fates), marks, marks)

    def _at(self, count: int, *, lying: bool) -> Disk:
        disk = Disk(self._root, lying=lying)
        for number, step in enumerate(self.steps[:count]):
            disk.advance(number, step)
        return disk

    def _collect(self, disk: Disk, cuts: int, found: dict[frozenset[tuple[str, bytes | None]], CrashState]) -> None:
        marks = tuple(disk.marks)
        seen: set[tuple[Any, ...]] = set()
        for there in choices_of_names(len(disk.names_on_their_way)):
            files = disk.reachable(there)
            bare = disk.tree(there, {file: [LOST] * len(disk.bytes_on_their_way[file]) for file in files})
            key = (frozenset(bare.items()), *files)
            if key in seen:
                continue  # other changes of the names, and the same names
            seen.add(key)
            for fates in choices_of_bytes(disk, files, cuts):
                tree = disk.tree(there, fates)
                state = found.setdefault(frozenset(tree.items()), CrashState(tree, marks, marks))
                state.marks = marks


def _fate(step: Written | Cut, choose: Callable[[int], int], *, lying: bool) -> Fate:
    kind = choose(7)
    if kind < 3 or (isinstance(step, Cut) and kind < 5):
        return WHOLE
    if kind == 3 or isinstance(step, Cut):
        return LOST
    if kind == 4:
        return HOLE
    return HOLE - choose(len(step.data)) if lying and kind == 5 else choose(len(step.data))
