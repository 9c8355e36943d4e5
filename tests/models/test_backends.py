"""The backends that users swap in their tests, and the fixtures that do it for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import AgentHarness
from harness.testing import ScriptedModel, each_backend
from harness.testing.backends import BACKENDS, Backend, backend_of

pytestmark = pytest.mark.anyio

REPOSITORY = Path(__file__).parents[2]

CONFTEST = """
from harness.testing.fixtures import anyio_backend, backend, session

__all__ = ["anyio_backend", "backend", "session"]
"""
TESTS = """
import sniffio
import pytest

from harness import AgentHarness
from harness.testing import ScriptedModel

seen = []


@pytest.mark.anyio
async def test_an_agent(session, backend):
    reply = await AgentHarness(session, ScriptedModel(["Yes."])).prompt("Really?")
    assert reply.text == "Yes."
    seen.append((backend.name, sniffio.current_async_library()))


def test_it_ran_everywhere(backend):
    assert [loop for name, loop in seen if name == backend.name] == ["asyncio", "trio"]
"""


def test_fixtures_run_a_test_everywhere(tmp_path: Path) -> None:
    """Imported in a conftest, without a plugin, they run each test on all backends and both event loops."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_app.py").write_text(TESTS)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "12 passed" in ran.stdout


async def test_each_backend_is_empty_and_remembers(tmp_path: Path) -> None:
    """The three backends, each with nothing in it; a session that is opened again is the same one."""
    names: list[str] = []
    for backend in each_backend(tmp_path):
        names.append(backend.name)
        assert len(await backend.repository.list()) == 0
        async with backend.session() as session:
            await AgentHarness(session, ScriptedModel(["Yes."])).prompt("Really?")
        async with backend.session(mode="read") as session:
            context = await session.build_context()
        assert [message.text for message in context.messages] == ["Really?", "Yes."]
    assert tuple(names) == BACKENDS


async def test_a_fork_goes_to_the_same_shelf(tmp_path: Path) -> None:
    """The repository of a backend is where a fork may go."""
    for backend in each_backend(tmp_path):
        async with backend.session() as session:
            await session.append_session_name("first")
            async with await session.fork(into=backend.repository) as fork:
                assert await fork.name() == "first"
        assert len(await backend.repository.list()) == 2


def test_there_is_no_other(tmp_path: Path) -> None:
    """A name that is none is told with those that are."""
    assert isinstance(backend_of("memory", tmp_path), Backend)
    with pytest.raises(ValueError, match="memory, jsonl, entry_files, sqlite"):
        backend_of("tape", tmp_path)
