"""Days of work in one session: thousands of requests to a server that holds to a small window, and counts by itself.

The server counts with tiktoken's o200k, which the client does not use: that goes by the server's counts and by its rough
estimate of what came since. What sending everything, and what a sliding window would have sent, is counted the same way.
"""

from __future__ import annotations

import json
import random
import re
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from benchmarks.measuring import Figure
from compaction import CompactionSettings, ExtractiveSummarizer
from compaction.encodings import load_encoding
from harness.agent import AgentHarness
from harness.models import OpenAIChatModel
from harness.models.openai_payload import openai_payload
from harness.models.protocol import ModelRequest
from harness.session import Session
from harness.settings import AgentSettings
from harness.testing import Answer, HttpAnswer, ReceivedRequest, Reply, ScriptedServer, tool_call
from storage.entries import CompactionEntry, Entry, MessageEntry, RequestHeaderEntry
from storage.errors import BranchlineError
from storage.jsonl import JsonlStorage
from storage.messages import Message, Usage

FACTS = [f"Remember: service {number} listens on port {4_000 + 7 * number}." for number in range(20)]
_SYSTEM_PROMPT = "You are a careful engineer. Look before you change anything, and say what you found."
_MESSAGE_TOKENS = 4
_WORDS = (
    "the parser reads a file once and keeps an index of where each entry begins when a line is cut short it says so"
)


def _counter() -> Callable[[str], int]:
    """Counts the tokens of a text; without tiktoken's ranks on this machine, words and what is between them."""
    encoding = load_encoding("o200k_base")
    if encoding is None:
        pieces = re.compile(r"\w{1,6}|\W")
        return lambda text: len(pieces.findall(text))
    return lambda text: len(encoding.encode_ordinary(text))


@dataclass
class _Ledger:
    """What the server got, in tokens by its own count."""

    window: int
    count: Callable[[str], int]
    sent: int = 0
    fresh: int = 0
    """Of what was sent, what a cache of the request before would not have had."""
    requests: int = 0
    refused: int = 0
    broken: int = 0
    largest: int = 0
    turn: int = 0
    steps: int = 0
    """Calls that were asked for in this turn: what a model remembers, also where its context does not show them all."""
    before: list[str] = field(default_factory=list[str])
    known: dict[str, int] = field(default_factory=dict[str, int])

    def size(self, text: str) -> int:
        """The tokens of one message, counted once."""
        found = self.known.get(text)
        if found is None:
            found = self.known[text] = self.count(text) + _MESSAGE_TOKENS
        return found

    def take(self, request: ReceivedRequest) -> int | None:
        """The tokens of a request; ``None`` where they do not fit."""
        messages = [json.dumps(message, ensure_ascii=False) for message in request.messages]
        tools = self.size(json.dumps(request.body.get("tools", [])))
        sizes = [self.size(message) for message in messages]
        size = tools + sum(sizes)
        if size > self.window:
            self.refused += 1
            return None
        shared = 0
        while shared < min(len(messages), len(self.before)) and messages[shared] == self.before[shared]:
            shared += 1
        self.broken += shared < len(self.before)
        self.before = messages
        self.requests += 1
        self.sent += size
        self.fresh += sum(sizes[shared:]) + (0 if shared else tools)
        self.largest = max(self.largest, size)
        return size


def _answers(ledger: _Ledger, seed: int) -> Callable[[ReceivedRequest], Answer]:
    """The model: a few calls for each prompt, then some sentences; always the same for the same turn."""

    def answer(request: ReceivedRequest) -> Answer:
        size = ledger.take(request)
        if size is None:
            told = f"This model's maximum context length is {ledger.window} tokens. Please reduce the length."
            return HttpAnswer(400, {"error": {"message": told, "code": "context_length_exceeded"}})
        chooser = random.Random(f"{seed} {ledger.turn} {ledger.steps}")
        usage = Usage(input=size, output=100, total_tokens=size + 100)
        if ledger.steps < random.Random(f"{seed} {ledger.turn}").choice((0, 1, 1, 2, 2, 3, 5)):
            ledger.steps += 1
            path = f"src/module_{chooser.randrange(400)}.py"
            return Reply(tool_calls=[tool_call("read", f"c{ledger.steps}", path=path)], usage=usage)
        words = _WORDS.split()
        said = " ".join(chooser.choice(words) for _ in range(chooser.randrange(20, 160)))
        return Reply(f"Looked at it: {said}.", usage=usage)

    return answer


