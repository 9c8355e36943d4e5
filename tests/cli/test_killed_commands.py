"""Killed in the middle, ``import``, ``fork`` and ``repair`` have made a whole session or none."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import CORRUPT, Command
from tests.cli.made_sessions import make_large

ENTRIES = 20_000


def temporaries(root: Path) -> list[Path]:
    return [*root.glob(".*.tmp")] if root.exists() else []


def sound(command: Command, source: Path, data: bytes) -> int:
    """Check that every session but the source is whole; how many there are."""
    assert source.read_bytes() == data
    made = [path for path in command.root.glob("*.jsonl") if path != source]
    for path in made:
        assert path.read_bytes().count(b"\n") >= ENTRIES
    return len(made)


def prepared(command: Command, name: str) -> tuple[Path, tuple[str, ...]]:
    """A large file where the command finds it, and the command line."""
    if name == "import":
        return make_large(command.folder / "large.jsonl", ENTRIES), ("import", "large.jsonl")
    source = make_large(command.root / "large.jsonl", ENTRIES)
    if name == "repair":
        with source.open("ab") as file:
            file.write(b'{"type":"message","id":"bad\n')
    return source, (name, "large", *(["--yes"] if name == "repair" else []))


def killed(command: Command, arguments: tuple[str, ...], when: Callable[[], bool]) -> int:
    """Start it, and kill it as soon as ``when`` says so; its exit code."""
    process = command.start(*arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    while process.poll() is None and not when():
        time.sleep(0.0005)
    process.kill()
    return process.wait()


@pytest.mark.parametrize("name", ["import", "fork", "repair"])
def test_killed_while_it_writes(command: Command, name: str) -> None:
    """Killed when its file is half written: there is no new session, and the next run works."""
    source, arguments = prepared(command, name)
    data = source.read_bytes()
    code = killed(command, arguments, lambda: bool(temporaries(command.root)))
    made = sound(command, source, data)
    assert made == 0 or code == 0
    if made == 0:
        ran = command.process(*arguments)
        assert ran.code == 0, ran.err
        assert sound(command, source, data) == 1


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["import", "fork", "repair"])
def test_killed_at_random(command: Command, name: str) -> None:
    """Killed at any moment."""
    source, arguments = prepared(command, name)
    data = source.read_bytes()
    begun = time.monotonic()
    assert command.process(*arguments).code == 0
    whole = time.monotonic() - begun
    for _ in range(10):
        end = time.monotonic() + random.uniform(0, 1.1 * whole)
        killed(command, arguments, lambda end=end: time.monotonic() > end)
        sound(command, source, data)
    assert command.process("verify", "--json").code == (1 if name == "repair" else 0)


def test_an_export_that_is_killed(command: Command) -> None:
    """A file that was to be replaced is the old one or the new one."""
    make_large(command.root / "large.jsonl", ENTRIES)
    target = command.folder / "out.md"
    target.write_text("old")
    arguments = ("export", "large", "--output", "out.md", "--force")
    killed(command, arguments, lambda: bool(temporaries(command.folder)))
    text = target.read_text()
    assert text == "old" or f"{ENTRIES - 1} x" in text


def test_a_deletion_that_was_killed_can_be_finished(command: Command) -> None:
    """The session goes first; what a killed deletion leaves beside it goes when it is called again."""
    command.put(CORRUPT / "00_valid.jsonl")
    (command.root / "gone.jsonl.torn-12").write_text("x")
    (command.root / "gone.blobs").mkdir()
    (command.root / "gone.blobs" / "b").write_text("x")
    before = command.files()
    assert command("delete", "gon", "--yes").code == 2 and command.files() == before
    assert command("delete", "gone", "--yes").code == 0
    assert [*command.files()] == ["00_valid.jsonl"]
