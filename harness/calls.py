"""The calls of one reply: checked, run side by side or one after the other, and each given exactly one result."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from harness.approvals import Approve
from harness.asking import NOBODY_TO_ASK, Asking, needs_approval
from harness.events import AgentEvent, ToolFinished, ToolStarted
from harness.first_failure import first_failure
from harness.hook_chain import TurnHooks
from harness.hooks import CallFacts
from harness.progress import ProgressLine
from harness.recovery import interrupted_result
from harness.settings import AgentSettings
from harness.tools.context import ToolContext
from harness.tools.definition import Tool, ToolOutput, copy_arguments
from harness.tools.text import exception_text, to_content, to_plain, to_text
from harness.turn_record import CallState, TurnRecord
from storage.blobs import check_blob_name
from storage.entries import ToolStartEntry
from storage.errors import ToolError
from storage.messages import AssistantMessage, ToolResultMessage
from storage.pending_write import PendingWrite
from storage.protocols import BlobStore

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
        hooks: TurnHooks,
        approve: Approve | None,
        emit: Emit,
        progress: ProgressLine,
        working_directory: Path | None,
    ) -> None:
        self._record = record
        self._tools = tools
        self._settings = settings
        self._hooks = hooks
        self._approve = approve
        self._emit = emit
        self._progress = progress
        self._working_directory = working_directory
        self._has_blobs = isinstance(record.session.storage, BlobStore)

    async def run(self, reply: AssistantMessage) -> None:
        """Give each call in ``record.calls`` its result, on disk in the order in which they are there.

        Calls that a person decides on later are left without one, and so are those after such a call that may not run
        beside another. Calls that have a result already are passed by; one that was begun before (the turn is resumed)
        gets the result that its outcome is unknown.

        Cancelled (by scope or natively), the tools are cancelled, and it returns to its caller with the calls that have
        no result still in ``record.calls``. What a tool raises is its result and never comes out of here. Raises
        ``HookError`` where ``approve`` raised, once the calls that ran beside it have their results.
        """
        self._check(reply)
        failure: BaseException | None = None
        try:
            for batch in self._batches():
                await self._run_batch(batch)
                if any(state.result is None for state in batch):
                    return
        except BaseExceptionGroup as failures:
            failure = first_failure(failures)
        if failure is not None:
            raise failure  # out here, with the cause that it has: the group is only how it came

    async def note_starts(self, reply: AssistantMessage) -> None:
        """Hand the ``tool_start`` of the calls that will run first to the log, while the reply is not synced yet.

        So reply and starts share one sync. Only where nothing can come between: no hook, no person, no refusal.
        """
        self._check(reply)
        first = next(iter(self._batches()), ())
        if self._hooks.see("before_call") or any(state.refusal or needs_approval(state) for state in first):
            return
        for state in first:
            state.start = await self._record.put(_start_of(state))

    def _check(self, reply: AssistantMessage) -> None:
        for state in self._record.calls:
            if not state.begun and not state.is_checked:
                state.refusal = self._refusal(state, reply)
                state.is_checked = True

    def _batches(self) -> Sequence[Sequence[CallState]]:
        """The calls that run side by side: all, unless a tool forbids it."""
        calls = self._record.calls
        if all(state.tool is None or state.tool.parallel for state in calls):
            return [calls]
        return [[state] for state in calls]

    async def _run_batch(self, batch: Sequence[CallState]) -> None:
        ready: list[CallState] = []
        for state in batch:
            if state.begun:
                if state.is_waiting:
                    await self._record.resolve(state, "cancelled")
                await self._finish(state, interrupted_result(state.call, begun=True))
            elif await self._may_run(state):
                ready.append(state)
        asked = [state for state in ready if state.is_asked or needs_approval(state)]
        at_once = [state for state in ready if not any(state is other for other in asked)]
        asking = Asking(self._record, asked, self._approve, emit=self._emit) if asked else None
        starts = [(state, state.start or await self._record.put(_start_of(state))) for state in at_once]
        if asking is None and len(starts) == 1 and not self._hooks.see("after_call"):
            await self._run_one(*starts[0])  # nearly always
        else:
            async with anyio.create_task_group() as group:
                for state, start in starts:
                    group.start_soon(self._run_one, state, start)
                if asking is not None:
                    group.start_soon(self._ask, asking, group)
        if asking is not None:
            asking.check()
        for state in ready:
            # Somebody got hold of the task that ran it, and cancelled that.
            if state.recorded is None and not state.is_waiting:
                await self._finish(state, state.result or interrupted_result(state.call, begun=state.begun))

    async def _may_run(self, state: CallState) -> bool:
        """Whether hooks, and who is to be asked, let a call run; where they do not, it gets its result here."""
        if state.refusal is None:
            await self._ask_hooks(state)
        if state.refusal is None and self._approve is None and needs_approval(state):
            state.refusal = NOBODY_TO_ASK.format(name=state.call.name)
        if state.refusal is None:
            return True
        if state.is_waiting:
            await self._record.resolve(state, "cancelled", state.refusal)
        await self._finish(state, self._refused(state, state.refusal))
        return False

    def _refused(self, state: CallState, why: str) -> ToolResultMessage:
        return _error_result(state, to_text(why, limit=self._settings.max_result_chars))

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
        state.tool = tool
        return self._prepare(state, tool)

    def _prepare(self, state: CallState, tool: Tool) -> str | None:
        """Have the tool check the arguments; what it says of them, or ``None``."""
        name = tool.name
        try:
            state.prepared = tool.prepare(state.arguments)
        except ToolError as error:
            return f"Invalid arguments for {name}, so it was not run.\n{error.message}"
        except Exception as error:  # noqa: BLE001 - a tool's own check may fail in any way; the model is told
            return f"The arguments of {name} could not be checked, so it was not run. {exception_text(error)}"
        return None

    async def _ask_hooks(self, state: CallState) -> None:
        """Let the hooks refuse a call, or give it other arguments."""
        if not self._hooks.see("before_call"):
            return
        facts = self._facts(state)
        answer = await self._hooks.before_call(facts)
        if isinstance(answer, str):
            state.refusal = answer
        elif answer is not facts:
            state.arguments = answer.call.arguments
            state.refusal = self._prepare(state, facts.tool)

    def _facts(self, state: CallState) -> CallFacts:
        tool = state.tool
        assert tool is not None  # noqa: S101 - a call without a tool was refused
        call = state.call.model_copy(update={"arguments": copy_arguments(state.arguments)})
        return CallFacts(call, tool, state.idempotency_key, self._record.number)

    async def _ask(self, asking: Asking, group: TaskGroup) -> None:
        """Ask about one call after the other; what is approved begins at once."""
        await asking.request()
        for state in asking.states:
            decision = await asking.decide(state)
            if decision is None:
                return
            if decision.kind == "approved":
                group.start_soon(self._run_one, state, await self._record.put(_start_of(state)))
            elif state.refusal is not None:
                await self._finish(state, self._refused(state, state.refusal))

    async def _run_one(self, state: CallState, start: PendingWrite) -> None:
        if not start.is_done() or start.error is not None:  # mostly it was committed with its reply
            await start
        await self._emit(ToolStarted(state.call, start.entry_id))
        await self._execute(state)
        if state.result is None:
            state.result = _error_result(state, CANCELLED_WITHIN)
        await self._after(state, state.result)
        await self._finish(state, state.result)

    async def _after(self, state: CallState, result: ToolResultMessage) -> None:
        """Let the hooks change the result. Cancelled meanwhile, it is what they left."""
        if not self._hooks.see("after_call"):
            return

        def keep(changed: ToolResultMessage) -> None:
            state.result = changed

        await self._hooks.after_call(self._facts(state), result, keep)

    async def _finish(self, state: CallState, result: ToolResultMessage) -> None:
        entry_id = await self._record.write_result(state, result)
        await self._progress.settle()
        await self._emit(ToolFinished(state.call, result, entry_id))

    async def _execute(self, state: CallState) -> None:
        """Run the tool; ``state.result`` is what came of it, or ``None`` where its task was cancelled before it began."""
        tool = state.tool
        assert tool is not None  # noqa: S101 - a call without a tool was refused
        seconds = tool.timeout if tool.timeout is not None else self._settings.tool_timeout
        deadline = math.inf if seconds is None else anyio.current_time() + seconds
        session = self._record.session
        has_blobs = self._has_blobs
        context = ToolContext(
            call_id=state.call.id,
            tool_name=tool.name,
            idempotency_key=state.idempotency_key,
            deadline=None if seconds is None else deadline,
            working_directory=self._working_directory,
            report=self._progress.reporter(state.call),
            write_blob=session.write_blob if has_blobs else None,
            read_blob=session.read_blob if has_blobs else None,
            memory=session.working_memory,
        )
        state.begun = True
        try:
            with anyio.CancelScope(deadline=deadline) as scope:
                # The task that a tool finds itself in is its own: if it cancels that, now or later, nothing else is hit.
                # And a native cancellation hits only the task that waits here, so what reaches a tool is always the
                # cancellation of this scope, and can be told from the tool's own.
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
        blobs = [output.blobs] if isinstance(output.blobs, str) else output.blobs
        return ToolResultMessage(
            tool_call_id=state.call.id,
            tool_name=state.call.name,
            content=to_content(output.content, limit=limit),
            details=to_plain(output.details, limit=limit),
            is_error=bool(output.is_error),
            blobs=[check_blob_name(name) for name in blobs] or None,
        )


def _start_of(state: CallState) -> ToolStartEntry:
    call = state.call
    return ToolStartEntry(
        call_id=call.id, name=call.name, arguments=state.arguments, idempotency_key=state.idempotency_key
    )


def _error_result(state: CallState, text: str) -> ToolResultMessage:
    return ToolResultMessage(tool_call_id=state.call.id, tool_name=state.call.name, content=text, is_error=True)
