"""``python -m benchmarks [--small] [--json FILE] [--no-peers] [--only WORD]``: everything that is promised about speed."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from benchmarks import (
    appending,
    backends,
    compactions,
    contexts,
    copies,
    idle,
    importing,
    long_run,
    million,
    opening,
    peers,
    postgres,
    sqlite_appending,
    stalls,
    steps,
    token_estimates,
)
from benchmarks.measuring import Figure, message, seconds_of
from harness.session import Session
from storage.jsonl import JsonlStorage

_PEERS = Path(__file__).parent / ".peers"


async def _for_peers(folder: Path, count: int) -> tuple[float, float]:
    """Our own seconds for what the peers do: an awaited append, and reopening with the whole context."""

    async def append() -> None:
        async with Session.open(JsonlStorage.create(folder / "ours.jsonl", durability="os")) as session:
            for _ in range(count):
                await session.append_message(message())

    async def reload() -> None:
        async with Session.open(JsonlStorage.open(folder / "ours.jsonl")) as session:
            await session.build_context()

    return await seconds_of(append) / count, await seconds_of(reload)


def _benchmarks(
    folder: Path, *, small: bool, beside: Path | None
) -> list[tuple[str, str, Callable[[], Awaitable[list[Figure]]]]]:
    """(name, event loop, what makes the figures), in order; those that need a session use the one that opening made."""
    many, huge = (1_000, 5_000) if small else (10_000, 100_000)
    rounds = 3 if small else 9
    session, large = folder / "session.jsonl", folder / "large.jsonl"
    found: list[tuple[str, str, Callable[[], Awaitable[list[Figure]]]]] = [
        (f"append os {loop}", loop, partial(appending.awaited_without_sync, folder, loop, rounds * 3, 200))
        for loop in ("asyncio", "trio")
        if appending.is_supported(loop)
    ]
    # Before the large sessions: what those leave behind makes the collector slow.
    found += [
        ("step", "asyncio", partial(steps.overhead, folder, 20, rounds, beside)),
        ("cancel", "asyncio", partial(steps.quiet_after_cancel, folder, 5 if small else 50)),
        ("append fsync", "asyncio", partial(appending.awaited_with_sync, folder, rounds, 20 if small else 100)),
        ("append as it grows", "asyncio", partial(appending.as_it_grows, folder, many)),
        ("append entry files", "asyncio", partial(appending.entry_files, folder, rounds, 10 if small else 40)),
        ("append sqlite fsync", "asyncio", partial(sqlite_appending.one_at_a_time, folder, "fsync", rounds, 40)),
        ("append sqlite os", "asyncio", partial(sqlite_appending.one_at_a_time, folder, "os", rounds, 200)),
        ("append sqlite 64 os", "asyncio", partial(sqlite_appending.side_by_side, folder, "os", rounds, 20)),
        ("append sqlite 64 fsync", "asyncio", partial(sqlite_appending.side_by_side, folder, "fsync", 3, 5)),
        ("open", "asyncio", partial(opening.open_and_index, session, rounds, many)),
        ("open large", "asyncio", partial(opening.open_and_index, large, 3, huge)),
        ("context", "asyncio", partial(contexts.whole_and_trimmed, session, rounds)),
        ("context large", "asyncio", partial(contexts.whole_and_trimmed, large, 3)),
        ("compaction", "asyncio", partial(compactions.deciding, (1_000, huge), rounds)),
        ("summary", "asyncio", partial(compactions.extracting, rounds)),
        ("long run", "asyncio", partial(long_run.simulation, folder, *((60, 8_192) if small else (2_000, 32_768)))),
        ("token estimates", "asyncio", token_estimates.errors),
        ("stall append 1", "asyncio", partial(stalls.appending, folder, 1, 200 if small else 2_000)),
        ("stall append 64", "asyncio", partial(stalls.appending, folder, 64, 10 if small else 100)),
        ("stall open", "asyncio", partial(stalls.opening, large)),
        ("stall context", "asyncio", partial(stalls.building, session)),
        ("fork", "asyncio", partial(copies.forking, session, folder, rounds)),
        ("list", "asyncio", partial(copies.listing, folder / "shelf", 100 if small else 3_000)),
    ]
    return found


def main() -> None:
    """Run, print, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a small size, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here as JSON")
    parser.add_argument("--no-peers", action="store_true", help="leave out the other libraries")
    parser.add_argument("--only", default="", help="only benchmarks with this word in their name")
    options = parser.parse_args()
    console = Console()
    figures: list[Figure] = []
    if options.only in "import":
        figures += importing.starting()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, loop, make in _benchmarks(folder, small=options.small, beside=None if options.no_peers else _PEERS):
            if options.only in title or (title == "open" and options.only) or (title == "open large" and options.only):
                figures += anyio.run(make, backend=loop)
            if title == "open large" and not options.only:
                figures += opening.peak_memory(folder / "large.jsonl")
        if options.only in "idle":
            figures += idle.idle_sessions(folder / "idle", 100 if options.small else 1_000)
        if options.only in "postgres":
            figures += postgres.measure(small=options.small)
        sheets: list[backends.Sheet] = []
        if options.only in "backends":
            made, sheets = backends.measure(small=options.small, peers=None if options.no_peers else _PEERS)
            figures += made
        if options.only in "million" and not options.small:
            sheets.append(million.measure())
        beside: list[tuple[str, float, float]] = []
        if not options.no_peers and not options.only:
            count = 200 if options.small else 2_000
            append, reload = anyio.run(_for_peers, folder, count)
            beside = [("branchline, JSONL, os", append, reload)]
            beside += [
                (one.name, one.append, one.reload) for one in peers.measure(_PEERS, count, 1 if options.small else 3)
            ]
    _show(console, figures, beside)
    backends.show(sheets)
    if options.json is not None:
        found = {
            "figures": [one.to_json() for one in figures],
            "peers": beside,
            "tables": [asdict(sheet) for sheet in sheets],
        }
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _show(console: Console, figures: list[Figure], beside: list[tuple[str, float, float]]) -> None:
    table = Table("what", "measured", "promised", "", "more")
    for one in figures:
        promised = "" if one.limit is None else f"{'≥' if one.at_least else '≤'} {one.limit:g} {one.unit}"
        holds = {None: "", True: "holds", False: "MISSED"}[one.holds]
        table.add_row(one.name, f"{one.value:.2f} {one.unit}", promised, holds, one.note)
    console.print(table)
    if beside:
        others = Table("beside others", "awaited append of 1 KB", "reopen with its context")
        for name, append, reload in beside:
            others.add_row(name, f"{append * 1e6:,.0f} µs", f"{reload * 1e3:,.1f} ms")
        console.print(others)


if __name__ == "__main__":
    main()
