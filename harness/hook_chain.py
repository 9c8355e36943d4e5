"""The hooks of a harness at one turn: called in order, and what they raise and change made safe for the record."""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, cast

from compaction.summary_request import SummaryReply
from harness.events import AgentEvent
from harness.hooks import CallFacts, CompactionFacts, Hook, Refusal, TurnFacts, TurnOutcome
from harness.models.protocol import ModelRequest
from harness.tools.text import exception_text
from harness.turn_record import TurnRecord
from storage.errors import BranchlineError, HookError, InvalidEntryError
from storage.messages import AssistantMessage, ToolResultMessage, UserMessage
from storage.strict_json import encode_model, encode_value, replace_surrogates

_log = logging.getLogger("branchline.hooks")


class _Link:
    """One use of a hook: the same one may be there twice."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook


class HookChain:
    """The hooks of a harness, in order."""

    def __init__(self) -> None:
        self._links: tuple[_Link, ...] = ()

    def add(self, hook: Hook) -> Callable[[], None]:
        """Put a hook behind the others. Returns what takes just this one off; that may be called more than once."""
        if not isinstance(hook, Hook):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise HookError(f"a hook is an object of a class made of Hook, not {hook!r:.100}")
        _check_names(type(hook))
        link = _Link(hook)
        self._links = (*self._links, link)

        def take_off() -> None:
            self._links = tuple(other for other in self._links if other is not link)

        return take_off

    def with_own(self, method: str) -> list[Hook]:
        """The hooks that have a ``method`` of their own, in order."""
        if not self._links:
            return []
        inherited = getattr(Hook, method)
        hooks = [link.hook for link in self._links]
        return [hook for hook in hooks if getattr(getattr(hook, method), "__func__", None) is not inherited]


def _check_names(kind: type[Hook]) -> None:
    """Raise ``HookError`` for a method that is nearly one of a hook's: nobody would call it, and it may be a guard."""
    known = [name for name in vars(Hook) if not name.startswith("_")]
    for name in dir(kind):
        if not name.startswith("_") and name not in known:
            meant = get_close_matches(name, known, n=1, cutoff=0.85)
            if meant:
                raise HookError(
                    f"{kind.__name__} has {name!r}, which nothing calls; did you mean {meant[0]!r}? Give it that name, or "
                    "one that is less like it"
                )


