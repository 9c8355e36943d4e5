"""Line 1 of a session: which format, which session, where it was begun, and what it was forked from."""

from __future__ import annotations

import json
import os
from typing import Any, ClassVar, Literal, cast

from pydantic import Field, ValidationError

from storage.entries import iso_timestamp
from storage.errors import DamagedSessionError, UnsupportedVersionError
from storage.identifiers import check_session_id, is_safe_name, new_id
from storage.models import RecordModel
from storage.strict_json import replace_surrogates

FORMAT_VERSION = 3
"""The version of the pi family's file format that we read and write."""

OLD_VERSIONS = (1, 2)
"""Versions that pi wrote before; ``storage.migrating`` makes new files of them."""

ADDITIONS_VERSION = 1
"""The version of our additions to it (the header's ``branchline`` member)."""


class SessionHeader(RecordModel):
    """The header; members that we do not know are kept. ``cwd`` is the working directory the session belongs to."""

    always_written: ClassVar[tuple[str, ...]] = ("type", "version", "id", "timestamp")
    type: Literal["session"] = "session"
    version: Literal[3] = FORMAT_VERSION
    id: str = Field(default_factory=new_id, min_length=1)
    timestamp: str | None = Field(default_factory=iso_timestamp)
    cwd: str | None = None
    parent_session: str | None = None
    branchline: int | None = None

    def to_line(self) -> bytes:
        """The header's JSON, without a newline."""
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_unset=True)


def new_header(
    *, session_id: str | None = None, cwd: str | os.PathLike[str] | None = None, parent_session: str | None = None
) -> SessionHeader:
    """A header for a new session. Raises ``InvalidIdError`` before anything is made."""
    return SessionHeader(
        id=new_id() if session_id is None else check_session_id(session_id),
        cwd=replace_surrogates(os.fspath(cwd) if cwd is not None else os.getcwd()),  # a folder's name may be no Unicode
        parent_session=replace_surrogates(parent_session),
        branchline=ADDITIONS_VERSION,
    )


def stand_in_header(name: str) -> SessionHeader:
    """For a session whose own header is lost, and which is only read: ``name`` is what its file or folder is called."""
    return SessionHeader(id=name if is_safe_name(name) else new_id(), timestamp=None)


def parse_header(line: bytes, *, path: str | None = None) -> SessionHeader:
    """The header in ``line``.

    Raises ``UnsupportedVersionError`` for a version that is newer or older than we read, by name, and
    ``DamagedSessionError`` where the line is no header at all.
    """
    try:
        loaded: Any = json.loads(line)
    except (ValueError, RecursionError):
        loaded = None
    if not isinstance(loaded, dict) or cast("dict[str, Any]", loaded).get("type") != "session":
        raise DamagedSessionError(
            "line 1 is no session header, so this is no session (or its first line was lost); the file was left as it is",
            path=path,
            line=1,
        )
    members = cast("dict[str, Any]", loaded)
    _check_version(members, path)
    try:
        return SessionHeader.model_validate_json(line, strict=True, by_name=False)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise DamagedSessionError(
            f"invalid session header at line 1: {place}: {first['msg']}", path=path, line=1
        ) from error


def _check_version(members: dict[str, Any], path: str | None) -> None:
    version = members.get("version", 1)
    if type(version) is not int or version != FORMAT_VERSION:
        way = "the file was left as it is"
        if type(version) is int and version > FORMAT_VERSION:
            way = "use a newer branchline"
        elif type(version) is int and version in OLD_VERSIONS:
            way = "'branchline import FILE' makes a copy of it that can be opened (storage.migrate_pi_file, in Python)"
        raise UnsupportedVersionError(
            f"session format version {version!r:.40} is not supported (this program reads version {FORMAT_VERSION}); {way}",
            path=path,
            line=1,
            version=version,
        )
    additions = members.get("branchline", ADDITIONS_VERSION)
    if type(additions) is not int or not 1 <= additions <= ADDITIONS_VERSION:
        raise UnsupportedVersionError(
            f"branchline additions version {additions!r:.40} is not supported (this program reads up to "
            f"{ADDITIONS_VERSION}); use a newer branchline",
            path=path,
            line=1,
            branchline=additions,
        )
