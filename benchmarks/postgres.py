"""PostgreSQL: awaited appends against the driver's own INSERTs, and four processes against pgbench doing the same.

``python -m benchmarks.postgres`` runs these alone, on a server of its own that syncs. The floors write the same bytes into
a table of the same shape, and nothing else: no compare, no fence, no order.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path

import anyio

from benchmarks.measuring import TEXT, Figure, message, ratio, seconds_of
from storage import EntryLog, PostgresRepository
from storage.protocols import Durability
from tests.postgres_server import PostgresServer, binaries

SIDE_BY_SIDE = 64
PROCESSES = 4
LINE = (
    '{"seq":1,"type":"message","id":"01a2297b-f7b5-765d-8f66-825139ede58d","parentId":null,"timestamp":'
    f'"2026-11-29T22:45:19.925Z","message":{{"role":"user","content":"{"x" * len(TEXT)}","timestamp":1795992943201}}}}'
).encode()

_FLOOR = "CREATE TABLE IF NOT EXISTS floor (session uuid, seq bigint, data bytea, PRIMARY KEY (session, seq))"
_INSERT = "INSERT INTO floor VALUES (%s, %s, %s)"


async def awaited(dsn: str, durability: Durability, rounds: int, count: int) -> list[Figure]:
    """One session, one append at a time, against psycopg's prepared INSERT in a thread, as an event loop needs it."""
    import psycopg

    ours: list[float] = []
    floors: list[float] = []
    log = await EntryLog.open(await PostgresRepository(dsn, durability=durability).create())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_FLOOR)
        connection.execute(f"SET synchronous_commit = {'on' if durability == 'fsync' else 'off'}".encode())

        async def append() -> None:
            for number in range(count):
                await log.append_message(message(number * 2))

        async def insert() -> None:
            session = uuid.uuid4()
            for seq in range(count):
                values = (session, seq, LINE)
                await asyncio.to_thread(connection.execute, _INSERT, values, prepare=True, binary=True)

        for _ in range(rounds):
            ours.append(await seconds_of(append) / count)
            floors.append(await seconds_of(insert) / count)
    await log.aclose()
    limit = 1.5 if durability == "fsync" else None
    note = f"{statistics.median(ours) * 1e6:,.0f} µs against {statistics.median(floors) * 1e6:,.0f} µs"
    name = f"append, PostgreSQL, {durability} / psycopg's INSERT in a thread"
    return [Figure(name, ratio(ours, floors), "×", limit, note)]


async def side_by_side(dsn: str, durability: Durability, rounds: int, count: int) -> list[Figure]:
    """64 sessions over four connections, against 64 connections of psycopg on the same event loop."""
    import psycopg

    ours: list[float] = []
    floors: list[float] = []
    repository = PostgresRepository(dsn, durability=durability)
    logs = [await EntryLog.open(await repository.create()) for _ in range(SIDE_BY_SIDE)]
    connections = [await psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in logs]
    await connections[0].execute(_FLOOR)
    for connection in connections:
        await connection.execute(f"SET synchronous_commit = {'on' if durability == 'fsync' else 'off'}".encode())

    async def append(log: EntryLog) -> None:
        for number in range(count):
            await log.append_message(message(number * 2))

    async def insert(connection: psycopg.AsyncConnection) -> None:
        session = uuid.uuid4()
        for seq in range(count):
            await connection.execute(_INSERT, (session, seq, LINE), prepare=True, binary=True)

    async def append_all() -> None:
        await asyncio.gather(*map(append, logs))

    async def insert_all() -> None:
        await asyncio.gather(*map(insert, connections))

    for _ in range(rounds):
        ours.append(await seconds_of(append_all) / count / SIDE_BY_SIDE)
        floors.append(await seconds_of(insert_all) / count / SIDE_BY_SIDE)
    for log in logs:
        await log.aclose()
    for connection in connections:
        await connection.close()
    note = f"{1 / statistics.median(ours):,.0f} a second against {1 / statistics.median(floors):,.0f}"
    name = f"append, PostgreSQL, {durability}, 64 side by side / psycopg's INSERT over 64 connections"
    return [Figure(name, ratio(ours, floors), "×", 1.5, note)]


