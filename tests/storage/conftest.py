"""What the tests of the storage share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.places import PLACES, EntryFilePlace, JsonlPlace, Place, place


@pytest.fixture(params=PLACES)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place for a session, of each backend in turn."""
    return place(request.param, tmp_path)


@pytest.fixture(params=PLACES[1:])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place on disk, of each backend in turn."""
    return place(request.param, tmp_path)


@pytest.fixture
def jsonl(tmp_path: Path) -> JsonlPlace:
    """A place in one file."""
    return JsonlPlace(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> EntryFilePlace:
    """A place in a folder of files."""
    return EntryFilePlace(tmp_path)
