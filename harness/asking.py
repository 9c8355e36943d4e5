"""Asking a person about the calls of one reply, one after the other, each question recorded before it is asked."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import anyio
import anyio.to_thread

from harness.approvals import ApprovalRequest, Approve, Decision
from harness.events import AgentEvent, ApprovalRequested, ApprovalResolved
from harness.tools.definition import Tool, copy_arguments
from harness.tools.text import MAX_RESULT_CHARACTERS, exception_text, to_text
from harness.turn_record import CallState, TurnRecord
from storage.entries import ApprovalRequestedEntry
from storage.errors import BranchlineError, HookError
from storage.messages import ToolCall

NOBODY_TO_ASK = (
    "This call was not run: {name} runs only after a person has approved it, and there is nobody to ask in this session. "
    "Do it another way, or say what you would have done."
)
DENIED = "This call was not run: the person who was asked did not approve it."
ASKED_ANEW = "asked anew: the call, or what it would change, is not what it was when this was asked"


def needs_approval(state: CallState) -> bool:
    """Whether a person decides on a call that its tool has checked. In doubt it does."""
    tool = state.tool
    if tool is None:
        return False
    rule = tool.needs_approval
    if not callable(rule):
        return rule
    try:
        return bool(rule(copy_arguments(state.arguments)))
    except Exception:  # noqa: BLE001 - who cannot say that it is harmless is asked about
        return True


class Asking:
    """The questions of one batch of calls. The answers are asked for in call order."""

    def __init__(
        self,
        record: TurnRecord,
        states: Sequence[CallState],
        approve: Approve | None,
        *,
        emit: Callable[[AgentEvent], Awaitable[None]],
    ) -> None:
        self.states: Sequence[CallState] = states
        self._record = record
        self._approve = approve
        self._emit = emit
        self._failure: Exception | None = None
        self._previews = anyio.CapacityLimiter(1)

    def check(self) -> None:
        """Raise what ``approve`` raised, as ``HookError``; also where it ended without any answer."""
        if self._failure is not None:
            raise self._failure
        if any(not state.is_decided and not state.is_deferred for state in self.states):
            raise HookError(
                "the function that asks for approval was cancelled by something of its own; let it return a Decision, "
                "Decision.later() if nobody can say"
            )

    async def request(self) -> None:
        """Record all questions, so that none is forgotten whatever happens while one of them is asked.

        One that was recorded before is asked anew where it would be about something else now: its arguments, or what the
        tool shows of them (the diff to a file that was changed meanwhile).
        """
        for state in self.states:
            preview = await self._preview(state)
            if state.is_asked:
                if (preview, state.arguments) == (state.preview, state.asked_arguments):
                    continue
                await self._record.resolve(state, "cancelled", ASKED_ANEW)
                state.is_decided = False
            state.preview = preview
            state.question = await self._record.put(_question(state))
        for state in self.states:
            if state.question is not None:
                state.question_id = await state.question

    async def decide(self, state: CallState) -> Decision | None:
        """Ask about one call, and record the answer; ``None`` if no answer came: then nobody is asked any more."""
        tool = state.tool
        if tool is None or self._approve is None or self._failure is not None:
            return None
        call = _as_run(state)
        await self._emit(ApprovalRequested(call, state.preview, state.question_id))
        try:
            answer = self._approve(_request(state, tool))
            if not inspect.isawaitable(answer):  # pyright: ignore[reportUnnecessaryComparison]
                raise HookError("approve is no async function, so it could not wait for a person; write async def")
            decision = _checked(await answer)
        except Exception as error:  # noqa: BLE001 - raised by ``check``, when the calls beside it are done
            self._failure = _failed(error)
            return None
        if decision.kind == "later":
            state.is_deferred = True
            return decision
        write = await self._record.resolve(state, decision.kind, decision.reason)
        if decision.kind == "denied":
            state.refusal = f"{DENIED} They said: {decision.reason}" if decision.reason else DENIED
        await self._emit(ApprovalResolved(call, decision.kind, decision.reason, await write))
        return decision

    async def _preview(self, state: CallState) -> str | None:
        """What the tool shows of the call. Where that fails, the person is told so, and decides all the same."""
        preview = None if state.tool is None else state.tool.preview
        if preview is None:
            return None
        try:
            shown: object = await anyio.to_thread.run_sync(
                partial(preview, copy_arguments(state.arguments)), abandon_on_cancel=True, limiter=self._previews
            )
        except Exception as error:  # noqa: BLE001 - as above
            shown = f"(no preview: {exception_text(error)})"
        return None if shown is None else to_text(shown, limit=MAX_RESULT_CHARACTERS)


def _checked(decision: object) -> Decision:
    if not isinstance(decision, Decision):
        raise HookError(f"approve returned a {type(decision).__name__}; return a Decision")
    return decision


def _as_run(state: CallState) -> ToolCall:
    return state.call.model_copy(update={"arguments": copy_arguments(state.arguments)})


def _request(state: CallState, tool: Tool) -> ApprovalRequest:
    return ApprovalRequest(_as_run(state), tool, state.idempotency_key, state.preview, state.question_id)


def _question(state: CallState) -> ApprovalRequestedEntry:
    return ApprovalRequestedEntry(
        call_id=state.call.id,
        name=state.call.name,
        arguments=state.arguments,
        idempotency_key=state.idempotency_key,
        preview=state.preview,
        ignorable=True,
    )


def _failed(error: Exception) -> Exception:
    if isinstance(error, BranchlineError):
        return error
    made = HookError(
        f"asking for approval failed with a {type(error).__name__}; correct the function given as approve, and prompt again"
    )
    made.__cause__ = error
    return made
