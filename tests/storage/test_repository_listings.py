"""What a listing of sessions on disk reads, shows, and never touches (R15, R17)."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from storage.entries import SessionInfoEntry
from storage.entry_file_repository import EntryFileRepository
from storage.entry_log import EntryLog
from storage.errors import SessionExistsError, SessionNotFoundError, StorageError
from storage.jsonl_repository import JsonlRepository
from storage.protocols import Record
from storage.repository import SessionSummary
from tests.storage.entry_folders import chain, entry_path, make, snapshot
from tests.storage.shelf_files import HEADER, lines, listed, write_file
from tests.storage.strangers import STRANGER, as_stranger

pytestmark = pytest.mark.anyio


def renamed(record: Record, number: int) -> Record:
    """The record as a root of its own, with ``number`` as its id."""
    members = json.loads(record.data) | {"id": f"00{number:04d}", "parentId": None}
    return record._replace(id=members["id"], parent_id=None, data=json.dumps(members, separators=(",", ":")).encode())


class TestListing:
    async def test_one_bad_session_hides_no_other(self, root: Path) -> None:
        """B8, B11: damaged, of another version, empty, with a BOM or CRLF: each is listed, with its problem or as good."""
        good = lines(2)
        write_file(root, "good.jsonl", HEADER, *good)
        write_file(root, "bom.jsonl", b"\xef\xbb\xbf" + HEADER, *good)
        write_file(root, "crlf.jsonl", HEADER + b"\r", *(line + b"\r" for line in good))
        write_file(root, "blank.jsonl", b"", b"  ", HEADER, b"", *good)
        write_file(root, "headless.jsonl", *good)
        write_file(root, "broken.jsonl", b'{"type":"sess', *good)
        write_file(root, "newer.jsonl", HEADER.replace(b'"version":3', b'"version":4'), *good)
        write_file(root, "additions.jsonl", HEADER.replace(b'"branchline":1', b'"branchline":99'), *good)
        write_file(root, "empty.jsonl")
        (root / "cut.jsonl").write_bytes(HEADER[:50])
        (root / "tail.jsonl").write_bytes(b"\n".join([HEADER, *good, good[0][:30]]))
        (root / "binary.jsonl").write_bytes(b"\xff\x00" * 5000 + b"\n")
        before = snapshot(root)
        found = await listed(JsonlRepository(root))
        assert snapshot(root) == before
        for name in ("good", "bom", "crlf", "blank", "tail"):
            summary = found.pop(name)
            assert (summary.problem, summary.first_message, summary.cwd) == (None, "message 0", "/here"), name
            assert summary.created is not None
            assert summary.created.isoformat() == "2026-01-02T03:04:05.678000+00:00"
        codes = {name: summary.problem_code for name, summary in found.items()}
        assert codes == {
            "headless": "damaged_session",
            "broken": "damaged_session",
            "newer": "unsupported_version",
            "additions": "unsupported_version",
            "empty": "session_not_found",
            "cut": "session_not_found",
            "binary": "damaged_session",
        }
        assert all(summary.problem and summary.size is not None for summary in found.values())
        assert found["headless"].first_message == "message 0"

    async def test_damage_in_the_middle_shows_when_looked_for(self, root: Path) -> None:
        """A listing reads the ends; deep=True reads everything, and one damaged session still hides no other."""
        rows = lines(5)
        write_file(root, "bad.jsonl", HEADER, *rows[:2], b"{broken", *rows[2:])
        write_file(root, "good.jsonl", HEADER, *rows)
        found = await listed(JsonlRepository(root))
        assert [summary.problem for summary in found.values()] == [None, None]
        found = await listed(JsonlRepository(root), deep=True)
        assert found["bad"].problem_code == "damaged_session"
        assert "line 4" in (found["bad"].problem or "")
        assert found["bad"].first_message == "message 0"
        assert found["good"].entries == 5

    async def test_strays_are_no_sessions(self, root: Path) -> None:
        """B116: temporaries, backups, side files, folders, pipes: not listed, not restored, not touched."""
        write_file(root, "x.jsonl", HEADER, *lines(1))
        for name in (
            "x.jsonl.tmp",
            "x.jsonl.bak",
            "x.jsonl.lock",
            "x.jsonl.torn-17",
            ".x.jsonl.0123456789ab.tmp",
            "y.json",
        ):
            write_file(root, name, HEADER)
        write_file(root, ".hidden.jsonl", HEADER)
        (root / "folder.jsonl").mkdir()
        os.mkfifo(root / "pipe.jsonl")
        before = {name: entry for name, entry in snapshot(root).items() if name != "pipe.jsonl"}
        assert set(await listed(JsonlRepository(root), deep=True)) == {"x"}
        assert {name: entry for name, entry in snapshot(root).items() if name != "pipe.jsonl"} == before

    async def test_what_has_no_safe_name_is_shown(self, root: Path) -> None:
        """Data does not vanish from the listing because of its name; it is said how to reach it. Nobody finds it by id."""
        write_file(root, "my chat.jsonl", HEADER, *lines(1))
        write_file(root, "a..b.jsonl", HEADER, *lines(1))
        found = await listed(JsonlRepository(root))
        assert {name: summary.problem_code for name, summary in found.items()} == {
            "my chat": "invalid_id",
            "a..b": "invalid_id",
        }
        with pytest.raises(SessionNotFoundError):
            await JsonlRepository(root).find("a")

    async def test_a_symlink_is_shown_and_not_followed(self, root: Path, tmp_path: Path) -> None:
        """A link's lock would lie beside the link: it is listed with that problem, and not opened by id, nor deleted."""
        outside = write_file(tmp_path, "outside.jsonl", HEADER, *lines(1))
        (root / "link.jsonl").symlink_to(outside)
        (root / "dangling.jsonl").symlink_to("nowhere")
        repository = JsonlRepository(root)
        found = await listed(repository, deep=True)
        assert all("symbolic link" in (summary.problem or "") for summary in found.values())
        assert set(found) == {"link", "dangling"}
        for call in (repository.open, repository.delete):
            with pytest.raises(StorageError, match="symbolic link"):
                await call("link")
        assert outside.exists()
        make(tmp_path / "elsewhere", [1])
        (root / "folder").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StorageError, match="symbolic link"):
            await EntryFileRepository(root).open("folder")

    async def test_the_ends_of_a_long_file(self, root: Path) -> None:
        """The first message from the head, the name from the tail; what lies between only with deep=True."""
        filler = lines(1, "filler")[0].replace(b"filler", b"f" * 300_000)
        name = b'{"type":"session_info","id":"n1","parentId":null,"timestamp":"x","name":"%b"}'
        pi = HEADER.replace(b',"branchline":1', b"")
        first, second, third = lines(3)
        write_file(root, "tail.jsonl", pi, first, filler, second, name % b"late")
        write_file(root, "head.jsonl", pi, name % b"early", first, filler)
        write_file(root, "middle.jsonl", pi, filler, name % b"hidden", filler.replace(b'"id":"', b'"id":"z'), second)
        write_file(root, "edge.jsonl", pi, first, filler, name % b"edge", third + b" " * (65_535 - len(third)))
        found = await listed(JsonlRepository(root))
        assert {key: (found[key].name, found[key].first_message) for key in found} == {
            "tail": ("late", "message 0"),
            "head": ("early", "message 0"),
            "middle": (None, None),
            "edge": (None, "message 0"),
        }
        write_file(
            root,
            "edge.jsonl",
            pi,
            first,
            filler,
            name % b"edge",
            third + b" " * (65_534 - len(name % b"edge") - len(third)),
        )
        found = await listed(JsonlRepository(root), deep=True)
        assert found["middle"].name == "hidden"
        assert (await listed(JsonlRepository(root)))["edge"].name == "edge"

    async def test_three_thousand_sessions(self, root: Path) -> None:
        """B94, R17: a listing reads a head and a tail of each, however large they are, and is quick."""
        row = lines(1)[0]
        small = b"\n".join([HEADER, *[row.replace(b"message 0", b"m" * 900)] * 6, b""])
        for number in range(2995):
            (root / f"s{number}.jsonl").write_bytes(small)
        for number in range(5):
            with open(root / f"large{number}.jsonl", "wb") as file:
                file.write(HEADER + b"\n" + row + b"\n")
                file.truncate(50_000_000)  # the rest is a hole: it costs no disk, but reading it would take its time
        repository = JsonlRepository(root)
        allowed = 2995 * len(small) + 5 * 2 * 65_537

        def read_so_far() -> int:
            return int(Path("/proc/self/io").read_text().split()[1])

        before = read_so_far() if sys.platform == "linux" else 0
        begun = time.process_time()  # what else runs on this machine does not count
        found = await listed(repository)
        seconds = time.process_time() - begun
        if sys.platform == "linux":
            assert read_so_far() - before < allowed + 100_000
        assert len(found) == 3000
        assert found["large0"].first_message == "message 0"
        assert found["large0"].size == 50_000_000
        assert seconds < 5  # 0.3 is usual
        begun = time.process_time()
        assert len(await repository.list()) == 50
        assert time.process_time() - begun < 5

    async def test_listing_can_be_cancelled(self, root: Path) -> None:
        """A long listing is made in pieces: a cancellation does not wait for all of it."""
        for number in range(300):
            write_file(root, f"s{number}.jsonl", HEADER)
        seen: list[Any] = []
        cancelled = threading.Event()

        class Watched(JsonlRepository):
            def _summarise(self, *arguments: Any, **options: Any) -> SessionSummary:
                seen.append(arguments)
                cancelled.wait(60)
                return super()._summarise(*arguments, **options)

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: Watched(root).list(limit=300))
            while not seen:
                await anyio.sleep(0.001)
            group.cancel_scope.cancel()
            cancelled.set()
        assert len(seen) < 300


