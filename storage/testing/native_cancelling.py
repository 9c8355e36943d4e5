"""Cancelling a task as its own event loop does it, behind anyio's back: ``Task.cancel`` of asyncio. Trio has only scopes."""

from __future__ import annotations

import asyncio  # noqa: TID251 - native cancellation needs the real thing
import sys
from collections.abc import Awaitable, Callable

import anyio


async def cancelled_natively(wait: Callable[[], Awaitable[object]], delay: float) -> None:
    """Wait in a task of its own, cancel that after ``delay`` seconds, and come back when it has ended."""
    if "trio" in sys.modules:
        import trio  # noqa: TID251

        if trio.lowlevel.in_trio_task():
            with trio.move_on_after(delay):
                await wait()
            return

    async def run() -> None:
        await wait()

    task = asyncio.get_running_loop().create_task(run())
    try:
        await anyio.sleep(delay)
    finally:
        task.cancel()
        with anyio.CancelScope(shield=True):  # nobody leaves a task behind, not even who is cancelled
            await asyncio.wait([task])
    if not task.cancelled():
        task.result()
