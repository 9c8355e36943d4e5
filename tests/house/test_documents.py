"""What the documents show is true: their code runs, their commands exist, their lists are complete."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, get_args

import anyio
import pytest

from harness.testing import ScriptedServer
from storage import errors as errors_module
from storage.decode import parse_record
from storage.entries import Entry, EntryBase, RequestFacts, UnknownEntry, UnknownMessageEntry
from storage.header import parse_header
from storage.messages import Message
from storage.models import RecordModel
from tests.house.pages import PAGES, REPOSITORY, Block, anchors, blocks, named_in_code, prose, rows_below

PYTHON = [pytest.param(block, id=block.place) for block in blocks("python")]
PACKAGES = ["storage", "compaction", "harness", "storage.testing", "harness.testing"]
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


def code_in(cell: str) -> set[str]:
    """What stands in backticks in a cell of a table."""
    return set(re.findall(r"`(\w+)`", cell))


def members_of(model: type[RecordModel], *known: str) -> set[str]:
    """The members that a model has in a file, without the ``known`` ones."""
    fields = {name: field.alias or name for name, field in model.model_fields.items()}
    return {alias for name, alias in fields.items() if name not in known}


FORMAT = REPOSITORY / "docs" / "format.md"


def test_every_entry_type_is_in_the_format_page():
    """The table of entry types names each type that we write or read, its class and its members, and no other."""
    rows = rows_below(FORMAT, "## Entry types")
    table = {row[0]: row[1:] for row in rows if len(row) == 4}
    real = [model for model in get_args(Entry) if model not in (UnknownEntry, UnknownMessageEntry)]
    assert sorted(table) == sorted(f"`{model.model_fields['type'].default}`" for model in real)
    for model in real:
        name, members, _ = table[f"`{model.model_fields['type'].default}`"]
        assert name == f"`{model.__name__}`"
        assert members_of(model, "type", *EntryBase.model_fields) - code_in(members) == set(), name
    request = [row for row in rows if len(row) == 2]
    assert {name for row in request for name in code_in(row[0])} == members_of(RequestFacts)


def test_every_role_is_in_the_format_page():
    """The table of messages names each role that we write or read, its class and its members, and no other."""
    table = {row[0]: row[1:] for row in rows_below(FORMAT, "## Messages")}
    real: tuple[type[RecordModel], ...] = get_args(Message)
    assert sorted(table) == sorted(f"`{model.model_fields['role'].default}`" for model in real)
    for model in real:
        name, members, _ = table[f"`{model.model_fields['role'].default}`"]
        assert name == f"`{model.__name__}`"
        assert members_of(model, "role", "timestamp") - code_in(members) == set(), name


def warning_codes() -> set[str]:
    """The codes of all warnings that the packages make."""
    codes: set[str] = set()
    for package in ("storage", "compaction", "harness"):
        for file in (REPOSITORY / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SessionWarning":
                    codes.add(ast.literal_eval(node.args[0]))
    return codes


def test_every_warning_is_in_the_errors_page():
    """The tables of warnings name each code, and no other."""
    rows = rows_below(REPOSITORY / "docs" / "errors.md", "## Warnings")
    assert {code for row in rows for code in code_in(row[0])} == warning_codes()


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


def test_every_exported_name_is_in_a_document():
    """What a user may import is told of, in code, where its subject is; what nobody can be told of is not exported."""
    exported = {name for package in PACKAGES for name in importlib.import_module(package).__all__}
    assert sorted(exported - named_in_code()) == []


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_links_lead_somewhere(page: Path):
    """Each relative link and its anchor, and each path in backticks that looks like a file of the repository, is there."""
    text = prose(page)
    for link in (link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
    paths = re.findall(r"`((?:docs|examples|tests|benchmarks|storage|compaction|harness)/[\w./]*\w)`", text)
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
