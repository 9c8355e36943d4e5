"""A session that another program wrote, as one of ours: for places that keep nothing but entries with a place (``seq``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from storage.copying import with_seq
from storage.decode import parse_record
from storage.header import ADDITIONS_VERSION, SessionHeader
from storage.protocols import NO_FACTS, Record


def adopted_header(header: SessionHeader, session_id: str) -> SessionHeader:
    """The header with our mark and that id; all else, members that we do not know too, stays."""
    return header.model_copy(update={"id": session_id, "branchline": ADDITIONS_VERSION})


def adopted_records(records: Sequence[Record]) -> list[Record]:
    """The records of a whole session in their order, each with its place as the first member.

    What means something else without a place is written out: a fork of pi's begins at its first entry, and what we do not
    know of pi's stands in nobody's way.
    """
    adopted: list[Record] = []
    for seq, record in enumerate(records):
        if record.data.startswith(b'{"seq":%d,' % seq):
            adopted.append(record._replace(line=None))
            continue
        changes: dict[str, Any] = {}
        if seq == 0 and record.parent_id is not None:
            changes["parentId"] = None
        if (record.facts or NO_FACTS).unknown and b'"seq"' not in record.data:
            changes["ignorable"] = True
        data = record.data
        if changes:
            members = cast("dict[str, Any]", json.loads(data)) | changes
            data = json.dumps(members, separators=(",", ":")).encode()
        adopted.append(parse_record(with_seq(data, seq), seq))
    return adopted
