"""What the documents show is true: their code runs, their commands exist, their lists are complete."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import anyio
import pytest

from harness.testing import ScriptedServer
from storage import errors as errors_module
from storage.decode import parse_record
from storage.entries import EntryBase
from storage.header import parse_header
from tests.house.pages import PAGES, REPOSITORY, Block, blocks

PYTHON = [pytest.param(block, id=block.place) for block in blocks("python")]
COMMANDS = [pytest.param(block, id=block.place) for block in blocks("console")]


@pytest.fixture(scope="module")
def base_url() -> Generator[str]:
    """A model that answers every question with the same sentence."""
    with ScriptedServer(lambda _: "It is called Atlas.") as server:
        yield server.base_url


def run_block(code: CodeType, names: dict[str, Any], backend: str) -> None:
    """Run one block; one that awaits at its top runs on ``backend``."""
    if not code.co_flags & inspect.CO_COROUTINE:
        exec(code, names)
        return

    async def awaited() -> None:
        await eval(code, names)

    anyio.run(awaited, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("block", PYTHON)
def test_python_in_documents_runs(
    block: Block,
    backend: str,
    base_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
):
    """Each Python block of each document runs as it stands, by itself, on both event loops."""
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("# Atlas\n")
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    monkeypatch.setenv("OPENAI_BASE_URL", base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "made-up")
    if "DATABASE_URL" in block.text:
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_server").new_schema())
    run_block(code, {"__name__": "document"}, backend)


def commands(block: Block) -> list[list[str]]:
    """The commands in a console block: the lines that begin with ``$``, without their comments."""
    lines = [line[2:].split("  #")[0] for line in block.text.splitlines() if line.startswith("$ ")]
    return [line.split() for line in lines]


@cache
def help_of(command: str) -> str:
    """What ``branchline COMMAND --help`` prints."""
    program = [sys.executable, "-m", "harness.cli", *filter(None, [command]), "--help"]
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    result = subprocess.run(program, capture_output=True, text=True, env=environment, check=True, timeout=60)
    return result.stdout


@pytest.mark.parametrize("block", COMMANDS)
def test_commands_in_documents_exist(block: Block):
    """Each ``make`` target, each subcommand of ``branchline`` and each of its options that is shown is there."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert commands(block), "a console block shows at least one command"
    for words in commands(block):
        if words[0] == "make":
            assert re.search(rf"^{re.escape(words[1])}:", makefile, re.MULTILINE), words
        elif Path(words[0]).name == "branchline":
            shown = help_of(next((word for word in words[1:] if not word.startswith("-")), ""))
            for option in (word for word in words if word.startswith("-")):
                assert re.search(rf"(^|[\s,]){re.escape(option)}\b", shown), (words, option)


def test_the_options_in_the_command_line_page_exist():
    """Each ``--option`` that the page names is some command's (or pip's, or ``/branch``'s), and each of theirs is named."""
    page = (REPOSITORY / "docs" / "command-line.md").read_text(encoding="utf-8")
    listed = re.findall(r"^  ([a-z]+) {2,}\S", help_of("").partition("Commands:")[2], re.MULTILINE)
    assert "chat" in listed
    helps = [help_of(command) for command in ("", *listed)]
    option = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    real = {name for text in helps for name in option.findall(text)}
    named = {name for name in option.findall(page) if name not in ("--no-deps", "--summary")}
    assert named - real == set()
    assert real - named - {"--help", "--version"} == set()


def test_the_shown_session_is_one():
    """The file in ``docs/format.md`` is read by the reader of real files, line by line, seq by seq."""
    shown = blocks("jsonl")
    assert shown
    for block in shown:
        header, *lines = block.text.encode().splitlines()
        assert parse_header(header).branchline == 1
        known: set[str | None] = {None}
        for seq, line in enumerate(lines):
            record = parse_record(line, seq)
            assert record.seq == seq
            assert record.parent_id in known
            assert record.data.startswith(b'{"seq":')
            known.add(record.id)


def test_every_entry_type_is_in_the_format_page():
    """The table of entry types names each type that we write or read, and no other."""
    page = (REPOSITORY / "docs" / "format.md").read_text(encoding="utf-8")
    table = page[page.index("|---|", page.index("## Entry types")) :]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    fields = [entry.model_fields["type"] for entry in EntryBase.__subclasses__()]
    types = {field.default for field in fields if not field.is_required()}
    assert sorted(named) == sorted(types)


def test_every_error_is_in_the_errors_page():
    """The tables of errors name each error with its code and its built-in."""
    page = (REPOSITORY / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    real = {
        name: (error.code, error)
        for name, error in inspect.getmembers(errors_module, inspect.isclass)
        if issubclass(error, errors_module.BranchlineError)
    }
    bases = {"BranchlineError", "SessionError"}
    assert sorted(name for name, _, _ in rows) == sorted(real.keys() - bases)
    for name, code, built_in in rows:
        assert real[name][0] == code
        assert issubclass(real[name][1], vars(__import__("builtins"))[built_in]), name


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_links_lead_somewhere(page: Path):
    """Each relative link, and each path in backticks that looks like a file of the repository, is there."""
    text = page.read_text(encoding="utf-8")
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []
    paths = re.findall(r"`((?:docs|examples|tests|benchmarks|storage|compaction|harness)/[\w./]*\w)`", text)
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
