"""``branchline chat``: from the options to turns, and what is said around them.

The conversation lives on an event loop in a thread of its own; the main thread reads prompts, writes the answer and
gets the signals. So a slow terminal or pipe never holds up the loop, and Ctrl-C reaches us while we wait for either.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from anyio.from_thread import BlockingPortal, start_blocking_portal

from harness.cli.conversation import Conversation
from harness.cli.conversation_settings import ConversationSettings
from harness.cli.failures import DONE, CommandLineError, Terminated, message
from harness.cli.hints import command_for
from harness.cli.live_turn import LiveTurns
from harness.cli.places import Place, Shelf, check_file, expanded
from harness.cli.plain_text import given_text, preview
from harness.cli.prompt_loop import Prompts, prompts_from_terminal
from harness.cli.screen import Screen
from harness.cli.shelf import find_file, find_session, shelf_at
from harness.cli.slash_commands import LEVELS, as_prompt, asks_for_summary, choices, is_command, run_command
from storage.errors import BranchlineError, BudgetError, ModelError

_STOPPED = "stopped; the turn is recorded as cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What was asked for on the command line."""

    prompt: str | None
    session: str | None
    file: Path | None
    at: str | None
    summarize: bool
    continues: str | None
    with_summary: bool
    model: str | None
    base_url: str | None
    model_file: Path | None
    cwd: Path | None
    tools: bool
    memory: bool
    write: bool
    yes: bool
    system: str | None
    thinking: str | None
    show_thinking: bool
    max_steps: int | None
    max_chars: int | None
    max_tokens: int | None
    context_window: int | None
    compact: bool
    root: str | None


def run_chat(screen: Screen, options: ChatOptions) -> int:
    """Have the conversation that the options ask for; returns the exit code."""
    settings = _settings(screen, options)
    prompt = _prompt(options, screen)
    conversation = Conversation(settings)
    with _terminated_by_signal(), start_blocking_portal("asyncio") as portal:
        try:
            with portal.wrap_async_context_manager(conversation):
                prompts = None
                if prompt is None or (settings.can_ask and settings.write and not settings.approve_all):
                    prompts = prompts_from_terminal(screen, lambda: portal.call(choices, conversation))
                turns = LiveTurns(
                    screen, portal, conversation, prompts, steering=prompt is None, thinking=options.show_thinking
                )
                _Chat(screen, portal, conversation, turns, options.root).have(prompt, prompts)
        except (ModelError, BudgetError):
            # The question is on record; whoever asks again may not want it there.
            if conversation.asked_from is not None:
                screen.note(f"to leave this question out, go on with --at {conversation.asked_from}")
            raise
        finally:
            if conversation.began and conversation.place is not None:
                hint = command_for("chat", conversation.place, *conversation.said_again, root=options.root)
                screen.note(f"session {conversation.place.name}; go on with: {hint}")
    return DONE


class _Chat:
    """What is said in one conversation, from its beginning to its end."""

    def __init__(
        self, screen: Screen, portal: BlockingPortal, conversation: Conversation, turns: LiveTurns, root: str | None
    ) -> None:
        """``root`` is what was given with ``--root``."""
        self._screen = screen
        self._root = root
        self._portal = portal
        self._conversation = conversation
        self._turns = turns

    def have(self, prompt: str | None, prompts: Prompts | None) -> None:
        """Ask ``prompt``, or else what ``prompts`` give until there are no more."""
        self._tell_remarks()
        handed_back = self._conversation.handed_back
        if prompt is not None or prompts is None:
            if handed_back:
                self._screen.note(f"this is asked in place of: {preview(handed_back, 200)}")
            if self._waits():
                self._turns.resume()
            self._turns.ask(prompt or "")
            return
        if handed_back:
            self._turns.taken_back = [handed_back]
        self._screen.note(f"{self._conversation.model_name}; Ctrl-C stops an answer, Ctrl-D leaves, /help helps")
        if self._waits():
            self._survives(self._turns.resume)
        for text in self._typed(prompts):
            if is_command(text):
                if self._survives(lambda text=text: self._command(text), "stopped"):
                    return
            else:
                self._survives(lambda text=text: self._turns.ask(as_prompt(text)))

    def _typed(self, prompts: Prompts) -> Iterator[str]:
        """What is typed, until Ctrl-D; what came too late for a turn is asked next."""
        while True:
            while self._turns.too_late:
                text = self._turns.too_late.pop(0)
                self._screen.note(f"asking now: {text}")
                yield text
            given_back, self._turns.taken_back = "\n".join(self._turns.taken_back), []
            text = prompts.ask(given_back)
            if text is None:
                return
            if text.strip():
                yield text

    def _survives(self, step: Callable[[], bool | None], stopped: str = _STOPPED) -> bool:
        """Take a step; that it failed or was stopped is told, and is not the end of the conversation. Its answer."""
        try:
            return bool(step())
        except KeyboardInterrupt:
            self._screen.note(stopped)
        except (ModelError, BudgetError) as error:
            self._screen.fail(message(error))
            if self._conversation.asked_from is not None:
                self._screen.note(f"to leave this question out: /branch {self._conversation.asked_from}")
        except BranchlineError as error:
            self._screen.fail(message(error))
            self._screen.notes(f"  {hint}" for hint in getattr(error, "hints", ()))
        return False

    def _command(self, text: str) -> bool:
        """Do what a slash command says; whether the person leaves."""
        if asks_for_summary(text):
            self._screen.note("summarising; Ctrl-C stops it")
        conversation, can_draw = self._conversation, self._screen.can_draw_asides
        running = None
        try:
            running = self._portal.start_task_soon(
                conversation.stoppable, lambda: run_command(conversation, text, can_draw)
            )
            answer = running.result()
        except BaseException:
            if running is None or not running.done():  # Ctrl-C: nothing of it goes on behind the person's back
                self._portal.call(conversation.stop)
            raise
        for line in answer.lines:
            self._screen.tell(line)
        for remark in answer.remarks:
            self._screen.note(remark)
        if answer.handed_back:
            self._turns.taken_back = [answer.handed_back]
        self._tell_remarks()
        if not answer.leaves and self._waits():
            self._survives(self._turns.resume)
        return answer.leaves

    def _waits(self) -> bool:
        """Whether a turn waits for a person. Raises ``CommandLineError`` where it waits for what is not offered."""
        waiting = self._portal.call(self._conversation.waiting_calls)
        if not waiting:
            return False
        names = ", ".join(waiting)
        missing = [name for name in waiting if name not in self._conversation.tool_names]
        if missing:
            place = self._conversation.place
            words = ("--write", *self._conversation.said_again)
            ways = [command_for("chat", place, *words, root=self._root)] if place is not None else []
            raise CommandLineError(
                f"the last turn waits for your approval of {names}, which is not offered now; go on with --write to be "
                "asked, or with --at ENTRY from somewhere else",
                hints=ways,
            )
        self._screen.note(f"the last turn waits for your approval of {names}; it goes on with that")
        return True

    def _tell_remarks(self) -> None:
        self._screen.notes(self._conversation.remarks)
        self._conversation.remarks.clear()


