"""``python -m harness.cli``, the same as ``branchline``."""

from __future__ import annotations

import sys

from harness.cli.application import main

if __name__ == "__main__":
    sys.exit(main())
