"""Blobs as files in a folder: written under another name, synced and renamed, so that each is there whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence

from storage import files
from storage.blobs import Blobs, blob_exists, blob_not_found, check_blob_name
from storage.errors import BranchlineError, StorageError
from storage.identifiers import is_safe_name

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")


class BlobFolder:
    """The blobs of one session. The folder is made with the first of them.

    Its methods block, and may be called from several threads at once.
    """

    def __init__(self, folder: str) -> None:
        """Looks at nothing yet."""
        self.folder = folder
        self._name_synced = False
        """Whether the folder's own name is known to survive power loss."""

    def write(self, name: str, data: bytes, *, durable: bool) -> None:
        """Keep ``data`` under ``name``, which is new."""
        path = os.path.join(self.folder, check_blob_name(name))
        temporary = os.path.join(self.folder, f".{name}.{os.urandom(6).hex()}.tmp")
        try:
            self._check_own()
            files.create_folders(self.folder)
            if os.path.lexists(path):
                raise blob_exists(name, path=self.folder)
            try:
                _write_file(temporary, data, durable)
                files.rename(temporary, path)
            except BaseException:
                _remove(temporary)
                raise
            if durable:
                files.sync_folder(self.folder)
                if not self._name_synced:
                    files.sync_folder(os.path.dirname(self.folder))
                    self._name_synced = True
        except BranchlineError:
            raise
        except OSError as error:
            raise StorageError(
                f"the blob could not be written: {error}; nothing refers to it yet", path=path
            ) from error

    def write_all(self, blobs: Blobs, *, durable: bool) -> list[str]:
        """Keep all of ``blobs``, or none; their names. One that is there already is the same: blobs never change."""
        written: list[str] = []
        try:
            for name, data in blobs:
                if check_blob_name(name) not in written and not os.path.lexists(os.path.join(self.folder, name)):
                    self.write(name, data, durable=durable)
                    written.append(name)
        except BaseException:
            self.remove(written)
            raise
        return written

    def read(self, name: str) -> bytes:
        """What is kept under ``name``. A symbolic link is none of ours: it could lead anywhere."""
        path = os.path.join(self.folder, check_blob_name(name))
        if os.path.islink(path) or os.path.islink(self.folder):
            raise blob_not_found(name, path=self.folder)
        try:
            with open(files.open_file(path, writing=False), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            raise blob_not_found(name, path=self.folder) from None
        except OSError as error:
            raise StorageError(f"the blob cannot be read: {error}", path=path) from error

    def names(self) -> Sequence[str]:
        """All names, sorted; what a killed process left half written has none."""
        if os.path.islink(self.folder):
            return []
        try:
            with os.scandir(self.folder) as found:
                return sorted(i.name for i in found if is_safe_name(i.name) and i.is_file(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StorageError(f"the blobs cannot be listed: {error}", path=self.folder) from error

    def unfinished(self) -> Sequence[str]:
        """The paths of what killed processes left half written; with a writer at work, what it is writing too."""
        try:
            names = [] if os.path.islink(self.folder) else os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [os.path.join(self.folder, name) for name in names if _TEMPORARY.fullmatch(name)]

    def remove(self, names: Sequence[str]) -> None:
        """Remove some, and the folder with the last of them; as far as it can be helped."""
        for name in names:
            _remove(os.path.join(self.folder, name))
        try:
            os.rmdir(self.folder)
        except OSError:
            pass  # others are left in it, or it was never made

    def delete(self) -> None:
        """Remove the folder with everything in it. Raises ``OSError``."""
        if os.path.islink(self.folder):
            os.unlink(self.folder)  # what it points to is not ours
        elif os.path.isdir(self.folder):
            shutil.rmtree(self.folder)

    def _check_own(self) -> None:
        if os.path.islink(self.folder):
            raise StorageError("this is a symbolic link, and blobs are kept in a folder of their own", path=self.folder)


def _write_file(path: str, data: bytes, durable: bool) -> None:
    descriptor = files.create_file(path)
    try:
        files.write_all(descriptor, data)
        if durable:
            files.sync_data(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it was never made; or the disk fails, and the first error is the one to tell
