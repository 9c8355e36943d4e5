"""``export``: a conversation as a document or as messages, which come back the same; never over another file."""

from __future__ import annotations

import json
import os

import pytest

from tests.cli.conftest import CORRUPT, Command
from tests.cli.made_sessions import make_tree


def test_markdown(command: Command) -> None:
    """The conversation on the active path, to read."""
    make_tree(command.root)
    ran = command("export", "tree-1")
    assert ran.code == 0 and ran.err == ""
    assert ran.out.startswith("# about a.txt\n")
    for text in ("What is in a.txt?", "I look.", "a.txt", "two\n", "Two lines.", "And b.txt?"):
        assert text in ran.out
    assert "Left behind?" not in ran.out


def test_openai(command: Command) -> None:
    """Messages as OpenAI takes them: calls with their ids, and a result for each."""
    make_tree(command.root)
    messages = json.loads(command("export", "tree-1", "--format", "openai").out)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path":"a.txt"}'}
    assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]


def test_anthropic(command: Command) -> None:
    """Messages as Anthropic takes them: neighbours of one role are one message."""
    make_tree(command.root)
    body = json.loads(command("export", "tree-1", "-f", "anthropic").out)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert body["messages"][2]["content"][0]["type"] == "tool_result"


def test_up_to_an_entry(command: Command) -> None:
    """--at takes an id or a label."""
    make_tree(command.root)
    assert "And b.txt?" not in command("export", "tree-1", "--at", "first").out
    assert command("export", "tree-1", "--at", "nope").code == 2


@pytest.mark.parametrize("form", ["jsonl", "openai"])
def test_out_and_in_again(command: Command, form: str) -> None:
    """What was exported as messages can be imported, and says the same."""
    make_tree(command.root)
    path = command.folder / "out.json"
    assert command("export", "tree-1", "--format", form, "--output", str(path)).code == 0
    (row,) = command("import", str(path), "--json").rows
    assert row["imported"] and row["takenFor"] == "messages"
    first, second = (command("export", session, "--format", "openai").out for session in ("tree-1", row["session"]))
    assert [each.get("content") for each in json.loads(first)] == [each.get("content") for each in json.loads(second)]


def test_never_over_another_file(command: Command) -> None:
    """A file that is there stays, unless --force says otherwise; a failed export leaves nothing."""
    make_tree(command.root)
    path = command.folder / "out.md"
    path.write_text("mine")
    ran = command("export", "tree-1", "--output", "out.md")
    assert ran.code == 2 and "--force" in ran.error and path.read_text() == "mine"
    assert command("export", "nope", "--output", "out.md", "--force").code == 2 and path.read_text() == "mine"
    assert command("export", "tree-1", "--output", "out.md", "--force").code == 0
    assert path.read_text().startswith("# about") and path.stat().st_mode & 0o777 == 0o600
    os.symlink("nowhere.md", command.folder / "link.md")
    assert command("export", "tree-1", "--output", "link.md").code == 2
    assert command("export", "tree-1", "--output", "no/such/folder.md").code == 1
    assert sorted(each.name for each in command.folder.iterdir()) == ["link.md", "out.md"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("tree-1", "--format", "pdf"), 2), (("tree-1", "--force"), 2), (("03",), 1), (("10",), 1)],
)
def test_errors(command: Command, arguments: tuple[str, ...], code: int) -> None:
    """One line on standard error and nothing on standard output."""
    make_tree(command.root)
    command.put(CORRUPT / "03_corrupt_middle_line.jsonl", CORRUPT / "10_missing_parent.jsonl")
    ran = command("export", *arguments)
    assert ran.code == code and ran.error and ran.out == ""


def test_utf8_in_any_locale(command: Command) -> None:
    """An export is a file: its bytes do not depend on the locale."""
    command.put(CORRUPT / "22_u2028_raw.jsonl", CORRUPT / "20_invalid_utf8_in_text.jsonl")
    plain = command.process("export", "22", "--format", "jsonl")
    c_locale = command.process("export", "22", "--format", "jsonl", environment={"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert plain.code == 0 and plain.out == c_locale.out
