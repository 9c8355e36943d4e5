"""The commands in a C locale, and where nothing can be written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import REPOSITORY, Command
from tests.cli.made_sessions import make_tree, said, written
from tests.cli.test_surroundings import C_LOCALE, as_nobody, public

__all__ = ["public"]

PI = REPOSITORY / "tests" / "data" / "pi-files"


def test_in_a_c_locale(command: Command) -> None:
    """Names, labels, paths and texts beyond ASCII arrive whole, are kept whole, and are escaped where they are shown."""
    source = written(command.folder / "größe.jsonl", [said("user", "Grüße 😀")], header={"id": "c-1"})

    def run(*arguments: str) -> str:
        ran = command.process(*arguments, environment=C_LOCALE)
        assert ran.code == 0 and "Traceback" not in ran.err, ran.err
        return ran.out

    assert "imported" in run("import", source.name)
    assert "Gr\\xfc\\xdfe \\U0001f600" in run("show", "c-1", "e0000000")
    run("label", "c-1", "e0000000", "Anfang 界")
    run("name", "c-1", "Über alles")
    assert run("label", "c-1", "Anfang 界") == "Anfang \\u754c\n"
    (row,) = [json.loads(line) for line in run("fork", "c-1", "Anfang 界", "--name", "größer", "--json").splitlines()]
    assert row["name"] == "größer"
    run("export", "c-1", "--output", "möglich.md")
    assert "Grüße 😀" in (command.folder / "möglich.md").read_text(encoding="utf-8")
    run("delete", row["session"], "--yes")
    assert command("name", "c-1").out == "Über alles\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="drops to another user id")
def test_a_folder_that_cannot_be_written(command: Command, public: Path) -> None:
    """Looking works; what would write is one line that names the place, and nothing is made."""
    make_tree(command.root)
    root = public / "sessions"
    make_tree(root)
    for path in (root, *root.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    source = public / "pi.jsonl"
    source.write_bytes((PI / "legacy-v1-input.jsonl").read_bytes())
    before = sorted(path.name for path in root.iterdir())
    environment = command.environment({"HOME": str(public), "BRANCHLINE_HOME": str(root)})
    for words in (
        ("show", "tree-1", "first"),
        ("export", "tree-1"),
        ("export", "tree-1", "-f", "openai"),
        ("name", "tree-1"),
    ):
        ran = as_nobody([*words], environment, command.root)
        assert ran.returncode == 0, ran.stderr
    for words in (
        ("fork", "tree-1"),
        ("label", "tree-1", "first", "x"),
        ("name", "tree-1", "x"),
        ("import", str(source)),
        ("delete", "tree-1", "--yes"),
        ("export", "tree-1", "--output", str(public / "out.md")),
    ):
        ran = as_nobody([*words], environment, command.root)
        lines = [line for line in ran.stderr.splitlines() if line.startswith("branchline: ")]
        assert ran.returncode == 1 and len(lines) == 1 and "Traceback" not in ran.stderr, (words, ran.stderr)
        assert str(public) in lines[0] and "ermission denied" in lines[0], (words, lines)
    assert sorted(path.name for path in root.iterdir()) == before
    assert sorted(path.name for path in public.iterdir()) == ["pi.jsonl", "sessions"]