def against_pgbench(server: PostgresServer, rounds: int, duration: int) -> list[Figure]:
    """Appends a second of four processes with 64 sessions each, as a share of pgbench's INSERTs, both synchronous."""
    script = server.folder / "insert.sql"
    script.write_text(
        "\\set session random(1, 1000000000000)\n\\set seq random(1, 1000000000)\n"
        "INSERT INTO floor VALUES (lpad(to_hex(:session::bigint), 32, '0')::uuid, :seq::bigint, "
        f"'{'x' * len(LINE)}'::bytea);\n"  # pgbench takes a colon for the beginning of a variable
    )
    ours: list[float] = []
    floors: list[float] = []
    for _ in range(rounds):
        floors.append(_pgbench(server, script, duration))
        ours.append(_appends(server, duration))
    shares = [1 / one for one in ours]
    note = f"{statistics.median(ours):,.0f} a second against {statistics.median(floors):,.0f}"
    share = ratio([1 / one for one in floors], shares)
    return [
        Figure(
            "appends, 4 processes × 64 sessions / pgbench -c 64 -j 4 -M prepared", share, "", 0.5, note, at_least=True
        )
    ]


def _pgbench(server: PostgresServer, script: Path, duration: int) -> float:
    folder = binaries()
    assert folder is not None
    command = [folder / "pgbench", "-n", "-c", "64", "-j", "4", "-M", "prepared", "-T", f"{duration}", "-f", script]
    found = subprocess.run([*command, server.dsn()], capture_output=True, text=True, check=True)
    rate = re.search(r"tps = ([0-9.]+)", found.stdout)
    assert rate is not None, found.stdout
    return float(rate.group(1))


def _appends(server: PostgresServer, duration: int) -> float:
    programs = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.postgres", "worker", server.dsn(), f"{duration}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
    counts = [int(program.communicate()[0]) for program in programs]
    return sum(counts) / duration


async def _work(dsn: str, duration: int) -> None:
    repository = PostgresRepository(dsn)
    logs = [await EntryLog.open(await repository.create()) for _ in range(SIDE_BY_SIDE)]
    for log in logs:
        await log.append_message(message())
    print("ready", flush=True)
    await anyio.to_thread.run_sync(sys.stdin.readline)
    end = time.perf_counter() + duration
    count = 0

    async def append(log: EntryLog) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await log.append_message(message())
            count += 1

    async with anyio.create_task_group() as group:
        for log in logs:
            group.start_soon(append, log)
    print(count, flush=True)
    for log in logs:
        await log.aclose()


def measure(*, small: bool) -> list[Figure]:
    """All figures, on a server of our own; none where there is no server to be had."""
    folder = binaries()
    if folder is None:
        return []
    server = PostgresServer(folder, shared_buffers="256MB", max_wal_size="4GB")
    rounds = 2 if small else 5
    figures: list[Figure] = []
    try:
        server.start()
        dsn = server.dsn()
        counts: list[tuple[Durability, int]] = [("fsync", 20 if small else 100), ("os", 50 if small else 500)]
        for durability, count in counts:
            figures += asyncio.run(awaited(dsn, durability, rounds, count))
            figures += asyncio.run(side_by_side(dsn, durability, rounds, max(2, count // 10)))
        figures += against_pgbench(server, rounds=1 if small else 3, duration=2 if small else 8)
    finally:
        server.stop()
    return figures


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        anyio.run(_work, sys.argv[2], int(sys.argv[3]))
    else:
        for figure in measure(small="--small" in sys.argv):
            print(f"{figure.name}: {figure.value:.2f} {figure.unit} ({figure.note}) {figure.holds}")
