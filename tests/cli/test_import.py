"""``import``: files of other programs become sessions, whole or not at all; the files are only read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import CORRUPT, REPOSITORY, Command
from tests.cli.made_sessions import make_tree, said, written

PI = REPOSITORY / "tests" / "data" / "pi-files"

OWN = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": [{"type": "toolCall", "id": "c1", "name": "look", "arguments": {"at": "x"}}]},
    {"role": "toolResult", "toolCallId": "c1", "toolName": "look", "content": "seen", "isError": False},
    {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
]
OPENAI = [
    {"role": "user", "content": "Hello."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    {"role": "assistant", "content": "Done."},
]


@pytest.mark.parametrize(
    ("name", "version", "session"),
    [
        ("legacy-v1-input", 1, "legacy-1"),
        ("legacy-v2-input", 2, "legacy-2"),
        ("harness-0.83.0-tree", 3, "0198aaaa-0000-7000-8000-000000000001"),
        ("coding-agent-1.6.0-branched", 3, "01a228b8-1fa9-7786-b338-bab56a313b51"),
    ],
)
def test_files_of_pi(command: Command, name: str, version: int, session: str) -> None:
    """Every version of pi's files is taken in under its own id, and the second time it is said to be here already."""
    source = PI / f"{name}.jsonl"
    before = source.read_bytes()
    ran = command("import", str(source))
    assert ran.code == 0 and f"taken for a session of pi, version {version}" in ran.out and session in ran.out
    assert "go on with: branchline chat --session" in ran.err
    assert command("verify", session).code == 0 and command("context", session).code == 0
    files = command.files()
    again = command("import", str(source))
    assert again.code == 0 and "already here" in again.out and command.files() == files
    assert source.read_bytes() == before


@pytest.mark.parametrize("messages", [OWN, OPENAI], ids=["own", "openai"])
def test_plain_messages(command: Command, messages: list[object]) -> None:
    """One message a line, ours or OpenAI's, is a conversation."""
    path = command.folder / "chat.jsonl"
    path.write_text("".join(json.dumps(message) + "\n" for message in messages))
    (row,) = command("import", "chat.jsonl", "--json").rows
    assert row["takenFor"] == "messages" and row["entries"] == 4
    texts = [each["text"] for each in command("tree", row["session"], "--json").rows]
    assert texts == ["Hello.", '-> look(at="x")', "look: seen", "Done."]
    assert command("verify", row["session"]).code == 0


def test_a_session_of_ours(command: Command, tmp_path: Path) -> None:
    """A session from another folder comes with its branches, labels and name."""
    make_tree(tmp_path / "other")
    ran = command("import", str(tmp_path / "other" / "tree-1.jsonl"))
    assert ran.code == 0 and "a session of branchline" in ran.out
    assert command("name", "tree-1").out == "about a.txt\n"
    assert command("label", "tree-1", "first").out == "first\n"


def test_many_files(command: Command) -> None:
    """Bad ones do not stop the others; each has its line, and the exit code and one more line tell of them."""
    names = ["00_valid", "03_corrupt_middle_line", "15_missing_header", "27_version_99", "13_empty_file"]
    paths: list[str] = []
    for number, name in enumerate(names):
        path = command.folder / f"{name}.jsonl"
        path.write_bytes((CORRUPT / path.name).read_bytes().replace(b"sess-1", b"sess-%d" % number))
        paths.append(path.name)
    ran = command("import", *paths, str(PI / "legacy-v1-input.jsonl"))
    assert ran.code == 1 and "4 of 6 files were not imported" in ran.error
    assert [("not imported" in line) for line in ran.out.splitlines() if "  " in line] == [False, *[True] * 4, False]
    assert sorted(path.name for path in command.root.glob("*.jsonl")) == ["legacy-1.jsonl", "sess-0.jsonl"]


@pytest.mark.parametrize("path", [*CORRUPT.glob("*.jsonl")], ids=lambda path: path.stem)
def test_whatever_is_wrong(command: Command, path: Path) -> None:
    """A damaged file gives a sound session or one clear line and nothing."""
    before = path.read_bytes()
    ran = command("import", str(path))
    assert "Traceback" not in ran.err and path.read_bytes() == before
    if ran.code == 0:
        assert command("verify").code == 0
    else:
        assert ran.code == 1 and str(path) in ran.error
        assert [name for name in command.files() if not name.endswith(".lock")] == []


@pytest.mark.parametrize("given", ["nope.jsonl", ".", ""])
def test_no_such_file(command: Command, given: str) -> None:
    """A file that is not there stops all before anything is made."""
    assert command("import", str(PI / "legacy-v1-input.jsonl"), given).code == 2
    assert not command.root.exists()


@pytest.mark.parametrize("session_id", ["../../evil", "a\x1b[2J", "CON", "x" * 200])
def test_an_id_that_can_be_no_name(command: Command, session_id: str) -> None:
    """Such a session gets a new id, and that is said; nothing is written anywhere else."""
    path = written(command.folder / "evil.jsonl", [said("user", "hi")], header={"id": session_id})
    ran = command("import", path.name)
    assert ran.code == 0 and "new one" in ran.out and "\x1b" not in ran.out
    (made,) = command.root.glob("*.jsonl")
    assert command("verify", made.stem).code == 0
