"""For who writes a backend, or tests an app: a conformance suite; storages and disks that fail, or crash, when told to.

No part of the library imports this package; see ``docs/backends.md``.
"""

from __future__ import annotations

from storage.testing.conformance import check_storage
from storage.testing.crash_disk import CrashDisk, CrashState
from storage.testing.faulty_disk import FaultyDisk
from storage.testing.faulty_storage import FaultyStorage, Gate, StorageCall
from storage.testing.report import ClauseResult, ConformanceReport
from storage.testing.subject import FolderOpener, StorageOpener

__all__ = [
    "ClauseResult",
    "ConformanceReport",
    "CrashDisk",
    "CrashState",
    "FaultyDisk",
    "FaultyStorage",
    "FolderOpener",
    "Gate",
    "StorageCall",
    "StorageOpener",
    "check_storage",
]
