"""``repair``: what is wrong is said first, a person is asked, and a damaged session is copied, never touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.salvaging import LOST_LINE, SALVAGED, salvage_bytes
from tests.cli.conftest import CORRUPT, Command
from tests.cli.made_sessions import make_tree, said, written
from tests.cli.test_damaged import FATES

SAVED = {
    "03_corrupt_middle_line": (["m1", "m3", "m4"], 1),
    "04_middle_line_valid_json_not_object": (["m1", "m2", "m3", "m4"], 1),
    "05_middle_null": (["m1", "m2", "m3", "m4"], 1),
    "08_duplicate_id": (["m1", "m2", "m3", "m4", "DUP"], 1),
    "10_missing_parent": (["m1", "m2", "m3", "m4", "m6"], 1),
    "11_cycle": (["m1", "m2", "m3", "m4"], 1),
    "15_missing_header": (["m1", "m2", "m3", "m4"], 1),
    "20_invalid_utf8_in_text": (["m1", "m2", "m3\ufffd\ufffd\ufffd", "m4"], 1),
    "21_invalid_utf8_in_id": (["m1", "m2", "m3", "m4"], 2),
    "33_leaf_to_missing": (["m1", "m2", "m3", "m4"], 1),
}
"""What the copy of each damaged file says along its active path, and how many things are told as lost."""

TORN = ("01_torn_last_line", "31_nul_byte_tail")


def path_of(command: Command, session: str) -> list[str]:
    rows = command("tree", session, "--all", "--json").rows
    return [row["text"] for row in rows if row["active"] and row["type"] == "message"]


@pytest.mark.parametrize("name", SAVED)
def test_a_damaged_session_is_copied(command: Command, name: str) -> None:
    """All that is whole is in a new, sound session; what is lost is listed; the damaged file keeps its every byte."""
    command.put(CORRUPT / f"{name}.jsonl")
    before = command.files()
    (row,) = command("repair", name, "--yes", "--json").rows
    after = command.files()
    assert {file: after[file] for file in before} == before
    texts, lost = SAVED[name]
    assert len(row["lost"]) == lost and row["repaired"] and row["plan"]
    new = row["salvaged"]
    assert command("verify", new).code == 0
    assert path_of(command, new) == texts
    last = json.loads((command.root / f"{new}.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert last["customType"] == SALVAGED and last["data"]["lost"] == row["lost"]
    assert command("context", new).code == 0


def test_a_lost_line_leaves_a_stand_in(command: Command) -> None:
    """What hung from a lost line hangs from a stand-in of that id, which says why; it hangs from what came before."""
    command.put(CORRUPT / "03_corrupt_middle_line.jsonl")
    (row,) = command("repair", "03", "--yes", "--json").rows
    (show,) = command("show", row["salvaged"], "e0000002", "--json").rows
    assert show["entry"]["customType"] == LOST_LINE and show["entry"]["parentId"] == "e0000001"
    assert show["entry"]["data"]["line"] == 3


@pytest.mark.parametrize("name", TORN)
def test_a_torn_tail_is_set_aside(command: Command, name: str) -> None:
    """Bytes that were never committed go to a file beside the session."""
    command.put(CORRUPT / f"{name}.jsonl")
    before = command.files()[f"{name}.jsonl"]
    ran = command("repair", name, "--yes")
    assert ran.code == 0 and "without a newline" in ran.out
    after = command.files()
    (side,) = [file for file in after if ".torn-" in file]
    assert after[f"{name}.jsonl"] + after[side] == before
    assert command("verify", name).code == 0
    assert "nothing to repair" in command("repair", name).out


@pytest.mark.parametrize("name", [name for name, fate in FATES.items() if not fate.verify])
def test_a_sound_session_is_left_alone(command: Command, name: str) -> None:
    """Nothing is asked and nothing is written where nothing is wrong."""
    command.put(CORRUPT / f"{name}.jsonl")
    before = command.files()
    ran = command("repair", name)
    assert ran.code == 0 and "nothing to repair" in ran.out
    assert command.files() == before


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("13_empty_file", 2, "no session yet"),
        ("14_whitespace_only", 2, "no session yet"),
        ("26_version_4", 1, "version 4"),
        ("27_version_99", 1, "newer"),
        ("28_v1_no_ids", 1, "branchline import"),
        ("29_v2_hookMessage", 1, "branchline import"),
        ("nope", 2, "no session"),
    ],
)
def test_what_cannot_be_repaired(command: Command, name: str, code: int, why: str) -> None:
    """One line that says what to do instead, and nothing is made."""
    command.put(*CORRUPT.glob("*.jsonl"))
    before = command.files()
    ran = command("repair", name, "--yes")
    assert ran.code == code and why in ran.error
    assert command.files() == before


def test_nothing_to_save(command: Command) -> None:
    """A file that holds no entry at all is told as that."""
    command.root.mkdir()
    (command.root / "text.jsonl").write_text("# Notes\n\nnothing of ours\n")
    before = command.files()
    ran = command("repair", "text", "--yes")
    assert ran.code == 1 and "nothing can be saved" in ran.error and command.files() == before


def test_nobody_to_ask(command: Command) -> None:
    """Over a pipe without --yes it says what it would do and does nothing."""
    command.put(CORRUPT / "03_corrupt_middle_line.jsonl", CORRUPT / "01_torn_last_line.jsonl")
    before = command.files()
    for name in ("03", "01"):
        ran = command.process("repair", name, stdin=b"y\n")
        assert ran.code == 2 and "--yes" in ran.error and "line" in ran.out
    assert {name: data for name, data in command.files().items() if not name.endswith(".lock")} == before


def interrupted(path: Path) -> Path:
    """A session that was killed in a turn with two calls, one of them begun."""
    calls = [{"type": "toolCall", "id": f"c{n}", "name": "read", "arguments": {}} for n in (1, 2)]
    return written(
        path,
        [
            {"type": "turn_start", "turn": 1, "seq": 0},
            {**said("user", "go"), "seq": 1},
            {
                "type": "message",
                "seq": 2,
                "message": {"role": "assistant", "content": calls, "provider": "p", "model": "m"},
            },
            {"type": "tool_start", "callId": "c1", "name": "read", "arguments": {}, "seq": 3},
        ],
        header={"branchline": 1},
    )


def test_a_turn_that_was_cut_off(command: Command) -> None:
    """Each open call gets a result that says what is known, and the turn its end; once."""
    interrupted(command.root / "killed.jsonl")
    before = command.files()["killed.jsonl"]
    plan = command("repair", "killed")
    assert plan.code == 2 and "turn 1 was cut off: 2 calls" in plan.out
    assert command("repair", "killed", "--yes").code == 0
    rows = [json.loads(line) for line in (command.root / "killed.jsonl").read_text().splitlines()]
    assert command.files()["killed.jsonl"].startswith(before)
    assert [row["type"] for row in rows[-3:]] == ["message", "message", "turn_end"]
    texts = [str(row["message"]["content"]) for row in rows[-3:-1]]
    assert "begun" in texts[0] and "not run" in texts[1] and rows[-1]["reason"] == "interrupted"
    assert "nothing to repair" in command("repair", "killed").out


def test_a_turn_that_is_going_on(command: Command) -> None:
    """While another process writes, a turn without an end is no broken one."""
    import anyio

    from harness.session import Session
    from storage.jsonl_repository import JsonlRepository

    interrupted(command.root / "running.jsonl")

    async def hold() -> None:
        async with Session.open(JsonlRepository(command.root).open("running")):
            for words in (("--yes",), ()):  # told before anybody is asked
                ran = await anyio.to_thread.run_sync(lambda words=words: command.process("repair", "running", *words))
                assert ran.code == 1 and "writ" in ran.error

    anyio.run(hold)


def test_entry_files(command: Command) -> None:
    """A folder with a damaged entry file is copied to a new session as well."""
    ids = make_tree(command.root, "folder-1", folder=True)
    path = command.root / "folder-1" / "entries" / f"{ids['call']}.json"
    path.write_text('{"seq":1,')
    before = command.files()
    (row,) = command("repair", "folder-1", "--yes", "--json").rows
    assert row["salvaged"] and row["lost"]
    assert {name: command.files()[name] for name in before} == before
    assert command("verify", row["salvaged"]).code == 0
    assert path_of(command, row["salvaged"])[-1] == "And b.txt?"


def test_every_way_to_cut_a_file(tmp_path: Path) -> None:
    """Whatever single line is damaged, all the others are saved, in a tree that is whole."""
    from storage.index import build_index

    path = written(tmp_path / "a.jsonl", [said("user", f"text {number}") for number in range(6)])
    lines = path.read_bytes().split(b"\n")
    for place in range(len(lines) - 1):
        for bad in (lines[place][:40], b"", b"\xff\xfe", lines[place] + b"}", b'"' + lines[place]):
            if not bad.strip():
                continue
            damaged = b"\n".join([*lines[:place], bad, *lines[place + 1 :]])
            salvage = salvage_bytes(damaged)
            assert salvage.kept >= 5 and salvage.lost, (place, bad)
            index = build_index(salvage.records)
            assert not index.broken and len(index.path(index.ids[index.leaf_id or ""])) >= 5


def test_lines_that_are_missing(tmp_path: Path) -> None:
    """With several lines lost, each break is bridged once, and counting goes on from 0."""
    path = written(
        tmp_path / "a.jsonl", [{**said("user", f"{n}"), "seq": n} for n in range(9)], header={"branchline": 1}
    )
    lines = path.read_bytes().split(b"\n")
    salvage = salvage_bytes(b"\n".join([*lines[:2], *lines[4:6], *lines[8:]]))
    assert salvage.kept == 5 and len(salvage.lost) == 2
    assert [json.loads(record.data)["seq"] for record in salvage.records] == list(range(len(salvage.records)))
