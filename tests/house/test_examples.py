"""The examples run as they stand, with warnings as errors, and print what they are there to show."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from harness import Session, SqliteRepository, TurnEndEntry
from harness.testing import Reply, ScriptedServer
from tests.house.pages import REPOSITORY
from tests.postgres_server import PostgresServer

EXAMPLES = REPOSITORY / "examples"

PRINTED = {
    "branch_and_compare.py": [
        "first: ['Name a data structure for conversations.', 'A list.']",
        "second: ['Name a data structure for conversations. One can go back in them.', 'A tree.']",
        "it was told: The other answer was a list.",
        "forked: Structures, 5 messages, the last: Because one can go back.",
    ],
    "fastapi_endpoint.py": [
        '20 users: {"ended": "completed"}',
        '{"text": "One, "}, and the client leaves',
        '{"ended": "suspended"}',
        "409 {'error': 'pending_call'}",
        "after a restart: To Bob: Hello!",
        "Sent to Bob. Turns: cancelled, completed",
        "404",
    ],
    "fifteen_lines.py": ["I am a script. What I say is written in chat.jsonl."],
    "first.py": ["It is called Atlas."],
    "own_backend.py": ["Remember me.", "the conformance suite found nothing wrong"],
    "own_tool.py": [
        "asked: Order a coat for Lagos.",
        "toolResult: 4 degrees celsius",
        "toolResult: KeyError: 'Atlantis'",
        "assistant: Lagos is warmer, and a coat for Oslo is on its way.",
        "ordered: ['Oslo']",
    ],
    "swap_backends.py": [
        f"{name}: Of six times seven. It was shown: ['What is six times seven?', 'Forty-two.', 'What did we talk about?']"
        for name in ("memory", "jsonl", "entry_files", "sqlite")
    ],
}


SLOW_DISK = """
import time
from storage.sqlite import SqliteStorage
from uvicorn.main import main

commit = SqliteStorage.commit

def slow(storage, records):
    time.sleep(0.2)
    return commit(storage, records)

SqliteStorage.commit = slow
main()
"""


def environment(**more: str) -> dict[str, str]:
    """Without keys and without a database, with this repository installed."""
    others = ("OPENAI_", "ANTHROPIC_", "DATABASE_URL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {**kept, "PYTHONPATH": str(REPOSITORY), **more}


def run(example: Path, folder: Path, **more: str) -> list[str]:
    """What ``example`` prints when it is run in ``folder``."""
    result = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.parametrize("example", [pytest.param(path, id=path.name) for path in sorted(EXAMPLES.glob("*.py"))])
def test_examples_run(example: Path, tmp_path: Path):
    """Each example runs in an empty folder and prints its lines, in order; none is without such lines here."""
    printed = run(example, tmp_path)
    expected = PRINTED[example.name]
    assert [line for line in printed if line in expected] == expected


def test_the_service_runs_over_postgresql(postgres_server: PostgresServer, tmp_path: Path):
    """The same service, over a database server."""
    example = EXAMPLES / "fastapi_endpoint.py"
    printed = run(example, tmp_path, DATABASE_URL=postgres_server.new_schema())
    assert printed == run(example, tmp_path)
    assert set(PRINTED[example.name]) <= set(printed)


def test_the_service_ends_when_its_turns_are_on_record(tmp_path: Path):
    """SIGTERM in the middle of answers: the server cancels them and would end the process at once; the service waits."""
    command = [sys.executable, "-c", SLOW_DISK, "--app-dir", str(EXAMPLES), "fastapi_endpoint:app"]
    model = ScriptedServer(lambda _: Reply("and so on " * 1_000, chunk_size=5, pause=0.1))
    with model, socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        service = subprocess.Popen(
            [*command, "--fd", str(number), "--timeout-graceful-shutdown", "0"],
            cwd=tmp_path,
            env=environment(OPENAI_API_KEY="any", OPENAI_BASE_URL=model.base_url),
            pass_fds=[number],
            stderr=subprocess.DEVNULL,
        )
        place = f"http://127.0.0.1:{listening.getsockname()[1]}/chats"
        try:
            reasons = anyio.run(ends_after_the_end, service, place, tmp_path / "chats.db")
        finally:
            service.kill()
            service.wait()
    assert reasons == ["cancelled"] * 3


async def ends_after_the_end(service: subprocess.Popen[bytes], place: str, file: Path) -> list[str]:
    """Begin three turns, end the service, and look at how they ended."""
    count = 3
    async with AsyncExitStack() as stack:
        client = httpx.AsyncClient(trust_env=False, timeout=60, headers={"X-User": "ada"})
        await stack.enter_async_context(client)
        for number in range(count):
            streamed = client.stream("POST", f"{place}/c{number}/turns", json={"prompt": "Count."})
            response = await stack.enter_async_context(streamed)
            assert await anext(response.aiter_lines()) == '{"text": "and s"}'
        service.terminate()
        await anyio.to_thread.run_sync(service.wait, 60)
    chats = SqliteRepository(file)
    found: list[str] = []
    for number in range(count):
        async with Session.open(chats.open(f"ada.c{number}", mode="read")) as session:
            found += [entry.reason for entry in await session.entries() if isinstance(entry, TurnEndEntry)]
    return found


def test_the_smallest_app_is_small():
    """The app of fifteen lines has no more than that."""
    text = (EXAMPLES / "fifteen_lines.py").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip() and not line.strip().startswith('"""')]) <= 15


def test_the_first_example_remembers(tmp_path: Path):
    """A second process finds what the first one left: twice as many entries."""
    counts = [int(run(EXAMPLES / "first.py", tmp_path)[-1].split()[0]) for _ in range(2)]
    assert counts[0] > 0
    assert counts[1] == 2 * counts[0] - 1, "the request header is written once"