def read(path: str) -> str:
    """Read a file.

    Args:
        path: which one
    """
    chooser = random.Random(path)
    lines = int(min(500, 8 + chooser.paretovariate(0.9) * 12))
    return "\n".join(
        f"{number:4}  value_{chooser.randrange(10_000)} = compute({chooser.random():.6f}, mode='{path}')"
        for number in range(lines)
    )


async def simulation(folder: Path, turns: int, window: int) -> list[Figure]:
    """A session of so many turns in a window of so many tokens, with the summariser that asks no model."""
    ledger = _Ledger(window, _counter())
    reached = 0
    began = time.perf_counter()
    with ScriptedServer(_answers(ledger, 7), chunk_size=10_000) as server:
        model = OpenAIChatModel("any", base_url=server.base_url, api_key="any", context_window=window)
        settings = AgentSettings(compaction=CompactionSettings())
        storage = JsonlStorage.create(folder / f"long-{turns}.jsonl", durability="os")
        async with (
            model,
            Session.open(storage) as session,
            AgentHarness(
                session,
                model,
                tools=[read],
                system_prompt=_SYSTEM_PROMPT,
                settings=settings,
                summarizer=ExtractiveSummarizer(),
            ) as harness,
        ):
            for number in range(turns):
                ledger.turn, ledger.steps = number, 0
                fact = FACTS[number] if number < len(FACTS) else "Look at what is odd there, and say why."
                try:
                    await harness.prompt(f"Task {number}. {fact}")
                except BranchlineError:
                    reached += 1
                server.requests.clear()
            took = time.perf_counter() - began
            shown = "\n".join(message.text for message in (await session.build_context()).messages)
            entries = [*await session.entries(limit=1_000_000)]
    facts = sum(fact.removeprefix("Remember: ") in shown for fact in FACTS)
    everything, sliding = _otherwise(entries, ledger, window - min(4_096, window // 4))
    compacted = sum(isinstance(entry, CompactionEntry) for entry in entries)
    shortened = len(
        {
            entry.request.shortened.before
            for entry in entries
            if isinstance(entry, MessageEntry) and entry.request is not None and entry.request.shortened is not None
        }
    )
    name = f"{turns:,} turns in {window:,} tokens"
    done = f"{ledger.requests:,} requests, the largest of {ledger.largest:,} tokens; {took / turns * 1e3:.0f} ms a turn"
    chosen = f"{compacted} compactions, {shortened} times results shortened"
    return [
        Figure(
            f"{name}: overflows that reached the user", reached, "", 0, f"{done}; {ledger.refused} were tried again"
        ),
        Figure(f"{name}: facts of the first turns shown at the end", facts, "of 20", 15, chosen, at_least=True),
        Figure(f"{name}: requests that begin otherwise than the one before", ledger.broken, "", compacted + shortened),
        Figure(
            f"{name}: sent, of what sending everything takes",
            ledger.sent / everything * 100,
            "%",
            None,
            f"{ledger.sent / 1e6:.1f} of {everything / 1e6:.1f} million tokens",
        ),
        Figure(
            f"{name}: sent, of what a sliding window takes",
            ledger.sent / sliding * 100,
            "%",
            None,
            f"of {sliding / 1e6:.1f} million; {ledger.fresh / 1e6:.1f} million are new to a prompt cache",
        ),
    ]


def _otherwise(entries: list[Entry], ledger: _Ledger, budget: int) -> tuple[int, int]:
    """The tokens that sending everything with each request would have sent, and the newest messages that fit."""
    messages: list[Message] = []
    places: list[int] = []
    fixed = ledger.size(_SYSTEM_PROMPT)
    for entry in entries:
        if isinstance(entry, RequestHeaderEntry):
            fixed = ledger.size(entry.system_prompt or "") + ledger.size(json.dumps(entry.tools))
        if isinstance(entry, MessageEntry):
            if entry.request is not None:
                places.append(len(messages))
            messages.append(entry.message)
    body = json.loads(openai_payload("any", ModelRequest(None, messages)))
    sizes = [ledger.size(json.dumps(message, ensure_ascii=False)) for message in body["messages"]]
    sums = [0, *accumulate(sizes)]
    everything = sum(sums[place] + fixed for place in places)
    sliding = 0
    for place in places:
        first = bisect_left(sums, sums[place] + fixed - budget, 0, place)
        sliding += sums[place] - sums[first] + fixed
    return everything, sliding
