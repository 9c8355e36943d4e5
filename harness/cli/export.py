"""``branchline export``: a conversation as a document, or as messages for another program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio

from harness.cli.changing_commands import FORMATS
from harness.cli.failures import DONE, CommandLineError
from harness.cli.places import Place, expanded
from harness.cli.plain_text import neutral, neutral_json
from harness.cli.progress import Progress
from harness.cli.reading import named_entry, open_to_read, told
from harness.cli.screen import Screen
from harness.cli.shelf import find_session_or_file, shelf_at
from harness.cli.whole_file import write_whole
from harness.context import CURRENT
from harness.exporting import export_anthropic, export_openai, whole_conversation
from harness.markdown_export import export_markdown
from harness.session import Session
from storage.strict_json import encode_model


def run_export(
    screen: Screen, given: str, *, form: str, at: str | None, output: Path | None, force: bool, root: str | None
) -> int:
    """Write the conversation to ``output``, or else to standard output."""
    if form not in FORMATS:
        raise CommandLineError(f"--format {form!r:.40} is none; it is one of {', '.join(FORMATS)}")
    if force and output is None:
        raise CommandLineError("--force replaces the file of --output: give that as well")
    place = find_session_or_file(given, shelf_at(root))
    path = expanded(output) if output is not None else None
    if path is not None and not force and (path.exists() or path.is_symlink()):
        raise CommandLineError(f"{path}: there is something here already; --force replaces it")
    with Progress(screen, "reading the conversation"):
        data, warnings = anyio.run(_export, place, form, at)
    if path is None:
        screen.show_file(data)
    else:
        try:
            write_whole(path, [data], replace=force)
        except FileExistsError as error:
            raise CommandLineError(f"{path}: there is something here already; --force replaces it") from error
        screen.note(f"wrote {len(data):,} bytes to {path}")
    screen.notes(f"warning: {warning}" for warning in warnings)
    return DONE


async def _export(place: Place, form: str, at: str | None) -> tuple[bytes, list[str]]:
    async with open_to_read(place) as session:
        leaf_id = CURRENT if at is None else await named_entry(session, at)
        return await exported(session, form, leaf_id), [told(warning) for warning in session.warnings]


async def exported(session: Session, form: str, leaf_id: str | object | None = CURRENT) -> bytes:
    """The conversation up to ``leaf_id`` as a file's bytes, UTF-8. Nothing in it can drive a terminal.

    Raises ``EntryNotFoundError``, ``BrokenPathError`` and ``UnsupportedEntryError``.
    """
    if form == "markdown":
        return neutral(await export_markdown(session, leaf_id=leaf_id)).encode()
    conversation = await whole_conversation(session, leaf_id=leaf_id)
    if form == "jsonl":
        lines = [neutral_json(encode_model(message).decode()) for message in conversation.messages]
        return "".join(f"{line}\n" for line in lines).encode()
    make = export_openai if form == "openai" else export_anthropic
    value: Any = make(conversation.messages, system_prompt=conversation.system_prompt)
    return f"{neutral_json(json.dumps(value, ensure_ascii=False, indent=2))}\n".encode()
