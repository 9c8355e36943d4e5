"""What is recorded and where: messages, entries, the protocol of a backend, the log above it, the backends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.lazy_names import lazy_names

__branchline__ = "branchline: storage, compaction, harness"

if TYPE_CHECKING:
    from storage.decode import decode_entry, parse_record
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
        RequestFacts,
        RequestHeaderEntry,
        SessionInfoEntry,
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
        BranchlineError,
        BrokenPathError,
        BudgetError,
        BusyError,
        CommitFailed,
        CompactionError,
        ContextOverflowError,
        DamagedSessionError,
        EntryNotFoundError,
        InvalidEntryError,
        InvalidIdError,
        ModelError,
        NotOnPathError,
        PendingCallError,
        QueueFullError,
        ReadOnlySessionError,
        SessionClosedError,
        SessionError,
        SessionExistsError,
        SessionLockedError,
        SessionNotFoundError,
        StaleSessionError,
        StorageError,
        ToolError,
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
    from storage.pending_write import PendingWrite
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
    )
    from storage.recovery import RecoveredSession, recover_jsonl
    from storage.repository import SessionPage, SessionRepository, SessionSummary
    from storage.tree import children, common_ancestor, messages_on_path, path_to
else:
    _HOMES = {
        "storage.decode": "decode_entry parse_record",
        "storage.entries": (
            "ActiveToolsChangeEntry ApprovalRequestedEntry ApprovalResolvedEntry BranchSummaryEntry "
            "CompactionEntry ContextEditEntry CustomEntry CustomMessageEntry DeliveredEntry Entry LabelEntry "
            "LeafEntry MessageEntry MetadataEntry ModelChangeEntry QueuedEntry Replacement RequestFacts "
            "RequestHeaderEntry SessionInfoEntry ThinkingLevelChangeEntry ToolStartEntry TurnEndEntry "
            "TurnStartEntry UnknownEntry UnknownMessageEntry UsageEntry WorkingMemoryEntry"
        ),
        "storage.entry_file_repository": "EntryFileRepository",
        "storage.entry_files": "EntryFileStorage",
        "storage.entry_log": "EntryLog",
        "storage.entry_path": "EntryPath",
        "storage.errors": (
            "BranchlineError BrokenPathError BudgetError BusyError CommitFailed CompactionError "
            "ContextOverflowError DamagedSessionError EntryNotFoundError InvalidEntryError InvalidIdError "
            "ModelError NotOnPathError PendingCallError QueueFullError ReadOnlySessionError SessionClosedError "
            "SessionError SessionExistsError SessionLockedError SessionNotFoundError StaleSessionError "
            "StorageError ToolError UnsupportedEntryError UnsupportedVersionError WrongEventLoopError"
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
        "storage.pending_write": "PendingWrite",
        "storage.protocols": (
            "BlobStore Deletable Durability Mode PathReader Record SessionStorage SessionWarning StorageInfo"
        ),
        "storage.recovery": "RecoveredSession recover_jsonl",
        "storage.repository": "SessionPage SessionRepository SessionSummary",
        "storage.tree": "children common_ancestor messages_on_path path_to",
    }
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "ActiveToolsChangeEntry",
    "ApprovalRequestedEntry",
    "ApprovalResolvedEntry",
    "AssistantMessage",
    "BashExecutionMessage",
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
    "Mode",
    "ModelChangeEntry",
    "ModelError",
    "NotOnPathError",
    "PathReader",
    "PendingCallError",
    "PendingWrite",
    "QueueFullError",
    "QueuedEntry",
    "ReadOnlySessionError",
    "Record",
    "RecoveredSession",
    "Replacement",
    "RequestFacts",
    "RequestHeaderEntry",
    "SessionClosedError",
    "SessionError",
    "SessionExistsError",
    "SessionHeader",
    "SessionInfoEntry",
    "SessionLockedError",
    "SessionNotFoundError",
    "SessionPage",
    "SessionRepository",
    "SessionStorage",
    "SessionSummary",
    "SessionWarning",
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
    "TurnEndEntry",
    "TurnStartEntry",
    "UnknownEntry",
    "UnknownMessageEntry",
    "UnsupportedEntryError",
    "UnsupportedVersionError",
    "Usage",
    "UsageEntry",
    "UserMessage",
    "WorkingMemoryEntry",
    "WrongEventLoopError",
    "check_session_id",
    "children",
    "common_ancestor",
    "decode_entry",
    "messages_on_path",
    "new_header",
    "new_id",
    "parse_header",
    "parse_record",
    "path_to",
    "recover_jsonl",
]
