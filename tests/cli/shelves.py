"""The kinds of places that sessions can be kept in, as ``--root`` takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cli.places import Section, kind_of_place
from tests.postgres_server import PostgresServer

KINDS = ("jsonl", "entry files", "sqlite", "postgres")


def new_root(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """A place of that kind that holds nothing yet, as ``--root`` takes it."""
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return server.new_schema()
    return str(folder / "chats.sqlite") if kind == "sqlite" else str(folder / "chats")


def section_of(kind: str, root: str) -> Section:
    """Where a session of that kind is made."""
    shelf: Any = kind_of_place(root)
    return shelf.sections[-1] if kind == "entry files" else shelf.new