class TestEntryFolders:
    async def test_damaged_folders_are_listed(self, root: Path) -> None:
        """No header, no entries, a newer version: listed with their problem; other folders are no sessions."""
        for name in ("good", "headless", "gone", "newer", "torn", "damaged"):
            records = make(root / name, [1, 2])
            if name == "torn":
                entry_path(root / name, records[1]).unlink()
            if name == "damaged":
                entry_path(root / name, records[1]).write_bytes(b"{")
        (root / "headless" / "metadata.json").unlink()
        for path in (root / "gone" / "entries").iterdir():
            path.unlink()
        (root / "gone" / "entries").rmdir()
        (root / "newer" / "metadata.json").write_bytes(HEADER.replace(b'"version":3', b'"version":4'))
        (root / "other").mkdir()
        (root / ".x.creating-01234567" / "entries").mkdir(parents=True)
        write_file(root, "file.jsonl", HEADER)
        before = snapshot(root)
        found = await listed(EntryFileRepository(root))
        assert {name: summary.problem_code for name, summary in found.items()} == {
            "good": None,
            "headless": "damaged_session",
            "gone": "storage",
            "newer": "unsupported_version",
            "torn": None,
            "damaged": None,
        }
        assert found["good"].first_message == "message 0"
        found = await listed(EntryFileRepository(root), deep=True)
        assert found["damaged"].problem_code == "damaged_session"
        assert found["gone"].problem_code == "storage"
        assert (found["good"].entries, found["torn"].entries) == (3, 1)
        assert snapshot(root) == before

    async def test_a_listing_reads_some_of_many_entries(self, root: Path) -> None:
        """Of a session of a thousand files and more it reads some at each end, and counts no sizes; deep does."""
        repository = EntryFileRepository(root, durability="os")
        # Ids that sort by place: the many that are made here in one millisecond do not.
        storage = await repository.create("long", records=[renamed(record, record.seq) for record in chain(1500)])
        log = await EntryLog.open(storage)
        await log.append(SessionInfoEntry(name="late"))
        await log.aclose()
        before = int(Path("/proc/self/io").read_text().split()[1]) if sys.platform == "linux" else 0
        (summary,) = await repository.list()
        if sys.platform == "linux":
            assert int(Path("/proc/self/io").read_text().split()[1]) - before < 150_000
        assert (summary.first_message, summary.name, summary.size) == ("message 0", "late", None)
        (summary,) = await repository.list(deep=True)
        assert summary.entries == 1501
        assert summary.size == sum(path.stat().st_size for path in (root / "long" / "entries").iterdir())

    async def test_the_first_message_is_the_first(self, root: Path) -> None:
        """Where ids do not sort by time, a message from the middle is not passed off as the first."""
        repository = EntryFileRepository(root, durability="os")
        records = [renamed(record, (record.seq + 150) % 300) for record in chain(300)]
        (await repository.create("backwards", records=records)).close()
        (summary,) = await repository.list()
        assert summary.first_message is None
        (summary,) = await repository.list(deep=True)
        assert summary.first_message == "message 0"

    async def test_a_folder_that_is_no_session_is_not_deleted(self, root: Path) -> None:
        """Deleting by id deletes sessions, and no folder that happens to have that name."""
        (root / "photos").mkdir()
        (root / "photos" / "cat.png").write_bytes(b"cat")
        repository = EntryFileRepository(root)
        with pytest.raises(SessionNotFoundError, match="no session"):
            await repository.delete("photos")
        with pytest.raises(SessionExistsError):
            await repository.open_or_create("photos")
        assert (root / "photos" / "cat.png").read_bytes() == b"cat"


