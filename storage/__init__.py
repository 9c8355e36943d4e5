"""What is recorded and where: messages, entries, the protocol of a backend, the log above it, the backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.lazy_names import lazy_names

__branchline__ = "branchline: storage, compaction, harness"

if TYPE_CHECKING:
    from storage.decode import parse_record
    from storage.entries import (
        ActiveToolsChangeEntry,
        ApprovalRequestedEntry,
        ApprovalResolvedEntry,
        BranchSummaryEntry,
        CompactionEntry,
        ContextEditEntry,
        CustomEntry,
        CustomMessageEntry,
        DeliveredEntry,
        Entry,
        LabelEntry,
        LeafEntry,
        MessageEntry,
        MetadataEntry,
        ModelChangeEntry,
        QueuedEntry,
        Replacement,
        RequestEdit,
        RequestFacts,
        RequestHeaderEntry,
        SessionInfoEntry,
        Shortening,
        ThinkingLevelChangeEntry,
        ToolStartEntry,
        TurnEndEntry,
        TurnStartEntry,
        UnknownEntry,
        UnknownMessageEntry,
        UsageEntry,
        WorkingMemoryEntry,
    )
    from storage.entry_file_repository import EntryFileRepository
    from storage.entry_files import EntryFileStorage
    from storage.entry_log import EntryLog
    from storage.entry_path import EntryPath
    from storage.errors import (
        BlobNotFoundError,
        BranchlineError,
        BrokenPathError,
        BudgetError,
        BusyError,
        CommitFailed,
        CompactionError,
        CompactionSettingsError,
        ContextOverflowError,
        DamagedSessionError,
        EntryNotFoundError,
        HookError,
        InvalidEntryError,
        InvalidIdError,
        ModelError,
        ModelTimeoutError,
        NavigationRefusedError,
        NothingToResumeError,
        NotOnPathError,
        PendingCallError,
        QueueFullError,
        ReadOnlySessionError,
        SessionClosedError,
        SessionError,
        SessionExistsError,
        SessionLockedError,
        SessionNotFoundError,
        SettingsError,
        StaleSessionError,
        StorageError,
        ToolError,
        TurnAbortedError,
        TurnLimitError,
        UnsupportedEntryError,
        UnsupportedVersionError,
        WrongEventLoopError,
    )
    from storage.header import SessionHeader, new_header, parse_header
    from storage.identifiers import check_session_id, new_id
    from storage.jsonl import JsonlStorage
    from storage.jsonl_repository import JsonlRepository
    from storage.memory import Memory, MemoryStorage
    from storage.memory_repository import MemoryRepository
    from storage.messages import (
        AssistantMessage,
        BashExecutionMessage,
        BranchSummaryMessage,
        CompactionSummaryMessage,
        Cost,
        CustomMessage,
        ImageContent,
        Message,
        SystemMessage,
        TextContent,
        ThinkingContent,
        ToolCall,
        ToolResultMessage,
        Usage,
        UserMessage,
    )
    from storage.migrate import MigratedSession, SessionMigration, migrate_all, migrate_session
    from storage.migrating import MigrationReport, migrate_pi_file
    from storage.pending_write import PendingWrite
    from storage.postgres import PostgresStorage
    from storage.postgres_repository import PostgresRepository
    from storage.protocols import (
        BlobStore,
        Deletable,
        Durability,
        Mode,
        PathReader,
        Record,
        SessionStorage,
        SessionWarning,
        StorageInfo,
        Watchable,
    )
    from storage.recovery import RecoveredSession, recover_jsonl
    from storage.repository import SessionPage, SessionRepository, SessionSummary
    from storage.sqlite import SqliteStorage
    from storage.sqlite_repository import SqliteRepository
    from storage.tree import children, common_ancestor, messages_on_path, path_to
else:
    _HOMES = {
        "storage.decode": "parse_record",
        "storage.entries": (
            "ActiveToolsChangeEntry ApprovalRequestedEntry ApprovalResolvedEntry BranchSummaryEntry "
            "CompactionEntry ContextEditEntry CustomEntry CustomMessageEntry DeliveredEntry Entry LabelEntry "
            "LeafEntry MessageEntry MetadataEntry ModelChangeEntry QueuedEntry Replacement RequestEdit RequestFacts "
            "RequestHeaderEntry SessionInfoEntry Shortening ThinkingLevelChangeEntry ToolStartEntry "
            "TurnEndEntry TurnStartEntry UnknownEntry UnknownMessageEntry UsageEntry WorkingMemoryEntry"
        ),
        "storage.entry_file_repository": "EntryFileRepository",
        "storage.entry_files": "EntryFileStorage",
        "storage.entry_log": "EntryLog",
        "storage.entry_path": "EntryPath",
        "storage.errors": (
            "BlobNotFoundError BranchlineError BrokenPathError BudgetError BusyError CommitFailed CompactionError "
            "CompactionSettingsError ContextOverflowError DamagedSessionError EntryNotFoundError HookError "
            "InvalidEntryError InvalidIdError ModelError ModelTimeoutError NavigationRefusedError NotOnPathError "
            "NothingToResumeError PendingCallError QueueFullError ReadOnlySessionError SessionClosedError "
            "SessionError SessionExistsError SessionLockedError SessionNotFoundError SettingsError StaleSessionError "
            "StorageError ToolError TurnAbortedError TurnLimitError UnsupportedEntryError UnsupportedVersionError "
            "WrongEventLoopError"
        ),
        "storage.header": "SessionHeader new_header parse_header",
        "storage.identifiers": "check_session_id new_id",
        "storage.jsonl": "JsonlStorage",
        "storage.jsonl_repository": "JsonlRepository",
        "storage.memory": "Memory MemoryStorage",
        "storage.memory_repository": "MemoryRepository",
        "storage.messages": (
            "AssistantMessage BashExecutionMessage BranchSummaryMessage CompactionSummaryMessage Cost "
            "CustomMessage ImageContent Message SystemMessage TextContent ThinkingContent ToolCall "
            "ToolResultMessage Usage UserMessage"
        ),
        "storage.migrate": "MigratedSession SessionMigration migrate_all migrate_session",
        "storage.migrating": "MigrationReport migrate_pi_file",
        "storage.pending_write": "PendingWrite",
        "storage.postgres": "PostgresStorage",
        "storage.postgres_repository": "PostgresRepository",
        "storage.protocols": (
            "BlobStore Deletable Durability Mode PathReader Record SessionStorage SessionWarning StorageInfo Watchable"
        ),
        "storage.recovery": "RecoveredSession recover_jsonl",
        "storage.repository": "SessionPage SessionRepository SessionSummary",
        "storage.sqlite": "SqliteStorage",
        "storage.sqlite_repository": "SqliteRepository",
        "storage.tree": "children common_ancestor messages_on_path path_to",
    }
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "ActiveToolsChangeEntry",
    "ApprovalRequestedEntry",
    "ApprovalResolvedEntry",
    "AssistantMessage",
    "BashExecutionMessage",
    "BlobNotFoundError",
    "BlobStore",
    "BranchSummaryEntry",
    "BranchSummaryMessage",
    "BranchlineError",
    "BrokenPathError",
    "BudgetError",
    "BusyError",
    "CommitFailed",
    "CompactionEntry",
    "CompactionError",
    "CompactionSettingsError",
    "CompactionSummaryMessage",
    "ContextEditEntry",
    "ContextOverflowError",
    "Cost",
    "CustomEntry",
    "CustomMessage",
    "CustomMessageEntry",
    "DamagedSessionError",
    "Deletable",
    "DeliveredEntry",
    "Durability",
    "Entry",
    "EntryFileRepository",
    "EntryFileStorage",
    "EntryLog",
    "EntryNotFoundError",
    "EntryPath",
    "HookError",
    "ImageContent",
    "InvalidEntryError",
    "InvalidIdError",
    "JsonlRepository",
    "JsonlStorage",
    "LabelEntry",
    "LeafEntry",
    "Memory",
    "MemoryRepository",
    "MemoryStorage",
    "Message",
    "MessageEntry",
    "MetadataEntry",
    "MigratedSession",
    "MigrationReport",
    "Mode",
    "ModelChangeEntry",
    "ModelError",
    "ModelTimeoutError",
    "NavigationRefusedError",
    "NotOnPathError",
    "NothingToResumeError",
    "PathReader",
    "PendingCallError",
    "PendingWrite",
    "PostgresRepository",
    "PostgresStorage",
    "QueueFullError",
    "QueuedEntry",
    "ReadOnlySessionError",
    "Record",
    "RecoveredSession",
    "Replacement",
    "RequestEdit",
    "RequestFacts",
    "RequestHeaderEntry",
    "SessionClosedError",
    "SessionError",
    "SessionExistsError",
    "SessionHeader",
    "SessionInfoEntry",
    "SessionLockedError",
    "SessionMigration",
    "SessionNotFoundError",
    "SessionPage",
    "SessionRepository",
    "SessionStorage",
    "SessionSummary",
    "SessionWarning",
    "SettingsError",
    "Shortening",
    "SqliteRepository",
    "SqliteStorage",
    "StaleSessionError",
    "StorageError",
    "StorageInfo",
    "SystemMessage",
    "TextContent",
    "ThinkingContent",
    "ThinkingLevelChangeEntry",
    "ToolCall",
    "ToolError",
    "ToolResultMessage",
    "ToolStartEntry",
    "TurnAbortedError",
    "TurnEndEntry",
    "TurnLimitError",
    "TurnStartEntry",
    "UnknownEntry",
    "UnknownMessageEntry",
    "UnsupportedEntryError",
    "UnsupportedVersionError",
    "Usage",
    "UsageEntry",
    "UserMessage",
    "Watchable",
    "WorkingMemoryEntry",
    "WrongEventLoopError",
    "check_session_id",
    "children",
    "common_ancestor",
    "messages_on_path",
    "migrate_all",
    "migrate_pi_file",
    "migrate_session",
    "new_header",
    "new_id",
    "parse_header",
    "parse_record",
    "path_to",
    "recover_jsonl",
]
