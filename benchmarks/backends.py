"""``python -m benchmarks.backends [--small] [--no-peers] [--only WORD]``: all backends in one run, and others beside them.

Ours and theirs are measured by the same code (``peer_scripts/store_driver.py``), each in a process of its own; what is ours
has its floor beside it, in the same process and in turn (``benchmarks/our_stores.py``). PostgreSQL is a server of the run's
own. The syncs are counted from outside, by ``strace -f -c`` on the process (for PostgreSQL: on the server and all it
starts), in two runs of different length whose difference holds the appends alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import TEXT, Figure
from benchmarks.peer_scripts.store_driver import Plan
from benchmarks.peers import environment
from storage.protocols import Durability
from tests.postgres_server import PostgresServer, binaries

_ROOT = Path(__file__).parents[1]
_SCRIPTS = Path(__file__).parent / "peer_scripts"
_SECONDS = 240
_WIDTH = 120
_SYNCS = ("fsync", "fdatasync", "sync_file_range", "msync")
_STRACE = ["strace", "-f", "-c", "-e", "trace=" + ",".join(_SYNCS)]
_COUNTED = (10, 60)
_COUNTED_SIDE_BY_SIDE = (2, 7)
_SIDE_BY_SIDE = 64

HEAVY = (
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "psycopg[binary]",
    "google-adk[db]",
    "aiosqlite",
)
"""What takes a minute to install; in an environment beside the other peers', and left out of ``--small``."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A row of the tables: a backend with its durability, or another library's store as it comes."""

    name: str
    command: tuple[str, ...]
    durability: Durability | None = None
    on_disk: bool = True
    postgres: bool = False
    few: bool = False
    """An append takes many milliseconds: fewer of them."""
    reads: bool = True
    """Whether reading is measured here: it does not depend on the durability."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: its title, the names of its columns, and rows of cells as they are shown."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def show(sheets: Sequence[Sheet]) -> None:
    """Print the tables; where nobody looks at a terminal, as wide as they need."""
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    for sheet in sheets:
        table = Table(title=sheet.title, title_justify="left")
        for name in sheet.columns:
            table.add_column(name, no_wrap=not name)
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)


def measure(*, small: bool, peers: Path | None, only: str = "") -> tuple[list[Figure], list[Sheet]]:
    """The promised ratios, and the tables. ``peers``: where their environments are; ``None`` leaves them out."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = _started(stack)
        found: dict[Contestant, dict[str, Any]] = {}
        for one in _ours(server is not None) + _theirs(peers, small=small, with_server=server is not None):
            if only in one.name:
                result = _measured(one, folder, server, small=small)
                if result is not None:
                    found[one] = result
    return _figures(found), [_appends(found), _many(found), _stalls(found), _reads(found, small=small)]


def _ours(with_server: bool) -> list[Contestant]:
    names = {"jsonl": "JSONL", "entry-files": "entry files", "sqlite": "SQLite"}
    if with_server:
        names["postgres"] = "PostgreSQL"
    module = (sys.executable, "-m", "benchmarks.our_stores")
    made = [Contestant("memory", (*module, "memory", "os"), "os", on_disk=False)]
    levels: tuple[Durability, ...] = ("fsync", "os")
    for word, name in names.items():
        for level in levels:
            command = (*module, word, level)
            postgres = word == "postgres"
            made.append(Contestant(f"{name}, {level}", command, level, postgres=postgres, reads=level == "os"))
    return made


def _theirs(peers: Path | None, *, small: bool, with_server: bool) -> list[Contestant]:
    if peers is None:
        return []
    made: list[Contestant] = []
    try:
        python = str(environment(peers))
        made.append(Contestant("openai-agents, SQLiteSession", (python, str(_SCRIPTS / "store_openai_agents.py"))))
        made.append(Contestant("pi-durable-python, SQLite", (python, str(_SCRIPTS / "store_pi_durable.py"))))
        if small:
            return made
        python = str(environment(peers / "heavy", HEAVY))
    except subprocess.CalledProcessError as error:
        print(f"some peers could not be installed ({error}); their figures are left out", file=sys.stderr)
        return made
    langgraph = (python, str(_SCRIPTS / "store_langgraph.py"))
    made.append(Contestant("langgraph, AsyncSqliteSaver", langgraph))
    if with_server:
        made.append(Contestant("langgraph, AsyncPostgresSaver", langgraph, postgres=True))
    adk = (python, str(_SCRIPTS / "store_adk.py"))
    return [*made, Contestant("google-adk, DatabaseSessionService", adk, few=True)]


def _started(stack: ExitStack) -> PostgresServer | None:
    folder = binaries()
    if folder is None or find_spec("psycopg") is None:
        print("there is no PostgreSQL server or psycopg here; its figures are left out", file=sys.stderr)
        return None
    server = PostgresServer(folder, shared_buffers="256MB", max_wal_size="4GB")
    stack.callback(server.stop)
    server.start()
    return server


def _measured(one: Contestant, folder: Path, server: PostgresServer | None, *, small: bool) -> dict[str, Any] | None:
    parts = ["grow", "side", "stall"]
    if one.reads:
        parts += ["read", "fork"]
    if one.on_disk and one.reads:
        parts.append("weigh")
    plan = Plan(TEXT, tuple(parts), count=2 if small or one.few else 10, weighed=200 if small or one.few else 1_000)
    if small:
        plan = replace(plan, sizes=(100, 300), large=3_000, rounds=1, stall_seconds=0.1)
    printed = _run(one, plan, folder, server)
    if printed is None:
        return None
    found: dict[str, Any] = json.loads(printed)
    if one.on_disk and not (small and one.durability != "fsync"):
        found["syncs"] = _syncs(one, folder, server, 1, _COUNTED)
        if not small:
            found["syncs_of_64"] = _syncs(one, folder, server, _SIDE_BY_SIDE, _COUNTED_SIDE_BY_SIDE)
    return found


def _run(one: Contestant, plan: Plan, folder: Path, server: PostgresServer | None, *before: str) -> str | None:
    """What it printed; ``None``, and a word on stderr, if it failed."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        dsn = None if server is None or not one.postgres else _new_database(server)
        command = [*before, *one.command, place, json.dumps(asdict(replace(plan, dsn=dsn)))]
        try:
            done = subprocess.run(
                command, cwd=_ROOT, capture_output=True, text=True, timeout=_SECONDS, check=False, env=_environment()
            )
        except subprocess.TimeoutExpired:
            print(f"{one.name}: not done within {_SECONDS} s; left out", file=sys.stderr)
            return None
    if done.returncode != 0:
        print(f"{one.name}: {done.stderr.strip().splitlines()[-1:]}; left out", file=sys.stderr)
        return None
    return done.stdout.splitlines()[-1]


