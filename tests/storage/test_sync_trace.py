"""What SIGKILL never tests: traces of the system calls show write, sync, acknowledge for every append (R9, R13).

And the folder synced after create, link and rename.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

CALLS = "openat,write,pwrite64,fdatasync,fsync,rename,renameat,renameat2,link,linkat,ftruncate,unlink"
_LINE = re.compile(r"^(\d+) +(?:<\.\.\. (\w+) resumed>(.*)|(\w+)\((.*?))(?: <unfinished \.\.\.>)?$")
_RESULT = re.compile(r"\) += (-?\d+)")


@dataclass
class Call:
    """A system call: its name, its arguments as text, where in the trace it began and ended, and what it returned."""

    name: str
    text: str
    begin: int
    end: int = -1
    result: int = -1

    @property
    def path(self) -> str:
        """The path of the file that it worked on (its first descriptor's, or its first name)."""
        found = re.search(r'<([^>]*)>|"([^"]*)"', self.text)
        return (found[1] or found[2] or "") if found else ""


def read_trace(text: str) -> list[Call]:
    """The calls that succeeded, in the order in which they began."""
    calls: list[Call] = []
    open_calls: dict[tuple[str, str], Call] = {}
    for number, line in enumerate(text.splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue
        process, resumed, rest, name, arguments = match.groups()
        if name is not None:
            call = Call(name, arguments, number)
            calls.append(call)
            open_calls[process, name] = call
            rest = arguments
        else:
            call = open_calls.pop((process, resumed))
        result = _RESULT.search(rest)
        if result is not None:
            call.end, call.result = number, int(result[1])
    return [call for call in calls if call.end >= 0 and call.result >= 0]


@pytest.fixture(params=["asyncio", "trio"])
def loop(request: pytest.FixtureRequest) -> str:
    """An event loop."""
    return request.param


@dataclass
class Trace:
    """What a run of the program did after it said "begin", and the folder that it worked in."""

    calls: list[Call]
    folder: Path


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], Trace]:
    """Run the program under strace, once for each backend, loop and durability."""
    if sys.platform != "linux" or shutil.which("strace") is None:
        pytest.skip("no strace here")
    if subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], check=False).returncode != 0:
        pytest.skip("strace cannot trace here")

    @cache
    def run(name: str, loop: str, durability: str) -> Trace:
        folder = tmp_path_factory.mktemp("traced")
        output = folder / "trace.txt"
        command = ["strace", "-f", "-qq", "-y", "-s", "100000", "-o", str(output), "-e", f"trace={CALLS}"]
        program = ["-m", "tests.storage.traced_program", str(folder / "new" / "folders" / name), loop, durability]
        done = subprocess.run(
            [*command, sys.executable, *program],
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        calls = read_trace(output.read_text())
        begin = next(number for number, call in enumerate(calls) if said(call) == "begin")
        return Trace(calls[begin:], folder)

    return run


def said(call: Call) -> str:
    """What the program told by this call, if it did."""
    match = re.match(r'1<[^>]*>, "(.*)\\n", \d+\)', call.text) if call.name == "write" else None
    return match[1] if match else ""


def told(calls: list[Call], word: str) -> Call:
    """The call that told ``word``."""
    return next(call for call in calls if said(call) == word)


def one(calls: list[Call], name: str, path: Path | str, *, after: int = -1, before: int, holding: str = "") -> Call:
    """The first successful call of that name on that path, between two places in the trace."""
    for call in calls:
        fits = call.name == name and call.path == str(path) and holding in call.text
        if fits and call.begin > after and call.end < before:
            return call
    raise AssertionError(f"no {name} of {path} between lines {after} and {before}")


def write_of(calls: list[Call], entry_id: str, folder: Path, *, before: int) -> Call:
    """The write of an entry's line; a file that was linked to its name is traced under the name it was made by."""
    for call in calls:
        if call.name == "write" and rf"\"id\":\"{entry_id}\"" in call.text and Path(call.path).parent == folder:
            assert call.end < before
            return call
    raise AssertionError(f"entry {entry_id} was not written in {folder}")


def acknowledgements(calls: list[Call]) -> list[tuple[str, int]]:
    """The ids that were told, and where."""
    found = [(said(call).removeprefix("acknowledged "), call.begin) for call in calls if said(call).startswith("ack")]
    assert len(found) == 9
    return found


def test_jsonl_write_sync_acknowledge(traces: Callable[[str, str, str], Trace], loop: str) -> None:
    """R9: JSONL with fsync: each entry is written, then the file is synced, then it is acknowledged."""
    traced = traces("chat.jsonl", loop, "fsync")
    calls, top = traced.calls, traced.folder
    syncs: set[int] = set()
    for entry_id, acknowledged in acknowledgements(calls):
        written = write_of(calls, entry_id, top / "new" / "folders", before=acknowledged)
        synced = one(calls, "fdatasync", written.path, after=written.end, before=acknowledged)
        syncs.add(synced.begin)
    assert len(syncs) == 5  # five side by side share one


def test_jsonl_create_syncs_file_and_folders(traces: Callable[[str, str, str], Trace], loop: str) -> None:
    """R9: a new file is written and synced under another name, linked, and its folder synced, before it is handed out.

    So are the folders above those that had to be made.
    """
    traced = traces("chat.jsonl", loop, "fsync")
    calls, top = traced.calls, traced.folder
    folder = top / "new" / "folders"
    created = told(calls, "created").begin
    written = next(call for call in calls if call.name == "write" and r"{\"type\":\"session\"" in call.text)
    assert Path(written.path).parent == folder
    assert Path(written.path).name.startswith(".chat.jsonl.")
    synced = one(calls, "fdatasync", written.path, after=written.end, before=created)
    linked = one(calls, "link", written.path, after=synced.end, before=created, holding=str(folder / "chat.jsonl"))
    for parent in (folder, top / "new", top):
        one(calls, "fsync", parent, after=linked.end, before=created)


def test_jsonl_repair_is_durable_before_it_cuts(traces: Callable[[str, str, str], Trace], loop: str) -> None:
    """R13: a repair writes and syncs the side file and its folder before it cuts the log, and syncs that."""
    traced = traces("chat.jsonl", loop, "fsync")
    calls, top = traced.calls, traced.folder
    folder = top / "new" / "folders"
    start, repaired = told(calls, "torn").end, told(calls, "repaired").begin
    written = next(call for call in calls if call.name == "write" and "torn-" in call.path)
    synced = one(calls, "fdatasync", written.path, after=max(start, written.end), before=repaired)
    folder_synced = one(calls, "fsync", folder, after=synced.end, before=repaired)
    cut = one(calls, "ftruncate", folder / "chat.jsonl", after=folder_synced.end, before=repaired)
    one(calls, "fdatasync", folder / "chat.jsonl", after=cut.end, before=repaired)


def test_jsonl_without_fsync_is_written_first_all_the_same(traces: Callable[[str, str, str], Trace], loop: str) -> None:
    """R9: with "os" nothing is synced, but each entry is written before it is acknowledged."""
    traced = traces("chat.jsonl", loop, "os")
    calls, top = traced.calls, traced.folder
    last = 0
    for entry_id, acknowledged in acknowledgements(calls):
        write_of(calls, entry_id, top / "new" / "folders", before=acknowledged)
        last = acknowledged
    assert [call.path for call in calls if "sync" in call.name and call.begin < last] == []


def test_entry_files_write_sync_rename_sync_acknowledge(traces: Callable[[str, str, str], Trace], loop: str) -> None:
    """R9, R13: entry files with fsync: each is written and synced under another name, renamed in order.

    The folder synced, once for a batch, before any of the batch is acknowledged.
    """
    traced = traces("chat", loop, "fsync")
    calls, top = traced.calls, traced.folder
    entries = top / "new" / "folders" / "chat" / "entries"
    created = told(calls, "created").begin
    folder_syncs: set[int] = set()
    renamed_at: list[int] = []
    for entry_id, acknowledged in acknowledgements(calls):
        written = write_of(calls, entry_id, entries, before=acknowledged)
        assert not written.path.endswith(f"{entry_id}.json")
        synced = one(calls, "fdatasync", written.path, after=written.end, before=acknowledged)
        renamed = one(calls, "rename", written.path, after=synced.end, before=acknowledged, holding=f"{entry_id}.json")
        folder_synced = one(calls, "fsync", entries, after=max(created, renamed.end), before=acknowledged)
        folder_syncs.add(folder_synced.begin)
        renamed_at.append(renamed.begin)
    assert renamed_at == sorted(renamed_at)
    assert len(folder_syncs) == 5


def test_entry_files_create_syncs(traces: Callable[[str, str, str], Trace], loop: str) -> None:
    """R9: a new session's header is synced, its folders are synced.

    The folder it gets its name in, before it is handed out.
    """
    traced = traces("chat", loop, "fsync")
    calls, top = traced.calls, traced.folder
    folder = top / "new" / "folders"
    created = told(calls, "created").begin
    written = next(call for call in calls if call.name == "write" and r"{\"type\":\"session\"" in call.text)
    one(calls, "fdatasync", written.path, after=written.end, before=created)
    renamed = next(call for call in calls if call.name.startswith("rename") and str(folder / "chat") in call.text)
    for parent in (folder, top / "new", top):
        one(calls, "fsync", parent, after=renamed.end, before=created)


def test_sqlite_writes_the_log_syncs_it_acknowledges(traces: Callable[[str, str, str], Trace], loop: str) -> None:
    """R9: SQLite with fsync: an entry's page goes into the log, the log is synced, then it is acknowledged.

    Five side by side share one sync.
    """
    traced = traces("chat.sqlite", loop, "fsync")
    calls, folder = traced.calls, traced.folder / "new" / "folders"
    wal = folder / "chat.sqlite-wal"
    syncs: set[int] = set()
    for entry_id, acknowledged in acknowledgements(calls):
        written = one(calls, "pwrite64", wal, before=acknowledged, holding=entry_id)
        syncs.add(one(calls, "fdatasync", wal, after=written.end, before=acknowledged).begin)
    assert len(syncs) == 5


def test_sqlite_create_syncs(traces: Callable[[str, str, str], Trace], loop: str) -> None:
    """R9: the session's row is synced before it is handed out; so are the folder, for the name, and those above it."""
    traced = traces("chat.sqlite", loop, "fsync")
    calls, top = traced.calls, traced.folder
    folder = top / "new" / "folders"
    created = told(calls, "created").begin
    wal = folder / "chat.sqlite-wal"
    written = one(calls, "pwrite64", wal, before=created, holding=r"{\"type\":\"session\"")
    one(calls, "fdatasync", wal, after=written.end, before=created)
    linked = next(call for call in calls if call.name == "link" and str(folder / "chat.sqlite") in call.text)
    for parent in (folder, top / "new", top):
        one(calls, "fsync", parent, after=linked.end, before=created)


def test_sqlite_without_fsync_is_written_first_all_the_same(
    traces: Callable[[str, str, str], Trace], loop: str
) -> None:
    """R9: with "os" no append is synced, but each is in the log before it is acknowledged."""
    traced = traces("chat.sqlite", loop, "os")
    calls, folder = traced.calls, traced.folder / "new" / "folders"
    wal = folder / "chat.sqlite-wal"
    first = told(calls, "created").end
    last = 0
    for entry_id, acknowledged in acknowledgements(calls):
        one(calls, "pwrite64", wal, before=acknowledged, holding=entry_id)
        last = acknowledged
    assert [call.path for call in calls if "sync" in call.name and first < call.begin < last] == []
