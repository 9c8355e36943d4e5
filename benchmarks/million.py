"""``python -m benchmarks.million [COUNT]``: opening and showing 1,000,000 entries, in processes of their own.

The session is made in one process, and opened in another, which shows the end of its context and then all of it. Memory is
the process's peak so far, less what it had before opening.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from benchmarks.backends import Sheet
from benchmarks.backends import show as show_sheets
from benchmarks.measuring import message
from benchmarks.our_stores import budget_for
from benchmarks.peer_scripts.store_driver import KEPT
from harness.session import Session
from storage.jsonl import JsonlStorage
from storage.sqlite import SqliteStorage

MILLION = 1_000_000
_BYTES_AN_ENTRY_SHOWN = 8_000
"""Memory that must be free for each entry before a whole context is asked for."""

_KINDS: dict[str, Any] = {"JSONL": JsonlStorage, "SQLite": SqliteStorage}


async def make(kind: str, path: Path, count: int) -> None:
    """A session of so many user messages of about 1 KB."""
    async with Session.open(_KINDS[kind].create(path, durability="os")) as session:
        for number in range(count):
            session.append_message(message())
            if number % 1_000 == 999:
                await session.flush()


async def show(kind: str, path: Path, count: int) -> dict[str, float]:
    """Seconds and bytes of opening it, of the context that keeps 50, and of the whole context."""
    gc.collect()
    before = peak()
    began = time.perf_counter()
    async with Session.open(_KINDS[kind].open(path, mode="read")) as session:
        found = {"open": time.perf_counter() - began, "open_bytes": peak() - before}
        began = time.perf_counter()
        context = await session.build_context(max_chars=budget_for(KEPT))
        found["last"] = time.perf_counter() - began
        assert len(context.messages) == KEPT
        if available() > count * _BYTES_AN_ENTRY_SHOWN:
            began = time.perf_counter()
            whole = await session.build_context()
            found |= {"whole": time.perf_counter() - began, "whole_bytes": peak() - before}
            assert len(whole.messages) == count
    return found


def peak() -> int:
    """The most bytes that this process has had in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def available() -> int:
    """The bytes of memory that are left on this machine."""
    facts = Path("/proc/meminfo").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in facts.splitlines() if line.startswith("MemAvailable"))


def measure(count: int = MILLION) -> Sheet:
    """The table, for Linux; each step in a process of its own."""
    rows: list[tuple[str, ...]] = []
    for kind in _KINDS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "session"
            _step("make", kind, path, count)
            size = sum(file.stat().st_size for file in Path(folder).iterdir() if file.is_file())
            found = json.loads(_step("show", kind, path, count))
        whole = ("left out: too little memory", "")
        if "whole" in found:
            whole = (f"{found['whole']:,.1f} s", _megabytes(found["whole_bytes"]))
        opened = (f"{found['open']:,.1f} s", _megabytes(found["open_bytes"]))
        rows.append((kind, _megabytes(size), *opened, f"{found['last'] * 1e3:,.2f} ms", *whole))
    columns = ("", "on disk", "open", "memory", f"context that keeps {KEPT}", "whole context", "memory")
    return Sheet(f"a session of {count:,} entries", columns, tuple(rows))


def _step(what: str, kind: str, path: Path, count: int) -> str:
    command = [sys.executable, "-m", "benchmarks.million", what, kind, str(path), str(count)]
    return subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True).stdout


def _megabytes(value: float) -> str:
    return f"{value / 1e6:,.0f} MB"


def main() -> None:
    """The table, or one of its steps."""
    if len(sys.argv) > 2:
        what, kind, path, count = sys.argv[1:]
        if what == "make":
            anyio.run(make, kind, Path(path), int(count))
        else:
            print(json.dumps(anyio.run(show, kind, Path(path), int(count))))
        return
    show_sheets([measure(*map(int, sys.argv[1:]))])


if __name__ == "__main__":
    main()
