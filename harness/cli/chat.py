"""``branchline chat``: from the options to turns, and what is said around them.

The conversation lives on an event loop in a thread of its own; the main thread reads prompts, writes the answer and
gets the signals. So a slow terminal or pipe never holds up the loop, and Ctrl-C reaches us while we wait for either.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Generator
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from harness.cli.conversation import Conversation, ConversationSettings
from harness.cli.failures import DONE, INTERRUPTED, CommandLineError, Terminated, message
from harness.cli.plain_text import given_text
from harness.cli.screen import Screen
from harness.cli.shelf import ROOT_VARIABLE, Place, expanded, find_file, find_session, places_in, sessions_root
from harness.cli.turn_screen import TurnScreen
from harness.events import AgentEvent
from storage.errors import BudgetError, ModelError

_PATIENCE_SECONDS = 0.5
"""A stop that takes longer is told, and how to leave without waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What was asked for on the command line."""

    prompt: str | None
    session: str | None
    file: Path | None
    at: str | None
    model: str | None
    base_url: str | None
    model_file: Path | None
    cwd: Path | None
    tools: bool
    max_chars: int | None
    max_tokens: int | None
    root: Path | None


def run_chat(screen: Screen, options: ChatOptions) -> int:
    """Have the conversation that the options ask for; returns the exit code."""
    root = sessions_root(options.root)
    place = _existing_place(options, root)
    if options.at is not None and place is None:
        raise CommandLineError("--at names an entry of a session: give the session with --session or --file")
    new_file = expanded(options.file) if options.file is not None else None
    settings = ConversationSettings(
        place=place,
        root=root,
        new_file=new_file,
        at=given_text(options.at) if options.at is not None else None,
        model=options.model,
        base_url=options.base_url,
        model_file=expanded(options.model_file) if options.model_file is not None else None,
        cwd=_working_folder(options.cwd),
        tools=options.tools,
        max_chars=options.max_chars,
        max_tokens=options.max_tokens,
    )
    prompt = _prompt(options, screen)
    conversation = Conversation(settings)
    with _terminated_by_signal(), start_blocking_portal("asyncio") as portal:
        try:
            with portal.wrap_async_context_manager(conversation):
                screen.notes(conversation.remarks)
                if prompt is None:
                    _loop(screen, portal, conversation)
                else:
                    _take_turn(screen, portal, conversation, prompt)
        except (ModelError, BudgetError):
            # The question is on record; whoever asks again may not want it there.
            if conversation.asked_from is not None:
                screen.note(f"to leave this question out, go on with --at {conversation.asked_from}")
            raise
        finally:
            if conversation.began:
                screen.note(_how_to_go_on(conversation, options, root))
    return DONE


def _existing_place(options: ChatOptions, root: Path) -> Place | None:
    if options.session is not None and options.file is not None:
        raise CommandLineError("--session and --file both name a session: give one of them")
    if options.session is not None:
        return find_session(options.session, root)
    if options.file is None:
        return None
    path = expanded(options.file)
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


def _loop(screen: Screen, portal: BlockingPortal, conversation: Conversation) -> None:
    """Ask for prompts until the end of input. Ctrl-C stops an answer; at an empty prompt it leaves."""
    from harness.cli.prompt_loop import prompts_from_terminal

    screen.note(f"{conversation.model_name}; Ctrl-C stops an answer, Ctrl-D leaves")
    for prompt in prompts_from_terminal():
        try:
            _take_turn(screen, portal, conversation, prompt)
        except KeyboardInterrupt:
            screen.note("stopped; the turn is recorded as cancelled")
        except (ModelError, BudgetError) as error:
            screen.fail(message(error))


def _take_turn(screen: Screen, portal: BlockingPortal, conversation: Conversation, prompt: str) -> None:
    """One prompt and all that follows, shown as it comes.

    Whatever stops it here (Ctrl-C, a signal, a reader that went away), the turn is cancelled and its end recorded
    before that goes on up. A second Ctrl-C leaves at once; the record is whole at every moment.
    """
    happened: SimpleQueue[AgentEvent | None] = SimpleQueue()
    scope = portal.call(anyio.CancelScope)
    turn = portal.start_task_soon(conversation.ask, prompt, happened.put, scope)
    turn_screen = TurnScreen(screen, lambda: _session_facts(conversation))
    try:
        while (event := happened.get()) is not None:
            turn_screen.show(event)
        turn.result()
    except BaseException:
        try:
            portal.call(scope.cancel)
            turn_screen.abandon()
            if not wait([turn], timeout=_PATIENCE_SECONDS).done:
                screen.note("stopping; Ctrl-C again leaves at once")
                turn.exception()
        except KeyboardInterrupt:
            screen.note("left at once; the next 'chat' with this session records that the turn was interrupted")
            os._exit(INTERRUPTED)
        raise
    turn_screen.finish()


def _session_facts(conversation: Conversation) -> dict[str, Any]:
    path = str(conversation.place.path.absolute()) if conversation.place is not None else None
    return {"type": "session", "id": conversation.session_id, "path": path}


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


def _how_to_go_on(conversation: Conversation, options: ChatOptions, root: Path) -> str:
    place = conversation.place
    if place is None:
        return ""
    words = ["branchline", "chat"]
    if options.file is not None:
        words += ["--file", str(options.file)]
    else:
        words += ["--session", _shortest(place.name, [each.name for each in places_in(root)])]
    if options.root is not None and str(options.root) != os.environ.get(ROOT_VARIABLE):
        words += ["--root", str(options.root)]
    return f"session {place.name}; go on with: {shlex.join(words)}"


def _shortest(name: str, names: list[str], least: int = 8) -> str:
    """The shortest beginning of ``name`` that no other name has."""
    others = [each for each in names if each != name]
    for length in range(least, len(name)):
        if not any(each.startswith(name[:length]) for each in others):
            return name[:length]
    return name
