"""For who writes a backend, or tests an app: a conformance suite, and a storage that fails when it is told to.

No part of the library imports this package; see ``docs/backends.md``.
"""

from __future__ import annotations

from storage.testing.conformance import check_storage
from storage.testing.faulty_storage import FaultyStorage, Gate, StorageCall
from storage.testing.report import ClauseResult, ConformanceReport
from storage.testing.subject import StorageOpener

__all__ = [
    "ClauseResult",
    "ConformanceReport",
    "FaultyStorage",
    "Gate",
    "StorageCall",
    "StorageOpener",
    "check_storage",
]
