"""The command ``branchline``. Everything heavy is imported by the command that needs it: ``--help`` stays quick."""

from __future__ import annotations

from harness.cli.application import main

__all__ = ["main"]
