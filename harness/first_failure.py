"""Of several failures that came at once, the one to go on with."""

from __future__ import annotations

from typing import cast

import anyio


def first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """What must not be handled as an error (Ctrl-C, a test framework's outcome) before anything else.

    Next comes a cancellation, then the first error. Call it inside of a running event loop.
    """
    leaves: list[BaseException] = []
    waiting: list[BaseException] = [failures]
    while waiting:
        failure = waiting.pop(0)
        if isinstance(failure, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", failure).exceptions)
        else:
            leaves.append(failure)
    urgent = [leaf for leaf in leaves if not isinstance(leaf, Exception)]
    cancelled = anyio.get_cancelled_exc_class()
    return next((leaf for leaf in urgent if not isinstance(leaf, cancelled)), (*urgent, *leaves)[0])
