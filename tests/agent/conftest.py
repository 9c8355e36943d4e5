"""Sessions on two backends, for the tests of the agent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.session import Session
from storage.jsonl import JsonlStorage
from storage.memory import MemoryStorage


@pytest.fixture(params=["memory", "jsonl"])
async def session(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Session]:
    """An open session with nothing in it."""
    storage = MemoryStorage.create() if request.param == "memory" else JsonlStorage.create(tmp_path / "session.jsonl")
    async with Session.open(storage) as session:
        yield session


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The file that ``chat`` is kept in."""
    return tmp_path / "chat.jsonl"


@pytest.fixture
async def chat(place: Path) -> AsyncIterator[Session]:
    """An open session with nothing in it, in a file."""
    async with Session.open(JsonlStorage.create(place)) as session:
        yield session


@pytest.fixture(params=["scope", "native"])
def way(request: pytest.FixtureRequest, anyio_backend_name: str) -> str:
    """How it is cancelled."""
    if request.param == "native" and anyio_backend_name == "trio":
        pytest.skip("trio has no cancellation but by scopes")
    return request.param
