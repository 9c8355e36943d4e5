"""Every error Branchline raises, in one place.

    BranchlineError
    ├── SessionError                      the record, its storage, the tree, the context
    │   ├── SessionNotFoundError          LookupError    no session yet at that place
    │   ├── SessionExistsError            FileExistsError
    │   ├── SessionLockedError            BlockingIOError  another writer holds it
    │   ├── SessionClosedError            ValueError     used after it was closed
    │   ├── ReadOnlySessionError          PermissionError  opened for reading, or not safe to append to
    │   ├── StorageError                  OSError        the store failed
    │   │   ├── CommitFailed                             … and holds exactly the first n records
    │   │   └── StaleSessionError                        … because someone else changed it
    │   ├── QueueFullError                BufferError    too much is waiting to be written
    │   ├── DamagedSessionError           ValueError     committed bytes that are no session
    │   ├── UnsupportedVersionError       ValueError     written by a newer (or too old) program
    │   ├── InvalidEntryError             ValueError     this entry cannot be recorded
    │   ├── InvalidIdError                ValueError     a session or entry id that is no safe name
    │   ├── EntryNotFoundError            LookupError
    │   ├── BlobNotFoundError             LookupError
    │   ├── BrokenPathError               ValueError     a path runs through a missing or cyclic parent
    │   ├── NotOnPathError                ValueError     the entry named is not on the active path
    │   ├── UnsupportedEntryError         ValueError     a path holds an entry of a type we do not know
    │   ├── PendingCallError              ValueError     a call that waits for approval is in the way
    │   ├── BudgetError                   ValueError     what must be shown does not fit the budget
    │   ├── WrongEventLoopError           RuntimeError   used from another loop or thread
    │   ├── NavigationRefusedError        RuntimeError   a hook does not let the session go there
    │   ├── NothingToResumeError          LookupError    no turn waits for a person at the leaf
    │   └── BusyError                     RuntimeError   a turn is running
    ├── SettingsError                     ValueError     a setting that cannot be
    │   └── CompactionSettingsError       CompactionError  … of compactions: it is both
    ├── CompactionError                   ValueError
    ├── ModelError                        RuntimeError   the model, or the way to it, failed
    │   ├── ContextOverflowError                         … because the request is too long for it
    │   ├── ModelTimeoutError             TimeoutError   … because one of its times ran out
    │   └── TurnLimitError                               … or a turn came to a limit of the settings
    ├── TurnAbortedError                  RuntimeError   somebody aborted the turn
    ├── ToolError                         RuntimeError   a tool could not be made, found or run
    └── HookError                         RuntimeError   an app's hook, or what asks for approval, raised

Each also is the built-in a caller would expect, carries a stable ``code`` (safe to match on and to log),
the place where it happened (``path``, ``line``, ``entry_id``), and a message that ends with what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable


class BranchlineError(Exception):
    """The root of all errors of this library.

    ``path``, ``line`` (1-based, physical) and ``entry_id`` tell the place as far as it is known; ``details`` holds
    further facts by name, such as sizes and limits.
    """

    code: ClassVar[str] = "branchline"

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        entry_id: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.line = line
        self.entry_id = entry_id
        self.details: dict[str, Any] = details

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SessionError(BranchlineError):
    """Something about the record, its storage, the tree or the context."""

    code = "session"


class SessionNotFoundError(SessionError, LookupError):
    """There is no session at that place: nothing, or nothing committed."""

    code = "session_not_found"


class SessionExistsError(SessionError, FileExistsError):
    """``create`` found something at the place where the session should go, and left it alone."""

    code = "session_exists"


class SessionLockedError(SessionError, BlockingIOError):
    """Another writer holds the session; ``details["owner"]`` names it as far as it is known."""

    code = "session_locked"


class SessionClosedError(SessionError, ValueError):
    """The session, log or storage was closed."""

    code = "session_closed"


class ReadOnlySessionError(SessionError, PermissionError):
    """An append to a session that was opened for reading, or that must be repaired before it is safe to append to."""

    code = "read_only"


class StorageError(SessionError, OSError):
    """The store failed. ``__cause__`` is the first error underneath, the same one for all writes it took along."""

    code = "storage"


class StaleSessionError(StorageError):
    """The store was changed, replaced or removed by someone else. Nothing more is written; open the session anew."""

    code = "stale_session"


class CommitFailed(StorageError):  # noqa: N818 - the name is part of the storage protocol
    """Raised by ``SessionStorage.commit`` when the store is *known* to hold exactly the first ``committed`` records.

    ``sync`` makes those durable, where that is still due; it is called in a worker thread before they are acknowledged.
    """

    code = "commit_failed"

    def __init__(self, message: str, *, committed: int, sync: Callable[[], None] | None = None, **place: Any) -> None:
        super().__init__(message, **place)
        self.committed = committed
        self.sync = sync


class QueueFullError(SessionError, BufferError):
    """More than 16 MiB wait to be written; nothing was queued. Await a pending write (or ``flush``) and append again."""

    code = "queue_full"


class DamagedSessionError(SessionError, ValueError):
    """Committed bytes that are no session, or that break its rules. The store was left as it is."""

    code = "damaged_session"


class UnsupportedVersionError(SessionError, ValueError):
    """The header names a format version that this program does not read. The store was left as it is."""

    code = "unsupported_version"


class InvalidEntryError(SessionError, ValueError):
    """An entry that cannot be recorded: a value JSON cannot carry, a duplicate id, a parent that is not there."""

    code = "invalid_entry"


class InvalidIdError(SessionError, ValueError):
    """A session id, or an entry id that has to be a file name, that is not safe as one. No file was touched."""

    code = "invalid_id"


class EntryNotFoundError(SessionError, LookupError):
    """No entry of that id in this session."""

    code = "entry_not_found"


class BlobNotFoundError(SessionError, LookupError):
    """No blob of that name is kept beside this session."""

    code = "blob_not_found"


class BrokenPathError(SessionError, ValueError):
    """The path to an entry runs through a parent that is missing, later, or part of a cycle."""

    code = "broken_path"


class NotOnPathError(SessionError, ValueError):
    """The entry that was named is not on the path it must be on (someone navigated away). Nothing was written."""

    code = "not_on_path"


class UnsupportedEntryError(SessionError, ValueError):
    """A path holds an entry type or message role that this program does not know, so its context would be a guess."""

    code = "unsupported_entry"


class PendingCallError(SessionError, ValueError):
    """A tool call still waits for its approval, and what was asked for cannot be done before that is decided."""

    code = "pending_call"


class BudgetError(SessionError, ValueError):
    """What must be shown does not fit the budget; the message names the unit, its size, and the budget."""

    code = "budget"


class WrongEventLoopError(SessionError, RuntimeError):
    """A session was used outside the event loop that opened it. Nothing was touched."""

    code = "wrong_event_loop"


class NavigationRefusedError(SessionError, RuntimeError):
    """A hook refused to let the session go to another place. It is where it was."""

    code = "navigation_refused"


class NothingToResumeError(SessionError, LookupError):
    """No turn waits for a person at the leaf. ``entry_id`` is where one does that somebody left behind, if there is one."""

    code = "nothing_to_resume"


class BusyError(SessionError, RuntimeError):
    """A turn is running, or another harness holds the session."""

    code = "busy"


class SettingsError(BranchlineError, ValueError):
    """A setting of the wrong type, or out of its range; ``details`` has ``setting`` (its name), ``value``, ``expected``."""

    code = "settings"


class CompactionError(BranchlineError, ValueError):
    """A summary that was refused, or settings that cannot work; ``details["reason"]`` says which. History is unchanged."""

    code = "compaction"


class CompactionSettingsError(SettingsError, CompactionError):
    """Settings of a compaction that cannot be, or that leave no room; ``details["reason"]`` is ``settings``."""

    code = "compaction_settings"


class ModelError(BranchlineError, RuntimeError):
    """The model, or the way to it, failed for good. ``details["status"]`` is the HTTP status where there was one."""

    code = "model"


class ContextOverflowError(ModelError):
    """The provider says that the request is longer than the model's context window.

    ``details["tokens"]`` and ``details["context_window"]`` are the two sizes, in tokens, where the provider tells them.
    """

    code = "context_overflow"


class ModelTimeoutError(ModelError, TimeoutError):
    """The model, or the way to it, took longer than it may; ``details["phase"]`` is the limit's name in ``Timeouts``."""

    code = "model_timeout"


class TurnLimitError(ModelError):
    """A turn came to a limit of ``AgentSettings``; ``details`` has the limit under its name there, and what was used."""

    code = "turn_limit"


class TurnAbortedError(BranchlineError, RuntimeError):
    """``AgentHarness.abort`` ended the turn. Its end is recorded as ``cancelled``; prompt again to go on."""

    code = "turn_aborted"


class ToolError(BranchlineError, RuntimeError):
    """A tool could not be made, was not found, or refuses its arguments; its message is shown to the model."""

    code = "tool"


class HookError(BranchlineError, RuntimeError):
    """An app's hook, or its function that asks for approval, raised; ``__cause__`` is what it raised."""

    code = "hook"
