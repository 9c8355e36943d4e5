"""Unified diffs: other programs read them, and they take no longer than a person would wait."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tools.diff import unified_diff

LINES = st.lists(st.sampled_from(["a", "b", "c", "", " ", "-", "+x", "@@", "é\u2028", "\r"]), max_size=30)


def applied(before: str, diff: str) -> str:
    """What the diff makes of ``before``, by the rules of unified diffs alone."""
    source = re.findall(r"[^\n]*\n|[^\n]+", before)
    made: list[str] = []
    done = 0
    lines = diff.split("\n")[2:]
    for number, line in enumerate(lines):
        ends = "" if lines[number + 1 : number + 2] == ["\\ No newline at end of file"] else "\n"
        if line.startswith("@@"):
            found = re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@", line)
            assert found
            start = int(found[1]) - (found[2] != "0")
            made += source[done:start]
            done = start
        elif line[0] in " -":
            assert source[done] == line[1:] + ends
            done += 1
            made += [source[done - 1]] if line[0] == " " else []
        elif line[0] == "+":
            made.append(line[1:] + ends)
    return "".join(made + source[done:])


@given(LINES, LINES, st.booleans(), st.booleans())
def test_a_diff_says_all_that_changed(before: list[str], after: list[str], first: bool, second: bool) -> None:
    """Applied to the one text it gives the other, with or without their last newlines."""
    one, two = "\n".join(before) + "\n" * first, "\n".join(after) + "\n" * second
    diff = unified_diff(one, two, "file")
    assert (diff == "") == (one == two)
    assert not diff or applied(one, diff) == two


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
def test_patch_takes_it(tmp_path: Path) -> None:
    """The system's own program applies it."""
    before = "".join(f"line {number}\n" for number in range(100))
    after = before.replace("line 3\n", "").replace("line 50\n", "fifty\nand more\n").replace("line 99\n", "end")
    (tmp_path / "file").write_text(before)
    diff = unified_diff(before, after, "file")
    subprocess.run(["patch", "-s", "file"], input=f"{diff}\n".encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "file").read_text() == after
    assert diff.count("@@ -") == 3


def test_hunks_show_three_lines_around() -> None:
    """Changes near each other share a hunk."""
    before = "".join(f"{number}\n" for number in range(20))
    assert unified_diff(before, before.replace("5\n", "five\n", 1), "f") == (
        "--- f\n+++ f\n@@ -3,7 +3,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8"
    )
    assert unified_diff(before, before + "20\n", "f").endswith("@@ -18,3 +18,4 @@\n 17\n 18\n 19\n+20")
    assert unified_diff("", "a\n", "f") == "--- f\n+++ f\n@@ -0,0 +1 @@\n+a"
    assert unified_diff("a\n", "", "f") == "--- f\n+++ f\n@@ -1 +0,0 @@\n-a"


def test_long_diffs_and_long_lines_are_cut() -> None:
    """Both say how much is missing."""
    diff = unified_diff("", "x" * 600 + "\n", "f")
    assert diff.endswith(f"+{'x' * 500} [… 100 more characters]")
    diff = unified_diff("", "y\n" * 100_000, "f")
    assert len(diff) < 20_100
    shown = diff.count("\n+y")
    assert diff.endswith(f"\n[… {100_000 - shown:,} more lines of this diff]")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("".join(f"{number}\n" for number in range(200_000)), "".join(f"{number * 3}\n" for number in range(200_000))),
        ("\n" * 4_000, "\n" * 3_000 + "x\n" + "\n" * 900),
        ("a\nb\n" * 2_000, "b\na\n" * 2_000),
        ("x" * 5_000_000, "x" * 5_000_000 + "y"),
    ],
    ids=["all different", "blank", "swapped", "one line"],
)
def test_no_texts_take_for_ever(before: str, after: str) -> None:
    """Large files, and those that make difflib slow, are compared in a moment."""
    begun = time.process_time()  # what else runs on this machine does not count
    assert unified_diff(before, after, "file")
    assert time.process_time() - begun < 20
