"""The command ``branchline``. Everything heavy is imported by the command that needs it: ``--help`` stays quick."""

from __future__ import annotations

try:
    from harness.cli.application import main
except KeyboardInterrupt:
    raise SystemExit(130) from None  # Ctrl-C while it starts; nothing was begun

__all__ = ["main"]
