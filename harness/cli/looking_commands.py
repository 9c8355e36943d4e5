"""The commands that look and change nothing: their options. What they do is imported when they are called."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli.failures import CommandLineError
from harness.cli.options import (
    EntryArgument,
    JsonOption,
    MaxCharsOption,
    MaxTokensOption,
    RootOption,
    SessionArgument,
)
from harness.cli.running import run
from harness.cli.screen import Screen


def sessions(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read each session whole: count its entries, and find damage anywhere in it.")
    ] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """List the sessions, the one used last first; damaged ones are marked."""

    def command(screen: Screen) -> int:
        from harness.cli.sessions import run_sessions

        return run_sessions(screen, root=root, deep=deep)

    return run(command, as_json=as_json)


def tree(
    session: SessionArgument = "last",
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Draw the bookkeeping as well: turns, labels, settings.")
    ] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Draw a session's tree; the path that the conversation is on goes straight down the left side."""

    def command(screen: Screen) -> int:
        from harness.cli.tree import run_tree

        return run_tree(screen, session, root=root, everything=everything)

    return run(command, as_json=as_json)


def show(
    session: SessionArgument,
    entry: EntryArgument,
    raw: Annotated[bool, typer.Option("--raw", help="Write its line as it is on disk, and nothing else.")] = False,
    request: Annotated[
        bool, typer.Option("--request", help="Of a reply: write the request that it answered, as it was sent.")
    ] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show one entry whole: its text, calls and results, its size in tokens, its place on the tree, its label."""

    def command(screen: Screen) -> int:
        from harness.cli.show import run_show

        if raw + request + as_json > 1:
            raise CommandLineError("--raw, --request and --json each say how to write it: give one of them")
        return run_show(screen, session, entry, raw=raw, request=request, root=root)

    return run(command, as_json=as_json)


def context(
    session: SessionArgument = "last",
    at: Annotated[
        str | None, typer.Option("--at", metavar="ENTRY", help="As if one went on from this entry or label.")
    ] = None,
    max_chars: MaxCharsOption = None,
    max_tokens: MaxTokensOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what the model would be shown: each message, its size, and what is left out."""

    def command(screen: Screen) -> int:
        from harness.cli.context import run_context

        return run_context(screen, session, at=at, max_chars=max_chars, max_tokens=max_tokens, root=root)

    return run(command, as_json=as_json)


def verify(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION", help="An id, the beginning of one, 'last', or the path of a file; without it, all."
        ),
    ] = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Read a session, or all, from end to end and say what is wrong. Changes nothing."""

    def command(screen: Screen) -> int:
        from harness.cli.verify import run_verify

        return run_verify(screen, session, root=root)

    return run(command, as_json=as_json)


def follow(
    session: SessionArgument = "last",
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="ENTRY", help="Begin behind this entry: an id, a label, or its place (0, 1, ...)."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Begin with the first entry.")] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show what another process adds to a session, as it is added, until Ctrl-C. Changes nothing, and disturbs nobody."""

    def command(screen: Screen) -> int:
        from harness.cli.follow import run_follow

        return run_follow(screen, session, after=after, everything=everything, root=root)

    return run(command, as_json=as_json)
