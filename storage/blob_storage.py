"""The blobs of a storage on disk: what JSONL and entry files have in common as a ``BlobStore``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from storage.blob_folder import BlobFolder
from storage.errors import ReadOnlySessionError
from storage.protocols import StorageInfo


class DiskBlobs(ABC):
    """Blobs in a folder that belongs to one session."""

    _blobs: BlobFolder
    _durable: bool

    @property
    @abstractmethod
    def info(self) -> StorageInfo:
        """The header and the state."""

    @abstractmethod
    def _check_open(self) -> None:
        """Raise ``SessionClosedError`` if it was closed."""

    @abstractmethod
    def _may_write(self) -> bool:
        """Whether the writer's lock is ours."""

    @abstractmethod
    def _check_still_ours(self) -> None:
        """Raise ``StaleSessionError`` if the session was removed or replaced. May be called from any thread."""

    def write_blob(self, name: str, data: bytes) -> None:
        """Keep ``data`` in a file of that name."""
        self._check_open()
        if not self._may_write():
            info = self.info
            raise ReadOnlySessionError(info.read_only_reason or "the writer's lock is not ours", path=info.place)
        self._check_still_ours()
        self._blobs.write(name, data, durable=self._durable)

    def read_blob(self, name: str) -> bytes:
        """What is kept under ``name``."""
        self._check_open()
        return self._blobs.read(name)

    def blob_names(self) -> Sequence[str]:
        """The names of all blobs, sorted."""
        return self._blobs.names()
