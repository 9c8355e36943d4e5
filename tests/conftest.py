"""What every test shares: each asynchronous test runs on asyncio and on trio."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.postgres_server import postgres_server

__all__ = ["postgres_server"]

HOUSE = Path(__file__).parent / "house"


@pytest.fixture(
    scope="module",
    params=[pytest.param(("asyncio", {}), id="asyncio"), pytest.param(("trio", {}), id="trio")],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """The event loop that an asynchronous test runs on; read by anyio's own pytest plugin."""
    return request.param


def pytest_configure(config: pytest.Config) -> None:
    """In the background of a script Ctrl-C is ignored, and so it would be in every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the repository itself, which the other Pythons do not repeat."""
    for item in items:
        if item.path.is_relative_to(HOUSE):
            item.add_marker(pytest.mark.house)
