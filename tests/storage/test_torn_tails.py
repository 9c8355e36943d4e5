"""The crash table: the file cut at every byte of its last records, reopened in every way, and appended to (R13, R14)."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from storage import (
    DamagedSessionError,
    Entry,
    EntryLog,
    JsonlStorage,
    LabelEntry,
    MessageEntry,
    ReadOnlySessionError,
    SessionNotFoundError,
    UserMessage,
    files,
    recover_jsonl,
)
from storage.protocols import TornTail
from tests.storage.lines import TIME, header, line, message, write
from tests.storage.places import JsonlPlace, assert_chain, committed_lines, said

pytestmark = pytest.mark.anyio

TEXT = "grüße 漢 🦊 \u2028"


async def three_entries(path: Path) -> bytes:
    """A session of three entries; its bytes."""
    log = await EntryLog.open(await JsonlStorage.create(path, cwd="/", session_id="chat", durability="os"))
    first = await log.append_message(said("first"))
    await log.append_message(said(TEXT))
    await log.append(LabelEntry(target_id=first, label=TEXT))
    await log.aclose()
    return path.read_bytes()


def side_files(path: Path) -> list[Path]:
    """What repairs set aside."""
    return sorted(path.parent.glob("chat.jsonl.torn-*"))


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs do nothing: thousands of repairs would wait for the disk. That they are made, the traces show."""
    for name in ("sync_data", "sync_folder"):
        monkeypatch.setattr(files, name, lambda _: None)


@pytest.mark.usefixtures("unsynced")
async def test_a_cut_at_every_byte(tmp_path: Path) -> None:
    """R13: at every cut the committed prefix is exact, opened read-only, repaired or salvaged.

    Nothing is ever fused with a tail; the side file holds its bytes; appending and reopening go on from there.
    """
    source = tmp_path / "source"
    source.mkdir()
    data = await three_entries(source / "chat.jsonl")
    start = data.index(b"\n") + 1
    for end in range(start, len(data) + 1):
        cut = data[:end]
        lines = committed_lines(cut)
        tail = cut[cut.rindex(b"\n") + 1 :]
        folder = tmp_path / "cut"
        path = folder / "chat.jsonl"
        folder.mkdir()
        path.write_bytes(cut)

        storage = await JsonlStorage.open(path, mode="write", durability="os")
        assert storage.info.writable == (not tail)
        assert [item.data for item in storage.read()] == lines[1:]
        if tail:
            (warning,) = storage.info.warnings
            assert (warning.code, warning.line) == ("unterminated_tail", len(lines) + 1)
        storage.close()
        assert path.read_bytes() == cut
        assert side_files(path) == []

        log = await EntryLog.open(await JsonlStorage.open(path, on_torn_tail="repair", durability="os"))
        assert [entry.id for entry in await log.entries()] == [json.loads(line)["id"] for line in lines[1:]]
        assert [warning.code for warning in log.warnings] == (["tail_repaired"] if tail else [])
        assert [side.read_bytes() for side in side_files(path)] == ([tail] if tail else [])
        if tail:
            assert side_files(path)[0].name == f"chat.jsonl.torn-{end - len(tail)}"
            assert str(side_files(path)[0]) in log.warnings[0].message
        new = await log.append_message(UserMessage(content="after the repair"))
        await log.aclose()
        now = committed_lines(path.read_bytes())
        assert now[:-1] == lines
        assert json.loads(now[-1])["id"] == new
        assert path.read_bytes().endswith(b"\n")
        assert_chain([json.loads(line) for line in now[1:]])

        again = await EntryLog.open(await JsonlStorage.open(path, on_torn_tail="raise", durability="os"))
        assert len(again.index) == len(now) - 1
        assert again.warnings == ()
        await again.aclose()
        for found in folder.iterdir():
            found.unlink()
        folder.rmdir()


@pytest.mark.usefixtures("unsynced")
async def test_a_cut_in_the_header(tmp_path: Path) -> None:
    """R15: cut anywhere in the header there is no session yet; open_or_create keeps the bytes aside and begins one."""
    data = (header() + "\n").encode()
    for end in range(len(data)):
        folder = tmp_path / f"{end}"
        folder.mkdir()
        path = folder / "chat.jsonl"
        path.write_bytes(data[:end])
        with pytest.raises(SessionNotFoundError):
            await JsonlStorage.open(path)
        assert path.read_bytes() == data[:end]
        storage = await JsonlStorage.open_or_create(path, durability="os")
        storage.close()
        assert [side.read_bytes() for side in side_files(path)] == ([data[:end]] if end else [])


