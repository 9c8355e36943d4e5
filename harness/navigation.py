"""Going to another place in the session, with a summary of what is left behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from compaction.branches import AbandonedBranch, BranchSummary, collect_branch, summarize_branch
from compaction.breathing import run_with_pauses
from compaction.settings import CompactionSettings
from compaction.summary_request import Summarizer
from compaction.tokens import TokenEstimator
from harness.fork import place_before
from harness.hook_chain import HookChain, answer_of
from harness.hooks import NavigationFacts, Refusal
from harness.labels import one_line
from harness.message_queue import append_in_time
from harness.session import SessionTurn
from storage.decode import decode_entry
from storage.entries import BranchSummaryEntry, DeliveredEntry, LabelEntry, MessageEntry
from storage.entry_log import EntryLog
from storage.errors import CompactionError, HookError, InvalidEntryError, NavigationRefusedError, SessionError
from storage.index import NONE, EntryIndex
from storage.messages import UserMessage
from storage.pending_write import PendingWrite


@dataclass(frozen=True, slots=True)
class Navigation:
    """Where ``AgentHarness.navigate`` went."""

    target_id: str | None
    """What was asked for."""
    leaf_id: str | None
    """The session's leaf now; ``None``: it goes on from before its first entry."""
    left_id: str | None
    """The leaf that was left."""
    message: UserMessage | None = None
    """The user message that was asked for, to be changed and said again: the session goes on from before it."""
    summary_id: str | None = None
    """The entry that holds the summary of what was left behind."""
    summary: str | None = None

    @property
    def text(self) -> str | None:
        """The text of ``message``."""
        return None if self.message is None else self.message.text


@dataclass(frozen=True, slots=True)
class SummaryWish:
    """Whether a summary is wanted (``summarizer`` makes it), and how it is made."""

    summarizer: Summarizer | None
    settings: CompactionSettings
    instructions: str | None = None
    estimator: TokenEstimator | None = None


class _Place(NamedTuple):
    """Where one goes on: the entry's place, the message that is handed back, the queued entry that it came from."""

    seq: int
    message: UserMessage | None = None
    queued_id: str | None = None


async def navigate(
    hand: SessionTurn, hooks: HookChain, target_id: str | None, wish: SummaryWish, label: str | None
) -> Navigation:
    """See ``AgentHarness.navigate``. While ``hand`` is on the session, nobody else moves its leaf."""
    session = hand.session
    log, index = session.log, session.log.index
    await log.settled()
    left_id = log.leaf_id
    place = _place_of(index, NONE if target_id is None else index.seq_of(target_id))
    to_id = index.names[place.seq] if place.seq >= 0 else None
    name = None if label is None else one_line(label).strip() or None
    entry: BranchSummaryEntry | None = None
    writes: list[PendingWrite] = []
    if to_id != left_id:
        asks = bool(hooks.with_own("before_navigate"))
        facts = NavigationFacts(
            target_id=target_id,
            to_id=to_id,
            left_id=left_id,
            branch=await _left_behind(log, to_id, wish, asks=asks),
            wants_summary=wish.summarizer is not None,
            instructions=wish.instructions,
            label=name,
        )
        supplied = await _asked(hooks, facts)
        summary = supplied or await _summary_of(facts.branch, wish)
        if summary is not None:
            entry = BranchSummaryEntry(
                parent_id=to_id, summary=summary.summary, details=summary.details or None, usage=summary.usage
            )
            if supplied is not None:
                entry.from_hook = True
    labelled = entry.id if entry is not None else target_id
    if name is not None and labelled is None:
        raise InvalidEntryError("there is no entry before the first one that could be labelled; leave the label out")
    if to_id != left_id:
        writes.append(hand.move_to(to_id, entry))
    if place.queued_id is not None:  # it is in the person's hands now, and would be delivered once more
        writes.append(await append_in_time(session, DeliveredEntry(entry_id=place.queued_id, ignorable=True)))
    if name is not None and labelled is not None:
        writes.append(await append_in_time(session, LabelEntry(target_id=labelled, label=name)))
    for write in writes:
        await write
    return Navigation(
        target_id=target_id,
        leaf_id=log.leaf_id,
        left_id=left_id,
        message=place.message,
        summary_id=None if entry is None else entry.id,
        summary=None if entry is None else entry.summary,
    )


