"""What the tests of hooks share: a tool, a model that calls it once, and a hook that writes down where it was called."""

from __future__ import annotations

from harness.hooks import CallFacts, Hook, TurnFacts, TurnOutcome
from harness.models.protocol import ModelRequest
from harness.testing import ScriptedModel, tool_call
from harness.tools import tool
from storage.messages import ToolResultMessage


@tool
async def say(text: str) -> str:
    """Say a text."""
    return f"said {text}"


def model() -> ScriptedModel:
    """One call, then an end; then another turn."""
    return ScriptedModel([tool_call("say", "c1", text="x"), "Done.", "Again."])


class Watching(Hook):
    """Writes down where it was called."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def before_turn(self, turn: TurnFacts) -> None:
        self.seen.append(f"before turn {turn.turn} {turn.prompt.text if turn.prompt else '(resumed)'}")

    async def before_request(self, request: ModelRequest) -> None:
        self.seen.append(f"before request of {len(request.messages)}")

    async def before_call(self, call: CallFacts) -> None:
        self.seen.append(f"before {call.call.name}({call.call.arguments['text']}) in turn {call.turn}")

    async def after_call(self, call: CallFacts, result: ToolResultMessage) -> None:
        self.seen.append(f"after {call.call.id}: {result.text}")

    async def after_turn(self, turn: TurnFacts, outcome: TurnOutcome) -> None:
        self.seen.append(f"after turn {turn.turn}: {outcome}")
