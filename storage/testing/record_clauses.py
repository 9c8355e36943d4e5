"""Clauses about the record: what was committed comes back byte for byte, in order, and shares nothing with the store."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

from storage.decode import parse_record
from storage.entries import CustomEntry, LeafEntry, MessageEntry, UnknownEntry
from storage.errors import DamagedSessionError, StaleSessionError
from storage.event_loops import run_in_worker
from storage.identifiers import new_id
from storage.messages import UserMessage
from storage.protocols import Record
from storage.testing.clause import clause
from storage.testing.subject import ClauseError, Subject, chain, expect, expect_same, record

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
    expect_same(found, records, "other bytes were read than committed")
    expect(
        [item[:4] for item in found] == [item[:4] for item in records], "seq, id, parent or type differ from the bytes"
    )


@clause("R1", "odd texts and a long line come back unchanged")
async def odd_texts_come_back(subject: Subject) -> None:
    log = await subject.log()
    ids = [await log.append_message(UserMessage(content=text)) for text in ODD_TEXTS]
    await log.aclose()
    try:
        log = await subject.log()
    except DamagedSessionError as error:
        if "invalid session JSON" not in error.message:
            raise
        raise ClauseError(f"they cannot be read again; decode nothing, and split bytes on LF alone: {error}") from error
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
    expect([item.seq for item in found] == list(range(6)), f"the places are {[item.seq for item in found]}, not 0 to 5")
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
        (9, None, []),
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
    committed = parse_record(line, 0)
    await subject.commit(storage, committed)
    await run_in_worker(storage.close)
    expect_same(await subject.read_all(), [committed], "its bytes were changed")


@clause("R1", "what was committed stays as it was, whatever is committed or refused after it")
async def nothing_is_changed_later(subject: Subject) -> None:
    storage = await subject.storage()
    records = chain(6)
    for seq, item in enumerate(records):
        await subject.commit(storage, item)
        try:
            await subject.commit(storage, record(seq, "refused"))
        except StaleSessionError:
            pass
        found = await run_in_worker(storage.read)
        expect_same(found, records[: seq + 1], f"after commit number {seq + 1} it holds other bytes")


@clause("R2", "pages of any size give the whole, also while more is added")
async def pages_make_the_whole(subject: Subject) -> None:
    storage = await subject.storage()
    records = chain(520)
    await subject.commit(storage, *records[:500])
    for size in (1, 7, 256, 499, 500, 501):
        found: list[Record] = []

        def next_page(size: int = size, found: list[Record] = found) -> Sequence[Record]:
            return storage.read(after_seq=len(found) - 1, limit=size)

        while page := await run_in_worker(next_page):
            expect(len(page) <= size, f"a page of {size} has {len(page)} records")
            found += page
            expect(len(found) <= len(records), f"pages of {size} never end: what was given before is given again")
            if size == 256 and len(found) == 256:
                await subject.commit(storage, *records[500:])
        whole = records[:500] if size < 256 else records
        expect_same(found, whole, f"pages of {size} do not make the whole")


@clause("R4", "members and message roles that we do not know are kept")
async def unknown_members_stay(subject: Subject) -> None:
    storage = await subject.storage()
    line = (
        f'{{"seq":0,"type":"message","id":"{new_id()}","parentId":null,"timestamp":"2026-01-01T00:00:00.000Z",'
        '"message":{"role":"user","content":"hello","timestamp":0,"newInside":[null,{"a_b":1}]},"newOutside":null}'
    ).encode()
    strange = line.replace(b'"seq":0', b'"seq":1').replace(b'"role":"user"', b'"role":"oracle"')
    records = [parse_record(line, 0), parse_record(strange.replace(b'"id":"', b'"id":"x'), 1)]
    await subject.commit(storage, *records)
    await run_in_worker(storage.close)
    log = await subject.log()
    entry = await log.entry(records[0].id)
    extra = entry.message.model_extra or {} if isinstance(entry, MessageEntry) else {}
    expect(extra.get("newInside") == [None, {"a_b": 1}], "a message's unknown member was changed")
    expect((entry.model_extra or {}).get("newOutside", "") is None, "an entry's unknown member was left out")
    expect(log.index.line(1) == records[1].data, "a message of an unknown role was changed")


@clause("R5", "half characters become U+FFFD, and null stays null, the same in every backend")
async def lone_surrogates_are_replaced(subject: Subject) -> None:
    log = await subject.log()
    entry_id = await log.append(CustomEntry(custom_type="x\ud83d", data={"text": "\udc88", "nothing": None}))
    await log.aclose()
    entry = await (await subject.log()).entry(entry_id)
    kept = isinstance(entry, CustomEntry) and (entry.custom_type, entry.data)
    expect(kept == ("x\ufffd", {"text": "\ufffd", "nothing": None}), f"it came back as {kept!r:.80}")


@clause("R11", "what a read returns shares nothing with the store")
async def reads_are_isolated(subject: Subject) -> None:
    log = await subject.log()
    entry_id = await log.append(CustomEntry(custom_type="x", data={"list": [1]}))
    entry = await log.entry(entry_id)
    if isinstance(entry, CustomEntry):
        entry.data["list"].append(2)
    again = await log.entry(entry_id)
    expect(isinstance(again, CustomEntry) and again.data == {"list": [1]}, "a change to what was read is in the store")
    await log.aclose()
    storage = await subject.storage()
    given = await run_in_worker(storage.read)
    if isinstance(given, MutableSequence):
        given.clear()
    found = await run_in_worker(storage.read)
    expect([item.id for item in found] == [entry_id], "what read gave is the store's own list")


@clause("R17", "a record of megabytes, and a batch of hundreds, come back whole")
async def large_records_come_back(subject: Subject) -> None:
    storage = await subject.storage()
    large = record(0, "0123456789abcdef" * 350_000)
    many = chain(300, start=1, parent=large.id)
    await subject.commit(storage, large)
    await subject.commit(storage, *many)
    await run_in_worker(storage.close)
    found = await subject.read_all()
    expect_same(found, [large, *many], "something was cut or changed")


@clause("R17", "records are given as bytes, not as views of a buffer that changes")
async def records_stay_what_they_are(subject: Subject) -> None:
    storage = await subject.storage()
    kept = [record(0, "first")]
    await subject.commit(storage, kept[0])
    found = [*await run_in_worker(storage.read)]
    await subject.commit(storage, record(1, "second", parent=kept[0].id))
    expect_same(found, kept, "what was read is not what was committed, or changed after it was read")
