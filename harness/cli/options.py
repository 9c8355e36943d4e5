"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.places import ROOT_VARIABLE

MODEL_VARIABLE = "BRANCHLINE_MODEL"

RootOption = Annotated[
    str | None,
    typer.Option(
        "--root",
        metavar="PLACE",
        envvar=ROOT_VARIABLE,
        show_envvar=False,
        help=f"Where the sessions are: a folder, a SQLite file (chats.sqlite) or a postgresql:// address; also the "
        f"environment's {ROOT_VARIABLE}. By default a folder in your user data folder.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]
MaxCharsOption = Annotated[
    int | None, typer.Option("--max-chars", min=1, metavar="N", help="Show the model at most so many characters.")
]
MaxTokensOption = Annotated[
    int | None, typer.Option("--max-tokens", min=1, metavar="N", help="Show the model at most so many tokens.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="NAME",
        envvar=MODEL_VARIABLE,
        help="The model; claude-NAME is Anthropic's, 'local' runs one here.",
    ),
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="An OpenAI-compatible server (http://localhost:11434/v1)."),
]
ModelFileOption = Annotated[
    Path | None, typer.Option("--model-file", metavar="FILE", help="A GGUF file for the model on this machine.")
]
WindowOption = Annotated[
    int | None,
    typer.Option(
        "--context-window",
        min=256,
        metavar="N",
        help="The tokens that the model can take, where it does not say so, or to use less of it.",
    ),
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