def _environment() -> dict[str, str]:
    """A peer that would tell somebody that it was used does not."""
    return dict(os.environ) | {"DO_NOT_TRACK": "1", "OPENAI_AGENTS_DISABLE_TRACING": "1"}


def _new_database(server: PostgresServer) -> str:
    import psycopg

    name = f"bench_{time.monotonic_ns()}"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.dsn(name)


def _syncs(
    one: Contestant, folder: Path, server: PostgresServer | None, sessions: int, counts: tuple[int, int]
) -> float | None:
    """Syncs per append: in two runs, and what the longer one has more by the appends that it has more."""
    if which("strace") is None:
        return None
    found: list[int] = []
    for count in counts:
        plan = Plan(TEXT, ("count",), count=count, sessions=sessions)
        report = folder / "strace"
        report.unlink(missing_ok=True)
        if one.postgres:
            assert server is not None
            with _traced(server, report) as attached:
                ran = attached and _run(one, plan, folder, server) is not None
        else:
            ran = _run(one, plan, folder, server, *_STRACE, "--seccomp-bpf", "-o", str(report)) is not None
        if not ran or not report.exists():
            return None
        found.append(_calls(report))
    return (found[1] - found[0]) / (counts[1] - counts[0]) / sessions


@contextmanager
def _traced(server: PostgresServer, report: Path) -> Generator[bool]:
    """Count the calls of all the server's processes, also of those that it starts meanwhile; whether that is allowed."""
    first = (server.folder / "data" / "postmaster.pid").read_text().splitlines()[0]
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", first], capture_output=True, text=True, check=True)
    processes = [part for process in (first, *listed.stdout.split()) for part in ("-p", process)]
    strace = subprocess.Popen([*_STRACE, "-o", str(report), *processes], stderr=subprocess.PIPE, text=True)
    assert strace.stderr is not None
    try:
        said = strace.stderr.readline()
        yield "attached" in said
    finally:
        strace.send_signal(signal.SIGINT)
        strace.communicate()


def _calls(report: Path) -> int:
    """The sum of the calls in strace's summary, whose columns are: share, seconds, each, calls, perhaps errors, name."""
    rows = [line.split() for line in report.read_text().splitlines()]
    return sum(int(row[3]) for row in rows if len(row) >= 5 and row[-1] in _SYNCS)


