"""A folder of files among others (R12, R15): two writers, changes by strangers, making and deleting it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from storage import files
from storage.copying import renumbered
from storage.entry_folder_lifetime import remove_leftovers
from storage.errors import (
    DamagedSessionError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StaleSessionError,
    StorageError,
)
from storage.file_lock import WriterLock
from tests.storage.entry_folders import (
    chain,
    commit,
    create,
    entry_path,
    make,
    record,
    reopen,
    snapshot,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "chat"


class TestTwoWriters:
    def test_a_second_writer_is_refused(self, folder: Path) -> None:
        """R12: named in the error; a reader may; after closing it is free."""
        storage = create(folder)
        with pytest.raises(SessionLockedError, match=f"process {os.getpid()}"):
            reopen(folder)
        reopen(folder, mode="read").close()
        storage.close()
        reopen(folder).close()

    def test_a_reader_sees_what_was_added(self, folder: Path) -> None:
        """Reading behind the last record looks again; what a reader got before stays as it was."""
        storage = create(folder)
        commit(storage, chain(1))
        reader = reopen(folder, mode="read")
        assert len(reader.read()) == 1
        assert reader.read(after_seq=0) == []
        for seq in range(1, 6):
            commit(storage, chain(1, start=seq))
            assert [item.seq for item in reader.read(after_seq=seq - 1)] == [seq]
        assert len(reader.read()) == 6
        storage.close()
        reader.close()

    def test_a_reader_does_not_trust_a_coarse_clock(self, folder: Path) -> None:
        """An entry that is added within one tick of the folder's clock is seen."""
        storage = create(folder)
        commit(storage, chain(1))
        reader = reopen(folder, mode="read")
        reader.read()
        status = (folder / "entries").stat()
        commit(storage, chain(1, start=1))
        os.utime(folder / "entries", ns=(status.st_atime_ns, status.st_mtime_ns))
        assert [item.seq for item in reader.read(after_seq=0)] == [1]
        storage.close()
        reader.close()

    def test_a_lost_lock_stops_the_writer(self, folder: Path) -> None:
        """In a forked child the lock is not ours: the copy of the storage there writes nothing."""
        storage = create(folder)
        assert storage._lock is not None
        storage._lock.leave_to_parent()
        with pytest.raises(StaleSessionError, match="forked"):
            storage.commit(chain(1))
        assert os.listdir(folder / "entries") == []
        storage.close()

    def test_deleted_as_it_is_opened(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Gone between the first look and the lock: not found, and nothing is made."""
        import shutil

        make(folder, [1])
        original = WriterLock.acquire

        def acquire(path: str) -> WriterLock:
            shutil.rmtree(folder)
            return original(path)

        monkeypatch.setattr(WriterLock, "acquire", acquire)
        with pytest.raises(SessionNotFoundError):
            reopen(folder)
        assert not folder.exists()

    def test_a_reader_waits_for_a_batch_in_the_middle(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch that is just being renamed is read again before anything is reported."""
        records = make(folder, [1, 3])
        hidden = entry_path(folder, records[2])
        text = hidden.read_bytes()
        hidden.unlink()

        def finish(_: float) -> None:
            hidden.write_bytes(text)

        monkeypatch.setattr("storage.entry_folder_reading.time.sleep", finish)  # while it waits, the writer goes on
        reader = reopen(folder, mode="read", on_torn_tail="raise")
        assert len(reader.read()) == 4
        reader.close()

    @pytest.mark.parametrize("change", ["header", "folder", "entry", "gone", "moved", "corrupt"])
    def test_changes_by_others_stop_the_writer(self, folder: Path, change: str) -> None:
        """R12: replaced, deleted, an entry added or removed: StaleSessionError, and nothing is written."""
        storage = create(folder)
        records = chain(2)
        commit(storage, records)
        if change == "header":
            text = (folder / "metadata.json").read_bytes()
            (folder / "metadata.json").unlink()
            (folder / "metadata.json").write_bytes(text)
        elif change == "folder":
            os.rename(folder, folder.parent / "elsewhere")
        elif change == "moved":
            os.rename(folder, folder.parent / "elsewhere")
            make(folder, [1])
        elif change == "entry":
            other = record(2)
            entry_path(folder, other).write_bytes(other.data.replace(b',"type"', b',"batch":2,"type"', 1))
        elif change == "corrupt":
            (folder / "entries" / "half.json").write_bytes(b'{"seq":2')
        else:
            entry_path(folder, records[1]).unlink()
        before = snapshot(folder.parent)
        with pytest.raises(StaleSessionError, match="open it anew"):
            storage.commit(chain(1, start=2))
        assert snapshot(folder.parent) == before
        storage.close()

    def test_other_files_do_not_stop_it(self, folder: Path) -> None:
        """A file that is no entry (an editor's, a desktop's) is no other writer."""
        storage = create(folder)
        commit(storage, chain(1))
        (folder / "entries" / ".DS_Store").write_bytes(b"\0")
        (folder / "entries" / "notes.json").write_text('{"id": "other"}')
        commit(storage, chain(1, start=1))
        storage.close()
        again = reopen(folder)
        assert len(again.read()) == 2
        again.close()

    def test_replaced_while_it_writes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Looked at again after the write: what was written into somebody else's session is taken back."""
        storage = create(folder)
        original = files.rename

        def rename(source: str, target: str) -> None:
            original(source, target)
            if not (folder.parent / "elsewhere").exists():
                os.rename(folder, folder.parent / "elsewhere")
                make(folder, [])
                (folder.parent / "elsewhere" / "entries" / Path(target).name).rename(target)

        monkeypatch.setattr(files, "rename", rename)
        with pytest.raises(StaleSessionError):
            storage.commit(chain(1))
        assert os.listdir(folder / "entries") == []
        storage.close()

    @pytest.mark.parametrize("change", ["header", "entry", "changed"])
    def test_a_reader_notices_that_its_session_is_gone(self, folder: Path, change: str) -> None:
        """What was read before and is not there any more is StaleSessionError, never a shorter session."""
        records = make(folder, [2])
        reader = reopen(folder, mode="read")
        assert len(reader.read()) == 2
        if change == "header":
            (folder / "metadata.json").unlink()
        elif change == "entry":
            entry_path(folder, records[0]).unlink()
        else:
            entry_path(folder, records[0]).write_bytes(b'{"seq":7,"id":"%b"}' % records[0].id.encode())
        with pytest.raises(StaleSessionError):
            reader.read(after_seq=1 if change != "changed" else -1)
        reader.close()

    def test_a_reader_of_a_tail_goes_on_when_it_is_repaired(self, folder: Path) -> None:
        """What was a tail is read again before it is reported: repaired and overtaken, the new entries show."""
        records = make(folder, [1, 2])
        entry_path(folder, records[1]).unlink()
        reader = reopen(folder, mode="read")
        assert len(reader.read()) == 1
        storage = reopen(folder, on_torn_tail="repair")
        commit(storage, chain(1, start=1))
        assert [item.seq for item in reader.read(after_seq=0)] == [1]
        storage.close()
        reader.close()

    def test_damage_that_appears_is_reported(self, folder: Path) -> None:
        """A reader that goes on meets a damaged entry: named, not left out."""
        make(folder, [1])
        reader = reopen(folder, mode="read")
        reader.read()
        (folder / "entries" / "bad.json").write_bytes(b"{")
        with pytest.raises(DamagedSessionError, match="invalid session JSON"):
            reader.read(after_seq=0)
        reader.close()


class TestLifetime:
    def test_create_refuses_what_exists(self, folder: Path) -> None:
        """A folder with something in it, a file, a symlink: refused and untouched. An empty folder is no session yet."""
        folder.mkdir()
        (folder / "mine.txt").write_text("mine")
        before = snapshot(folder.parent)
        with pytest.raises(SessionExistsError, match=r"mine\.txt"):
            create(folder)
        assert snapshot(folder.parent) == before
        for make_obstacle in (Path.touch, lambda path: path.symlink_to("nowhere")):
            place = folder.parent / "place"
            make_obstacle(place)
            before = snapshot(folder.parent)
            with pytest.raises(SessionExistsError):
                create(place)
            assert snapshot(folder.parent) == before
            place.unlink()
        empty = folder.parent / "empty"
        empty.mkdir()
        create(empty).close()

    def test_create_makes_the_folders_above(self, tmp_path: Path) -> None:
        """They are private too."""
        old = os.umask(0o022)
        try:
            create(tmp_path / "a" / "b" / "c").close()
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700

    @pytest.mark.parametrize("operation", ["create_file", "write", "sync_data", "sync_folder"])
    @pytest.mark.parametrize("when", [1, 2, 4])
    def test_create_is_all_or_nothing(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, operation: str, when: int
    ) -> None:
        """Whatever fails while it is made, nothing of it is left, and it can be made afterwards."""
        original = getattr(files, operation)
        calls = 0

        def failing(*arguments: object) -> object:
            nonlocal calls
            calls += 1
            if calls == when:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*arguments)

        records = chain(4)
        with monkeypatch.context() as patch:
            patch.setattr(files, operation, failing)
            if operation == "sync_folder" and when == 4:
                create(folder, records, "fsync").close()
                return
            with pytest.raises(StorageError, match="No space left"):
                create(folder, records, "fsync")
        if operation == "sync_folder" and when == 3:
            # The last sync of all failed: the session is there, but nobody can say that it will survive.
            assert [path.name for path in folder.parent.iterdir()] == [folder.name]
            return
        assert list(folder.parent.iterdir()) == []
        create(folder, records).close()

    def test_create_holds_the_lock_at_once(self, folder: Path) -> None:
        """There is no moment at which another writer could slip in."""
        storage = create(folder, chain(2))
        with pytest.raises(SessionLockedError):
            reopen(folder)
        assert [item.seq for item in storage.read()] == [0, 1]
        commit(storage, chain(1, start=2))
        storage.close()
        storage = reopen(folder)
        assert len(storage.read()) == 3
        storage.close()

    def test_delete_leaves_nothing(self, folder: Path) -> None:
        """B114: no file holds the marker afterwards, side files and leftovers of crashes included."""
        records = make(folder, [1, 2])
        entry_path(folder, records[1]).unlink()
        storage = reopen(folder, on_torn_tail="repair")
        leftover = folder.parent / f".{folder.name}.creating-00000000"
        leftover.mkdir()
        (leftover / ".lock").touch()
        (leftover / "entries").mkdir()
        (leftover / "entries" / "x.json").write_text("message 1")
        busy = folder.parent / f".{folder.name}.creating-11111111"
        busy.mkdir()
        lock = WriterLock.acquire(busy / ".lock")
        bystander = folder.parent / f".{folder.name}2.creating-00000000"
        bystander.mkdir()
        (bystander / ".lock").touch()
        storage.delete()
        assert set(folder.parent.iterdir()) == {bystander, busy}
        lock.release()
        with pytest.raises(SessionNotFoundError):
            reopen(folder)

    def test_the_beginning_of_a_creation_is_a_leftover_too(self, folder: Path) -> None:
        """Killed before it was locked, or before its owner was named: the next one of this name takes it away."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        for number, files_there in enumerate([[], [".lock"]]):
            leftover = folder.parent / f".{folder.name}.creating-0000000{number}"
            leftover.mkdir()
            for name in files_there:
                (leftover / name).touch()
        assert remove_leftovers(str(folder)) == 2
        assert list(folder.parent.iterdir()) == []

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_who_cleans_up_does_not_stop_who_makes(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
    ) -> None:
        """A folder that is taken for a leftover before it is locked: another one is begun, and the session is whole."""
        acquire = WriterLock.acquire
        found: list[int] = []

        def acquired(path: str, timeout: float = 0) -> WriterLock:
            if not found and ".creating-" in path:
                found.append(0)
                if moment == "after":  # it has the lock by now, and has not removed anything
                    other = acquire(path)
                    try:
                        return acquire(path, timeout)
                    finally:
                        found[0] = 1
                        other.release()
                found[0] = remove_leftovers(str(folder))
            return acquire(path, timeout)

        monkeypatch.setattr(WriterLock, "acquire", acquired)
        create(folder, chain(3)).close()
        assert found == [1]
        assert remove_leftovers(str(folder)) == (1 if moment == "after" else 0)
        storage = reopen(folder)
        assert [item.seq for item in storage.read()] == [0, 1, 2]
        storage.close()
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]

    def test_delete_refuses_while_another_writes(self, folder: Path) -> None:
        """A reader may delete only what nobody writes."""
        storage = create(folder)
        reader = reopen(folder, mode="read")
        with pytest.raises(SessionLockedError):
            reader.delete()
        storage.close()
        reader.delete()
        assert not folder.exists()

    def test_a_symlink_in_the_folder_is_not_followed(self, folder: Path, tmp_path: Path) -> None:
        """Deleting a session deletes a link in it, not what the link points to."""
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "file").write_text("keep me")
        storage = create(folder)
        (folder / "entries" / "link").symlink_to(precious)
        (folder / "link").symlink_to(precious)
        storage.delete()
        assert (precious / "file").read_text() == "keep me"

    def test_a_pipe_is_no_header(self, folder: Path) -> None:
        """A pipe in the header's place is an error at once, not a wait for a writer that never comes."""
        create(folder).close()
        (folder / "metadata.json").unlink()
        os.mkfifo(folder / "metadata.json")
        for mode in ("read", "write"):
            with pytest.raises(StorageError, match="no file"):
                reopen(folder, mode=mode)

    @pytest.mark.parametrize("start", [b'{"seq": 0, ', b'{ "seq" : 0 , ', b'{"seq":0 ,', b'{\t"seq":0,'])
    def test_lines_laid_out_otherwise_are_copied(self, folder: Path, start: bytes) -> None:
        """White space around the seq of another program's line does not keep it from being copied into a folder."""
        ours = record(0)
        rest = ours.data.removeprefix(b'{"seq":0,')
        storage = create(folder, renumbered([ours._replace(data=start + rest)]))
        (found,) = storage.read()
        assert found.data.startswith(b'{"seq":0,')
        assert found.data.endswith(rest)
        storage.close()
