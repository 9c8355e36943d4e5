"""How much the property tests do: little by default; ``BRANCHLINE_HYPOTHESIS=large`` does much more, for a quiet hour.

Only the large profile shrinks what it finds, which takes minutes; run it on the one test that failed.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings

LARGE = os.environ.get("BRANCHLINE_HYPOTHESIS", "") == "large"

MAXIMUM_STEPS = 60 if LARGE else 30
"""The longest conversation that is drawn."""

TIMEOUT_SECONDS = 3600 if LARGE else 300
"""How long one property test may take."""


def examples(count: int) -> Any:
    """Settings for a property test: ``count`` examples by default, eight times as many in the large profile."""
    slow = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture)
    return settings(
        max_examples=count * (8 if LARGE else 1),
        deadline=None,
        suppress_health_check=slow,
        derandomize=not LARGE,  # the default run is the same each time; the large one looks for what is new
        database=None,
        phases=tuple(Phase) if LARGE else (Phase.explicit, Phase.generate),
        print_blob=LARGE,
    )
