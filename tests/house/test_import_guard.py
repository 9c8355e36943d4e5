"""A stranger that took the place of one of our packages is named, with the way out, and is never run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import branchline_guard
import compaction
import harness
import storage

REPOSITORY = Path(__file__).parents[2]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Python in ``cwd``, which is found first, with this repository behind it."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_three_packages_carry_the_same_marker():
    """The marker is one text, in each package's source, so that a package can be recognised without running it."""
    for package in (storage, compaction, harness):
        assert package.__branchline__ == branchline_guard.MARKER
        assert package.__file__ is not None
        assert branchline_guard.MARKER in Path(package.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "importer, taken", [("harness", "storage"), ("harness", "compaction"), ("compaction", "storage")]
)
@pytest.mark.parametrize("shape", ["module", "package"])
def test_an_apps_own_file_is_named_and_not_run(tmp_path: Path, importer: str, taken: str, shape: str):
    """An app's ``storage.py`` (or folder) gives an ImportError that names it and the way out; its code does not run."""
    stranger = tmp_path / (f"{taken}.py" if shape == "module" else f"{taken}/__init__.py")
    stranger.parent.mkdir(exist_ok=True)
    stranger.write_text("open('was-run', 'w').close()\nraise KeyError('an app may do anything')\n")
    result = run("-c", f"import {importer}", cwd=tmp_path)
    assert result.returncode != 0
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: branchline needs its own package '{taken}', but {stranger} took its place.")
    assert "Rename that file or folder" in last
    assert not (tmp_path / "was-run").exists()


def test_a_script_named_like_a_package(tmp_path: Path):
    """The five lines of the README saved as ``storage.py`` fail with the guard's message, not a circular import."""
    script = tmp_path / "storage.py"
    script.write_text("from harness import Session\n")
    result = run("storage.py", cwd=tmp_path)
    assert f"but {script} took its place" in result.stderr.splitlines()[-1]


def test_a_stranger_that_was_imported_first(tmp_path: Path):
    """An app that imported its own ``storage`` before gets the same message."""
    stranger = tmp_path / "storage.py"
    stranger.write_text("mine = True\n")
    result = run("-c", "import storage; assert storage.mine; import compaction", cwd=tmp_path)
    assert f"but {stranger} took its place" in result.stderr.splitlines()[-1]


def test_a_stranger_without_a_file(tmp_path: Path):
    """A module put into ``sys.modules`` by hand is no package of ours either."""
    program = "import sys, types; sys.modules['storage'] = types.ModuleType('storage'); import compaction"
    result = run("-c", program, cwd=tmp_path)
    assert "branchline needs its own package 'storage'" in result.stderr.splitlines()[-1]


def test_a_stranger_compiled_without_source(tmp_path: Path):
    """A stranger whose source cannot be read is recognised by its missing marker after the import."""
    source = tmp_path / "storage.py"
    source.write_text("mine = True\n")
    program = "import py_compile; py_compile.compile('storage.py', cfile='storage.pyc', doraise=True)"
    assert run("-c", program, cwd=tmp_path).returncode == 0
    source.unlink()
    result = run("-c", "import compaction", cwd=tmp_path)
    assert f"but {tmp_path / 'storage.pyc'} took its place" in result.stderr.splitlines()[-1]


def test_a_folder_of_the_same_name_is_no_stranger(tmp_path: Path):
    """A data folder named ``storage`` beside the app is not a package and does not get in the way."""
    (tmp_path / "storage").mkdir()
    result = run("-c", "import harness, storage; print(storage.__branchline__)", cwd=tmp_path)
    assert result.stdout.strip() == branchline_guard.MARKER, result.stderr
