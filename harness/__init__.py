"""The session, its context, the agent loop, models, tools, the command line; and all that the layers below export."""

from __future__ import annotations

from branchline_guard import require

__branchline__ = "branchline: storage, compaction, harness"

require("storage", "compaction")

from compaction import *  # noqa: E402 - only after the guard
from storage import *  # noqa: E402

__all__: list[str] = []
