"""One turn while it runs: shown as it comes, stopped by Ctrl-C, steered by what is typed, asked about what it may do.

Only the main thread writes to the terminal and reads from it, one thing at a time: while a person types, what happens
waits in line. So nothing is ever written into the middle of something else.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from typing import Any

from anyio.from_thread import BlockingPortal

from harness.cli.approval_question import ApprovalQuestion, ask_person
from harness.cli.conversation import Conversation, Tell, Told
from harness.cli.event_line import KEY, EventLine
from harness.cli.failures import INTERRUPTED, message
from harness.cli.keys import PASTE_OFF, PASTE_ON, kept_quiet, keyboard
from harness.cli.prompt_loop import Prompts
from harness.cli.screen import Screen
from harness.cli.slash_commands import as_prompt, is_command
from harness.cli.turn_screen import TurnScreen
from storage.errors import BranchlineError

_PATIENCE_SECONDS = 0.5
"""A stop that takes longer is told, and how to leave without waiting."""


class LiveTurns:
    """Runs the turns of one conversation. ``prompts`` is where a person is asked, ``None`` where there is nobody."""

    def __init__(
        self,
        screen: Screen,
        portal: BlockingPortal,
        conversation: Conversation,
        prompts: Prompts | None,
        *,
        steering: bool = False,
        thinking: bool = False,
    ) -> None:
        self._screen = screen
        self._portal = portal
        self._conversation = conversation
        self._prompts = prompts
        self._keyboard = keyboard() if steering and prompts is not None and prompts.can_steer else None
        self._thinking = thinking
        self._steered = False
        self._handed_on: tuple[str, Future[bool]] | None = None
        """A typed line that the turn is being told."""
        self.too_late: list[str] = []
        """What was typed into a turn that was over by then, and commands: they come next."""
        self.taken_back: list[str] = []
        """What was typed into a turn that was stopped before it took it."""

    def ask(self, prompt: str) -> None:
        """One prompt and all that follows, shown as it comes.

        Whatever stops it here (Ctrl-C, a signal, a reader that went away), the turn is cancelled and its end recorded
        before that goes on up. A second Ctrl-C leaves at once; the record is whole at every moment.
        """
        self._run(lambda tell: self._conversation.ask(prompt, tell))

    def resume(self) -> None:
        """Go on with a turn that waits for a person. As ``ask``."""
        self._run(self._conversation.resume)

    def _run(self, turn: Callable[[Tell], Awaitable[None]]) -> None:
        self._steered = False
        screen = TurnScreen(self._screen, lambda: session_facts(self._conversation), thinking=self._thinking)
        with EventLine[Told](self._keyboard) as line:
            running = self._portal.start_task_soon(turn, line.put)
            try:
                with kept_quiet(self._keyboard):
                    self._follow(line, screen, running)
                running.result()
            except BaseException:
                self._stop(running, screen)
                raise
        screen.finish()
        if self._steered:
            self.too_late[:0] = self._portal.call(self._conversation.take_back)

    def _follow(self, line: EventLine[Told], screen: TurnScreen, running: Future[None]) -> None:
        self._mark_pastes(on=True)
        try:
            while (event := line.get()) is not None:
                if event == KEY:
                    screen.pause()
                    if not self._steer(running):
                        line.keyboard = None
                    self._mark_pastes(on=True)
                elif isinstance(event, ApprovalQuestion):
                    screen.pause()
                    self._decide(event)
                else:
                    screen.show(event)
        finally:
            self._mark_pastes(on=False)

    def _steer(self, running: Future[None]) -> bool:
        """Let a person type a line, and hand it on; whether there may be more."""
        prompts = self._prompts
        text = prompts.steer() if prompts is not None else None
        if text is None:
            return False
        if not text.strip():
            return True
        if is_command(text) or running.done():
            self.too_late.append(text)
        else:
            taken: Future[bool] = Future()
            self._handed_on = text, taken
            self._portal.start_task_soon(self._hand_on, text, taken)
            wait([taken])  # not cancelled: it is to be said, and Ctrl-C comes through
            self._settle_handed_on()
        return True

    async def _hand_on(self, text: str, taken: Future[bool]) -> None:
        if not taken.set_running_or_notify_cancel():
            return
        try:
            taken.set_result(await self._conversation.steer(as_prompt(text)))
        except BaseException as error:
            taken.set_exception(error)
            raise

    def _settle_handed_on(self) -> None:
        """Whether the turn took the line: told by what came of it, also where Ctrl-C came before that was known."""
        if self._handed_on is None:
            return
        text, taken = self._handed_on
        if not taken.cancel():
            wait([taken])
        self._handed_on = None  # before it raises: what became of it is told once
        failure = None if taken.cancelled() else taken.exception()
        if failure is None and not taken.cancelled() and taken.result():
            self._steered = True
        else:
            self.too_late.append(text)
        if failure is not None:
            raise failure

    def _decide(self, question: ApprovalQuestion) -> None:
        prompts = self._prompts
        if prompts is None:
            raise RuntimeError("a question came where nobody can be asked")
        prompts.forget_typed()
        decision, always = ask_person(self._screen, question.request, prompts.answer)
        self._portal.call(question.settle, decision, always)

    def _stop(self, running: Future[None], screen: TurnScreen) -> None:
        try:
            screen.abandon()
            try:
                self._settle_handed_on()
            except BranchlineError as error:  # the turn has to be stopped all the same
                self._screen.note(message(error))
            stopping = self._portal.start_task_soon(self._conversation.stop)
            both: list[Future[Any]] = [running, stopping]
            if wait(both, timeout=_PATIENCE_SECONDS).not_done:
                self._screen.note("stopping; Ctrl-C again leaves at once")
                wait(both)
            self.taken_back += stopping.result()
            if self._steered:
                self.taken_back += self._portal.call(self._conversation.take_back)
            self.taken_back += self.too_late
            self.too_late.clear()
        except BranchlineError as error:  # what stopped the turn is told as well, and goes on up
            self._screen.note(message(error))
        except KeyboardInterrupt:
            self._screen.note("left at once; the next 'chat' with this session records that the turn was interrupted")
            os._exit(INTERRUPTED)

    def _mark_pastes(self, *, on: bool) -> None:
        if self._keyboard is not None:
            self._screen.control(PASTE_ON if on else PASTE_OFF)


def session_facts(conversation: Conversation) -> dict[str, Any]:
    """Which session it is, for ``--json``."""
    path = conversation.place.where if conversation.place is not None else None
    return {"type": "session", "id": conversation.session_id, "path": path}
