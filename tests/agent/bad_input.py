"""What the tests of bad input share: models of both protocols, and what must hold whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import AgentHarness, AnthropicModel, OpenAIChatModel, RetryPolicy, Session
from tests.agent.agents import check_well_formed

KEY = "a-secret-nobody-may-see"
"""It does not look like a key, so that it is known only by being the one."""

Model = OpenAIChatModel | AnthropicModel
Kind = type[OpenAIChatModel] | type[AnthropicModel]
KINDS: list[Kind] = [OpenAIChatModel, AnthropicModel]


def model_at(kind: Kind, url: str, **settings: Any) -> Model:
    settings = {"retry": RetryPolicy(1, 0.01, 0.05), "api_key": KEY, **settings}
    return kind("any", base_url=url, **settings)


async def check(session: Session, place: Path, error: BaseException | None = None) -> None:
    """The history is whole, and neither it nor the error holds the key; the error is one line that says something."""
    check_well_formed(await session.entries())
    assert KEY.encode() not in place.read_bytes()
    if error is not None:
        told = str(error)
        assert KEY not in told + repr(error)
        assert 20 < len(told) < 1_500
        assert "\n" not in told


async def check_next(session: Session, harness: AgentHarness) -> None:
    """The next prompt works, in this harness; what it is shown ends with it."""
    reply = await harness.prompt("And now?")
    assert reply.text == "It works again."
    check_well_formed(await session.entries())


def echo_tool(text: str) -> str:
    """Say it again."""
    return text
