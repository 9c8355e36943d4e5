"""Fixtures for pytest: each test on every backend and both event loops. No plugin: import them in a ``conftest.py``.

```python
from harness.testing.fixtures import anyio_backend, backend, session

__all__ = ["anyio_backend", "backend", "session"]
```

A test that takes ``backend`` or ``session`` runs on memory, JSONL, entry files and SQLite; one that is asynchronous (marked
with ``pytest.mark.anyio``) runs on asyncio, and on trio where that is installed. Needs pytest; its plugin for asynchronous
tests is anyio's, which comes with this library.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.session import Session
from harness.testing.backends import BACKENDS, Backend, backend_of

_WITHOUT_TRIO = pytest.mark.skipif(find_spec("trio") is None, reason="trio is not installed")


_LOOPS = [pytest.param("asyncio", id="asyncio"), pytest.param("trio", id="trio", marks=_WITHOUT_TRIO)]


@pytest.fixture(scope="module", params=_LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop that an asynchronous test runs on."""
    return request.param


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """An empty backend of each kind."""
    return backend_of(request.param, tmp_path)


@pytest.fixture
async def session(backend: Backend) -> AsyncIterator[Session]:
    """An open session with nothing in it, on each backend. It is closed after the test."""
    async with backend.session() as session:
        yield session
