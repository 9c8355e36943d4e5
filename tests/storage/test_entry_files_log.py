"""Entry files under a log and an event loop (R6–R12)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from storage import files
from storage.entry_files import EntryFileStorage
from storage.entry_log import EntryLog
from storage.errors import (
    InvalidIdError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StaleSessionError,
    StorageError,
)
from storage.messages import UserMessage
from tests.storage.entry_folders import (
    snapshot,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "chat"


async def texts(log: EntryLog) -> list[str]:
    return [getattr(entry, "message").text for entry in await log.entries()]  # noqa: B009 - all are messages


@pytest.mark.anyio
class TestWithLog:
    async def test_a_conversation_survives(self, folder: Path) -> None:
        """Made, appended to, closed, opened again: the same entries in the same order."""
        log = await EntryLog.open(await EntryFileStorage.open_or_create(folder))
        writes = [log.append_message(UserMessage(content=f"message {number}")) for number in range(10)]
        for write in writes:
            await write
        await log.aclose()
        log = await EntryLog.open(await EntryFileStorage.open_or_create(folder))
        assert await texts(log) == [f"message {number}" for number in range(10)]
        await log.append_message(UserMessage(content="more"))
        await log.aclose()
        log = await EntryLog.open(await EntryFileStorage.open(folder, mode="read"))
        assert (await texts(log))[-1] == "more"
        await log.aclose()

    async def test_a_batch_shares_the_folder_sync(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """64 appends side by side: 64 files, one sync of the folder."""
        log = await EntryLog.open(await EntryFileStorage.create(folder))
        count = 0
        original = files.sync_folder

        def counting(path: str) -> None:
            nonlocal count
            count += 1
            original(path)

        monkeypatch.setattr(files, "sync_folder", counting)
        async with anyio.create_task_group() as group:
            for number in range(64):
                group.start_soon(log.append_message(UserMessage(content=str(number))).wait)
        assert count == 1
        assert len(await log.entries()) == 64
        await log.aclose()

    async def test_an_unsafe_id_fails_alone(self, folder: Path) -> None:
        """An entry whose id cannot be a file name is refused; its neighbours are written."""
        from storage.entries import CustomEntry

        log = await EntryLog.open(await EntryFileStorage.create(folder))
        first = log.append_message(UserMessage(content="before"))
        with pytest.raises(InvalidIdError):
            await log.append(CustomEntry(id="../x", custom_type="test"))
        await log.append_message(UserMessage(content="after"))
        await first
        assert await texts(log) == ["before", "after"]
        await log.aclose()
        assert [path.name for path in folder.parent.iterdir()] == ["chat"]

    async def test_a_full_disk_and_then_room(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """R10: the append says so, leaves nothing behind, and later ones work."""
        log = await EntryLog.open(await EntryFileStorage.create(folder))
        await log.append_message(UserMessage(content="one"))
        with monkeypatch.context() as patch:

            def full(*_: object) -> int:
                raise OSError(28, "No space left on device")

            patch.setattr(files, "write", full)
            with pytest.raises(StorageError, match="No space left"):
                await log.append_message(UserMessage(content="lost"))
        await log.append_message(UserMessage(content="two"))
        assert await texts(log) == ["one", "two"]
        await log.aclose()
        log = await EntryLog.open(await EntryFileStorage.open(folder))
        assert await texts(log) == ["one", "two"]
        await log.aclose()

    async def test_a_failed_sync_taints(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a sync that failed nothing is tried again; opening anew starts from the disk."""
        log = await EntryLog.open(await EntryFileStorage.create(folder))
        await log.append_message(UserMessage(content="one"))
        with monkeypatch.context() as patch:

            def failing(_: str) -> None:
                raise OSError(5, "Input/output error")

            patch.setattr(files, "sync_folder", failing)
            with pytest.raises(StorageError) as caught:
                await log.append_message(UserMessage(content="perhaps"))
        with pytest.raises(StorageError) as again:
            log.append_message(UserMessage(content="more"))
        assert again.value.__cause__ is caught.value.__cause__
        await log.aclose()
        log = await EntryLog.open(await EntryFileStorage.open(folder))
        assert (await texts(log))[0] == "one"
        await log.aclose()

    async def test_stale(self, folder: Path) -> None:
        """Deleted under our hands: the next append is StaleSessionError, and makes nothing anew."""
        import shutil

        log = await EntryLog.open(await EntryFileStorage.create(folder))
        await log.append_message(UserMessage(content="one"))
        shutil.rmtree(folder)
        with pytest.raises(StaleSessionError):
            await log.append_message(UserMessage(content="two"))
        await log.aclose()
        assert not folder.exists()

    async def test_refresh(self, folder: Path) -> None:
        """A reader's refresh shows what the writer added since."""
        writer = await EntryLog.open(await EntryFileStorage.create(folder))
        reader = await EntryLog.open(await EntryFileStorage.open(folder, mode="read"))
        for number in range(3):
            await writer.append_message(UserMessage(content=str(number)))
            await reader.refresh()
            assert len(await reader.entries()) == number + 1
        await reader.aclose()
        await writer.aclose()

    async def test_first_openers_make_one_session(self, folder: Path) -> None:
        """Ten that open or create at once: one makes it, each gets its turn, all see the same session."""
        ids: set[str] = set()

        async def visit(number: int) -> None:
            storage = await EntryFileStorage.open_or_create(folder, lock_timeout=60)
            log = await EntryLog.open(storage)
            await log.append_message(UserMessage(content=str(number)))
            ids.add(storage.info.header.id)
            await log.aclose()

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(visit, number)
        assert len(ids) == 1
        log = await EntryLog.open(await EntryFileStorage.open(folder))
        assert sorted(await texts(log), key=int) == [str(number) for number in range(10)]
        await log.aclose()
        assert [path.name for path in folder.parent.iterdir()] == ["chat"]

    async def test_open_or_create_leaves_other_folders_alone(self, folder: Path) -> None:
        """A folder with other things in it does not become a session; the rest of an interrupted beginning does."""
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine")
        before = snapshot(folder)
        with pytest.raises(SessionExistsError, match="other things"):
            await EntryFileStorage.open_or_create(folder)
        assert snapshot(folder) == before
        (folder / "thesis.txt").unlink()
        (folder / ".lock").touch()
        (folder / "entries").mkdir()
        (folder / "metadata.json").write_text(" \n")
        storage = await EntryFileStorage.open_or_create(folder, session_id="begun")
        assert storage.info.header.id == "begun"
        storage.close()

    async def test_opening_waits_and_can_be_cancelled(self, folder: Path) -> None:
        """lock_timeout is waited in the task: a cancellation ends it at once and leaves nothing locked."""
        storage = await EntryFileStorage.create(folder)
        with pytest.raises(SessionLockedError):
            await EntryFileStorage.open(folder, lock_timeout=0.1)
        with anyio.move_on_after(0.1) as scope:
            await EntryFileStorage.open(folder, lock_timeout=60)
        assert scope.cancelled_caught
        storage.close()
        (await EntryFileStorage.open(folder)).close()

    async def test_a_bad_session_id_touches_nothing(self, folder: Path) -> None:
        """R16: refused before a file is made."""
        for make_it in (EntryFileStorage.create, EntryFileStorage.open_or_create):
            with pytest.raises(InvalidIdError):
                await make_it(folder, session_id="../x")
        assert list(folder.parent.iterdir()) == []

    async def test_a_missing_session(self, folder: Path) -> None:
        """Opening what is not there makes nothing."""
        with pytest.raises(SessionNotFoundError):
            await EntryFileStorage.open(folder / "deep")
        assert list(folder.parent.iterdir()) == []
