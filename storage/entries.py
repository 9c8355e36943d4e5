"""Entries: what a session records, discriminated by ``type``. See ``docs/format.md`` for the file they make.

An entry that is made in Python needs only its own fields: ``id`` and ``timestamp`` are filled in, ``seq`` is given when
its turn to be written comes, and so is ``parent_id``, unless it was given (``None`` makes a root).
"""

from __future__ import annotations

import time
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from storage.identifiers import new_id
from storage.messages import AssistantContent, KnownMessage, Usage, UserContent
from storage.models import RecordModel

_millisecond = -1
_second = -1
_second_text = ""
_millisecond_text = ""


def iso_timestamp() -> str:
    """Now, ISO 8601 in UTC with milliseconds. Its text is kept while it lasts, and that of the second too."""
    global _millisecond, _millisecond_text, _second, _second_text
    millisecond = time.time_ns() // 1_000_000
    if millisecond != _millisecond:
        second, rest = divmod(millisecond, 1000)
        if second != _second:
            _second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            _second = second
        _millisecond_text = f"{_second_text}.{rest:03d}Z"
        _millisecond = millisecond
    return _millisecond_text


class EntryBase(RecordModel):
    """What every entry has.

    ``seq`` counts the entries of a session from 0 in the order they were committed; ``parent_id`` links the tree.
    """

    always_written: ClassVar[tuple[str, ...]] = ("id", "timestamp", "type")
    seq: int | None = None
    id: str = Field(default_factory=new_id, min_length=1)
    parent_id: str | None = None
    timestamp: str = Field(default_factory=iso_timestamp, min_length=1)
    ignorable: bool | None = None

    @classmethod
    def _absent(cls, name: str) -> bool:
        return name != "parent_id" and super()._absent(name)  # given as ``None``, it makes a root


class RequestEdit(RecordModel):
    """A change that a hook made to the messages of a request: at ``at``, ``removed`` messages gave way to ``inserted``.

    ``at`` counts the messages as they were before any edit; edits are in order and do not overlap.
    """

    at: int
    removed: int = 0
    inserted: list[KnownMessage] | None = None


class Shortening(RecordModel):
    """Which tool results a request showed shortened: those before an entry on its path, over so many characters of text.

    ``before`` is that entry's whole id; with ``inclusive`` a result in that very entry is shortened, too. A result is
    shortened to at most ``max_chars`` (500 at least), by a fixed rule, so that these give the same text again.
    """

    always_written: ClassVar[tuple[str, ...]] = ("max_chars",)
    before: str
    max_chars: int = 2_000
    inclusive: bool | None = None


class RequestFacts(RecordModel):
    """What a reply answered: the header it was asked under, the projection's version, and the entries shown (R26).

    ``shown`` is a list of runs ``[first id, last id]`` along the reply's own path, with ids shortened to what is unique
    on it. ``leaf_id`` is where the request was made, if that is not the reply's parent: others appended meanwhile.
    ``tail``: where a budget cut a compaction's retained tail, the places of its messages that were shown, counted from
    its end (-1 is its last). ``edits``: what hooks changed in the messages. ``shortened``: which results were shortened.
    ``cut``: a budget left something out.
    """

    header_id: str | None = None
    projection: int | None = None
    shown: list[list[str]] | None = None
    leaf_id: str | None = None
    tail: list[int] | None = None
    edits: list[RequestEdit] | None = None
    shortened: Shortening | None = None
    cut: bool | None = None


class MessageEntry(EntryBase):
    """A message, as the model is shown it."""

    type: Literal["message"] = "message"
    message: KnownMessage
    request: RequestFacts | None = None


class UnknownMessageEntry(EntryBase):
    """A ``message`` entry whose role (or a part of whose content) this version does not know; everything is kept."""

    type: Literal["message"] = "message"
    message: dict[str, Any]


class CustomMessageEntry(EntryBase):
    """An app's message, shown to the model as a user message. ``display`` and ``details`` are for the app's own screen."""

    type: Literal["custom_message"] = "custom_message"
    custom_type: str
    content: str | list[UserContent] | None
    display: bool | str | None = None
    details: Any = None


class BranchSummaryEntry(EntryBase):
    """What happened on a branch that was left; ``from_id`` is the leaf that was left."""

    type: Literal["branch_summary"] = "branch_summary"
    summary: str | None
    from_id: str | None = None
    details: Any = None
    usage: Usage | None = None
    from_hook: bool | None = None


class CompactionEntry(EntryBase):
    """A summary that stands for what lies before it on its path.

    Kept are the entries from ``first_kept_entry_id`` on, or the messages in ``retained_tail``, which wins if both are
    there. ``tokens_before`` is the size of the context that was summarised, in tokens.
    """

    type: Literal["compaction"] = "compaction"
    summary: str | None
    first_kept_entry_id: str | None = None
    retained_tail: list[KnownMessage] | None = None
    tokens_before: int | None = None
    details: Any = None
    usage: Usage | None = None
    from_hook: bool | None = None
    system_message: Any = None


class ModelChangeEntry(EntryBase):
    """From here on the path, another model."""

    type: Literal["model_change"] = "model_change"
    provider: str
    model_id: str


class ThinkingLevelChangeEntry(EntryBase):
    """From here on the path, another thinking level (off, minimal, low, medium, high, …; any text)."""

    type: Literal["thinking_level_change"] = "thinking_level_change"
    thinking_level: str


