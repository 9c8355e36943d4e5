"""Writing a file whole or not at all: under a name of its own first, synced, then given its name."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from storage import files


def write_whole(path: Path, pieces: Iterable[bytes], *, replace: bool = False) -> None:
    """Make the file at ``path`` of ``pieces``, readable by its owner alone. Blocking.

    Killed at any moment, there is either nothing at ``path`` (or what was there before), or all of it. Raises
    ``FileExistsError`` if there is something and it is not to be replaced, and ``OSError``.
    """
    if not replace and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "there is something here already", str(path))
    target = path.resolve() if replace else path.absolute()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")
    descriptor = files.create_file(str(temporary))
    try:
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[files.write(descriptor, view) :]
            files.sync_data(descriptor)
        finally:
            os.close(descriptor)
        if replace:
            files.rename(str(temporary), str(target))
        else:
            target.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
    files.sync_folder(str(target.parent))