def _place_of(index: EntryIndex, target: int) -> _Place:
    """Where one goes on for ``target``: a user message is said again, so from before it; anything else stays."""
    if target < 0 or index.kind(target) != ("message", "user"):
        return _Place(target)
    entry = cast("MessageEntry", decode_entry(index.line(target)))
    message = cast("UserMessage", entry.message)
    if index.openers[target] == target:
        return _Place(place_before(index, target), message)
    return _before_delivered(index, target, message)


def _before_delivered(index: EntryIndex, target: int, message: UserMessage) -> _Place:
    """Before a message that was queued: before its delivery, or before the turn where nothing was answered yet."""
    start, place = index.state(target).turn, index.parents[target]
    before, queued_id, is_first = place, None, True
    while place >= 0 and place != start:
        kind, role = index.kind(place)
        if kind == "delivered" and queued_id is None:
            delivered = decode_entry(index.line(place))
            if isinstance(delivered, DeliveredEntry) and delivered.message_id == index.names[target]:
                before, queued_id = index.parents[place], delivered.entry_id
        is_first = is_first and (kind != "message" or role == "user")
        place = index.parents[place]
    if start >= 0 and place == start and is_first:
        before = index.parents[start]
    if queued_id is not None and not index.is_on_path(index.ids.get(queued_id, NONE), before):
        queued_id = None  # it was queued after the place that one goes to, and does not wait there
    return _Place(before, message, queued_id)


async def _left_behind(log: EntryLog, to_id: str | None, wish: SummaryWish, *, asks: bool) -> AbandonedBranch | None:
    """What is left behind, where somebody wants to know. Raises what a path does, where a summary is wanted."""
    if wish.summarizer is None and not asks:
        return None
    settings = wish.settings
    try:
        return await run_with_pauses(
            collect_branch(
                await log.path(),
                await log.path(to_id),
                max_tokens=settings.window - settings.reserve,
                estimator=wish.estimator,
            )
        )
    except SessionError:
        if wish.summarizer is not None:
            raise
        return None  # what cannot be read can still be left


async def _asked(hooks: HookChain, facts: NavigationFacts) -> BranchSummary | None:
    """The summary that the hooks supply. Raises ``NavigationRefusedError`` and ``HookError``."""
    supplied: BranchSummary | None = None
    for hook in hooks.with_own("before_navigate"):
        answer = await answer_of(hook, "before_navigate", facts)
        if answer is None:
            continue
        if isinstance(answer, Refusal):
            raise NavigationRefusedError(
                f"the hook {type(hook).__name__} refused to go there: {answer.reason or 'it gave no reason'}; the session "
                "is where it was",
                entry_id=facts.target_id,
            )
        text = cast("object", answer.summary if isinstance(answer, BranchSummary) else answer)
        if not isinstance(text, str) or not text.strip():
            raise HookError(
                f"the hook {type(hook).__name__} returned {text!r:.100} from before_navigate; return a Refusal, a summary "
                "(a text, or a BranchSummary), or None"
            )
        supplied = answer if isinstance(answer, BranchSummary) else BranchSummary(text, facts.left_id or "", {})
        facts = replace(facts, summary=supplied)
    return supplied


async def _summary_of(branch: AbandonedBranch | None, wish: SummaryWish) -> BranchSummary | None:
    if branch is None or wish.summarizer is None:
        return None
    try:
        return await summarize_branch(
            branch, wish.summarizer, wish.settings, instructions=wish.instructions, estimator=wish.estimator
        )
    except CompactionError as error:
        error.message += "; the session is where it was: navigate again, or with summarize=False"
        raise
