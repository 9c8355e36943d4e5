"""Estimators that behave as tests need it."""

from __future__ import annotations

import threading

from compaction import TiktokenEstimator


class CountsForEver(TiktokenEstimator):
    """One that counts long text until it is let go."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.let_go = threading.Event()

    def count(self, text: str) -> int:
        if len(text) > 1_000:
            self.let_go.wait(100)
        return super().count(text)
