"""A session as a folder of files (R2, R13, R14): what the files hold, their order, and what is damage."""

from __future__ import annotations

import json
import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from storage.errors import (
    DamagedSessionError,
    ReadOnlySessionError,
    SessionNotFoundError,
    UnsupportedVersionError,
)
from storage.protocols import Deletable, SessionStorage
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


class TestLayout:
    def test_files_and_modes(self, folder: Path) -> None:
        """The header in metadata.json, one file for each entry, nothing for anybody else to read."""
        old = os.umask(0)
        try:
            records = make(folder, [1, 2])
        finally:
            os.umask(old)
        names = {".lock", "metadata.json", "entries"} | {f"entries/{item.id}.json" for item in records}
        assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == names
        for path in [folder, *folder.rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path

    def test_what_a_file_holds(self, folder: Path) -> None:
        """The committed line, with the first seq of its batch as second member; batch is not given back."""
        records = make(folder, [1, 2])
        texts = [entry_path(folder, item).read_bytes() for item in records]
        assert [text[: text.index(b',"type"')] for text in texts] == [
            b'{"seq":0,"batch":0',
            b'{"seq":1,"batch":1',
            b'{"seq":2,"batch":1',
        ]
        assert all(text.endswith(b"}\n") for text in texts)
        storage = reopen(folder)
        assert [item.data for item in storage.read()] == [item.data for item in records]
        storage.close()

    def test_a_member_called_batch_is_kept(self, folder: Path) -> None:
        """Only our own batch is removed: an app's member of that name survives."""
        item = record(0)
        item = item._replace(data=item.data[:-1] + b',"batch":"mine"}')
        storage = create(folder)
        commit(storage, [item])
        storage.close()
        storage = reopen(folder)
        assert storage.read()[0].data == item.data
        storage.close()

    def test_odd_text_comes_back_unchanged(self, folder: Path) -> None:
        """Line separators that are no newline, NUL, emoji: byte for byte (the folder is no line format, but stays one)."""
        item = record(0, text="a\u2028b\u0085c\x0bd\x1ce\x00f\U0001f600")
        storage = create(folder)
        commit(storage, [item])
        storage.close()
        storage = reopen(folder)
        assert storage.read()[0].data == item.data
        storage.close()

    def test_a_file_laid_out_by_hand_is_read(self, folder: Path) -> None:
        """Pretty-printed, with a BOM, CRLF and other order of members: still the same entry, as one line."""
        (item,) = make(folder, [1])
        path = entry_path(folder, item)
        members = dict(reversed(json.loads(path.read_bytes()).items()))
        path.write_bytes(b"\xef\xbb\xbf" + json.dumps(members, indent=2).replace("\n", "\r\n").encode())
        storage = reopen(folder)
        (found,) = storage.read()
        assert found.data.startswith(b'{"seq":0,') and b"\n" not in found.data
        assert json.loads(found.data) == json.loads(item.data)
        storage.close()

    def test_it_is_what_it_says(self, folder: Path) -> None:
        """It is a storage that can be deleted, is never called on the event loop, and names files after entries."""
        storage = create(folder)
        assert isinstance(storage, Deletable)
        typed: SessionStorage = storage
        assert not typed.info.inline
        assert typed.info.ids_are_file_names
        assert typed.info.place == str(folder)
        storage.close()


class TestOrder:
    def test_seq_counts_and_no_name(self, folder: Path) -> None:
        """Twelve entries whose ids sort backwards come back in the order they were committed."""
        storage = create(folder)
        records = [record(seq, entry_id=f"{100 - seq}") for seq in range(12)]
        commit(storage, records)
        storage.close()
        storage = reopen(folder)
        assert [item.id for item in storage.read()] == [item.id for item in records]
        storage.close()

    def test_pages(self, folder: Path) -> None:
        """Reading in pages gives each record once, again too, and an empty page at the end."""
        records = make(folder, [5, 2])
        storage = reopen(folder)
        for _ in range(2):
            found: list[str] = []
            while page := storage.read(after_seq=len(found) - 1, limit=3):
                assert len(page) <= 3
                found += [item.id for item in page]
            assert found == [item.id for item in records]
        storage.close()

    def test_a_gap_in_the_last_batch_is_a_tail(self, folder: Path) -> None:
        """What stands behind a missing entry of the last batch was never committed: not shown, said, appends refused."""
        records = make(folder, [2, 4])
        entry_path(folder, records[3]).unlink()
        before = snapshot(folder)
        storage = reopen(folder)
        assert [item.seq for item in storage.read()] == [0, 1, 2]
        (warning,) = storage.info.warnings
        assert warning.code == "unterminated_tail"
        assert "seq 3" in warning.message
        assert records[4].id in warning.message
        assert not storage.info.writable
        with pytest.raises(ReadOnlySessionError, match="repair"):
            storage.commit(chain(1, start=3))
        storage.close()
        after = snapshot(folder)
        after[".lock"] = before[".lock"]
        assert after == before

    def test_a_tail_is_refused_if_asked(self, folder: Path) -> None:
        """on_torn_tail='raise' names the place."""
        records = make(folder, [2])
        entry_path(folder, records[0]).unlink()
        with pytest.raises(DamagedSessionError, match="unterminated tail: no entry holds seq 0"):
            reopen(folder, on_torn_tail="raise")

    def test_a_tail_is_repaired_if_asked(self, folder: Path) -> None:
        """Repair moves it to torn/, says so, and the next entry takes the free place, for good."""
        records = make(folder, [1, 3])
        entry_path(folder, records[1]).unlink()
        texts = {item.id: entry_path(folder, item).read_bytes() for item in records[2:]}
        storage = reopen(folder, on_torn_tail="repair")
        assert storage.info.writable
        assert [warning.code for warning in storage.info.warnings] == ["tail_repaired"]
        assert {path.stem: path.read_bytes() for path in (folder / "torn").iterdir()} == texts
        assert stat.S_IMODE((folder / "torn").stat().st_mode) == 0o700
        more = chain(1, start=1, parent=records[0].id)
        assert [item.id for item in storage.read()] == [records[0].id]
        commit(storage, more)
        storage.close()
        storage = reopen(folder)
        assert [item.id for item in storage.read()] == [records[0].id, more[0].id]
        assert storage.info.warnings == ()
        storage.close()

    def test_a_reader_never_repairs(self, folder: Path) -> None:
        """Opening for reading writes nothing, whatever it is asked for."""
        records = make(folder, [3])
        entry_path(folder, records[1]).unlink()
        before = snapshot(folder)
        storage = reopen(folder, mode="read", on_torn_tail="repair")
        assert [warning.code for warning in storage.info.warnings] == ["unterminated_tail"]
        storage.close()
        assert snapshot(folder) == before

    @pytest.mark.parametrize("gone", [0, 1, 2])
    def test_any_other_gap_is_damage(self, folder: Path, gone: int) -> None:
        """An entry that is missing before the last batch was committed once: never a shorter history in silence."""
        records = make(folder, [1, 2, 1])
        entry_path(folder, records[gone]).unlink()
        before = snapshot(folder)
        with pytest.raises(DamagedSessionError, match=f"invalid session record: no entry holds seq {gone}"):
            reopen(folder, on_torn_tail="repair")
        after = snapshot(folder)
        after[".lock"] = before[".lock"]
        assert after == before

    def test_a_gap_before_another_batch_is_damage(self, folder: Path) -> None:
        """Behind an unterminated tail's gap there is nothing but its own batch."""
        records = make(folder, [1, 3])
        entry_path(folder, records[1]).unlink()
        path = entry_path(folder, records[2])
        path.write_bytes(path.read_bytes().replace(b'"batch":1', b'"batch":2'))
        with pytest.raises(DamagedSessionError, match="no entry holds seq 1"):
            reopen(folder, on_torn_tail="repair")

    def test_a_read_only_writer_keeps_no_lock(self, folder: Path) -> None:
        """Opened for writing and found torn, it will not write: whoever repairs it is not kept waiting."""
        records = make(folder, [1, 2])
        entry_path(folder, records[1]).unlink()
        storage = reopen(folder)
        repaired = reopen(folder, on_torn_tail="repair")
        assert repaired.info.writable
        assert storage.read(after_seq=0) == []
        repaired.close()
        storage.close()

    def test_two_of_one_place_are_damage(self, folder: Path) -> None:
        """Two files of one seq: named, both of them."""
        records = make(folder, [1, 1])
        text = entry_path(folder, records[1]).read_bytes()
        (folder / "entries" / "twin.json").write_bytes(text.replace(records[1].id.encode(), b"twin"))
        with pytest.raises(DamagedSessionError, match="both hold seq 1") as caught:
            reopen(folder)
        assert records[1].id in str(caught.value)
        assert "twin" in str(caught.value)

    def test_a_hole_in_created_records_is_damage(self, folder: Path) -> None:
        """What a fork wrote became visible as a whole, so nothing in it can be an unterminated tail."""
        records = chain(3)
        create(folder, records).close()
        entry_path(folder, records[1]).unlink()
        with pytest.raises(DamagedSessionError, match="no entry holds seq 1"):
            reopen(folder)


class TestForeignFiles:
    def test_only_its_own_name_makes_an_entry(self, folder: Path) -> None:
        """Other names, temporaries, folders, symlinks, a copy under another name: a warning, and left alone."""
        records = make(folder, [2])
        entries = folder / "entries"
        text = entry_path(folder, records[1]).read_bytes()
        (entries / "copy.json").write_bytes(text)
        (entries / ".DS_Store").write_bytes(b"\0")
        (entries / f".{records[0].id}.abcd.tmp").write_bytes(text[:20])
        (entries / "notes.txt").write_text("mine")
        (entries / "settings.json").write_text("{}")
        (entries / "folder.json").mkdir()
        (entries / "link.json").symlink_to(entry_path(folder, records[0]))
        before = snapshot(entries)
        storage = reopen(folder, on_torn_tail="repair")
        assert [item.id for item in storage.read()] == [item.id for item in records]
        (warning,) = storage.info.warnings
        assert warning.code == "foreign_file"
        assert "7 in all" in warning.message
        commit(storage, chain(1, start=2))
        storage.close()
        after = snapshot(entries)
        assert {name: after[name] for name in before} == before

    def test_a_member_of_a_member_is_not_its_id(self, folder: Path) -> None:
        """A file that mentions its own name, and has another id, is no entry; one with two ids is damaged."""
        (item,) = make(folder, [1])
        text = (
            b'{"seq":1,"batch":1,"type":"custom",%b"customType":"x","data":{"id":"odd"},"id":"other","timestamp":"x"}'
        )
        path = folder / "entries" / "odd.json"
        path.write_bytes(text % b"")
        storage = reopen(folder)
        assert [record.id for record in storage.read()] == [item.id]
        assert "odd.json" in storage.info.warnings[0].message
        storage.close()
        path.write_bytes(text % b'"id":"odd",')
        storage = reopen(folder)
        with pytest.raises(DamagedSessionError, match="'other' is not the file's name"):
            storage.read()
        storage.close()

    def test_what_a_writer_is_making_is_no_leftover(self, folder: Path) -> None:
        """A reader may meet a writer's temporaries; a writer who finds some says so."""
        (item,) = make(folder, [1])
        (folder / "entries" / f".{item.id}.0badcafe.tmp").write_bytes(b"{")
        for mode, codes in (("read", []), ("write", ["foreign_file"])):
            storage = reopen(folder, mode=mode)  # pyright: ignore[reportArgumentType]
            assert [warning.code for warning in storage.info.warnings] == codes
            storage.close()

    def test_ids_that_differ_only_in_case_are_damage(self, folder: Path) -> None:
        """Such a folder cannot be copied everywhere: it is named when it is read."""
        make(folder, [])
        entries = folder / "entries"
        for seq, name in enumerate(["abc", "ABC"]):
            item = record(seq, entry_id=name)
            (entries / f"{name}.json").write_bytes(item.data.replace(b',"type"', b',"batch":%d,"type"' % seq, 1))
        with pytest.raises(DamagedSessionError, match="differ only in case"):
            reopen(folder)


class TestDamage:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (b"", "invalid session JSON"),
            (b'{"seq":0,"batch":0,"type":"mess', "invalid session JSON"),
            (b"\xff\xfe", "invalid session JSON"),
            (b"[" * 100_000, "invalid session JSON"),
            (b'{"seq":0,"batch":0,"type":"message","id":"ID","timestamp":"x"}\n', "invalid session record"),
            (b'{"batch":0,"type":"custom","customType":"x","id":"ID","timestamp":"x"}\n', "seq None"),
            (b'{"seq":0,"batch":9,"type":"custom","customType":"x","id":"ID","timestamp":"x"}\n', "batch 9"),
            (b'{"seq":-1,"batch":-1,"type":"custom","customType":"x","id":"ID","timestamp":"x"}\n', "seq -1"),
            (b'{"seq":true,"batch":0,"type":"custom","customType":"x","id":"ID","timestamp":"x"}\n', "seq True"),
        ],
    )
    def test_a_damaged_entry_is_named(self, folder: Path, text: bytes, message: str) -> None:
        """A file that may have been an entry and cannot be read as one is an error with its path, and left as it is."""
        (item,) = make(folder, [1])
        path = entry_path(folder, item)
        path.write_bytes(text.replace(b"ID", item.id.encode()))
        with pytest.raises(DamagedSessionError, match=message) as caught, closing(reopen(folder)) as storage:
            storage.read()
        assert caught.value.path == str(path)
        assert path.read_bytes() == text.replace(b"ID", item.id.encode())

    def test_salvage_shows_the_rest(self, folder: Path) -> None:
        """on_corrupt='skip': what can be read, in its places; what cannot is listed; nothing can be written."""
        records = make(folder, [1, 1, 1, 1, 1])
        entry_path(folder, records[1]).write_bytes(b"{")
        text = entry_path(folder, records[3]).read_bytes()
        entry_path(folder, records[3]).write_bytes(text.replace(b'"content"', b'"contents"'))
        for mode in ("read", "write"):
            storage = reopen(folder, mode=mode, on_corrupt="skip")
            assert [item.seq for item in storage.read()] == [0, 2, 4]
            assert [item.seq for item in storage.read(after_seq=0, limit=1)] == [2]
            assert storage.read(after_seq=4) == []
            assert not storage.info.writable
            assert "damaged" in storage.info.read_only_reason
            codes = [warning.code for warning in storage.info.warnings]
            assert set(codes) == {"damaged_entry"}
            named = {warning.entry_id for warning in storage.info.warnings}
            assert {records[1].id, records[3].id} <= named
            storage.close()

    def test_no_header(self, folder: Path) -> None:
        """Entries without a header are damage, not an empty session; nothing is made there."""
        make(folder, [1])
        (folder / "metadata.json").unlink()
        before = snapshot(folder)
        for mode in ("read", "write"):
            with pytest.raises(DamagedSessionError, match="no header"):
                reopen(folder, mode=mode)
        assert snapshot(folder) == before

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (b'{"type":"session","version":4,"id":"x","timestamp":"x"}', UnsupportedVersionError),
            (b'{"type":"session","version":3,"id":"x","timestamp":"x","branchline":2}', UnsupportedVersionError),
            (b'{"type":"session"', DamagedSessionError),
            (b'{"seq":0}', DamagedSessionError),
        ],
    )
    def test_bad_headers(self, folder: Path, text: bytes, expected: type[Exception]) -> None:
        """A newer version and a broken header are two errors, and the lock file is not even made."""
        make(folder, [1])
        (folder / ".lock").unlink()
        (folder / "metadata.json").write_bytes(text)
        before = snapshot(folder)
        with pytest.raises(expected):
            reopen(folder)
        assert snapshot(folder) == before

    def test_unknown_members_of_the_header_are_kept(self, folder: Path) -> None:
        """A header that another program wrote keeps what we do not know."""
        make(folder, [1])
        (folder / "metadata.json").write_bytes(
            b'\xef\xbb\xbf{"type":"session","version":3,"id":"x","timestamp":"t","odd":[1]}\r\n'
        )
        storage = reopen(folder)
        assert json.loads(storage.info.header.to_line())["odd"] == [1]
        storage.close()

    def test_without_its_entries_folder(self, folder: Path) -> None:
        """A header whose entries are gone is damage, not an empty session."""
        make(folder, [])
        (folder / "entries").rmdir()
        with pytest.raises(DamagedSessionError, match="entries is missing"):
            reopen(folder)

    def test_no_session(self, folder: Path) -> None:
        """A place without a session: said, and nothing made, not even a lock."""
        with pytest.raises(SessionNotFoundError):
            reopen(folder)
        assert not folder.exists()
        folder.mkdir()
        with pytest.raises(SessionNotFoundError):
            reopen(folder)
        assert list(folder.iterdir()) == []
        folder.rmdir()
        folder.write_text("a file")
        with pytest.raises(SessionNotFoundError):
            reopen(folder)