def _list_as_stranger(root: str, result: Any) -> None:
    async def main() -> dict[str, Any]:
        found: dict[str, Any] = {}
        await JsonlRepository(root).list()
        os.setuid(STRANGER)  # only now: what is imported so far may lie where only root can read
        kinds: list[Callable[[str], JsonlRepository | EntryFileRepository]] = [JsonlRepository, EntryFileRepository]
        for kind in kinds:
            try:
                page = await kind(root).list()
                found[kind.__name__] = {summary.id: summary.problem_code for summary in page}  # pyright: ignore[reportAttributeAccessIssue]
                await kind(root).create("new")
            except StorageError as error:
                found[f"{kind.__name__} error"] = str(error)  # pyright: ignore[reportAttributeAccessIssue]
        return found

    result.put(json.dumps(anyio.run(main)))


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="drops to another user, so it needs root")
class TestPermissions:
    def test_unreadable_sessions_hide_no_other(self, root: Path) -> None:
        """Another user's private sessions are listed as unreadable, beside those that can be read."""
        write_file(root, "private.jsonl", HEADER).chmod(0o600)
        write_file(root, "public.jsonl", HEADER).chmod(0o644)
        make(root / "public-folder", [1])
        for path in [root / "public-folder", *(root / "public-folder").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        (root / "half-private").mkdir(mode=0o755)
        (root / "half-private" / "entries").mkdir(mode=0o700)
        (root / "half-private" / "metadata.json").write_bytes(HEADER)
        (root / "half-private" / "metadata.json").chmod(0o600)
        root.chmod(0o755)
        before = snapshot(root)
        found = as_stranger(_list_as_stranger, root)
        assert found["JsonlRepository"] == {"private": "storage", "public": None}
        assert found["EntryFileRepository"] == {"public-folder": None, "half-private": "storage"}
        assert "Permission denied" in found["JsonlRepository error"]
        assert "Permission denied" in found["EntryFileRepository error"]
        assert snapshot(root) == before

    def test_an_unreadable_root(self, root: Path) -> None:
        """A folder that cannot be listed is an error, not an empty shelf."""
        root.chmod(0o700)
        found = as_stranger(_list_as_stranger, root)
        assert "cannot be listed" in found["JsonlRepository error"]
        assert "cannot be listed" in found["EntryFileRepository error"]
