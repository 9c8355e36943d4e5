"""The file of a JSONL session: creating, what is none, permissions, links, side files, deleting (R9, R12, R15, R16)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from storage import (
    DamagedSessionError,
    EntryLog,
    InvalidIdError,
    JsonlStorage,
    Record,
    SessionClosedError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from storage.file_lock import WriterLock
from tests.storage.lines import header, message, write
from tests.storage.places import JsonlPlace, fork, said

pytestmark = pytest.mark.anyio

NOTHING_COMMITTED = {"no bytes": b"", "blank lines": b"\n \n\t\r\n", "spaces": b"   ", "a BOM": b"\xef\xbb\xbf"}


def names(folder: Path) -> list[str]:
    """What is in ``folder``, but for locks."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


async def test_what_create_makes(jsonl: JsonlPlace) -> None:
    """R16: the file is 0600 and folders that are made 0700, all of them; the header is the first line."""
    path = jsonl.path.parent / "one" / "two" / "chat.jsonl"
    storage = await JsonlStorage.create(path, cwd="/somewhere", session_id="my-chat", parent_session="parent")
    storage.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(f"{path}.lock").stat().st_mode) == 0o600
    assert [stat.S_IMODE(parent.stat().st_mode) for parent in list(path.parents)[:2]] == [0o700, 0o700]
    line = path.read_bytes()
    assert line.startswith(b'{"type":"session","version":3,"id":"my-chat","timestamp":"')
    assert line.endswith(b'Z","cwd":"/somewhere","parentSession":"parent","branchline":1}\n')
    assert names(path.parent) == ["chat.jsonl"]


async def test_create_refuses_what_exists(jsonl: JsonlPlace) -> None:
    """Create never touches what is there: a session, any other file, an empty one, a folder, a dangling link."""
    makers = {
        "text": lambda path: path.write_text("mine"),
        "empty": lambda path: path.touch(),
        "folder": lambda path: path.mkdir(),
        "link": lambda path: path.symlink_to("nowhere"),
    }
    for name, make in makers.items():
        path = jsonl.path.with_name(name)
        make(path)
        before = names(jsonl.path.parent)
        with pytest.raises(SessionExistsError) as caught:
            await JsonlStorage.create(path)
        assert isinstance(caught.value, FileExistsError)
        assert names(jsonl.path.parent) == before
    assert jsonl.path.with_name("text").read_text() == "mine"


@pytest.mark.parametrize("bad", ["../x", "a/b", "", ".", "x\0y", "a\nb", "x" * 129, "naïve", "con", "NUL.txt"])
async def test_bad_session_ids_touch_nothing(jsonl: JsonlPlace, bad: str) -> None:
    """R16: a session id that is no safe name is refused before any file is touched."""
    path = jsonl.path.parent / "sub" / "chat.jsonl"
    for make in (JsonlStorage.create, JsonlStorage.open_or_create):
        with pytest.raises(InvalidIdError):
            await make(path, session_id=bad)
    assert list(jsonl.path.parent.iterdir()) == []


@pytest.mark.parametrize("kind", NOTHING_COMMITTED)
async def test_nothing_committed_is_no_session(jsonl: JsonlPlace, kind: str) -> None:
    """R15: a file without a committed line means no session yet; opening leaves it; open_or_create begins one."""
    data = NOTHING_COMMITTED[kind]
    jsonl.path.write_bytes(data)
    for mode in ("read", "write"):
        with pytest.raises(SessionNotFoundError):
            await jsonl.open(mode=mode)
    assert jsonl.path.read_bytes() == data
    log = await EntryLog.open(await JsonlStorage.open_or_create(jsonl.path))
    await log.append_message(said())
    await log.aclose()
    log = await jsonl.log()
    assert len(log.index) == 1
    await log.aclose()
    aside = [path for path in names(jsonl.path.parent) if ".torn-" in path]
    assert len(aside) == bool(data.strip())


@pytest.mark.parametrize("tail", [b'{"type":"session","version":3', header().encode(), b"\x00" * 512])
async def test_a_header_without_its_newline_is_set_aside(jsonl: JsonlPlace, tail: bytes) -> None:
    """R15: a tail without a committed line before it: open says there is no session yet, open_or_create sets it aside."""
    jsonl.path.write_bytes(tail)
    with pytest.raises(SessionNotFoundError, match="sets the bytes aside"):
        await jsonl.open()
    storage = await JsonlStorage.open_or_create(jsonl.path, session_id="fresh")
    storage.close()
    assert jsonl.path.with_name("chat.jsonl.torn-0").read_bytes() == tail
    assert jsonl.path.read_bytes().startswith(b'{"type":"session","version":3,"id":"fresh"')


