"""What a model is shown: projection, units, budgets, token estimates. Computed from the record, never stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline_guard import require

__branchline__ = "branchline: storage, compaction, harness"

require("storage")

from storage.lazy_names import lazy_names

if TYPE_CHECKING:
    from compaction.breathing import run_at_once, run_with_pauses
    from compaction.encodings import forget_encodings
    from compaction.entry_list import ListPath
    from compaction.exact_tokens import TiktokenEstimator
    from compaction.projection import PROJECTION_VERSION, Projection, project
    from compaction.rough_tokens import RoughEstimator
    from compaction.selection import Transform
    from compaction.state import ModelChoice, PathState, fold_state
    from compaction.tokens import TokenEstimator, UsageAnchoredEstimator, count_tokens
    from compaction.units import Unit, estimate_chars, pair_results, trim_messages, units_of
    from compaction.walk import Projector
else:
    _HOMES = {
        "compaction.breathing": "run_at_once run_with_pauses",
        "compaction.encodings": "forget_encodings",
        "compaction.entry_list": "ListPath",
        "compaction.exact_tokens": "TiktokenEstimator",
        "compaction.projection": "PROJECTION_VERSION Projection project",
        "compaction.rough_tokens": "RoughEstimator",
        "compaction.selection": "Transform",
        "compaction.state": "ModelChoice PathState fold_state",
        "compaction.tokens": "TokenEstimator UsageAnchoredEstimator count_tokens",
        "compaction.units": "Unit estimate_chars pair_results trim_messages units_of",
        "compaction.walk": "Projector",
    }
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

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
    "count_tokens",
    "estimate_chars",
    "fold_state",
    "forget_encodings",
    "pair_results",
    "project",
    "run_at_once",
    "run_with_pauses",
    "trim_messages",
    "units_of",
]
