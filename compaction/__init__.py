"""What a model is shown: projection, units, budgets, token estimates. Computed from the record, never stored."""

from __future__ import annotations

from branchline_guard import require

__branchline__ = "branchline: storage, compaction, harness"

require("storage")

from compaction.entry_list import ListPath
from compaction.exact_tokens import TiktokenEstimator
from compaction.projection import PROJECTION_VERSION, Projection, project
from compaction.rough_tokens import RoughEstimator
from compaction.selection import Transform
from compaction.state import ModelChoice, PathState, fold_state
from compaction.tokens import TokenEstimator, UsageAnchoredEstimator
from compaction.units import Unit, estimate_chars, pair_results, trim_messages, units_of
from compaction.walk import Projector

__all__ = [
    "PROJECTION_VERSION",
    "ListPath",
    "ModelChoice",
    "PathState",
    "Projection",
    "Projector",
    "RoughEstimator",
    "TiktokenEstimator",
    "TokenEstimator",
    "Transform",
    "Unit",
    "UsageAnchoredEstimator",
    "estimate_chars",
    "fold_state",
    "pair_results",
    "project",
    "trim_messages",
    "units_of",
]
