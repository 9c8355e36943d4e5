"""Every damaged file of the collection opens, is refused, or is repaired, as the rules say, within a second (R3–R15)."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Literal, NamedTuple

import anyio
import pytest

from storage import (
    DamagedSessionError,
    EntryLog,
    JsonlStorage,
    SessionError,
    SessionNotFoundError,
    UnsupportedVersionError,
)
from tests.storage.places import committed_lines, said

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[1] / "data" / "pi-files" / "corrupt"


class Fate(NamedTuple):
    """What becomes of a file: ``writable`` or ``readable`` with so many entries, or the error; and what is told."""

    what: Literal["writable", "readable", "refused"]
    entries: int = 0
    told: str = ""
    error: type[SessionError] = SessionError
    repaired: bool = False


def fine(entries: int, told: str = "") -> Fate:
    """It opens, and can be appended to."""
    return Fate("writable", entries, told)


def torn(entries: int) -> Fate:
    """It opens read-only, and can be repaired."""
    return Fate("readable", entries, "unterminated_tail", repaired=True)


def broken(entries: int) -> Fate:
    """It opens for reading; healthy paths work."""
    return Fate("readable", entries, "broken_link")


def refused(error: type[SessionError], told: str) -> Fate:
    """It does not open."""
    return Fate("refused", 0, told, error)


FATES = {
    "00_valid": fine(4),
    "01_torn_last_line": torn(4),
    "03_corrupt_middle_line": refused(DamagedSessionError, "invalid session JSON at line 3: "),
    "04_middle_line_valid_json_not_object": refused(DamagedSessionError, "invalid session record at line 4: "),
    "05_middle_null": refused(DamagedSessionError, "invalid session record at line 4: "),
    "07_unknown_entry_type": fine(5),
    "08_duplicate_id": refused(DamagedSessionError, "was used"),
    "10_missing_parent": broken(5),
    "11_cycle": broken(4),
    "13_empty_file": refused(SessionNotFoundError, "no committed line"),
    "14_whitespace_only": refused(SessionNotFoundError, "no committed line"),
    "15_missing_header": refused(DamagedSessionError, "no session header"),
    "17_bom": fine(4),
    "18_crlf": fine(4),
    "20_invalid_utf8_in_text": refused(DamagedSessionError, "invalid session JSON at line"),
    "21_invalid_utf8_in_id": refused(DamagedSessionError, "invalid session JSON at line"),
    "22_u2028_raw": fine(5),
    "23_lone_surrogate_escaped": fine(5),
    "26_version_4": refused(UnsupportedVersionError, "version 4"),
    "27_version_99": refused(UnsupportedVersionError, "version 99"),
    "28_v1_no_ids": refused(UnsupportedVersionError, "version"),
    "29_v2_hookMessage": refused(UnsupportedVersionError, "version 2"),
    "31_nul_byte_tail": torn(4),
    "33_leaf_to_missing": broken(5),
    "35_blank_lines": fine(4),
    "38_proto_key": fine(6),
    "39_compaction_firstkept_missing": fine(6),
    "41_header_no_cwd": fine(4),
}


def test_all_of_them_are_here() -> None:
    """The table names every file, and no other."""
    assert sorted(FATES) == sorted(path.stem for path in FOLDER.iterdir())


@pytest.fixture(params=sorted(FATES))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Fate]:
    """A copy of a file, and what becomes of it."""
    path = tmp_path / f"{request.param}.jsonl"
    shutil.copyfile(FOLDER / path.name, path)
    return path, FATES[request.param]


@pytest.mark.parametrize("mode", ["read", "write"])
async def test_opening_changes_nothing(case: tuple[Path, Fate], mode: Literal["read", "write"]) -> None:
    """Each is told what is wrong by code or message, with path and line, in a second; not a byte is changed."""
    path, fate = case
    before = path.read_bytes()
    begun = time.process_time()  # what else runs on this machine does not count
    with anyio.fail_after(60):
        if fate.what == "refused":
            with pytest.raises(fate.error) as caught:
                await EntryLog.open(await JsonlStorage.open(path, mode=mode))
            assert type(caught.value) is fate.error
            assert fate.told in caught.value.message
            assert caught.value.path == str(path)
            assert "\n" not in str(caught.value)
        else:
            log = await EntryLog.open(await JsonlStorage.open(path, mode=mode))
            assert len(await log.entries()) == fate.entries
            assert fate.told in ("", *[warning.code for warning in log.warnings])
            assert log.writable == (fate.what == "writable" and mode == "write")
            await log.aclose()
    assert time.process_time() - begun < 1
    assert path.read_bytes() == before
    others = {found.name for found in path.parent.iterdir()} - {path.name, f"{path.name}.lock"}
    assert others == set()


async def test_going_on(case: tuple[Path, Fate]) -> None:
    """With repair asked for: what can be written is appended to and opens again.

    What was committed keeps every byte, and a tail lies in its side file; what is refused is left.
    """
    path, fate = case
    before = path.read_bytes()
    with anyio.fail_after(60):
        try:
            log = await EntryLog.open(await JsonlStorage.open(path, on_torn_tail="repair"))
        except SessionError:
            assert fate.what == "refused"
            assert path.read_bytes() == before
            return
        assert log.writable == (fate.what == "writable" or fate.repaired)
        if not log.writable:
            await log.aclose()
            assert path.read_bytes() == before
            return
        new = await log.append_message(said("go on"))
        await log.aclose()
        log = await EntryLog.open(await JsonlStorage.open(path, on_torn_tail="raise"))
        assert log.leaf_id == new
        assert len(log.index) == fate.entries + 1
        await log.aclose()
    committed = before[: before.rindex(b"\n") + 1]
    assert path.read_bytes().startswith(committed)
    assert len(committed_lines(path.read_bytes())) == len(committed_lines(before)) + 1
    sides = [side.read_bytes() for side in path.parent.glob("*.torn-*")]
    assert sides == ([before[len(committed) :]] if fate.repaired else [])


async def test_salvage(case: tuple[Path, Fate]) -> None:
    """With on_corrupt="skip" every file of our version shows what is left in it, and is not changed."""
    path, fate = case
    before = path.read_bytes()
    hopeless = fate.error in (UnsupportedVersionError, SessionNotFoundError)
    with anyio.fail_after(60):
        try:
            log = await EntryLog.open(await JsonlStorage.open(path, on_corrupt="skip"))
        except SessionError:
            assert hopeless
        else:
            assert not hopeless
            assert len(await log.entries()) >= 2
            assert log.writable == (fate.what == "writable")
            await log.aclose()
    assert path.read_bytes() == before
