"""What may be typed at the prompt of ``branchline chat`` besides prompts: ``/tree``, ``/branch`` and so on.

They do what the commands of the same names do, on the session that is open, on its loop; what they answer is lines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from harness.cli.compacting import told as told_compacted
from harness.cli.context import context_facts
from harness.cli.conversation import Conversation
from harness.cli.drawn_context import UNSET_THINKING, draw_context
from harness.cli.drawn_tree import ASCII, DRAWN
from harness.cli.entry_ids import ShortIds
from harness.cli.entry_lines import describe, is_spoken, kind_of, word_for
from harness.cli.failures import CommandLineError
from harness.cli.fork import creates_beside, fork_session, told_of
from harness.cli.hints import command_for
from harness.cli.label import label_entry
from harness.cli.label import told as told_label
from harness.cli.name import name_session
from harness.cli.name import told as told_name
from harness.cli.places import Place
from harness.cli.reading import all_entries, named_entry, told
from harness.cli.screen import Line, Span
from harness.cli.tree import drawn_session
from harness.session import Session

LEVELS: Final = ("off", "minimal", "low", "medium", "high")
"""How much a model may be asked to think; see ``ModelRequest``."""

WITH_SUMMARY: Final = "--summary"
"""What has ``/branch`` summarise what is left behind."""

ALL, NONE = "all", "none"
"""What ``/tools`` takes besides names."""

CHOICES_SHOWN: Final = 500
"""Entries that are offered for completion, the newest."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What may be completed: the commands, and what may stand after each, with what is said of it."""

    commands: Mapping[str, str] = field(default_factory=dict[str, str])
    values: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict[str, Sequence[tuple[str, str]]])
    many: frozenset[str] = frozenset()
    """The commands that take any number of values."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command says, and whether the person wants to leave. ``lines`` are cut to the terminal, ``remarks`` not."""

    lines: Sequence[Line] = ()
    remarks: Sequence[Line | str] = ()
    leaves: bool = False
    handed_back: str = ""
    """What stands at the prompt next."""


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command: how it is written, what it does, and the coroutine function that does it."""

    usage: str
    says: str
    run: Callable[[Conversation, str, bool], Awaitable[Answer]]


def is_command(text: str) -> bool:
    """Whether a prompt is a command. Two slashes at its beginning stand for one, and for a prompt."""
    return text.startswith("/") and not text.startswith("//")


def as_prompt(text: str) -> str:
    """What the model is to be asked."""
    return text[1:] if text.startswith("//") else text


def asks_for_summary(text: str) -> bool:
    """Whether a command will ask the model for a summary, which takes its time."""
    name, _, rest = text.strip().partition(" ")
    return name == "/compact" or (name == "/branch" and _without_summary(rest)[1])


def _without_summary(rest: str) -> tuple[str, bool]:
    """What ``/branch`` names, and whether a summary is wanted."""
    words = rest.split()
    return " ".join(word for word in words if word != WITH_SUMMARY), WITH_SUMMARY in words


async def run_command(conversation: Conversation, text: str, can_draw: bool) -> Answer:
    """Do what ``text`` says.

    Raises ``CommandLineError`` for a command that does not exist or lacks something, and what its work raises; the
    session is then as it was.
    """
    name, _, rest = text.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise CommandLineError(
            f"there is no command {name:.40}; /help lists them (a prompt that begins with a slash is typed with two: "
            f"/{name:.40})"
        )
    return await command.run(conversation, rest.strip(), can_draw)


async def choices(conversation: Conversation) -> Choices:
    """What can be completed now."""
    places = await _places(conversation.session) if conversation.session is not None else []
    tools = [(name, "") for name in (*conversation.tool_names, ALL, NONE)]
    return Choices(
        commands={name: command.says for name, command in COMMANDS.items()},
        values={
            **dict.fromkeys(("/branch", "/fork", "/label"), places),
            "/thinking": [(level, "") for level in LEVELS],
            "/tools": tools,
        },
        many=frozenset({"/tools"}),
    )


async def _places(session: Session) -> list[tuple[str, str]]:
    """Labels and the short ids of entries, the newest first, with what the entry says."""
    labels = await session.labels()
    entries = [entry async for entry in all_entries(session)]
    short = ShortIds(entry.id for entry in entries)
    found: list[tuple[str, str]] = []
    for entry in reversed(entries):
        says = f"{word_for(kind_of(entry))}: {describe(entry, 60)}"
        if entry.id in labels:
            found.append((labels[entry.id], says))
        if is_spoken(entry) and len(found) < CHOICES_SHOWN:
            found.append((short(entry.id), says))
    return found


# --- the commands


async def _tree(conversation: Conversation, rest: str, can_draw: bool) -> Answer:
    if rest not in ("", "all"):
        raise _usage("/tree")
    drawn = await drawn_session(_session(conversation), everything=rest == "all")
    return Answer([*drawn.lines(DRAWN if can_draw else ASCII)])


async def _branch(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    named, summarize = _without_summary(rest)
    if not named:
        raise _usage("/branch")
    session = _session(conversation)
    entry_id = await named_entry(session, named)
    gone = await conversation.go_to(entry_id, summarize=summarize)
    entry = await session.entry(entry_id)
    goes_on = (
        "the next prompt goes on from it" if gone.text is None else "it is left out, to be changed and asked again"
    )
    remarks: list[Line | str] = [f"here now: {word_for(kind_of(entry))} {describe(entry)}; {goes_on}"]
    if summarize:
        left = "nothing is left behind that could be summarised" if gone.summary is None else gone.summary
        remarks += ["what was left behind:", *(f"  {line}" for line in left.splitlines())]
    return Answer(remarks=remarks, handed_back=gone.text or "")


async def _fork(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    session, place, settings = _session(conversation), conversation.place, conversation.settings
    if place is None:
        raise CommandLineError(_NO_SESSION)
    forked = await fork_session(session, rest or None, create=creates_beside(place, settings.shelf))
    await conversation.switch_to(Place(forked.session, settings.shelf.beside(place)))
    conversation.used = True
    return Answer(
        remarks=[
            f"{told_of(forked)}, and is the one that goes on here",
            f"the other is as it was: {command_for('chat', place, *conversation.said_again, root=settings.root)}",
        ]
    )


async def _label(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    entry, _, label = rest.partition(" ")
    if not entry:
        raise _usage("/label")
    done = await label_entry(_session(conversation), entry, " ".join(label.split()) or None)
    conversation.used = True
    return Answer(remarks=[told_label(done)])


async def _name(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    session = _session(conversation)
    if not rest:
        name = await session.name()
        return Answer(
            remarks=[f"session {session.id} is named {name}" if name else f"session {session.id} has no name"]
        )
    done = await name_session(session, " ".join(rest.split()))
    conversation.used = True
    return Answer(remarks=[told_name(done)])


async def _context(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    if rest:
        raise _usage("/context")
    session, settings = _session(conversation), conversation.settings
    facts, ids, warnings = await context_facts(session, session.leaf_id, settings.max_chars, settings.max_tokens)
    # What was chosen here and not asked with yet is not on record.
    facts = replace(facts, thinking_level=conversation.thinking_level)
    lines = [*draw_context(facts, short=ShortIds(ids))]
    return Answer(lines, remarks=[f"warning: {told(warning)}" for warning in warnings])


async def _compact(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    _session(conversation)
    done = await conversation.compact(rest or None)
    return Answer(remarks=[f"{told_compacted(done)}; /context shows it"])


async def _model(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    if rest:
        await conversation.change_model(rest)
    return Answer(remarks=[f"{conversation.model_name} answers"])


async def _thinking(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    if rest:
        if rest not in LEVELS:
            raise CommandLineError(f"there is no thinking level {rest:.40}; give one of {', '.join(LEVELS)}")
        await conversation.change_thinking_level(rest)
    return Answer(remarks=[f"thinking: {conversation.thinking_level or UNSET_THINKING}"])


async def _tools(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    there = conversation.tool_names
    if rest:
        names = rest.replace(",", " ").split()
        names = there if names == [ALL] else [] if names == [NONE] else names
        unknown = [name for name in names if name not in there]
        if unknown:
            more = "" if "write" in there else " ('branchline chat --write' has more)"
            raise CommandLineError(
                f"there is no tool {unknown[0]:.40}; there are {', '.join(there) or 'none'}, and {ALL} or {NONE}{more}"
            )
        await conversation.change_tools(names)
    offered = conversation.active_tools
    others = [name for name in there if name not in offered]
    text = f"the model may use {', '.join(offered)}" if offered else "the model may use no tools"
    return Answer(remarks=[text + (f"; it may not use {', '.join(others)}" if others else "")])


async def _help(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [[Span(f"{command.usage:<{width}}  ", "bold"), Span(command.says)] for command in COMMANDS.values()]
    return Answer(remarks=[*lines, *HELP])


async def _quit(conversation: Conversation, rest: str, can_draw: bool) -> Answer:  # noqa: ARG001
    return Answer(leaves=True)


COMMANDS: Final[Mapping[str, SlashCommand]] = {
    "/tree": SlashCommand("/tree [all]", "draw the session, with the ids of its entries", _tree),
    "/branch": SlashCommand(
        f"/branch ENTRY [{WITH_SUMMARY}]", "go on from this entry; what came after it stays", _branch
    ),
    "/fork": SlashCommand("/fork [ENTRY]", "go on in a new session that ends with this entry", _fork),
    "/label": SlashCommand("/label ENTRY [NAME]", "name an entry; without NAME, take its name away", _label),
    "/name": SlashCommand("/name [NAME]", "name the session, or say its name", _name),
    "/context": SlashCommand("/context", "show what the model is shown", _context),
    "/compact": SlashCommand("/compact [WORDS]", "summarise all but the last turn; WORDS tell how", _compact),
    "/model": SlashCommand("/model [NAME]", "have another model answer, or say which one does", _model),
    "/thinking": SlashCommand("/thinking [LEVEL]", f"how much it thinks: {', '.join(LEVELS)}", _thinking),
    "/tools": SlashCommand("/tools [NAMES]", f"the tools that it may use: names, {ALL}, or {NONE}", _tools),
    "/help": SlashCommand("/help", "this list", _help),
    "/quit": SlashCommand("/quit", "leave; Ctrl-D does, too", _quit),
}

HELP: Final = (
    "Alt+Enter, Ctrl-J, or a backslash before Enter begin another line; a pasted text is one prompt.",
    "Ctrl-C stops an answer. What you type while one is made is said into it, at the model's next step.",
    "A prompt that begins with a slash is typed with two.",
)

_NO_SESSION: Final = "there is no session yet; it begins with the first prompt"


def _session(conversation: Conversation) -> Session:
    if conversation.session is None:
        raise CommandLineError(_NO_SESSION)
    return conversation.session


def _usage(name: str) -> CommandLineError:
    command = COMMANDS[name]
    return CommandLineError(f"it is written {command.usage}: {command.says}")