def _figures(found: Mapping[Contestant, dict[str, Any]]) -> list[Figure]:
    """What is promised: one at a time with syncs, and 64 side by side without."""
    made: list[Figure] = []
    for one, figures in found.items():
        if one.durability is None or not one.on_disk:
            continue
        if one.durability == "fsync":
            size, grown = list(figures["grow"].items())[-1]
            note = f"at {int(size):,} entries, {_microseconds(grown['append'])}"
            made.append(Figure(f"{one.name}: append / its engine's floor", grown["ratio"], "×", 1.5, note))
        else:
            beside = figures["side"][str(_SIDE_BY_SIDE)]
            note = f"{_microseconds(beside['append'])} each"
            name = f"{one.name}: {_SIDE_BY_SIDE} sessions side by side / its engine's floor"
            made.append(Figure(name, beside["ratio"], "×", 1.5, note))
    return made


def _appends(found: Mapping[Contestant, dict[str, Any]]) -> Sheet:
    sizes = list(next(iter(found.values()))["grow"]) if found else []
    columns = ("", *(f"at {int(size):,}" for size in sizes), "÷ floor", "syncs", "bytes on disk")
    rows: list[tuple[str, ...]] = []
    for one, figures in found.items():
        grown = list(figures["grow"].values())
        weight = figures.get("bytes")
        times, ratios = _times_and_ratios(grown)
        bytes_each = "" if weight is None else f"{weight:,.0f}"
        rows.append((one.name, *times, ratios, _count(figures.get("syncs")), bytes_each))
    return Sheet("an awaited append of 1 KB to a session of so many entries, in µs", columns, tuple(rows))


def _many(found: Mapping[Contestant, dict[str, Any]]) -> Sheet:
    rows: list[tuple[str, ...]] = []
    for one, figures in found.items():
        times, ratios = _times_and_ratios(list(figures["side"].values()))
        rows.append((one.name, *times, ratios, _count(figures.get("syncs_of_64"))))
    title = "so many new sessions that append side by side: the time over the number of all appends, in µs"
    return Sheet(title, ("", "1", "16", "64", "÷ floor", "syncs of 64"), tuple(rows))


def _stalls(found: Mapping[Contestant, dict[str, Any]]) -> Sheet:
    rows: list[tuple[str, ...]] = []
    for one, figures in found.items():
        held = [f"{stall[name] * 1e3:,.1f}" for stall in figures["stall"].values() for name in ("p99", "worst")]
        rows.append((one.name, *held))
    title = "how long the event loop is held while so many sessions append, in ms"
    return Sheet(title, ("", "1: p99", "worst", "64: p99", "worst"), tuple(rows))


def _times_and_ratios(found: Sequence[Mapping[str, float | None]]) -> tuple[list[str], str]:
    times = [f"{(one['append'] or 0) * 1e6:,.0f}" for one in found]
    ratios = [ratio for one in found if (ratio := one["ratio"]) is not None]
    return times, " · ".join(f"{ratio:.2f}" for ratio in ratios)


def _reads(found: Mapping[Contestant, dict[str, Any]], *, small: bool) -> Sheet:
    size, large = ("300", "3,000") if small else ("10,000", "100,000")
    columns = ("", f"reopen {size}, show all", f"last 50 of {large}", "the same, opening it", f"fork of {size}")
    rows: list[tuple[str, ...]] = []
    for one, figures in found.items():
        if "reload" in figures:
            names = ("reload", "last", "last_from_nothing", "fork")
            rows.append((one.name.removesuffix(", os"), *(_milliseconds(figures[name]) for name in names)))
    return Sheet("reading, and forking", columns, tuple(rows))


def _microseconds(value: float) -> str:
    return f"{value * 1e6:,.0f} µs"


def _milliseconds(value: float | None) -> str:
    return "none" if value is None else f"{value * 1e3:,.1f} ms" if value < 1 else f"{value * 1e3:,.0f} ms"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def main() -> None:
    """Run this part alone, and print it."""
    parser = argparse.ArgumentParser(prog="benchmarks.backends", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a small size, to see that it runs")
    parser.add_argument("--no-peers", action="store_true", help="leave out the other libraries")
    parser.add_argument("--only", default="", help="only backends and peers with this word in their name")
    options = parser.parse_args()
    peers = None if options.no_peers else Path(__file__).parent / ".peers"
    figures, sheets = measure(small=options.small, peers=peers, only=options.only)
    for figure in figures:
        print(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.note}) {figure.holds}")
    show(sheets)


if __name__ == "__main__":
    main()