class ActiveToolsChangeEntry(EntryBase):
    """From here on the path, these tools are offered."""

    type: Literal["active_tools_change"] = "active_tools_change"
    active_tool_names: list[str]


class RequestHeaderEntry(EntryBase):
    """All that a request holds besides its messages, whole, written when it changed."""

    type: Literal["request_header"] = "request_header"
    model: dict[str, Any]
    system_prompt: str | None = None
    tools: list[dict[str, Any]] | None = None
    options: dict[str, Any] | None = None
    thinking_level: str | None = None


class TurnStartEntry(EntryBase):
    """A turn begins; ``turn`` counts the turns on the path, from 1."""

    type: Literal["turn_start"] = "turn_start"
    turn: int


class TurnEndEntry(EntryBase):
    """A turn ended, and how: completed, failed, cancelled or interrupted."""

    type: Literal["turn_end"] = "turn_end"
    turn: int
    reason: str


class ToolStartEntry(EntryBase):
    """The fact that a call was begun. Without a result after it, its outcome is unknown."""

    type: Literal["tool_start"] = "tool_start"
    call_id: str
    name: str
    arguments: dict[str, Any]
    idempotency_key: str | None = None


class WorkingMemoryEntry(EntryBase):
    """A change of the working memory: ``set`` a key to a value, ``delete`` a key, or ``clear`` all."""

    type: Literal["working_memory"] = "working_memory"
    op: Literal["set", "delete", "clear"]
    key: str | None = None
    value: Any = None
    from_session: str | None = Field(default=None, alias="from")


class QueuedEntry(EntryBase):
    """A message that waits for its place in a turn. ``kind``: ``steer``, ``follow_up`` or ``next_turn``."""

    type: Literal["queued"] = "queued"
    kind: str
    message: KnownMessage


class DeliveredEntry(EntryBase):
    """A queued message takes its place as the entry ``message_id``; without one, it was taken back.

    ``entry_id`` names the ``queued`` entry. The message entry follows; where it does not (a crash came between), the
    queued message still waits.
    """

    type: Literal["delivered"] = "delivered"
    entry_id: str
    message_id: str | None = None


class ApprovalRequestedEntry(EntryBase):
    """A call waits for a person's decision: what would run, and what the person was shown of it."""

    type: Literal["approval_requested"] = "approval_requested"
    call_id: str
    name: str | None = None
    arguments: dict[str, Any] | None = None
    idempotency_key: str | None = None
    preview: str | None = None


class ApprovalResolvedEntry(EntryBase):
    """A person decided on a call: ``approved`` or ``denied``; or it was ``cancelled`` before anybody did."""

    type: Literal["approval_resolved"] = "approval_resolved"
    call_id: str
    decision: str
    reason: str | None = None


class UsageEntry(EntryBase):
    """Tokens spent outside a reply (pi)."""

    type: Literal["usage"] = "usage"
    kind: str | None = None
    provider: str | None = None
    model: str | None = None
    usage: Usage | None = None
    note: str | None = None


class Replacement(RecordModel):
    """The content that is shown instead of an edited entry's own."""

    content: str | list[AssistantContent | UserContent] | None = None


class ContextEditEntry(EntryBase):
    """Replaces (or, with ``None``, hides) what another entry shows; the last one on a path counts (pi)."""

    type: Literal["context_edit"] = "context_edit"
    target_id: str
    replacement: Replacement | None


class MetadataEntry(EntryBase):
    """An app's fact about the session: any JSON value under a key."""

    always_written: ClassVar[tuple[str, ...]] = (*EntryBase.always_written, "value")
    type: Literal["metadata"] = "metadata"
    key: str
    value: Any


class CustomEntry(EntryBase):
    """An app's own entry; the model is shown it only through a projector that the caller passes."""

    type: Literal["custom"] = "custom"
    custom_type: str
    data: Any = None


class LabelEntry(EntryBase):
    """A name for an entry, session-wide; without a label it takes the name away."""

    type: Literal["label"] = "label"
    target_id: str
    label: str | None = None


class LeafEntry(EntryBase):
    """One goes on from ``target_id``; ``None`` is before the first entry."""

    always_written: ClassVar[tuple[str, ...]] = (*EntryBase.always_written, "target_id")
    type: Literal["leaf"] = "leaf"
    target_id: str | None


class SessionInfoEntry(EntryBase):
    """The session's name."""

    type: Literal["session_info"] = "session_info"
    name: str | None = None


class UnknownEntry(EntryBase):
    """An entry of a type that this version does not know: all its members are kept; it stays a link in its chain."""

    type: str


_Known = (
    MessageEntry
    | CustomMessageEntry
    | BranchSummaryEntry
    | CompactionEntry
    | ModelChangeEntry
    | ThinkingLevelChangeEntry
    | ActiveToolsChangeEntry
    | RequestHeaderEntry
    | TurnStartEntry
    | TurnEndEntry
    | ToolStartEntry
    | WorkingMemoryEntry
    | QueuedEntry
    | DeliveredEntry
    | ApprovalRequestedEntry
    | ApprovalResolvedEntry
    | UsageEntry
    | ContextEditEntry
    | MetadataEntry
    | CustomEntry
    | LabelEntry
    | LeafEntry
    | SessionInfoEntry
)
KnownEntry = Annotated[_Known, Field(discriminator="type")]
Entry = _Known | UnknownMessageEntry | UnknownEntry
