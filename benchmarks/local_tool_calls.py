"""How often the small local model calls the right tool, leaves tools alone, and answers from a result.

Run it with ``python benchmarks/local_tool_calls.py [SEED …]``. Nothing here has a threshold: a model this small is weak,
and this says how weak. None of the questions is among the examples in its chat template.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field

import anyio

from harness import (
    AssistantMessage,
    LocalModel,
    ModelError,
    ModelRequest,
    ReplyFinished,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    workspace_tools,
)

FILES = (
    ("What does the file hello.txt say?", "hello.txt"),
    ("Read the file README.md and tell me what it says.", "README.md"),
    ("What is in pyproject.toml?", "pyproject.toml"),
    ("Read config.toml.", "config.toml"),
    ("What is this project called? Look in README.md.", "README.md"),
    ("Open main.py.", "main.py"),
    ("What does CHANGELOG.md say?", "CHANGELOG.md"),
    ("Please read the file letter.txt.", "letter.txt"),
    ("Summarise report.md", "report.md"),
    ("What is written in plan.txt?", "plan.txt"),
)
FOLDERS = (
    ("What files are in the docs folder?", "docs"),
    ("List the files in the folder tests.", "tests"),
    ("Show me the folder examples.", "examples"),
    ("Which files are in the folder data?", "data"),
    ("What is in the folder src/core?", "src/core"),
    ("List the directory build", "build"),
    ("What files does the folder assets have?", "assets"),
    ("Show me all files in the scripts folder.", "scripts"),
    ("Which files are here?", "."),
    ("List the folder music.", "music"),
)
TALK = (
    "Hello!",
    "What is the capital of France?",
    "Thank you, that is all.",
    "Tell me a joke.",
    "What is your name?",
    "How are you today?",
    "What is 2 + 2?",
    "Why is the sky blue?",
)
RESULTS = (
    ("What does the file hello.txt say?", "read", "hello.txt", "The meeting is on Tuesday at nine.", "Tuesday"),
    ("What is this project called? Look in README.md.", "read", "README.md", "# Atlas\n\nA map of the sky.", "Atlas"),
    ("Read letter.txt.", "read", "letter.txt", "Dear Anna, the train leaves at noon.", "noon"),
    ("What files are in the docs folder?", "list", "docs", "design.md\nindex.md", "design.md"),
    ("Which files are in the folder data?", "list", "data", "a.csv\nb.csv", "b.csv"),
)
FAILED = "requests that failed: a call that was no JSON after all"


@dataclass
class Counts:
    """What was counted, of how many."""

    of: dict[str, int] = field(default_factory=dict[str, int])
    found: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, name: str, holds: bool) -> None:
        self.of[name] = self.of.get(name, 0) + 1
        self.found[name] = self.found.get(name, 0) + holds


async def measure(model: LocalModel, counts: Counts) -> None:
    tools = [tool.schema for tool in workspace_tools(".")]

    async def ask(*messages: UserMessage | AssistantMessage | ToolResultMessage) -> AssistantMessage:
        try:
            async with model.stream(ModelRequest(None, messages, tools)) as events:
                async for event in events:
                    if isinstance(event, ReplyFinished):
                        counts.add(FAILED, False)
                        return event.message
        except ModelError:
            counts.add(FAILED, True)
        return AssistantMessage(content=[])

    for questions, name in ((FILES, "read"), (FOLDERS, "list")):
        for question, path in questions:
            calls = (await ask(UserMessage(content=question))).tool_calls
            right = bool(calls) and calls[0].name == name
            counts.add("questions that want a tool: called one", bool(calls))
            counts.add("… the right one", right)
            counts.add("… with exactly the right path", right and calls[0].arguments == {"path": path})
    for question in TALK:
        reply = await ask(UserMessage(content=question))
        counts.add("questions that want none: called none", not reply.tool_calls and bool(reply.text))
    for question, name, path, result, wanted in RESULTS:
        call = ToolCall(id="call_1", name=name, arguments={"path": path})
        reply = await ask(
            UserMessage(content=question),
            AssistantMessage(content=[call]),
            ToolResultMessage(tool_call_id="call_1", tool_name=name, content=result),
        )
        counts.add("results: answered with what stands in them", wanted in reply.text)


async def main(seeds: list[int]) -> None:
    counts = Counts()
    for seed in seeds:
        async with LocalModel(options={"seed": seed, "max_tokens": 96}) as model:
            await measure(model, counts)
    for name, total in counts.of.items():
        print(f"| {name} | {counts.found[name]} of {total} |")
    print(json.dumps({"seeds": seeds, "found": counts.found, "of": counts.of}))


if __name__ == "__main__":
    anyio.run(main, [int(seed) for seed in sys.argv[1:]] or [1, 2, 3])
