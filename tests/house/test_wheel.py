"""What `pip install branchline` brings."""

from __future__ import annotations

import email
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from this repository with the build tools that are installed."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)],
        check=True,
        capture_output=True,
        timeout=280,
    )
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: zipfile.ZipFile):
    """Three packages and their guard: no tests, examples, benchmarks or stray files."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"storage", "compaction", "harness", "branchline_guard.py", "branchline-0.1.0.dist-info"}
    ours = {name for name in wheel.namelist() if ".dist-info/" not in name}
    on_disk = {
        str(path.relative_to(REPOSITORY))
        for package in ("storage", "compaction", "harness")
        for path in (REPOSITORY / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours == on_disk | {"branchline_guard.py"}


def test_the_wheel_is_typed(wheel: zipfile.ZipFile):
    """Type checkers read the annotations of all three packages."""
    assert {f"{package}/py.typed" for package in ("storage", "compaction", "harness")} <= set(wheel.namelist())


def test_the_wheel_says_what_it_needs(wheel: zipfile.ZipFile):
    """The name, the Python, the licence, the command and the extras are those that the README names."""
    text = wheel.read("branchline-0.1.0.dist-info/METADATA").decode()
    metadata = email.message_from_string(text)
    assert metadata["Name"] == "branchline"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata.get_all("Provides-Extra") or ()) == {"dev", "local", "postgres", "tokens"}
    assert "branchline = harness.cli:main" in wheel.read("branchline-0.1.0.dist-info/entry_points.txt").decode()
    assert "branchline-0.1.0.dist-info/licenses/LICENSE" in wheel.namelist()


def test_the_empty_placeholder_is_no_dependency():
    """anyio's pytest plugin is part of anyio; PyPI's pytest-anyio is its empty placeholder."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    assert not [line for group in groups for line in group if "pytest-anyio" in line]
