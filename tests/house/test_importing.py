"""Importing a package brings its names, not what is behind them: each is imported when somebody first asks for it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import compaction
import harness
import harness.models
import harness.tools
import storage
from tests.house.pages import REPOSITORY

LAZY = [
    pytest.param(package, id=package.__name__)
    for package in (storage, compaction, harness, harness.models, harness.tools)
]

HEAVY = ("anyio", "httpx", "pydantic", "regex", "rich", "tiktoken", "prompt_toolkit")
"""What takes its time to import, and is not needed to know what the names are."""


def loaded_after(program: str) -> set[str]:
    """The names in ``sys.modules`` after a program, in a process of its own."""
    shown = f"{program}\nimport sys\nprint('\\nmodules', *sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", shown], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("name", ["storage", "compaction", "harness", "harness.models", "harness.tools"])
def test_importing_a_package_imports_nothing_heavy(name: str):
    """``import harness`` (or a layer below) loads neither the libraries nor our models of messages and entries."""
    loaded = loaded_after(f"import {name}")
    assert name in loaded
    assert loaded & {*HEAVY, "storage.messages", "storage.entries"} == set()


def test_a_session_needs_no_client():
    """An app that only records imports no HTTP client, no terminal and no tokenizer."""
    loaded = loaded_after("from harness import JsonlStorage, Session, UserMessage")
    assert loaded & {"httpx", "regex", "rich", "tiktoken", "prompt_toolkit", "harness.agent", "harness.models"} == set()


def test_a_harness_needs_no_client():
    """The loop itself knows models by their protocol: what talks HTTP comes with the model that does."""
    loaded = loaded_after("from harness import AgentHarness")
    assert loaded & {"httpx", "rich", "tiktoken", "prompt_toolkit"} == set()


def test_help_imports_nothing_heavy():
    """``branchline --help`` loads what parses command lines, and none of what the commands need."""
    loaded = loaded_after("from harness.cli import main\nmain(['--help'])")
    assert loaded & {*HEAVY, "storage.messages", "storage.entries"} == set()


def imported_for_type_checkers(package: ModuleType) -> Iterator[tuple[str, str]]:
    """(module, name) of each import that only a type checker reads."""
    assert package.__file__ is not None
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    for block in tree.body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                assert isinstance(node, ast.ImportFrom)
                yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_see_the_same(package: ModuleType):
    """The table of names, the imports for type checkers and ``__all__`` say the same, and it is true."""
    table = {(module, name) for module, names in package._HOMES.items() for name in names.split()}
    imports = set(imported_for_type_checkers(package))
    below = {module for module, name in imports if name == "*"}
    assert table == {(module, name) for module, name in imports if name != "*"}
    inherited = {name for module in below for name in sys.modules[module].__all__}
    assert {name for _, name in table} | inherited == set(package.__all__)
    for module, name in table:
        assert getattr(package, name) is getattr(sys.modules[module], name), name


@pytest.mark.parametrize("package", LAZY)
def test_names_are_found_as_ever(package: ModuleType):
    """``dir`` has every name before it was used, ``import *`` gives them all, and what is no name is an error."""
    program = f"""
import {package.__name__} as package
listed = dir(package)
assert set(package.__all__) <= set(listed) and listed == sorted(set(listed)), listed
assert "__name__" in listed
names = {{}}
exec("from {package.__name__} import *", names)
assert set(package.__all__) == names.keys() - {{"__builtins__"}}
assert all(names[name] is getattr(package, name) is vars(package)[name] for name in package.__all__)
"""
    loaded_after(program)
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec(f"from {package.__name__} import nothing")
