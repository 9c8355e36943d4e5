"""Every damaged file is opened, refused or repaired as the rules say: one line, an exit code, no byte lost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.testing import ScriptedServer
from tests.cli.conftest import CORRUPT, Command


@dataclass(frozen=True)
class Fate:
    """What becomes of a file: the exit codes of ``verify`` and ``chat``, and what is told about it.

    ``repaired``: chat sets bytes aside first.
    """

    verify: int = 0
    chat: int = 0
    told: str = ""
    repaired: bool = False


GOOD = Fate()
FATES = {
    "00_valid": GOOD,
    "01_torn_last_line": Fate(1, 0, "line 6", repaired=True),
    "03_corrupt_middle_line": Fate(1, 1, "line 3"),
    "04_middle_line_valid_json_not_object": Fate(1, 1, "line"),
    "05_middle_null": Fate(1, 1, "line"),
    "07_unknown_entry_type": GOOD,
    "08_duplicate_id": Fate(1, 1, "e000000"),
    "10_missing_parent": Fate(1, 1, "is not"),
    "11_cycle": Fate(1, 1, "e0000001"),
    "13_empty_file": Fate(1, 2, "no session yet"),
    "14_whitespace_only": Fate(1, 2, "no session yet"),
    "15_missing_header": Fate(1, 1, "line 1"),
    "17_bom": GOOD,
    "18_crlf": GOOD,
    "20_invalid_utf8_in_text": Fate(1, 1, "line"),
    "21_invalid_utf8_in_id": Fate(1, 1, "line"),
    "22_u2028_raw": GOOD,
    "23_lone_surrogate_escaped": GOOD,
    "26_version_4": Fate(1, 1, "version 4"),
    "27_version_99": Fate(1, 1, "version 99"),
    "28_v1_no_ids": Fate(1, 1, "version 1"),
    "29_v2_hookMessage": Fate(1, 1, "version 2"),
    "31_nul_byte_tail": Fate(1, 0, "bytes", repaired=True),
    "33_leaf_to_missing": Fate(1, 1, "is not"),
    "35_blank_lines": GOOD,
    "38_proto_key": GOOD,
    "39_compaction_firstkept_missing": GOOD,
    "41_header_no_cwd": GOOD,
}
CASES = [pytest.param(path, FATES.get(path.stem), id=path.stem) for path in sorted(CORRUPT.glob("*.jsonl"))]


def test_every_file_has_a_fate() -> None:
    """The table and the folder hold the same files."""
    assert {path.stem for path in CORRUPT.glob("*.jsonl")} == set(FATES)


@pytest.mark.parametrize(("path", "fate"), CASES)
def test_verify_changes_nothing_and_says_what_is_wrong(command: Command, path: Path, fate: Fate) -> None:
    """``verify`` reads to the end, within a second, and its exit code tells whether the session is sound."""
    command.put(path)
    before = command.files()
    begun = time.process_time()
    ran = command("verify", path.stem)
    assert time.process_time() - begun < 1  # what else runs on this machine does not count
    assert ran.code == fate.verify, ran.out + ran.err
    assert command.files() == before
    if fate.verify:
        assert fate.told in ran.error and str(command.root / path.name) in ran.error
        assert "Traceback" not in ran.err
    else:
        assert ran.err == "" and " ok: " in ran.out


@pytest.mark.parametrize(("path", "fate"), CASES)
def test_chat_goes_on_or_refuses(command: Command, path: Path, fate: Fate) -> None:
    """``chat --session`` goes on after what is whole, repairs a torn tail, and else touches nothing and asks nobody."""
    command.put(path)
    before = command.files()[path.name]
    with ScriptedServer(["fine"]) as server:
        begun = time.process_time()
        ran = command("chat", "--session", path.stem, "hello", "--base-url", server.base_url)
        assert time.process_time() - begun < 2  # the turn included
    assert ran.code == fate.chat, ran.out + ran.err
    after = command.files()
    kept = {name: data for name, data in after.items() if not name.endswith(".lock")}
    if fate.chat:
        assert fate.told in ran.error and str(command.root) in ran.error
        assert len(ran.err.splitlines()) == 1 and ran.out == ""
        assert kept == {path.name: before} and not server.requests
        return
    assert ran.out == "fine\n" and len(server.requests) == 1
    if fate.repaired:
        assert fate.told in ran.err
        committed = before[: before.rindex(b"\n") + 1]
        (side,) = [name for name in kept if ".torn-" in name]
        assert kept[side] == before[len(committed) :]
        assert kept[path.name].startswith(committed) and len(kept[path.name]) > len(committed)
    else:
        assert list(kept) == [path.name]
        assert kept[path.name].startswith(before)
    assert command("verify", path.stem).code == 0


@pytest.mark.parametrize(("path", "fate"), CASES)
def test_looking_never_changes_anything(command: Command, path: Path, fate: Fate) -> None:
    """``tree``, ``context`` and ``sessions`` leave every damaged file as it is, and fail with one line if they fail."""
    command.put(path)
    before = command.files()
    for name in ("tree", "context"):
        ran = command(name, path.stem)
        assert ran.code in (0, 1, 2)
        if ran.code:
            assert ran.error and ran.out == ""
    assert command("sessions").code == 0
    assert command.files() == before


def test_verify_reads_all_of_them(command: Command) -> None:
    """Without a name every session is checked, and the bad ones do not hide the others."""
    command.put(*CORRUPT.glob("*.jsonl"))
    ran = command("verify", "--json")
    assert ran.code == 1
    assert {row["session"]: int(not row["ok"]) for row in ran.rows} == {
        name: fate.verify for name, fate in FATES.items()
    }
    assert f"of {len(FATES)} sessions" in ran.error
    assert all(row["problems"] for row in ran.rows if not row["ok"])


def test_the_healthy_part_of_a_damaged_session_can_be_seen(command: Command) -> None:
    """``tree`` draws what is left around a bad line and says what it left out."""
    command.put(CORRUPT / "03_corrupt_middle_line.jsonl")
    ran = command("tree", "last")
    assert ran.code == 0
    assert "m1" in ran.out and "m3" in ran.out and "its parent e0000002 is missing" in ran.out
    assert "line" in ran.err


def test_a_healthy_path_in_a_broken_tree_can_be_shown(command: Command) -> None:
    """``context --at`` an entry whose path is whole works, in a session whose leaf hangs in the air."""
    command.put(CORRUPT / "10_missing_parent.jsonl")
    broken = command("context")
    assert broken.code == 1 and "missing" in broken.error
    assert command("context", "--at", "e0000002").code == 0


def test_a_file_by_its_path(command: Command) -> None:
    """``verify`` takes a path as well."""
    path = CORRUPT / "03_corrupt_middle_line.jsonl"
    ran = command("verify", str(path))
    assert ran.code == 1 and str(path) in ran.error
