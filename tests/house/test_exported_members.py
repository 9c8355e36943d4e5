"""What the packages export: one sorted list each, complete, documented, and harness has everything a user needs."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from types import ModuleType
from typing import get_args

import pytest

import compaction
import harness
import storage
import storage.errors as errors_module
from storage.entries import Entry
from storage.errors import BranchlineError
from storage.messages import Message

PACKAGES = [pytest.param(package, id=package.__name__) for package in (storage, compaction, harness)]


def place(name: str) -> tuple[bool, bool, str]:
    """Constants first, then classes, then functions, each by the alphabet."""
    return not name.isupper(), name[0].islower(), name


def exported(package: ModuleType) -> list[str]:
    """The package's ``__all__``."""
    return list(package.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_list_is_sorted_and_true(package: ModuleType):
    """``__all__`` is sorted, holds no name twice, and each name is there."""
    names = exported(package)
    assert names == sorted(set(names), key=place)
    assert [name for name in names if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_public_is_left_out(package: ModuleType):
    """A public name that a package's ``__init__`` imports is in its ``__all__``: imported for users, or not at all."""
    submodules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    tools = {"TYPE_CHECKING", "annotations", "lazy_names", "require", *submodules}
    public = {name for name in vars(package) if not name.startswith("_")} - tools
    assert public - set(exported(package)) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_says_what_it_is_for(package: ModuleType):
    """Each exported class and function, and each public method of ours in it, has a docstring of its own."""
    silent: list[str] = []
    for name in exported(package):
        member = getattr(package, name)
        if not (inspect.isclass(member) or inspect.isfunction(member)):
            continue
        if not member.__doc__ or member.__doc__.startswith(f"{name}("):  # what dataclass writes by itself
            silent.append(name)
        for attribute, value in vars(member).items() if inspect.isclass(member) else ():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            ours = inspect.isfunction(function) or isinstance(function, property)
            if ours and not attribute.startswith("_") and not inspect.getdoc(getattr(member, attribute)):
                silent.append(f"{name}.{attribute}")
    assert silent == []


def test_harness_gives_everything():
    """``from harness import …`` is enough: all of storage and compaction is there too, as the same objects."""
    for package in (storage, compaction):
        for name in exported(package):
            assert getattr(harness, name, None) is getattr(package, name), name
            assert name in harness.__all__


def test_all_entries_messages_and_errors_are_exported():
    """No entry type, message type or error can be met that cannot be imported by name from ``storage``."""
    classes = {*get_args(Entry), *get_args(Message)}
    classes |= {member for _, member in inspect.getmembers(errors_module, inspect.isclass)}
    assert {one.__name__ for one in classes} - set(exported(storage)) - {"ClassVar", "Any"} == set()


def test_the_drawn_tree_of_errors_is_the_real_one():
    """The tree in the docstring of ``storage.errors`` shows each error once, under its parent, beside its built-in."""
    drawn: dict[str, tuple[str, str | None]] = {}
    parents: list[str] = []
    for line in (errors_module.__doc__ or "").splitlines():
        words = line.lstrip("│├└─ ").split()
        if not words or not inspect.isclass(getattr(errors_module, words[0], None)):
            continue
        depth = line.index(words[0]) // 4 - 1
        del parents[depth:]
        built_in = words[1] if len(words) > 1 and words[1].endswith("Error") else None
        drawn[words[0]] = (parents[-1] if parents else "Exception", built_in)
        parents.append(words[0])
    real: dict[str, tuple[str, str | None]] = {}
    for name, member in inspect.getmembers(errors_module, inspect.isclass):
        if issubclass(member, BranchlineError):
            bases = [base.__name__ for base in member.__bases__]
            real[name] = (bases[0], bases[1] if len(bases) > 1 else None)
    assert drawn == real


def test_every_error_has_a_code_of_its_own():
    """Codes are stable names to match on: no two errors share one."""
    members = vars(errors_module).values()
    codes = [one.code for one in members if inspect.isclass(one) and issubclass(one, BranchlineError)]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_can_be_imported_first(package: ModuleType):
    """No module of ours is a name without a file that imports; together with the layers this rules out cycles."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            assert import_module(module.name).__doc__
