"""What a model is shown: projection, units, budgets, token estimates. Computed from the record, never stored."""

from __future__ import annotations

from branchline_guard import require

__branchline__ = "branchline: storage, compaction, harness"

require("storage")

__all__: list[str] = []
