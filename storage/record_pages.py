"""Reading a backend page by page, whoever wrote it: what is no page is an error at once, and no loop without end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from storage.errors import StorageError
from storage.protocols import Record, SessionStorage


def read_page(storage: SessionStorage, *, after_seq: int = -1, limit: int | None = None) -> Sequence[Record]:
    """What ``storage.read`` returns. Blocks, and raises what that raises.

    Raises ``StorageError`` for what is no sequence: one cannot see of a generator whether it is empty, which is how a
    page says that nothing is left.
    """
    found = storage.read(after_seq=after_seq, limit=limit)
    if not isinstance(cast("object", found), Sequence):
        raise StorageError(
            f"read() gave a {type(found).__name__}; give a list or a tuple, which is empty where nothing is left",
            path=storage.info.place or None,
        )
    return found
