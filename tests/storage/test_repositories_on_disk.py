"""The shelf on disk: deleting leaves nothing, crashes show nothing, names mean what they say (R13, R15, R16)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from storage.entry_file_repository import EntryFileRepository
from storage.errors import SessionNotFoundError
from storage.jsonl import JsonlStorage
from storage.jsonl_repository import JsonlRepository
from storage.messages import UserMessage
from tests.storage.entry_folders import snapshot
from tests.storage.shelf_files import HEADER, lines, listed, write_file

pytestmark = pytest.mark.anyio


class TestDeleting:
    async def test_nothing_is_left_and_nobody_else_is_hit(self, root: Path) -> None:
        """B114: file, lock, torn tails and temporaries go; those of ids that look like side files stay."""
        repository = JsonlRepository(root)
        path = write_file(root, "x.jsonl", HEADER, *lines(2, "marker"))
        with open(path, "ab") as file:
            file.write(b'{"marker')
        (await repository.open("x")).close()
        write_file(root, ".x.jsonl.0123456789ab.tmp", b"marker")
        neighbours = ["x.jsonl.torn-1", "x.jsonl.y", "x.y"]
        for name in neighbours:
            write_file(root, f"{name}.jsonl", HEADER)
            write_file(root, f"{name}.jsonl.lock")
            write_file(root, f".{name}.jsonl.0123456789ab.tmp", b"other")
        kept = {entry.name for entry in root.iterdir() if entry.name.lstrip(".").startswith(tuple(neighbours))}
        await repository.delete("x")
        assert {entry.name for entry in root.iterdir()} == kept
        assert not any(b"marker" in entry.read_bytes() for entry in root.iterdir())
        with pytest.raises(SessionNotFoundError):
            await repository.delete("x")

    async def test_an_interrupted_deletion_is_finished(self, root: Path) -> None:
        """Where a deletion died after the session's file, deleting again takes the side files along."""
        write_file(root, "x.jsonl.torn-17", b"secret")
        repository = JsonlRepository(root)
        await repository.delete("x")
        assert list(root.iterdir()) == []
        leftover = root / ".x.deleting-01234567"
        (leftover / "entries").mkdir(parents=True)
        (leftover / "entries" / "e.json").write_text("secret")
        (leftover / ".lock").touch()
        folders = EntryFileRepository(root)
        await folders.delete("x")
        assert list(root.iterdir()) == []
        with pytest.raises(SessionNotFoundError):
            await folders.delete("x")

    async def test_a_fork_outlives_its_parent(self, root: Path) -> None:
        """B114: the fork of a deleted session still opens."""
        from harness.session import Session

        repository = JsonlRepository(root)
        async with Session.open(repository.create("parent")) as session:
            await session.append_message(UserMessage(content="hello"))
            await (await repository.fork(session, session_id="child")).aclose()
        await repository.delete("parent")
        async with Session.open(repository.open("child")) as session:
            assert len(await session.branch()) == 1


@pytest.mark.parametrize("kind", ["jsonl", "entry files"])
async def test_a_crashed_fork_is_never_listed(root: Path, kind: str) -> None:
    """SIGKILL in the middle of making a session with records: not on the shelf, and its id is free."""
    name = "JsonlRepository" if kind == "jsonl" else "EntryFileRepository"
    module = "jsonl_repository" if kind == "jsonl" else "entry_file_repository"
    script = (
        f"import sys, anyio; from storage.{module} import {name}; from tests.storage.entry_folders import chain\n"
        "records = chain(20000)\n"
        f"async def main():\n print('begin', flush=True); await {name}(sys.argv[1]).create('x', records=records)\n"
        " print('end', flush=True)\n"
        "anyio.run(main)"
    )
    repository = JsonlRepository(root) if kind == "jsonl" else EntryFileRepository(root)
    process = subprocess.Popen([sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    while not list(root.glob(".x.*" if kind == "jsonl" else ".x.*/entries/*")):
        if process.poll() is not None:
            break
        await anyio.sleep(0.0005)
    process.kill()
    rest = process.communicate()[0]
    if rest == "":
        assert await listed(repository, deep=True) == {}
        with pytest.raises(SessionNotFoundError):
            await repository.open("x")
        (await repository.create("x")).close()
        assert list(await listed(repository)) == ["x"]
    await repository.delete("x")
    assert list(root.iterdir()) == []


async def test_opening_repairs_and_reading_does_not(root: Path) -> None:
    """R13: the repository repairs an unterminated tail for a writer, and says so; a reader leaves it."""
    rows = lines(2)
    (root / "x.jsonl").write_bytes(b"\n".join([HEADER, *rows, b'{"half']))
    repository = JsonlRepository(root)
    before = snapshot(root)
    storage = await repository.open("x", mode="read")
    assert [warning.code for warning in storage.info.warnings] == ["unterminated_tail"]
    storage.close()
    assert snapshot(root) == before
    storage = await repository.open("x")
    assert [warning.code for warning in storage.info.warnings] == ["tail_repaired"]
    assert storage.info.writable
    storage.close()
    assert len(list(root.glob("x.jsonl.torn-*"))) == 1


async def test_both_backends_in_one_folder(root: Path) -> None:
    """Files and folders of one id do not get in each other's way."""
    files, folders = JsonlRepository(root), EntryFileRepository(root)
    (await files.create("x")).close()
    (await folders.create("x")).close()
    assert set(await listed(files)) == {"x"}
    assert set(await listed(folders)) == {"x"}
    await files.delete("x")
    assert set(await listed(files)) == set()
    (await folders.open("x")).close()


async def test_new_folders_are_private(tmp_path: Path) -> None:
    """The root is made with the first session, for its owner alone."""
    for repository in (JsonlRepository(tmp_path / "a"), EntryFileRepository(tmp_path / "b")):
        (await repository.create("x")).close()
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


async def test_the_id_is_the_name_of_the_file(root: Path) -> None:
    """A copied file goes by its own name, whatever its header says; the repository opens what it lists."""
    write_file(root, "copy.jsonl", HEADER, *lines(1))
    repository = JsonlRepository(root)
    assert list(await listed(repository)) == ["copy"]
    storage = await repository.open("copy")
    assert isinstance(storage, JsonlStorage)
    storage.close()
