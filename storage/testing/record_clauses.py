"""Clauses about the record: what was committed comes back byte for byte, in order, and shares nothing with the store."""

from __future__ import annotations

from storage.decode import parse_record
from storage.entries import CustomEntry, LeafEntry, MessageEntry, UnknownEntry
from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.messages import UserMessage
from storage.testing.clause import clause
from storage.testing.subject import Subject, chain, expect, record

ODD_TEXTS = (
    "line one\nline two\r\n",
    "separators \u2028 \u2029 \u0085 \x0b \x0c \x1c",
    "nul \x00 and delete \x7f",
    "\ufeffmark, grüße, 漢字, 🦊, e\u0301",
    "",
    "x" * 2_000_000,
)
"""Texts that some backend somewhere has changed, cut or choked on."""


@clause("R1", "what was committed is read again after reopening, byte for byte")
async def committed_bytes_come_back(subject: Subject) -> None:
    storage = await subject.storage()
    records = chain(5)
    await subject.commit(storage, *records[:2])
    await subject.commit(storage, *records[2:])
    await run_in_worker(storage.close)
    found = await subject.read_all()
    expect([item.data for item in found] == [item.data for item in records], "other bytes were read than committed")
    expect(
        [item[:4] for item in found] == [item[:4] for item in records], "seq, id, parent or type differ from the bytes"
    )


@clause("R1", "odd texts and a long line come back unchanged")
async def odd_texts_come_back(subject: Subject) -> None:
    log = await subject.log()
    ids = [await log.append_message(UserMessage(content=text)) for text in ODD_TEXTS]
    await log.aclose()
    log = await subject.log()
    for entry_id, text in zip(ids, ODD_TEXTS, strict=True):
        entry = await log.entry(entry_id)
        kept = isinstance(entry, MessageEntry) and entry.message.text == text
        expect(kept, f"the text that begins {text[:20]!r} came back changed")


@clause("R1", "a new session is empty, has a header with an id, and keeps it")
async def the_header_stays(subject: Subject) -> None:
    storage = await subject.storage()
    header = storage.info.header
    expect(header.id, "the header has no id")
    expect(storage.info.writable, "a new session cannot be written")
    expect(not await run_in_worker(storage.read), "a new session has records")
    await run_in_worker(storage.close)
    again = await subject.storage()
    expect(again.info.header.id == header.id, "opened again, the session has another id")
    expect(again.info.header.timestamp == header.timestamp, "opened again, the session has another time")


@clause("R2", "seq counts from 0 without a gap, and goes on after reopening")
async def places_are_counted(subject: Subject) -> None:
    for _ in range(2):
        log = await subject.log()
        for _ in range(3):
            await log.append_message(UserMessage(content="hello"))
        await log.aclose()
    found = await subject.read_all()
    expect([item.seq for item in found] == list(range(6)), f"the places are {[item.seq for item in found]}")
    starts = all(item.data.startswith(b'{"seq":%d,' % item.seq) for item in found)
    expect(starts, "seq is not the first member of each line")


@clause("R2", "read gives the page it is asked for")
async def pages_are_exact(subject: Subject) -> None:
    storage = await subject.storage()
    await subject.commit(storage, *chain(10))

    async def page(after_seq: int, limit: int | None) -> list[int]:
        return [item.seq for item in await run_in_worker(lambda: storage.read(after_seq=after_seq, limit=limit))]

    for after_seq, limit, expected in (
        (-1, 3, [0, 1, 2]),
        (2, 4, [3, 4, 5, 6]),
        (7, None, [8, 9]),
        (8, 5, [9]),
        (9, 5, []),
    ):
        found = await page(after_seq, limit)
        expect(found == expected, f"read(after_seq={after_seq}, limit={limit}) gave {found}, not {expected}")
    expect(await page(-1, 2) == [0, 1], "the beginning cannot be read a second time")
    expect(await page(-1, 0) == [], "limit=0 gives records")


@clause("R3", "branches and new roots come back as the tree they were")
async def the_tree_comes_back(subject: Subject) -> None:
    log = await subject.log()
    first = await log.append_message(UserMessage(content="first"))
    second = await log.append_message(UserMessage(content="second"))
    await log.append(LeafEntry(target_id=first))
    other = await log.append_message(UserMessage(content="another way"))
    await log.append(LeafEntry(target_id=None))
    root = await log.append_message(UserMessage(content="from the start"))
    await log.append(LeafEntry(target_id=other))
    await log.aclose()
    log = await subject.log()
    expect(log.leaf_id == other, "the leaf is another one after reopening")
    for leaf, expected in ((second, [first, second]), (other, [first, other]), (root, [root])):
        path = await log.path(leaf)
        found = [path.entry_id(position) for position in range(len(path))]
        expect(found == expected, "a path is another one after reopening")


@clause("R4", "an entry of an unknown type keeps all its members")
async def unknown_entries_stay(subject: Subject) -> None:
    log = await subject.log()
    strange = UnknownEntry.model_validate({"type": "from_the_future", "nothing": None, "deep": {"snake_case": [1, {}]}})
    entry_id = await log.append(strange)
    await log.append_message(UserMessage(content="after it"))
    await log.aclose()
    log = await subject.log()
    entry = await log.entry(entry_id)
    expect(entry.type == "from_the_future", "its type was changed")
    members = entry.model_extra or {}
    expect(members.get("nothing", "") is None, "a member that is null was left out")
    expect(members.get("deep") == {"snake_case": [1, {}]}, "a member was changed")


@clause("R4", "a line that another program wrote stays as it is")
async def foreign_lines_stay(subject: Subject) -> None:
    storage = await subject.storage()
    line = (
        f'{{"seq":0,"type":"custom","id":"{new_id()}",'
        '"parentId":null,"timestamp":"2026-01-01T00:00:00.000Z",'
        '"customType":"x","data":{"text":"caf\\u00e9 \\ud800","number":1.50}}'
    ).encode()
    await subject.commit(storage, parse_record(line, 0))
    await run_in_worker(storage.close)
    (found,) = await subject.read_all()
    expect(found.data == line, "its bytes were changed")


@clause("R11", "what a read returns shares nothing with the store")
async def reads_are_isolated(subject: Subject) -> None:
    log = await subject.log()
    entry_id = await log.append(CustomEntry(custom_type="x", data={"list": [1]}))
    entry = await log.entry(entry_id)
    if isinstance(entry, CustomEntry):
        entry.data["list"].append(2)
    again = await log.entry(entry_id)
    expect(isinstance(again, CustomEntry) and again.data == {"list": [1]}, "a change to what was read is in the store")


@clause("R17", "records are given as bytes, not as views of a buffer that changes")
async def records_stay_what_they_are(subject: Subject) -> None:
    storage = await subject.storage()
    kept = [record(0, "first")]
    await subject.commit(storage, kept[0])
    (found,) = await run_in_worker(storage.read)
    await subject.commit(storage, record(1, "second", parent=kept[0].id))
    expect(type(found.data) is bytes and found.data == kept[0].data, "a record changed after it was read")
