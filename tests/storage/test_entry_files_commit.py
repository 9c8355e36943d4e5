"""Committing to a folder of files (R9, R10, R16): what is synced when, and what a failure leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage import files
from storage.errors import (
    CommitFailed,
    InvalidEntryError,
    InvalidIdError,
    SessionClosedError,
    StaleSessionError,
)
from tests.storage.entry_folders import (
    chain,
    commit,
    create,
    entry_path,
    record,
    reopen,
    snapshot,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "chat"


class TestCommit:
    def test_the_trace(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """R9: every file is written and synced before the first is renamed, in order; then one sync of the folder."""
        storage = create(folder, durability="fsync")
        trace: list[str] = []

        def watch(name: str) -> None:
            original = getattr(files, name)

            def watched(*arguments: object) -> object:
                trace.append(name)
                return original(*arguments)

            monkeypatch.setattr(files, name, watched)

        for name in ("create_file", "write", "sync_data", "rename", "sync_folder"):
            watch(name)
        sync = storage.commit(chain(3))
        assert trace == ["create_file", "write"] * 3 + ["sync_data"] * 3 + ["rename"] * 3
        assert sync is not None
        sync()
        assert trace[-1] == "sync_folder"
        assert trace.count("sync_folder") == 1
        storage.close()

    def test_os_durability_syncs_nothing(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """durability='os' leaves it to the system, and no sync is due."""

        def refuse(*_: object) -> None:
            raise AssertionError("synced")

        monkeypatch.setattr(files, "sync_data", refuse)
        monkeypatch.setattr(files, "sync_folder", refuse)
        storage = create(folder)
        assert storage.commit(chain(2)) is None
        storage.close()

    @pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts its open files in /proc")
    def test_many_at_once(self, folder: Path) -> None:
        """A batch of 256 needs no 256 open files."""
        import resource

        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        records = chain(256)
        storage = create(folder, durability="fsync")
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, limits[1]))
        try:
            commit(storage, records)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        storage.close()
        storage = reopen(folder)
        assert [item.id for item in storage.read()] == [item.id for item in records]
        storage.close()

    @pytest.mark.parametrize("operation", ["create_file", "write", "rename"])
    @pytest.mark.parametrize("when", [1, 2, 3])
    @pytest.mark.parametrize("durability", ["fsync", "os"])
    def test_a_failure_in_the_middle(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, operation: str, when: int, durability: str
    ) -> None:
        """R10: the entries before it are committed and synced, no half file or temporary stays, and then it goes on."""
        storage = create(folder, durability="fsync" if durability == "fsync" else "os")
        first = chain(1)
        commit(storage, first)
        records = chain(3, start=1, parent=first[0].id)
        original = getattr(files, operation)
        calls = 0

        def failing(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls == when:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*arguments)

        monkeypatch.setattr(files, operation, failing)
        with pytest.raises(CommitFailed, match="No space left") as caught:
            storage.commit(records)
        assert caught.value.committed == when - 1
        assert isinstance(caught.value.__cause__, OSError)
        if durability == "fsync" and when > 1:
            assert caught.value.sync is not None
            caught.value.sync()
        else:
            assert caught.value.sync is None
        names = {f"{item.id}.json" for item in [*first, *records[: when - 1]]}
        assert set(os.listdir(folder / "entries")) == names
        commit(storage, chain(1, start=when, parent=first[0].id))
        storage.close()
        storage = reopen(folder)
        assert len(storage.read()) == when + 1
        assert storage.info.warnings == ()
        storage.close()

    def test_short_writes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A write that takes only a part is gone on with; one that takes nothing is an error, not a loop."""
        storage = create(folder)
        original = files.write
        monkeypatch.setattr(files, "write", lambda descriptor, data: original(descriptor, data[:7]))
        records = chain(2)
        commit(storage, records)
        monkeypatch.setattr(files, "write", original)
        monkeypatch.setattr(os, "write", lambda descriptor, data: 0)
        with pytest.raises(CommitFailed, match="wrote nothing"):
            storage.commit(chain(1, start=2))
        monkeypatch.undo()
        storage.close()
        storage = reopen(folder)
        assert [item.data for item in storage.read()] == [item.data for item in records]
        storage.close()

    def test_a_temporary_that_cannot_be_removed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a failing disk keeps of one try is not in the way of the next, and is no entry afterwards."""
        storage = create(folder)
        records = chain(1)

        def failing(*_: object) -> object:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as broken:
            broken.setattr(files, "rename", failing)
            broken.setattr(os, "unlink", failing)
            with pytest.raises(CommitFailed, match="Input/output"):
                storage.commit(records)
        left = os.listdir(folder / "entries")
        assert len(left) == 1
        commit(storage, records)
        storage.close()
        assert sorted(os.listdir(folder / "entries")) == sorted([*left, f"{records[0].id}.json"])
        storage = reopen(folder)
        assert [item.id for item in storage.read()] == [records[0].id]
        storage.close()

    def test_a_failed_sync_leaves_it_unknown(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sync that fails is no CommitFailed: what the store holds is not known, and nothing was renamed."""
        storage = create(folder, durability="fsync")

        def failing(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(files, "sync_data", failing)
        with pytest.raises(OSError, match="Input/output") as caught:
            storage.commit(chain(2))
        assert not isinstance(caught.value, CommitFailed)
        assert os.listdir(folder / "entries") == []
        storage.close()

    def test_nothing_is_overwritten(self, folder: Path) -> None:
        """A file that stands where an entry goes is kept, entry or not."""
        storage = create(folder)
        records = chain(2)
        entry_path(folder, records[1]).write_text('{"mine": true}')
        with pytest.raises(CommitFailed, match="appeared") as caught:
            storage.commit(records)
        assert caught.value.committed == 1
        assert entry_path(folder, records[1]).read_text() == '{"mine": true}'
        storage.close()

    def test_a_wrong_place_is_stale(self, folder: Path) -> None:
        """The first seq is compared with what is there; nothing is written then."""
        storage = create(folder)
        commit(storage, chain(1))
        before = snapshot(folder)
        for start in (0, 2):
            with pytest.raises(StaleSessionError, match=f"not {start}"):
                storage.commit(chain(1, start=start))
        assert snapshot(folder) == before
        storage.close()

    @pytest.mark.parametrize(
        "bad", ["../x", "/etc/x", "a/b", "a\\b", "..", "", "x\0y", "n" * 129, "x.", ".x", "con", "ü"]
    )
    def test_ids_that_are_no_names(self, folder: Path, bad: str) -> None:
        """An id that is no safe file name is refused before a file is touched; what came before it is committed."""
        storage = create(folder)
        records = [record(0), record(1)._replace(id=bad)]
        before = snapshot(folder.parent)
        with pytest.raises(CommitFailed, match="invalid entry id") as caught:
            storage.commit([records[1]._replace(seq=0)])
        assert isinstance(caught.value.__cause__, InvalidIdError)
        assert snapshot(folder.parent) == before
        with pytest.raises(CommitFailed) as caught:
            storage.commit(records)
        assert caught.value.committed == 1
        storage.close()
        with pytest.raises(InvalidIdError):
            create(folder.parent / "other", [records[1]._replace(seq=0)])
        assert not (folder.parent / "other").exists()

    def test_ids_that_differ_only_in_case(self, folder: Path) -> None:
        """R16: refused against what is there, and within a batch."""
        storage = create(folder)
        commit(storage, [record(0, entry_id="Abc")])
        with pytest.raises(CommitFailed, match="differ") as caught:
            storage.commit([record(1, entry_id="aBC")])
        assert isinstance(caught.value.__cause__, InvalidEntryError)
        with pytest.raises(CommitFailed) as caught:
            storage.commit([record(1, entry_id="x"), record(2, entry_id="X")])
        assert caught.value.committed == 1
        storage.close()

    def test_a_line_without_its_place_is_refused(self, folder: Path) -> None:
        """A record whose bytes say another place than it has never gets into the folder."""
        storage = create(folder)
        with pytest.raises(ValueError, match="begins with its seq"):
            storage.commit([record(1)._replace(seq=0)])
        assert os.listdir(folder / "entries") == []
        storage.close()

    def test_after_close(self, folder: Path) -> None:
        """A closed storage says so; closing twice is nothing."""
        storage = create(folder)
        storage.close()
        storage.close()
        with pytest.raises(SessionClosedError):
            storage.read()
        with pytest.raises(SessionClosedError):
            storage.commit(chain(1))
