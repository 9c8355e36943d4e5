"""The listing shows everything that is on the shelf, newest first, and writes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.jsonl_repository import JsonlRepository
from storage.repository import SessionPage
from tests.cli.conftest import CORRUPT, Command


def shelf(command: Command) -> None:
    """A good session, a damaged one, one of another version, an empty one, and a side file."""
    names = ["00_valid", "15_missing_header", "27_version_99", "13_empty_file", "03_corrupt_middle_line"]
    command.put(*(CORRUPT / f"{name}.jsonl" for name in names))
    for age, name in enumerate(names):
        os.utime(command.root / f"{name}.jsonl", (1_700_000_000, 1_700_000_000 - 1000 * age))
    (command.root / "00_valid.jsonl.lock").write_text("")


def test_newest_first_and_damaged_ones_marked(command: Command) -> None:
    """Each session has its line; those that cannot be opened say why, and hide no other."""
    shelf(command)
    ran = command("sessions")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "00_valid",
        "15_missing_header",
        "27_version_99",
        "13_empty_file",
        "03_corrupt_middle_line",
    ]
    assert "[" not in lines[0] and lines[0].endswith("m1")
    assert "[damaged: " in lines[1] and "[another version: " in lines[2] and "[empty: " in lines[3]


def test_deep_finds_damage_in_the_middle(command: Command) -> None:
    """A listing looks at both ends of a file; --deep looks at all of it, and counts."""
    shelf(command)
    rows = {row["id"]: row for row in command("sessions", "--deep", "--json").rows}
    assert rows["03_corrupt_middle_line"]["problemCode"] == "damaged_session"
    assert rows["00_valid"]["entries"] == 4 and rows["00_valid"]["problem"] is None


def test_listing_writes_nothing(command: Command) -> None:
    """Neither listing changes a byte or makes a file."""
    shelf(command)
    before = command.files()
    for arguments in ((), ("--deep",), ("--json",)):
        command("sessions", *arguments)
    assert command.files() == before


def test_a_root_that_is_no_folder(command: Command) -> None:
    """A sessions folder that cannot be one is an error that names it."""
    command.root.write_text("a file")
    ran = command("sessions")
    assert ran.code == 1 and str(command.root) in ran.error


def test_both_kinds_of_session(command: Command) -> None:
    """Folders of entry files are listed beside files of lines."""
    import anyio

    from storage.entry_files import EntryFileStorage

    shelf(command)

    async def make() -> None:
        storage = await EntryFileStorage.create(command.root / "folder-1")
        storage.close()

    anyio.run(make)
    assert command("sessions").out.startswith("folder-1 ")
    assert command("tree", "folder").code == 0


@pytest.mark.parametrize("deep", [False, True])
def test_what_moves_up_between_two_pages_is_not_missed(
    command: Command, monkeypatch: pytest.MonkeyPatch, deep: bool
) -> None:
    """A session that is written to while the pages are read comes on one that was read; it is listed all the same, once."""
    monkeypatch.setattr("harness.cli.sessions.PAGE", 10)
    monkeypatch.setattr("harness.cli.sessions.DEEP_PAGE", 10)
    names = [f"s{number:02}" for number in range(25)]
    command.root.mkdir(parents=True)
    for age, name in enumerate(names):
        (command.root / f"{name}.jsonl").write_bytes((CORRUPT / "00_valid.jsonl").read_bytes())
        os.utime(command.root / f"{name}.jsonl", (1_700_000_000, 1_700_000_000 - 1000 * age))
    usual = JsonlRepository.list
    read_whole: list[str] = []
    written_to: list[Path] = []

    async def busy(
        self: JsonlRepository, *, after: str | None = None, limit: int = 50, deep: bool = False
    ) -> SessionPage:
        page = await usual(self, after=after, limit=limit, deep=deep)
        if deep:
            read_whole.extend(summary.id for summary in page)
        if limit == 10 and page.after is not None and not written_to:
            written_to.append(command.root / "s24.jsonl")
            os.utime(written_to[0])
        return page

    monkeypatch.setattr(JsonlRepository, "list", busy)
    rows = command("sessions", "--json", *(["--deep"] if deep else [])).rows
    assert written_to
    assert [row["id"] for row in rows] == ["s24", *names[:24]]
    if deep:
        assert len(read_whole) < 25 + 11  # all once, and once more only the page that had something new