@pytest.mark.parametrize("mode", ["read", "write"])
@pytest.mark.parametrize("on_torn_tail", ["read_only", "repair", "raise"])
async def test_what_each_choice_does(jsonl: JsonlPlace, mode: str, on_torn_tail: TornTail) -> None:
    """R13: read_only shows the prefix and refuses appends; repair needs a writer; raise is an error naming the line."""
    data = write(jsonl.path, header(), message("a", None, seq=0), end="\n" + message("b", "a", seq=1))
    if on_torn_tail == "raise":
        with pytest.raises(DamagedSessionError, match="line 3") as caught:
            await jsonl.open(mode=mode, on_torn_tail=on_torn_tail)
        assert caught.value.line == 3
        assert jsonl.path.read_bytes() == data
        return
    log = await jsonl.log(mode=mode, on_torn_tail=on_torn_tail)
    assert [entry.id for entry in await log.entries()] == ["a"]
    repaired = mode == "write" and on_torn_tail == "repair"
    assert log.writable == repaired
    if not repaired:
        with pytest.raises(ReadOnlySessionError):
            log.append_message(said())
        assert [warning.code for warning in log.warnings] == ["unterminated_tail"]
        assert side_files(jsonl.path) == []
        assert jsonl.path.read_bytes() == data
    await log.aclose()


async def test_whole_json_without_a_newline_is_a_tail(jsonl: JsonlPlace) -> None:
    """R13: a last line that is whole JSON but has no newline was never committed; it is set aside, not finished."""
    line = message("b", "a", seq=1)
    write(jsonl.path, header(), message("a", None, seq=0), end="\n" + line)
    log = await jsonl.log(on_torn_tail="repair")
    assert log.leaf_id == "a"
    await log.aclose()
    assert side_files(jsonl.path)[0].read_text(encoding="utf-8") == line


async def test_nuls_are_a_tail(jsonl: JsonlPlace) -> None:
    """R13: the NULs that a power failure leaves are no white space."""
    data = write(jsonl.path, header(), message("a", None, seq=0), end="\n" + "\0" * 100)
    log = await jsonl.log()
    assert not log.writable
    await log.aclose()
    assert jsonl.path.read_bytes() == data
    log = await jsonl.log(on_torn_tail="repair")
    await log.append_message(said())
    await log.aclose()
    assert side_files(jsonl.path)[0].read_bytes() == b"\0" * 100


async def test_a_side_file_is_never_overwritten(jsonl: JsonlPlace) -> None:
    """R13: a repair at a place where another one was keeps both side files."""
    for tail in ("first tail", "second tail", "third tail"):
        write(jsonl.path, header(), message("a", None, seq=0), end="\n" + tail)
        storage = await jsonl.open(on_torn_tail="repair")
        storage.close()
    assert sorted(side.read_text() for side in side_files(jsonl.path)) == ["first tail", "second tail", "third tail"]
    assert {oct(side.stat().st_mode & 0o777) for side in side_files(jsonl.path)} == {"0o600"}


async def test_a_long_tail(jsonl: JsonlPlace) -> None:
    """R13: a tail of several megabytes is set aside whole."""
    tail = "x" * 3_000_000
    write(jsonl.path, header(), message("a", None, seq=0), end="\n" + tail)
    storage = await jsonl.open(on_torn_tail="repair")
    storage.close()
    assert side_files(jsonl.path)[0].read_text() == tail


async def test_open_or_create_repairs(jsonl: JsonlPlace) -> None:
    """R13: open_or_create repairs by default, open does not."""
    write(jsonl.path, header(), message("a", None, seq=0), end="\ntail")
    log = await jsonl.log()
    assert not log.writable
    await log.aclose()
    log = await EntryLog.open(await JsonlStorage.open_or_create(jsonl.path))
    assert log.writable
    await log.aclose()
    assert len(side_files(jsonl.path)) == 1


async def test_read_only_lets_another_repair(jsonl: JsonlPlace) -> None:
    """R12, R13: who opened a torn file for writing, and got it read-only, does not keep the one who repairs it out."""
    write(jsonl.path, header(), message("a", None, seq=0), end="\ntail")
    reader = await jsonl.log()
    assert not reader.writable
    writer = await jsonl.log(on_torn_tail="repair")
    await writer.append_message(said())
    await writer.aclose()
    await reader.aclose()
    assert len(jsonl.lines()) == 2
    assert len(side_files(jsonl.path)) == 1


