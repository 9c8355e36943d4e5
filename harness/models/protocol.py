"""**Protocols**: what a model is to the rest of the library. A request goes in, a stream of events comes out.

Nothing here knows a vendor. ``OpenAIChatModel`` and ``LocalModel`` are two models; ``harness.testing.ScriptedModel`` is
one for tests; yours needs the three properties and the three methods of ``ChatModel``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

from harness.models.events import ModelEvent
from storage.messages import Message


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """What a model is told about a tool. ``parameters`` is the JSON schema of the object that it takes."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request, in nobody's wire format.

    ``messages`` are user, assistant and toolResult messages, in an order that can be sent: every call is followed by
    exactly one result, in call order (``build_context`` sees to it). Those of a turn's next request are partly the same
    objects: a model changes none of them. ``options`` go to the provider under its own names
    (``temperature``, ``max_tokens``, …). ``thinking_level`` is ``off``, ``minimal``, ``low``, ``medium`` or ``high``.
    """

    system_prompt: str | None
    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    thinking_level: str | None = None
    passing: int = 0
    """How many of the last messages are not part of the conversation, and so will not stand there in the next request
    (the working memory): what a vendor is told to cache ends before them."""


@runtime_checkable
class ChatModel(Protocol):
    """**Protocol**: a model that answers conversations."""

    @property
    def provider(self) -> str:
        """Who serves it, as written into the record: ``openai``, ``local`` and so on."""
        ...

    @property
    def model_id(self) -> str:
        """What the provider calls it."""
        ...

    @property
    def context_window(self) -> int | None:
        """How many tokens a request and its reply may have together; None: not known."""
        ...

    def payload(self, request: ModelRequest) -> bytes:
        """The body that goes out for this request: pure, deterministic, and valid UTF-8.

        The same request gives the same bytes in another process and another year: sent requests are rebuilt this way.

        Raises:
            ModelError: the request holds something that cannot be sent (a message of another role, a NaN).
        """
        ...

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Send the request; the value entered is an iterator of what the model says, piece by piece.

        Entering waits for the beginning of the answer, retries included. The last event, exactly once, is
        ``ReplyFinished``; an iterator that ends without one does not exist. Leaving early, or being cancelled, ends the
        request: the connection is closed, and the model stops. Any number of streams may be open at once.

        Raises (on entering, or from the iterator):
            ContextOverflowError: the request is longer than the model's window.
            ModelError: the model, or the way to it, failed for good. Never with a key in its text.
        """
        ...

    async def aclose(self) -> None:
        """Close connections and end processes. May be called twice; streams still open fail."""
        ...


@runtime_checkable
class HasOptions(Protocol):
    """**Protocol**: a model that sends options of its own with every request, below the request's.

    A harness records them in the request's header, so that a request can be rebuilt without knowing how the model was
    made. They must be JSON. All that shapes the bytes belongs among them, switches of the model's own as well
    (``prompt_caching``), which are not sent under their names; left out, each is as it usually is.
    """

    @property
    def options(self) -> Mapping[str, Any]:
        """By the provider's own names."""
        ...


def own_options(model: ChatModel) -> Mapping[str, Any]:
    """What a model sends of its own (see ``HasOptions``)."""
    options: object = getattr(model, "options", None)  # a look-up; asking for the protocol takes ten times as long
    return cast("Mapping[str, Any]", options) if isinstance(options, Mapping) else {}


@runtime_checkable
class KeepsConnections(Protocol):
    """**Protocol**: a model that can keep its connections open from request to request.

    A harness holds them for the length of a turn, so that not every step of it begins with a handshake, and nothing is
    open between turns. ``async with model`` around everything keeps them across turns as well.
    """

    def connected(self) -> AbstractAsyncContextManager[None]:
        """Keep connections until it is left; then, if nobody else holds them, they are closed."""
        ...
