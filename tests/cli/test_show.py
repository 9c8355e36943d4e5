"""``show``: one entry whole, from any place of the tree, and its line to the byte."""

from __future__ import annotations

import json

import pytest

from harness.testing import ScriptedServer
from tests.cli.conftest import CORRUPT, Command
from tests.cli.made_sessions import make_tree


def test_a_reply_with_everything(command: Command) -> None:
    """Text, thinking, calls with arguments, usage, model, and where it lies."""
    ids = make_tree(command.root)
    ran = command("show", "tree-1", ids["call"][-12:])
    assert ran.code == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0] == f"entry {ids['call']} (assistant)"
    facts = {
        line.split()[0]: line.split(maxsplit=1)[1]
        for line in lines[1:]
        if line.startswith("  ") and " " in line.strip()
    }
    assert facts["place"] == "entry 2 of 9, 1 step from the root, on the active path"
    assert facts["parent"].endswith("user") and facts["children"].endswith("tool")
    assert facts["model"] == "m-1" and facts["stopReason"] == "toolUse"
    assert facts["usage"] == "input 11, output 5, cacheRead 0, cacheWrite 0, totalTokens 16"
    assert "thinking:\n  Let me look.\ntext:\n  I look.\ncall read (call_1):\n  {\n" in ran.out
    assert '"path": "a.txt"' in ran.out


def test_a_result_and_a_label(command: Command) -> None:
    """A result's text keeps its lines, its details are there; an entry can be named by its label, and has it shown."""
    ids = make_tree(command.root)
    result = command("show", "tree-1", ids["result"])
    assert "result:\n  two\n  lines\n" in result.out and "details      lines 2" in result.out
    answer = command("show", "tree-1", "first")
    assert "  label        first" in answer.out and len(answer.out.split("children")[1].split("\n")[0].split(",")) == 2
    left = command("show", "tree-1", ids["left"])
    assert "on a branch that was left" in left.out
    assert "where the conversation goes on" in command("show", "last", ids["leaf"]).out


def test_raw_is_the_line_to_the_byte(command: Command) -> None:
    """``--raw`` writes what is on disk; ``--json`` the same entry with its place."""
    command.put(CORRUPT / "22_u2028_raw.jsonl")
    lines = (command.root / "22_u2028_raw.jsonl").read_bytes().splitlines(keepends=True)
    whole = (command.root / "22_u2028_raw.jsonl").read_bytes().split(b"\n")
    assert len(lines) != len(whole) or lines
    entry_id = json.loads(whole[1])["id"]
    ran = command.process("show", "22", entry_id, "--raw")
    assert ran.out.encode() == whole[1] + b"\n"
    (row,) = command("show", "22", entry_id, "--json").rows
    assert row["entry"] == json.loads(whole[1]) and row["session"] and row["active"] and row["depth"] == 0


def test_the_request_that_was_sent(command: Command) -> None:
    """``--request`` writes the bytes that the server got for that reply."""
    with ScriptedServer(["one", "two"]) as server:
        model = ("--base-url", server.base_url, "--model", "m")
        assert command("chat", "first question", *model).code == 0
        assert command("chat", "-s", "last", "second question", *model).code == 0
        bodies = [request.body for request in server.requests]
    replies = [row["id"] for row in command("tree", "--json").rows if row["kind"] == "assistant"]
    assert len(replies) == 2
    for reply, body in zip(replies, bodies, strict=True):
        ran = command("show", "last", reply, "--request")
        assert ran.code == 0, ran.err
        assert json.loads(ran.out) == (json.loads(body) if isinstance(body, bytes | str) else body)


def test_what_has_no_request(command: Command) -> None:
    """A user's message was no answer, and pi's replies do not say what they answered: one line each."""
    ids = make_tree(command.root)
    for entry, why in ((ids["question"], "no reply"), (ids["call"], "does not say what it answered")):
        ran = command("show", "tree-1", entry, "--request")
        assert ran.code == 2 and why in ran.error and ran.out == ""


@pytest.mark.parametrize(
    ("entry", "why"),
    [("nope", "no entry 'nope'"), ("e000", "not unique"), ("", "no entry")],
)
def test_no_such_entry(command: Command, entry: str, why: str) -> None:
    """An id that matches none, or several, is told; nothing is written."""
    command.put(CORRUPT / "00_valid.jsonl")
    before = command.files()
    ran = command("show", "00", entry)
    assert ran.code == 2 and why in ran.error and ran.out == ""
    assert command.files() == before


def test_a_damaged_session_shows_what_it_has(command: Command) -> None:
    """Whole entries of a damaged session are shown, with a warning; the parent that is lost is named."""
    command.put(CORRUPT / "03_corrupt_middle_line.jsonl")
    ran = command("show", "03", "e0000003")
    assert ran.code == 0 and "e0000002 (missing)" in ran.out and "line 3" in ran.err


def test_one_way_of_writing_at_a_time(command: Command) -> None:
    """``--raw`` and ``--request`` exclude each other."""
    make_tree(command.root)
    assert "give one of them" in command("show", "tree-1", "first", "--raw", "--json").error


def test_unknown_members_are_shown(command: Command) -> None:
    """What this version does not know is shown as it is."""
    command.put(CORRUPT / "07_unknown_entry_type.jsonl")
    rows = command("tree", "07", "--all", "--json").rows
    unknown = next(row for row in rows if row["type"] != "message")
    ran = command("show", "07", unknown["id"])
    assert ran.code == 0 and unknown["type"] in ran.out