@pytest.mark.parametrize(
    "text", ["hello\n", message("a", None) + "\n", "null\n", "[]\n", '{"type":"other"}\n', "\x00\x00\n", '"x"\n{}\n']
)
async def test_committed_text_without_a_header_is_damage(jsonl: JsonlPlace, text: str) -> None:
    """R15: committed text whose first line is no header is damage for everybody, and is left untouched."""
    jsonl.path.write_text(text)
    openings = [jsonl.open(), jsonl.open(mode="read"), JsonlStorage.open_or_create(jsonl.path)]
    if '"message"' not in text:
        openings.append(jsonl.open(on_torn_tail="repair", on_corrupt="skip"))
    for opening in openings:
        with pytest.raises(DamagedSessionError) as caught:
            await opening
        assert caught.value.line == 1
        assert caught.value.path == str(jsonl.path)
    assert jsonl.path.read_text() == text
    assert set(names(jsonl.path.parent)) <= {"chat.jsonl", "chat.jsonl.lock"}


@pytest.mark.parametrize("first", ["", "\x00\x00\x00", '{"type":"session","vers'])
async def test_salvage_without_a_header(jsonl: JsonlPlace, first: str) -> None:
    """R14: salvage shows every whole entry of a file whose header is lost, alone or fused with the first entry.

    Each at its own place, to read only; the header that stands in has the file's name as its id.
    """
    lines = [message("a", None, seq=0), message("b", "a", seq=1), message("c", "b", seq=2)]
    data = first + "\n".join(lines) + "\n"
    jsonl.path.write_text(data)
    log = await jsonl.log(on_corrupt="skip")
    expected = [("a", 0), ("b", 1), ("c", 2)][bool(first) :]
    assert [(entry.id, entry.seq) for entry in await log.entries()] == expected
    assert (log.storage.info.header.id, log.writable) == ("chat", False)
    codes = [warning.code for warning in log.warnings]
    assert codes == (["bad_line", "entries_missing", "root_with_parent"] if first else ["bad_line"])
    await log.aclose()
    assert jsonl.path.read_text() == data


async def test_what_is_no_file_is_refused_at_once(jsonl: JsonlPlace) -> None:
    """R15: a folder, a pipe or a device is no session: an error at once, not a wait for bytes that never end."""
    os.mkfifo(jsonl.path.with_name("pipe"))
    jsonl.path.with_name("folder").mkdir()
    for path in (jsonl.path.with_name("pipe"), jsonl.path.with_name("folder")):
        for mode in ("read", "write"):
            with pytest.raises(StorageError, match="not a file|cannot open"):
                await JsonlStorage.open(path, mode=mode)
    for device in ("/dev/zero", "/dev/null"):
        with pytest.raises(StorageError, match="not a file"):
            await JsonlStorage.open(device, mode="read")
    assert names(jsonl.path.parent) == ["folder", "pipe"]
    jsonl.path.write_text("a file")
    for mode in ("read", "write"):
        with pytest.raises(StorageError, match="Not a directory"):
            await JsonlStorage.open(jsonl.path / "below a file", mode=mode)  # pyright: ignore[reportArgumentType]


async def test_opening_makes_only_the_lock(jsonl: JsonlPlace) -> None:
    """R15: opening for reading makes nothing; opening for writing makes only the lock file, and changes no byte."""
    data = write(jsonl.path, header(), message("a", None, seq=0), end='\n{"torn')
    before = jsonl.path.stat()
    reader = await jsonl.open(mode="read")
    reader.close()
    assert [path.name for path in jsonl.path.parent.iterdir()] == ["chat.jsonl"]
    writer = await jsonl.open()
    writer.close()
    assert sorted(path.name for path in jsonl.path.parent.iterdir()) == ["chat.jsonl", "chat.jsonl.lock"]
    assert jsonl.path.read_bytes() == data
    assert jsonl.path.stat().st_mtime_ns == before.st_mtime_ns


async def test_two_names_of_one_file_have_one_lock(jsonl: JsonlPlace) -> None:
    """R12: a writer through a symbolic link is the second writer all the same."""
    storage = await jsonl.create()
    link = jsonl.path.with_name("link.jsonl")
    link.symlink_to(jsonl.path)
    with pytest.raises(SessionLockedError):
        await JsonlStorage.open(link)
    storage.close()
    log = await EntryLog.open(await JsonlStorage.open(link))
    with pytest.raises(SessionLockedError):
        await jsonl.open()
    await log.append_message(said())
    await log.aclose()
    assert link.is_symlink()
    assert len(jsonl.lines()) == 1


async def test_a_blank_tail_is_none(jsonl: JsonlPlace) -> None:
    """R13: white space after the last newline is no unterminated tail; what is appended behind it can be read."""
    for blank in (" ", "\t \r", "   "):
        write(jsonl.path, header(), message("a", None, seq=0), end="\n" + blank)
        log = await jsonl.log()
        assert log.writable
        await log.append_message(said())
        await log.aclose()
        log = await jsonl.log()
        assert len(await log.path()) == 2
        await log.aclose()