# --- R14


GOOD = message("b", "a")
NO_JSON = {
    "no JSON": "{oops",
    "cut": GOOD[:-5],
    "two in one": GOOD + message("c", "b"),
    "NULs": "\0\0\0",
    "NaN": GOOD.replace('"timestamp":0', '"timestamp":0,"x":NaN'),
    "infinity": GOOD.replace('"timestamp":0', '"timestamp":0,"x":-Infinity'),
    "too deep": GOOD.replace('"hello"', "[" * 100_000),
}
NO_RECORD = {
    "null": ("null", ""),
    "list": ("[1]", ""),
    "number": ("17", ""),
    "no type": (GOOD.replace('"type":"message",', ""), ""),
    "no id": (GOOD.replace('"id":"b",', ""), "id"),
    "empty id": (message("", "a"), "id"),
    "number as id": (GOOD.replace('"b"', "17"), "id"),
    "no timestamp": (GOOD.replace(f',"timestamp":"{TIME}"', ""), "timestamp"),
    "parent is a number": (GOOD.replace('"a"', "17"), "parentId"),
    "no message": (line("message", "b", "a"), "message"),
    "content is a number": (GOOD.replace('"hello"', "17"), "message"),
    "snake case": (line("leaf", "b", "a", target_id="a"), "targetId"),
}
BAD_LINES = {
    **{kind: (bad, "invalid session JSON at line 3: ") for kind, bad in NO_JSON.items()},
    **{kind: (bad, f"invalid session record at line 3: {why}") for kind, (bad, why) in NO_RECORD.items()},
}
"""Lines that are no record, and how the error about each begins."""


@pytest.mark.parametrize("kind", BAD_LINES)
async def test_a_bad_line_is_corruption(jsonl: JsonlPlace, kind: str) -> None:
    """R14: a bad line with a newline is corruption, in one of two stable wordings, with its line; nothing is changed."""
    bad, wording = BAD_LINES[kind]
    data = write(jsonl.path, header(ours=False), message("a", None), bad, message("z", "a"))
    for mode in ("read", "write"):
        with pytest.raises(DamagedSessionError) as caught:
            await jsonl.log(mode=mode, on_torn_tail="repair")
        assert caught.value.message.startswith(wording), caught.value.message
        assert (caught.value.line, caught.value.path) == (3, str(jsonl.path))
        assert "on_corrupt='skip'" in caught.value.message
    assert jsonl.path.read_bytes() == data


@pytest.mark.parametrize("kind", BAD_LINES)
async def test_salvage_shows_the_rest(jsonl: JsonlPlace, kind: str) -> None:
    """R14: with on_corrupt="skip" the rest is there, read-only, the bad line listed and keeping its place.

    Its children reported as orphans.
    """
    bad, _ = BAD_LINES[kind]
    data = write(jsonl.path, header(ours=False), message("a", None), bad, message("c", "b"), message("z", "a"))
    log = await jsonl.log(on_corrupt="skip", on_torn_tail="repair")
    assert not log.writable
    with pytest.raises(ReadOnlySessionError):
        log.append_message(said())
    codes = [(warning.code, warning.line) for warning in log.warnings]
    assert ("bad_line", 3) in codes
    assert ("broken_link", 4) in codes
    entries = await log.entries()
    assert [(entry.id, log.index.ids[entry.id]) for entry in entries] == [("a", 0), ("c", 2), ("z", 3)]
    path = await log.path("z")
    assert [path.entry_id(position) for position in range(len(path))] == ["a", "z"]
    await log.aclose()
    assert jsonl.path.read_bytes() == data
    assert side_files(jsonl.path) == []


async def test_salvage_keeps_places_under_our_header(jsonl: JsonlPlace) -> None:
    """R14: a bad line keeps its place, so the seq of those behind it still matches; a duplicate id is a bad line too."""
    lines = [
        message("a", None, seq=0),
        "bad",
        message("c", "a", seq=2),
        message("a", "c", seq=3),
        message("e", "c", seq=4),
    ]
    write(jsonl.path, header(), *lines)
    log = await jsonl.log(on_corrupt="skip")
    assert [(entry.id, entry.seq) for entry in await log.entries()] == [("a", 0), ("c", 2), ("e", 4)]
    assert [warning.line for warning in log.warnings if warning.code == "bad_line"] == [3, 5]
    assert [entry.id for entry in await log.entries(after_seq=0, limit=1)] in ([], ["c"])
    await log.aclose()


