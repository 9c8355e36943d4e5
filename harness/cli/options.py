"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.shelf import ROOT_VARIABLE

RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        envvar=ROOT_VARIABLE,
        help="The folder that holds the sessions; by default in your user data folder.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]
MaxCharsOption = Annotated[
    int | None, typer.Option("--max-chars", min=1, metavar="N", help="Show the model at most so many characters.")
]
MaxTokensOption = Annotated[
    int | None, typer.Option("--max-tokens", min=1, metavar="N", help="Show the model at most so many tokens.")
]
SessionArgument = Annotated[
    str,
    typer.Argument(metavar="SESSION", help="A session's id, the beginning of one, 'last', or the path of its file."),
]
EntryArgument = Annotated[
    str,
    typer.Argument(
        metavar="ENTRY", help="An entry: the end of its id as 'branchline tree' shows it, its beginning, or a label."
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed where nobody can be asked.")]
RemoveOption = Annotated[bool, typer.Option("--remove", help="Take it away.")]