@pytest.mark.parametrize("odd", ["\x0b", "\x0c", "\u2028", "\u00a0", "\x00", "\ufeff"])
async def test_odd_white_space_is_a_tail(jsonl: JsonlPlace, odd: str) -> None:
    """R13: what JSON does not count as white space is a tail: a line appended behind it could not be read."""
    write(jsonl.path, header(), message("a", None, seq=0), end="\n" + odd)
    log = await jsonl.log()
    assert not log.writable
    await log.aclose()
    log = await jsonl.log(on_torn_tail="repair")
    await log.append_message(said())
    await log.aclose()
    log = await jsonl.log()
    assert len(await log.path()) == 2
    await log.aclose()


async def test_after_close(jsonl: JsonlPlace) -> None:
    """A closed storage neither writes nor reads another file that got its number."""
    log = await jsonl.new_log()
    await log.append_message(said())
    storage = log.storage
    await log.aclose()
    records = await _records(jsonl)
    other = os.open(jsonl.path.with_name("other"), os.O_CREAT | os.O_RDWR)
    try:
        with pytest.raises((StorageError, SessionClosedError)):
            storage.commit([records[0]._replace(seq=1)])
        with pytest.raises((StorageError, SessionClosedError, OSError)):
            storage.read(after_seq=-1)
    finally:
        os.close(other)
    assert jsonl.path.with_name("other").read_bytes() == b""
    assert len(jsonl.lines()) == 1


async def _records(place: JsonlPlace) -> list[Record]:
    storage = await place.open(mode="read")
    try:
        return list(storage.read())
    finally:
        storage.close()


async def test_delete_leaves_nothing(jsonl: JsonlPlace) -> None:
    """Deleting removes the file and its side files and lock, and nothing of a session whose name begins alike."""
    for other in ("chat.jsonl.torn-5.jsonl", "chat.jsonl2", "chat.jsonl.torn-x"):
        jsonl.path.with_name(other).write_text("mine")
    write(jsonl.path, header(), message("a", None, seq=0), end="\ntail")
    storage = await JsonlStorage.open(jsonl.path, on_torn_tail="repair")
    assert len(names(jsonl.path.parent)) == 5
    storage.delete()
    assert sorted(path.name for path in jsonl.path.parent.iterdir()) == [
        "chat.jsonl.torn-5.jsonl",
        "chat.jsonl.torn-x",
        "chat.jsonl2",
    ]


async def test_only_the_writer_deletes(jsonl: JsonlPlace) -> None:
    """R12: who opened it for reading cannot delete it under its writer; without a writer it can."""
    log = await jsonl.new_log()
    await log.append_message(said())
    reader = await JsonlStorage.open(jsonl.path, mode="read")
    with pytest.raises(SessionLockedError):
        reader.delete()
    reader.close()
    await log.append_message(said())
    await log.aclose()
    reader = await JsonlStorage.open(jsonl.path, mode="read")
    reader.delete()
    assert list(jsonl.path.parent.iterdir()) == []


async def test_a_forked_child_does_not_write(jsonl: JsonlPlace) -> None:
    """R12: a child of os.fork has a copy of everything but the lock; what it commits is refused, nothing is written."""
    log = await jsonl.new_log()
    await log.append_message(said())
    records = await _records(jsonl)
    before = jsonl.path.read_bytes()
    child = fork()
    if child == 0:
        try:
            log.storage.commit([records[0]._replace(seq=1, id="x")])
        except StorageError:
            os._exit(0)
        except BaseException:  # noqa: BLE001
            os._exit(2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert jsonl.path.read_bytes() == before
    await log.append_message(said())
    await log.aclose()
    assert len(jsonl.lines()) == 2


async def test_a_copied_file_is_a_session_of_its_own(jsonl: JsonlPlace) -> None:
    """A plain copy of the file can be opened and written beside the original, lock or no lock."""
    log = await jsonl.new_log()
    await log.append_message(said())
    copy = JsonlPlace(jsonl.path.parent / "copies")
    copy.path.parent.mkdir()
    copy.path.write_bytes(jsonl.path.read_bytes())
    other = await copy.log()
    await other.append_message(said())
    await log.append_message(said())
    await other.aclose()
    await log.aclose()
    assert len(copy.lines()) == len(jsonl.lines()) == 2


async def test_a_lock_file_alone_locks_nobody_out(jsonl: JsonlPlace) -> None:
    """R12: a lock file that a dead writer left, with its name in it, blocks nobody."""
    storage = await jsonl.create()
    storage.close()
    Path(f"{jsonl.path}.lock").write_text('{"pid": 1, "host": "elsewhere"}')
    again = await jsonl.open()
    assert again.info.writable
    again.close()


async def test_a_failed_opening_gives_the_lock_back(jsonl: JsonlPlace) -> None:
    """R15: after an opening that failed, on damage, say, nobody is locked out and no file stays open."""
    write(jsonl.path, header(), "not json")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    for _ in range(5):
        with pytest.raises(DamagedSessionError):
            await jsonl.open()
    WriterLock.acquire(f"{jsonl.path}.lock").release()
    if before:
        assert len(os.listdir("/proc/self/fd")) <= before