async def test_blank_lines_bom_and_crlf(jsonl: JsonlPlace) -> None:
    """R14: blank lines are skipped but counted; a BOM and CRLF are read; we go on with LF."""
    text = "\ufeff" + "\r\n".join([header(), "", message("a", None, seq=0), " \t", message("b", "a", seq=1), ""])
    jsonl.path.write_bytes(text.encode())
    log = await jsonl.log()
    assert log.writable
    assert log.warnings == ()
    await log.append_message(said())
    await log.aclose()
    jsonl.path.write_bytes(jsonl.path.read_bytes() + b"bad\n")
    with pytest.raises(DamagedSessionError) as caught:
        await jsonl.log()
    assert caught.value.line == 7


def text_of(entry: Entry) -> str:
    """The text of a message entry."""
    assert isinstance(entry, MessageEntry)
    return entry.message.text


async def test_lines_are_split_on_lf_alone(jsonl: JsonlPlace) -> None:
    """R13, R14: bytes are split on LF before they are decoded, whatever lies at the edge of a piece that is read."""
    odd = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg漢🦊"
    log = await jsonl.new_log()
    for size in (1, 65_533, 1_048_575, 2_000_000):
        await log.append_message(said("x" * size + odd))
    await log.append_message(said("漢" * 700_000))
    await log.aclose()
    log = await jsonl.log()
    found = [text_of(entry) for entry in await log.entries()]
    assert [text[-len(odd) :] for text in found[:4]] == [odd] * 4
    assert found[4] == "漢" * 700_000
    await log.aclose()


async def test_invalid_utf8_is_corruption(jsonl: JsonlPlace) -> None:
    """R14: bytes that are no UTF-8 are a bad line, named, never replaced in silence."""
    good = (header() + "\n" + message("a", None, seq=0) + "\n").encode()
    data = good + message("b", "a", "XX", seq=1).encode().replace(b"XX", b"\xff\xfe") + b"\n"
    jsonl.path.write_bytes(data)
    with pytest.raises(DamagedSessionError, match="invalid session JSON at line 3"):
        await jsonl.log()
    assert jsonl.path.read_bytes() == data


async def test_escaped_surrogates_open(jsonl: JsonlPlace) -> None:
    """R5: a file that holds lone surrogates escaped, as JavaScript writes them, opens; its bytes stay; text has U+FFFD."""
    line = message("a", None, "XX", seq=0).replace("XX", r"half \ud83d and \udc97")
    key = message("b", "a", "ok", seq=1)[:-1] + r',"extra":{"\ud800":1,"\ud801":2}}'
    data = write(jsonl.path, header(), line, key)
    log = await jsonl.log()
    entries = await log.entries()
    assert text_of(entries[0]) == "half \ufffd and \ufffd"
    assert len((entries[1].model_extra or {})["extra"]) == 2
    await log.aclose()
    assert jsonl.path.read_bytes() == data


async def test_recover_jsonl_is_pure(jsonl: JsonlPlace) -> None:
    """The same rules, of bytes without a file: what is committed, what is not, and nothing is written."""
    data = await three_entries(jsonl.path)
    for end in range(len(data) - 200, len(data) + 1):
        found = recover_jsonl(data[:end])
        assert [item.data for item in found.records] == committed_lines(data[:end])[1:]
        assert bool(found.warnings) == (data[end - 1 : end] != b"\n")
    with pytest.raises(DamagedSessionError, match="line 2"):
        recover_jsonl(data.replace(b'{"seq":0', b'"seq":0'))
    assert recover_jsonl(b"").header is None
    assert len(recover_jsonl(data.replace(b'{"seq":1', b'"seq":1'), on_corrupt="skip").records) == 2


async def test_opening_a_damaged_file_is_quick(jsonl: JsonlPlace) -> None:
    """Ten thousand bad lines, salvaged, take no more than a second or so, and no recursion."""
    write(jsonl.path, header(), *["bad " * 20] * 10_000)
    with anyio.fail_after(60):
        log = await jsonl.log(on_corrupt="skip")
        assert sum(warning.code == "bad_line" for warning in log.warnings) == 10_000
        await log.aclose()
