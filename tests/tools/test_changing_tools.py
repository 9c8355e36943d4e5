"""The tools ``write`` and ``edit``, called as a model calls them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.tools import Tool, ToolContext, ToolOutput, changing, edit_tool, write_tool
from storage.errors import ToolError

pytestmark = pytest.mark.anyio


async def call(tool: Tool, context: ToolContext | None = None, **arguments: Any) -> ToolOutput:
    """What the tool answers."""
    output = await tool.execute(tool.prepare(arguments), context or ToolContext())
    assert isinstance(output, ToolOutput)
    assert not output.is_error
    return output


async def edit(folder: Path, old: str, new: str, name: str = "file") -> str:
    """One edit; what it says."""
    return (await call(edit_tool(folder), path=name, edits=[{"old": old, "new": new}])).content


def test_both_ask_and_stand_alone(tmp_path: Path) -> None:
    """They need approval unless told otherwise, never run beside other calls, and describe each parameter."""
    for make in (write_tool, edit_tool):
        tool = make(tmp_path)
        assert (tool.needs_approval, tool.parallel) == (True, False)
        assert make(tmp_path, needs_approval=False).needs_approval is False
        assert tool.description
        assert all(parameter["description"] for parameter in tool.parameters["properties"].values())


async def test_write_makes_a_file_and_its_folders(tmp_path: Path) -> None:
    """It says so with the sizes, and the record has the diff."""
    output = await call(write_tool(tmp_path), path="a/b.txt", content="é\ntwo")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"\xc3\xa9\ntwo"
    assert output.content == "a/b.txt: created, 2 lines, 6 bytes"
    assert output.details == {
        "path": "a/b.txt",
        "created": True,
        "size": 6,
        "diff": "--- a/b.txt\n+++ a/b.txt\n@@ -0,0 +1,2 @@\n+é\n+two\n\\ No newline at end of file",
    }


async def test_write_replaces_a_file(tmp_path: Path) -> None:
    """It says so with both sizes; what was there is in the diff."""
    (tmp_path / "file").write_bytes(b"one\ntwo\nthree\n")
    output = await call(write_tool(tmp_path), path="file", content="one\n2\nthree\n")
    assert (tmp_path / "file").read_bytes() == b"one\n2\nthree\n"
    assert output.content == "file: replaced, 14 bytes before, 3 lines, 12 bytes now"
    assert output.details["diff"] == "--- file\n+++ file\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    output = await call(write_tool(tmp_path), path="file", content="one\n2\nthree\n")
    assert output.details["diff"] == ""


@pytest.mark.parametrize("before", [b"\x7fELF\0", b"caf\xe9", b"x" * 11_000_000], ids=["binary", "latin-1", "large"])
async def test_write_over_what_has_no_diff(tmp_path: Path, before: bytes) -> None:
    """A binary, another encoding, or a huge file is replaced without a diff."""
    (tmp_path / "file").write_bytes(before)
    tool = write_tool(tmp_path)
    assert tool.preview is not None
    assert "the file there is not shown" in (tool.preview({"path": "file", "content": "new"}) or "")
    output = await call(tool, path="file", content="new")
    assert "diff" not in output.details
    assert output.content == f"file: replaced, {len(before):,} bytes before, 1 line, 3 bytes now"


async def test_the_preview_is_the_diff(tmp_path: Path) -> None:
    """Who decides sees what would change, or why nothing can; and nothing does."""
    (tmp_path / "file").write_bytes(b"one\ntwo\n")
    writing, editing = write_tool(tmp_path).preview, edit_tool(tmp_path).preview
    assert writing is not None
    assert editing is not None
    expected = "--- file\n+++ file\n@@ -1,2 +1,2 @@\n one\n-two\n+2"
    assert writing({"path": "file", "content": "one\n2\n"}) == expected
    assert editing({"path": "file", "edits": [{"old": "two", "new": "2"}]}) == expected
    assert editing({"path": "file", "old": "two", "new": "2"}) == expected
    assert writing({"path": "file", "content": "one\ntwo\n"}) == "file: written again, as it is"
    assert "+new" in (writing({"path": "a/b", "content": "new"}) or "")
    for told in (
        writing({"path": "../x", "content": ""}),
        editing({"path": "file", "edits": [{"old": "three", "new": "3"}]}),
        editing({"path": "file", "edits": 7}),
        editing({"path": "missing", "edits": [{"old": "three", "new": "3"}]}),
    ):
        assert (told or "").startswith("This call would fail:\n")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"one\ntwo\n")]


async def test_edit_replaces_one_exact_place(tmp_path: Path) -> None:
    """The result shows the diff."""
    (tmp_path / "file").write_bytes(b"one\ntwo\nthree\n")
    output = await call(edit_tool(tmp_path), path="file", edits=[{"old": "two\nth", "new": "2\nTh"}])
    assert (tmp_path / "file").read_bytes() == b"one\n2\nThree\n"
    diff = "--- file\n+++ file\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+Three"
    assert output.content == f"file: one edit made\n{diff}"
    assert output.details == {"path": "file", "edits": 1, "diff": diff}


async def test_edits_are_made_together(tmp_path: Path) -> None:
    """Each is looked for in the file as it is, whatever their order, and not in what another puts there."""
    (tmp_path / "file").write_bytes(b"a\nb\nc\n")
    edits = [{"old": "c", "new": "a"}, {"old": "a", "new": "b"}, {"old": "b", "new": ""}]
    output = await call(edit_tool(tmp_path), path="file", edits=edits)
    assert (tmp_path / "file").read_bytes() == b"b\n\na\n"
    assert output.content.startswith("file: 3 edits made\n")


async def test_all_edits_or_none(tmp_path: Path) -> None:
    """One that cannot be made keeps the others from being made; everything that is wrong is told at once."""
    before = b"same\nsame\nfunction area(width):\n"
    (tmp_path / "file").write_bytes(before)
    edits = [
        {"old": "function area(w):", "new": ""},
        {"old": "same", "new": ""},
        {"old": "area", "new": "volume"},
        {"old": "", "new": "x"},
    ]
    with pytest.raises(ToolError) as caught:
        await call(edit_tool(tmp_path), path="file", edits=edits)
    assert caught.value.message == (
        "file: edit 1: old is not in the file; the lines most like its first are:\n  line 3: function area(width):\n"
        "file: edit 2: old is there 2 times, at lines 1, 2; give more of the text around it\n"
        "file: edit 4: old is empty; use write to make a file or to replace all of it\n"
        "file: nothing was changed"
    )
    assert (tmp_path / "file").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "old", "says"),
    [
        ("one\n", "two", "nor is any line like it"),
        ("a\n  if x:\n\treturn\n", "if x:\n    return", "lines 2 to 3 differ from it in whitespace only"),
        ("x\n" * 30, "x", r"more than 10 times, first at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10; give more"),
        ("aaa\n", "aa", "2 times, at lines 1, 1"),
        ("colour = 1\ncolor = 2\n", "colur = 1", "line 1: colour = 1\n"),
        ("Straße\n", "Strasse", "line 1: Straße"),
        ("one\n", "one\r\n", "not in the file"),
        ("“quoted”\n", '"quoted"', "not in the file"),
    ],
)
async def test_nothing_is_guessed(tmp_path: Path, text: str, old: str, says: str) -> None:
    """What is not there exactly once is refused, with words that help to find what is there."""
    (tmp_path / "file").write_text(text, encoding="utf-8")
    with pytest.raises(ToolError, match=says):
        await edit(tmp_path, old, "new")
    assert (tmp_path / "file").read_text(encoding="utf-8") == text


async def test_edits_that_overlap_or_change_nothing(tmp_path: Path) -> None:
    """Both are mistakes; edits side by side are none."""
    (tmp_path / "file").write_bytes(b"one two three\n")
    tool = edit_tool(tmp_path)
    with pytest.raises(ToolError, match="two edits overlap at line 1"):
        await call(tool, path="file", edits=[{"old": "one two", "new": "1"}, {"old": "two three", "new": "2"}])
    with pytest.raises(ToolError, match="change nothing"):
        await edit(tmp_path, "two", "two")
    with pytest.raises(ToolError, match="edits: List should have at least 1 item"):
        await call(tool, path="file", edits=[])
    await call(tool, path="file", edits=[{"old": "one", "new": "1"}, {"old": " two", "new": " 2"}])
    assert (tmp_path / "file").read_bytes() == b"1 2 three\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\r\ntwo\r\n", b"one\r\n2\r\nnew\r\n"),
        (b"one\r\ntwo", b"one\r\n2\r\nnew"),
        (b"one\ntwo", b"one\n2\nnew"),
        (b"\xef\xbb\xbfone\ntwo\n", b"\xef\xbb\xbfone\n2\nnew\n"),
        ("\ufeffone\r\ntwo\r\n".encode("utf-16-le"), "\ufeffone\r\n2\r\nnew\r\n".encode("utf-16-le")),
        ("\ufeffone\ntwo".encode("utf-16-be"), "\ufeffone\n2\nnew".encode("utf-16-be")),
        ("é\u2028one\ntwo\x0c\n".encode(), "é\u2028one\n2\nnew\x0c\n".encode()),
    ],
)
async def test_edit_keeps_how_a_file_is_written(tmp_path: Path, before: bytes, after: bytes) -> None:
    """Encoding, byte order mark, line ends and a missing last newline stay as they are."""
    (tmp_path / "file").write_bytes(before)
    await edit(tmp_path, "one\ntwo", "one\n2\nnew")
    assert (tmp_path / "file").read_bytes() == after


async def test_edit_of_crlf_takes_both_line_ends(tmp_path: Path) -> None:
    """Where all lines end in CRLF, either stands for it; where they are mixed, each is itself."""
    (tmp_path / "file").write_bytes(b"one\r\ntwo\r\n")
    await edit(tmp_path, "one\r\ntwo", "1\r\n2")
    assert (tmp_path / "file").read_bytes() == b"1\r\n2\r\n"
    (tmp_path / "file").write_bytes(b"one\r\ntwo\nthree\n")
    with pytest.raises(ToolError, match="in whitespace only"):
        await edit(tmp_path, "one\ntwo", "1\n2")
    await edit(tmp_path, "one\r\ntwo", "1\n2")
    assert (tmp_path / "file").read_bytes() == b"1\n2\nthree\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"caf\xe9\n", r"not valid UTF-8 \(line 1\)"),
        (b"ok\nk\xff", r"not valid UTF-8 \(line 2\)"),
        (b"\xff\xfea", "not valid UTF-16-LE"),
        ("\ufeffone".encode("utf-32-le"), "UTF-32"),
        (b"\x7fELF\0", "binary file of 5 bytes"),
        (b"x" * 11_000_000, "larger than 10,000,000 bytes"),
    ],
)
async def test_edit_refuses_what_it_cannot_keep(tmp_path: Path, data: bytes, says: str) -> None:
    """Another encoding, or a binary, is left as it is rather than written in another way."""
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ToolError, match=says):
        await edit(tmp_path, "one", "two")
    assert (tmp_path / "file").read_bytes() == data


async def test_edit_of_what_is_not_there(tmp_path: Path) -> None:
    """A missing file, a folder, and a path that leads out."""
    (tmp_path / "root" / "folder").mkdir(parents=True)
    (tmp_path / "outside").write_text("one")
    (tmp_path / "root" / "link").symlink_to("../outside")
    for path, says in {
        "file": "use write",
        "folder": "is a folder",
        "link": "outside",
        "../outside": "outside",
    }.items():
        with pytest.raises(ToolError, match=says):
            await edit(tmp_path / "root", "one", "two", path)
    assert (tmp_path / "outside").read_text() == "one"


@pytest.mark.parametrize(
    "arguments",
    [
        {"old": "two", "new": "2"},
        {"edits": {"old": "two", "new": "2"}},
        {"edits": json.dumps([{"old": "two", "new": "2"}])},
        {"edits": json.dumps({"old": "two", "new": "2"})},
    ],
)
async def test_edit_takes_what_models_write(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """One edit at the top, or a list written as text, means the same; the schema asks for the list."""
    (tmp_path / "file").write_bytes(b"one two\n")
    tool = edit_tool(tmp_path)
    await call(tool, path="file", **arguments)
    assert (tmp_path / "file").read_bytes() == b"one 2\n"
    assert sorted(tool.parameters["required"]) == ["edits", "path"]
    assert "$ref" not in json.dumps(tool.parameters)
    assert sorted(tool.parameters["properties"]["edits"]["items"]["required"]) == ["new", "old"]
    for wrong in ({"edits": "not json"}, {"old": "two"}, {"edits": [{"old": "two", "new": "2", "all": True}]}, {}):
        with pytest.raises(ToolError, match="edits|old"):
            tool.prepare({"path": "file"} | wrong)


async def test_a_file_that_changes_between_reading_and_replacing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody else wrote in that moment is not lost: the edit is refused."""
    file = tmp_path / "file"
    real = changing.apply_edits

    def slow(text: str, *more: Any) -> str:
        file.write_bytes(b"theirs\n")
        return real(text, *more)

    file.write_bytes(b"one\n")
    monkeypatch.setattr(changing, "apply_edits", slow)
    with pytest.raises(ToolError, match="changed meanwhile"):
        await edit(tmp_path, "one", "two")
    assert file.read_bytes() == b"theirs\n"


async def test_a_call_that_was_stopped_changes_nothing(tmp_path: Path) -> None:
    """The thread of a cancelled call comes to the file too late."""
    (tmp_path / "file").write_bytes(b"one\n")
    stopped = threading.Event()
    stopped.set()
    for tool, arguments in (
        (write_tool(tmp_path), {"content": "x"}),
        (edit_tool(tmp_path), {"edits": [{"old": "one", "new": "2"}]}),
    ):
        with pytest.raises(ToolError, match="stopped"):
            await call(tool, ToolContext(stopped=stopped), path="file", **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"one\n"


async def test_a_long_diff_is_cut_in_the_text(tmp_path: Path) -> None:
    """The model is shown the beginning; the record has more."""
    (tmp_path / "file").write_text("".join(f"{number}\n" for number in range(9_000)))
    old = "".join(f"{number}\n" for number in range(8_000))
    output = await call(edit_tool(tmp_path), path="file", edits=[{"old": old, "new": ""}])
    assert output.content.endswith("\n[the rest of the diff is left out]")
    assert len(output.content) < 10_200
    assert 10_200 < len(output.details["diff"]) < 20_200
