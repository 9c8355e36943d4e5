"""The calls of one reply: checked, run side by side or one after the other, and each given exactly one result."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import anyio

from harness.events import AgentEvent, ToolFinished, ToolStarted
from harness.progress import ProgressLine
from harness.recovery import interrupted_result
from harness.settings import AgentSettings
from harness.tools.context import ToolContext
from harness.tools.definition import Tool, ToolOutput
from harness.tools.text import exception_text, to_content, to_plain, to_text
from harness.turn_record import CallState, TurnRecord
from storage.entries import ToolStartEntry
from storage.errors import ToolError
from storage.messages import AssistantMessage, ToolResultMessage
from storage.pending_write import PendingWrite

CUT_OFF = (
    "This call was not run: the reply was cut off at its length limit, so the call may not be whole. "
    "Make it again, in a shorter reply."
)
CANCELLED_WITHIN = "The tool was cancelled by something of its own; its outcome is unknown."

Emit = Callable[[AgentEvent], Awaitable[None]]


class CallRunner:
    """Runs the calls of replies with one set of tools. Keeps nothing between two replies."""

    def __init__(
        self,
        record: TurnRecord,
        tools: Mapping[str, Tool],
        settings: AgentSettings,
        *,
        emit: Emit,
        progress: ProgressLine,
        working_directory: Path | None,
    ) -> None:
        self._record = record
        self._tools = tools
        self._settings = settings
        self._emit = emit
        self._progress = progress
        self._working_directory = working_directory

    async def run(self, reply: AssistantMessage) -> None:
        """Give each call in ``record.calls`` its result, on disk in the order in which they are there.

        Cancelled (by scope or natively), the tools are cancelled, and it returns to its caller with the calls that have
        no result still in ``record.calls``. What a tool raises is its result and never comes out of here.
        """
        calls = self._record.calls
        for state in calls:
            state.refusal = self._refusal(state, reply)
        side_by_side = all(state.tool is None or state.tool.parallel for state in calls)
        try:
            for batch in [calls] if side_by_side else [[state] for state in calls]:
                await self._run_batch(batch)
        except BaseExceptionGroup as failures:
            raise _first(failures) from failures

    async def _run_batch(self, batch: Sequence[CallState]) -> None:
        for state in batch:
            if state.refusal is not None:
                await self._finish(state, _error_result(state, state.refusal))
        ready = [state for state in batch if state.refusal is None]
        starts = [(state, await self._record.put(_start_of(state))) for state in ready]
        # Even one call runs in a task of its own: a native cancellation hits only the task that waits here, so what
        # reaches a tool is always the cancellation of this scope, and can be told from the tool's own.
        async with anyio.create_task_group() as group:
            for state, start in starts:
                group.start_soon(self._run_one, state, start)
        for state in ready:
            # Somebody got hold of the task that ran it, and cancelled that.
            if state.recorded is None:
                await self._finish(state, state.result or interrupted_result(state.call, begun=state.begun))

    def _refusal(self, state: CallState, reply: AssistantMessage) -> str | None:
        """Why a call is not run, in words for the model; ``None`` if it is ready to run."""
        call = state.call
        if reply.stop_reason == "length":
            return CUT_OFF
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return f"There is no tool {call.name!r:.100}. The tools are: {known}."
        if call.raw_arguments is not None:
            given = f"{call.raw_arguments!r:.500}"
            return f"The arguments of {call.name} were not a JSON object, so it was not run: {given}"
        try:
            state.prepared = tool.prepare(call.arguments)
        except ToolError as error:
            return f"Invalid arguments for {call.name}, so it was not run.\n{error.message}"
        except Exception as error:  # noqa: BLE001 - a tool's own check may fail in any way; the model is told
            return f"The arguments of {call.name} could not be checked, so it was not run. {exception_text(error)}"
        state.tool = tool
        return None

    async def _run_one(self, state: CallState, start: PendingWrite) -> None:
        start_id = await start
        await self._emit(ToolStarted(state.call, start_id))
        await self._execute(state)
        await self._finish(state, state.result or _error_result(state, CANCELLED_WITHIN))

    async def _finish(self, state: CallState, result: ToolResultMessage) -> None:
        entry_id = await self._record.write_result(state, result)
        await self._emit(ToolFinished(state.call, result, entry_id))

    async def _execute(self, state: CallState) -> None:
        """Run the tool; ``state.result`` is what came of it, or ``None`` where its task was cancelled before it began."""
        tool = state.tool
        assert tool is not None  # noqa: S101 - a call without a tool was refused
        seconds = tool.timeout if tool.timeout is not None else self._settings.tool_timeout
        deadline = math.inf if seconds is None else anyio.current_time() + seconds
        context = ToolContext(
            call_id=state.call.id,
            tool_name=tool.name,
            idempotency_key=_key(state),
            deadline=None if seconds is None else deadline,
            working_directory=self._working_directory,
            report=self._progress.reporter(state.call),
        )
        state.begun = True
        try:
            with anyio.CancelScope(deadline=deadline) as scope:
                # The task that a tool finds itself in is its own: if it cancels that, now or later, nothing else is hit.
                async with anyio.create_task_group() as group:
                    group.start_soon(self._call, state, tool, context)
        finally:
            context.stopped.set()
        if state.result is None and scope.cancel_called:
            text = f"{tool.name} took longer than {seconds:g} seconds and was stopped; its outcome is unknown."
            state.result = _error_result(state, text)

    async def _call(self, state: CallState, tool: Tool, context: ToolContext) -> None:
        """Set the result at once, so that a tool which finished keeps it, whatever is cancelled next."""
        limit = self._settings.max_result_chars
        try:
            state.result = self._result(state, await tool.execute(state.prepared, context))
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            state.result = _error_result(state, CANCELLED_WITHIN)
        except ToolError as error:
            state.result = _error_result(state, to_text(error.message, limit=limit))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool raises is its result
            state.result = _error_result(state, to_text(exception_text(error), limit=limit))

    def _result(self, state: CallState, value: object) -> ToolResultMessage:
        limit = self._settings.max_result_chars
        output = value if isinstance(value, ToolOutput) else ToolOutput(value)
        return ToolResultMessage(
            tool_call_id=state.call.id,
            tool_name=state.call.name,
            content=to_content(output.content, limit=limit),
            details=to_plain(output.details, limit=limit),
            is_error=bool(output.is_error),
        )


def _key(state: CallState) -> str:
    """Unique for the call, in all sessions: the reply's entry has an id of its own, and the call one within it."""
    return f"{state.entry_id}/{state.call.id}"


def _start_of(state: CallState) -> ToolStartEntry:
    call = state.call
    return ToolStartEntry(call_id=call.id, name=call.name, arguments=call.arguments, idempotency_key=_key(state))


def _error_result(state: CallState, text: str) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=state.call.id, tool_name=state.call.name, content=text, is_error=True)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure to go on with: what must not be handled as an error (Ctrl-C) before anything else."""
    leaves: list[BaseException] = []
    waiting: list[BaseException] = [failures]
    while waiting:
        failure = waiting.pop(0)
        if isinstance(failure, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", failure).exceptions)
        else:
            leaves.append(failure)
    return next((leaf for leaf in leaves if not isinstance(leaf, Exception)), leaves[0])
