"""What a model is shown: projection, units, budgets, token estimates. Computed from the record, never stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline_guard import require

__branchline__ = "branchline: storage, compaction, harness"

require("storage")

from storage.lazy_names import lazy_names

if TYPE_CHECKING:
    from compaction.branches import AbandonedBranch, BranchSummary, collect_branch, summarize_branch
    from compaction.breathing import run_at_once, run_with_pauses
    from compaction.compacting import CompactionResult, compact
    from compaction.deciding import require_progress, should_compact
    from compaction.entry_list import ListPath
    from compaction.exact_tokens import TiktokenEstimator
    from compaction.extractive import ExtractiveSummarizer
    from compaction.fallback_summarizer import FallbackSummarizer
    from compaction.file_operations import FileOperations
    from compaction.measured_context import ContextFacts, measure_context
    from compaction.preparation import CompactionPlan, prepare_compaction
    from compaction.projection import Projection, project
    from compaction.rough_tokens import RoughEstimator
    from compaction.selection import Transform
    from compaction.settings import CompactionSettings
    from compaction.shortening_plan import ShorteningPlan, plan_shortening, shortening_in_force
    from compaction.state import ModelChoice, PathState, fold_state
    from compaction.summary_request import Summarizer, SummaryReply, SummaryRequest
    from compaction.tokens import TokenEstimator, UsageAnchoredEstimator, count_tokens
    from compaction.units import Unit, estimate_chars, pair_results, trim_messages, units_of
    from compaction.walk import Projector
else:
    _HOMES = {
        "compaction.branches": "AbandonedBranch BranchSummary collect_branch summarize_branch",
        "compaction.breathing": "run_at_once run_with_pauses",
        "compaction.compacting": "CompactionResult compact",
        "compaction.deciding": "require_progress should_compact",
        "compaction.entry_list": "ListPath",
        "compaction.exact_tokens": "TiktokenEstimator",
        "compaction.extractive": "ExtractiveSummarizer",
        "compaction.fallback_summarizer": "FallbackSummarizer",
        "compaction.file_operations": "FileOperations",
        "compaction.measured_context": "ContextFacts measure_context",
        "compaction.preparation": "CompactionPlan prepare_compaction",
        "compaction.projection": "Projection project",
        "compaction.rough_tokens": "RoughEstimator",
        "compaction.selection": "Transform",
        "compaction.settings": "CompactionSettings",
        "compaction.shortening_plan": "ShorteningPlan plan_shortening shortening_in_force",
        "compaction.state": "ModelChoice PathState fold_state",
        "compaction.summary_request": "Summarizer SummaryReply SummaryRequest",
        "compaction.tokens": "TokenEstimator UsageAnchoredEstimator count_tokens",
        "compaction.units": "Unit estimate_chars pair_results trim_messages units_of",
        "compaction.walk": "Projector",
    }
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "AbandonedBranch",
    "BranchSummary",
    "CompactionPlan",
    "CompactionResult",
    "CompactionSettings",
    "ContextFacts",
    "ExtractiveSummarizer",
    "FallbackSummarizer",
    "FileOperations",
    "ListPath",
    "ModelChoice",
    "PathState",
    "Projection",
    "Projector",
    "RoughEstimator",
    "ShorteningPlan",
    "Summarizer",
    "SummaryReply",
    "SummaryRequest",
    "TiktokenEstimator",
    "TokenEstimator",
    "Transform",
    "Unit",
    "UsageAnchoredEstimator",
    "collect_branch",
    "compact",
    "count_tokens",
    "estimate_chars",
    "fold_state",
    "measure_context",
    "pair_results",
    "plan_shortening",
    "prepare_compaction",
    "project",
    "require_progress",
    "run_at_once",
    "run_with_pauses",
    "shortening_in_force",
    "should_compact",
    "summarize_branch",
    "trim_messages",
    "units_of",
]
