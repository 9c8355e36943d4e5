"""What the tests of the storage share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.storage.places import PLACES, EntryFilePlace, JsonlPlace, Place, PostgresPlace, place
from tests.storage.postgres_helpers import Proxy


@pytest.fixture(params=PLACES)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place for a session, of each backend in turn."""
    return _place(request, tmp_path)


@pytest.fixture(params=PLACES[1:])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place on disk, of each backend in turn."""
    return _place(request, tmp_path)


def _place(request: pytest.FixtureRequest, folder: Path) -> Place:
    if request.param == "postgres":  # the server is started only for who needs it
        return PostgresPlace(request.getfixturevalue("postgres_server").dsn())
    return place(request.param, folder)


@pytest.fixture(params=["jsonl", "entry files", "sqlite"])
def in_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place whose files can be removed, of each backend in turn."""
    return place(request.param, tmp_path)


@pytest.fixture(params=["jsonl", "entry files"])
def in_files(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place in files of ours, with a file layer that can be watched and broken; of each backend in turn."""
    return place(request.param, tmp_path)


@pytest.fixture
def jsonl(tmp_path: Path) -> JsonlPlace:
    """A place in one file."""
    return JsonlPlace(tmp_path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of sessions."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> EntryFilePlace:
    """A place in a folder of files."""
    return EntryFilePlace(tmp_path)


@pytest.fixture(name="place")
def postgres_place(postgres_server: PostgresServer) -> PostgresPlace:
    """Where the tests of PostgreSQL keep their sessions."""
    return PostgresPlace(postgres_server.dsn())


@pytest.fixture
def dsn(postgres_server: PostgresServer) -> str:
    """An address under which there is nothing yet, not even tables."""
    return postgres_server.new_schema()


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    """What stands between us and the server."""
    with Proxy(postgres_server) as proxy:
        yield proxy