class TurnHooks:
    """The chain at one turn."""

    def __init__(self, chain: HookChain, number: int, begins_with: object) -> None:
        """``begins_with``: the prompt, or something else where the turn is resumed."""
        prompt = begins_with.model_copy(deep=True) if isinstance(begins_with, UserMessage) else None
        self.turn = TurnFacts(number, prompt)
        self._chain = chain
        self._failure: Exception | None = None
        self._failed: list[Hook] = []

    def check(self) -> None:
        """Raise what a hook raised at an event: called where the turn can end."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def around(self, run: Callable[[], Awaitable[AssistantMessage]], record: TurnRecord) -> AssistantMessage:
        """Run the turn between ``before_turn`` and ``after_turn``."""
        await self.before_turn()
        try:
            reply = await run()
        except BaseException as error:
            outcome: TurnOutcome = record.reason or ("failed" if isinstance(error, Exception) else "cancelled")
            try:
                await self.after_turn("suspended" if record.is_suspended else outcome)
            except Exception as second:  # noqa: BLE001 - the first error is the one to know
                error.add_note(f"A hook failed after the turn: {second}")
            raise
        await self.after_turn("completed")
        self.check()
        return reply

    def before(self, emit: Callable[[AgentEvent], Awaitable[None]]) -> Callable[[AgentEvent], Awaitable[None]]:
        """Tell the hooks each event, then ``emit`` it."""

        async def tell(event: AgentEvent) -> None:
            await self.on_event(event)
            await emit(event)

        return tell

    def after(self, emit: Callable[[AgentEvent], Awaitable[None]]) -> Callable[[AgentEvent], Awaitable[None]]:
        """``emit`` each event, which does not wait, then tell the hooks, who may."""

        async def tell(event: AgentEvent) -> None:
            await emit(event)
            await self.on_event(event)

        return tell

    async def before_turn(self) -> None:
        """Raises what a hook raises, as it is: that is its refusal."""
        for hook in self._chain.with_own("before_turn"):
            await hook.before_turn(self.turn)

    async def after_turn(self, outcome: TurnOutcome) -> None:
        """Every hook is told. Raises the first failure then, as ``HookError``."""
        failure: Exception | None = None
        for hook in self._chain.with_own("after_turn"):
            try:
                await hook.after_turn(self.turn, outcome)
            except Exception as error:  # noqa: BLE001 - raised below, when all were told
                failure = failure or hook_error(hook, "after_turn", error)
        if failure is not None:
            raise failure

    def see(self, method: str) -> bool:
        """Whether any hook has a ``method`` of its own."""
        return bool(self._chain.with_own(method))

    async def before_request(self, request: ModelRequest) -> ModelRequest:
        """The request as the hooks leave it. Raises ``HookError``."""
        for hook in self._chain.with_own("before_request"):
            changed = await answer_of(hook, "before_request", request)
            if changed is None:
                continue
            if not isinstance(changed, ModelRequest):
                raise HookError(
                    f"the hook {type(hook).__name__} returned a {type(changed).__name__} from before_request; return a "
                    "ModelRequest (dataclasses.replace makes one of the old), or None"
                )
            request = changed
        return request

    async def before_compact(self, facts: CompactionFacts) -> Refusal | SummaryReply | None:
        """The first answer of a hook. Raises ``HookError``."""
        for hook in self._chain.with_own("before_compact"):
            answer = await answer_of(hook, "before_compact", facts)
            if isinstance(answer, str):
                return SummaryReply(answer)
            if isinstance(answer, Refusal | SummaryReply):
                return answer
            if answer is not None:
                raise HookError(
                    f"the hook {type(hook).__name__} returned a {type(answer).__name__} from before_compact; return the "
                    "summary as a text or a SummaryReply, a Refusal, or None"
                )
        return None

    async def before_call(self, facts: CallFacts) -> CallFacts | str:
        """The call with its arguments as the hooks leave them, or why it is not run, in words for the model."""
        for hook in self._chain.with_own("before_call"):
            try:
                answer: object = await hook.before_call(facts)
                if isinstance(answer, Refusal):
                    return answer.reason or f"This call of {facts.call.name} was refused, so it was not run."
                if answer is not None:
                    facts = replace(facts, call=_with_arguments(facts, answer))
            except Exception as error:  # noqa: BLE001 - what it raises refuses the call, and the model is told
                _log.warning("the hook %s failed before a call", type(hook).__name__, exc_info=error)
                return f"This call was not run: a check before it failed. {exception_text(error)}"
        return facts

    async def after_call(
        self, facts: CallFacts, result: ToolResultMessage, keep: Callable[[ToolResultMessage], None]
    ) -> None:
        """Hand the result on from hook to hook; ``keep`` is given each one that can be recorded, as soon as it is there."""
        for hook in self._chain.with_own("after_call"):
            try:
                answer: object = await hook.after_call(facts, result.model_copy(deep=True))
                if answer is not None:
                    result = _fit_result(facts, answer)
                    keep(result)
            except Exception as error:  # noqa: BLE001 - noted in the result, which is kept
                _log.warning("the hook %s failed after a call", type(hook).__name__, exc_info=error)
                noted = f"{type(hook).__name__}.after_call: {exception_text(error)}"
                result = result.model_copy(update={"hookError": replace_surrogates(noted)})
                keep(result)

    async def on_event(self, event: AgentEvent) -> None:
        """Tell every hook. What one raises is kept for ``check``, and that hook is told nothing more in this turn."""
        for hook in self._chain.with_own("on_event"):
            if any(hook is failed for failed in self._failed):
                continue
            try:
                await hook.on_event(event)
            except Exception as error:  # noqa: BLE001 - ``check`` raises it
                self._failed.append(hook)
                self._failure = self._failure or hook_error(hook, "on_event", error)


async def answer_of(hook: Hook, method: str, about: object) -> object:
    """What a ``method`` of ``hook`` answers, whatever that is. Raises what ``hook_error`` makes of what it raises."""
    try:
        return await getattr(hook, method)(about)
    except Exception as error:  # noqa: BLE001 - raised below, with the cause it has
        failure = hook_error(hook, method, error)
    raise failure


def hook_error(hook: Hook, method: str, error: Exception) -> Exception:
    """What comes out where a hook raised ``error``: an error of ours as it is, anything else as ``HookError``."""
    if isinstance(error, BranchlineError):
        return error
    made = HookError(
        f"the hook {type(hook).__name__} failed in {method} with a {type(error).__name__}; correct the hook"
    )
    made.__cause__ = error
    return made


def _with_arguments(facts: CallFacts, answer: object) -> Any:
    if not isinstance(answer, Mapping):
        raise HookError(
            f"it returned a {type(answer).__name__}; a Refusal, a mapping of arguments or None was expected"
        )
    arguments = dict(cast("Mapping[str, Any]", answer))
    encode_value(arguments, "arguments")
    return facts.call.model_copy(update={"arguments": copy.deepcopy(replace_surrogates(arguments))})


def _fit_result(facts: CallFacts, answer: object) -> ToolResultMessage:
    if not isinstance(answer, ToolResultMessage):
        raise HookError(f"it returned a {type(answer).__name__}; a ToolResultMessage or None was expected")
    if (answer.tool_call_id, answer.tool_name) != (facts.call.id, facts.call.name):
        raise InvalidEntryError("it changed the call id or the tool's name of the result")
    copied = answer.model_copy(deep=True)
    encode_model(copied)
    return copied