def _settings(screen: Screen, options: ChatOptions) -> ConversationSettings:
    shelf = shelf_at(options.root)
    place = _existing_place(options, shelf)
    if options.at is not None and place is None:
        raise CommandLineError("--at names an entry of a session: give the session with --session or --file")
    if options.summarize and options.at is None:
        raise CommandLineError("--summarize is for going elsewhere: give the entry with --at")
    if options.with_summary and options.continues is None:
        raise CommandLineError("--with-summary takes over the summary of another session: give that with --continue")
    if options.continues is not None and place is not None:
        raise CommandLineError("--continue begins a new session: leave out --session, or give --file a new one")
    if options.memory and not options.tools:
        raise CommandLineError("--memory offers a tool, and --no-tools none: give one of them")
    if options.write and not options.tools:
        raise CommandLineError("--write offers tools, and --no-tools none: give one of them")
    if options.yes and not options.write:
        raise CommandLineError("--yes approves what --write offers: give both, or neither")
    if options.thinking is not None and options.thinking not in LEVELS:
        raise CommandLineError(f"--thinking {options.thinking:.40} is no level; give one of {', '.join(LEVELS)}")
    return ConversationSettings(
        place=place,
        shelf=shelf,
        root=options.root,
        new_file=expanded(options.file) if options.file is not None else None,
        at=given_text(options.at) if options.at is not None else None,
        summarize=options.summarize,
        continues=find_session(options.continues, shelf) if options.continues is not None else None,
        with_summary=options.with_summary,
        model=options.model,
        base_url=options.base_url,
        model_file=expanded(options.model_file) if options.model_file is not None else None,
        cwd=_working_folder(options.cwd),
        tools=options.tools,
        memory=options.memory,
        write=options.write,
        approve_all=options.yes,
        can_ask=screen.can_ask and not screen.as_json,
        system=given_text(options.system) if options.system is not None else None,
        thinking_level=options.thinking,
        max_steps=options.max_steps,
        max_chars=options.max_chars,
        max_tokens=options.max_tokens,
        context_window=options.context_window,
        compact=options.compact,
    )


def _existing_place(options: ChatOptions, shelf: Shelf) -> Place | None:
    if options.session is not None and options.file is not None:
        raise CommandLineError("--session and --file both name a session: give one of them")
    if options.session is not None:
        return find_session(options.session, shelf)
    if options.file is None:
        return None
    path = check_file(expanded(options.file), "--file")
    is_new = not path.exists() or (path.is_file() and path.stat().st_size == 0)
    return None if is_new else find_file(path)


def _working_folder(given: Path | None) -> Path:
    try:
        folder = expanded(given) if given is not None else Path.cwd()
    except FileNotFoundError as error:
        raise CommandLineError("the current folder is gone; give another one with --cwd") from error
    if not folder.is_dir():
        raise CommandLineError(f"--cwd {folder} is no folder")
    return folder.resolve()


def _prompt(options: ChatOptions, screen: Screen) -> str | None:
    """The one prompt; ``None`` where they come one by one from a terminal."""
    if options.prompt is not None:
        text = given_text(options.prompt)
    elif sys.stdin.isatty():
        if screen.as_json:
            raise CommandLineError("--json needs the prompt as an argument or on standard input")
        return None
    else:
        text = sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    if not text.strip():
        raise CommandLineError("the prompt is empty: give it as an argument or on standard input")
    return text


@contextmanager
def _terminated_by_signal() -> Generator[None]:
    """SIGTERM and SIGHUP raise ``Terminated`` in the main thread, so that a turn's end is recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [(number, signal.signal(number, terminate)) for number in numbers if _is_default(number)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _is_default(number: int) -> bool:
    """Whether a signal would end the process (``nohup`` has SIGHUP ignored, and means it)."""
    return signal.getsignal(number) is signal.SIG_DFL
