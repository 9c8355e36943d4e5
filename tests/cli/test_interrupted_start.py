"""Ctrl-C while a command starts: no traceback, and the exit code that Ctrl-C has anywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.conftest import Command

INTERRUPTING = """
import signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from harness.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "module",
    [
        *("harness.cli.application", "typer", "harness.cli.changing_commands", "harness.cli.screen"),
        *("harness.cli.migrate", "storage.migrate", "storage.jsonl_repository", "asyncio.runners"),
    ],
)
def test_while_it_loads_what_it_needs(command: Command, module: str) -> None:
    """Ctrl-C comes the moment before a module is loaded, from the first of the command line to the last of the command."""
    (command.folder / "from").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTING, module, "migrate", "from", "to.sqlite"],
        cwd=command.folder,
        env=command.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
