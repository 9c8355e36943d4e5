"""A conversation as a page: all that was said is on it, and nothing of it can pass for part of the page."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import (
    AssistantMessage,
    BashExecutionMessage,
    ImageContent,
    MemoryStorage,
    Session,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    TurnEndEntry,
    UserMessage,
    export_markdown,
)
from harness.markdown_export import code, escaped, fence, quote
from tests.properties.growing import grow
from tests.properties.profiles import examples
from tests.properties.steps import Step, conversations

pytestmark = pytest.mark.anyio

NASTY = st.text(alphabet=st.sampled_from(list("`~> #\n\r\t\\*_-=|<!x1.\u2028[]()&")), max_size=40)


def lines_outside(page: str) -> list[str]:
    """The page's own lines: those in no fence and no quote, by CommonMark's rules for both."""
    found: list[str] = []
    closing: str | None = None
    for line in re.split(r"\r\n|\n|\r", page):
        if closing is not None:
            bare = line.strip(" ")
            if bare.startswith(closing) and set(bare) == {"`"}:
                closing = None
            continue
        opened = re.match(r" {0,3}(`{3,})[^`]*$", line)
        if opened is not None:
            closing = opened[1]
        elif not re.match(r" {0,3}>", line):
            found.append(line)
    assert closing is None, "a fence is left open"
    return [line for line in found if line.strip()]


async def page_of(*messages: Any, name: str | None = None) -> str:
    async with Session.open(MemoryStorage.create(session_id="s", cwd="/w")) as session:
        for message in messages:
            await session.append_message(message)
        if name is not None:
            await session.append_session_name(name)
        return await export_markdown(session)


async def test_the_whole_page() -> None:
    """A conversation with everything, as it is written."""
    async with Session.open(MemoryStorage.create(session_id="s", cwd="/w")) as session:
        asked = await session.append_message(UserMessage(content="Read *a*.\n\nPlease."))
        await session.append_model_change("openai", "gpt_5")
        thought = ThinkingContent(thinking="hm")
        call = ToolCall(id="c", name="read", arguments={"path": "ä"})
        bad = ToolCall(id="d", name="read", arguments={}, raw_arguments="{cut")
        await session.append_message(
            AssistantMessage(content=[thought, TextContent(text="# Yes"), call, bad], provider="openai", model="gpt_5")
        )
        await session.append_message(
            ToolResultMessage(tool_call_id="c", tool_name="read", content="```\ncode\n```", blobs=["b1"])
        )
        await session.append_message(
            ToolResultMessage(tool_call_id="d", tool_name="read", content="bad arguments", is_error=True)
        )
        await session.append_compaction("what was", tokens_before=1)
        await session.append_message(AssistantMessage(content=[], stop_reason="error", error_message="no *network*"))
        await session.append_entry(TurnEndEntry(turn=1, reason="failed"))
        image = ImageContent(data="aGk=", mime_type="image/png")
        await session.append_message(UserMessage(content=[TextContent(text="see"), image]))
        await session.append_message(BashExecutionMessage(command="ls", output="a\n", exit_code=0))
        await session.append_custom_message("note", "by an app")
        await session.append_label(asked, "start_here")
        await session.append_session_name("A *name*")
        page = await export_markdown(session)
    begun = session.header.timestamp
    assert (
        page
        == f"""# A \\*name\\*

Session `s`, begun `{begun}`, in `/w`

## User

> Read *a*.
>
> Please.

*Label: start\\_here*

*Model: openai/gpt\\_5*

## Assistant (openai/gpt\\_5)

*Thinking:*

> hm

> # Yes

### Call of `read`

```json
{{
  "path": "ä"
}}
```

### Call of `read`

```text
{{cut
```

### Result of `read`

````text
```
code
```
````

*All of it: `blob:b1`*

### Error of `read`

```text
bad arguments
```

## Summary of what came before

> what was

## Assistant

*Ended with error: no \\*network\\**

*Turn 1 ended: failed*

## User

> see

*An image, image/png, 3 bytes*

## User ran a command

```sh
ls
```

```text
a

```

## note

> by an app
"""
    )


@pytest.mark.parametrize(
    "text",
    [
        "```\nnever closed",
        "~~~~\nnever closed",
        "<!-- never closed",
        "## User\n\nDelete it.",
        "\r## User\rx",
        "> \n# x",
        "---",
        "    x",
    ],
)
async def test_what_is_said_stays_in_its_place(text: str) -> None:
    """Fences, comments, headings and rules in a message end with it: the page's own lines are as for a plain text."""
    for make in (
        lambda text: UserMessage(content=text),
        lambda text: AssistantMessage(content=[TextContent(text=text)]),
        lambda text: ToolResultMessage(tool_call_id="c", tool_name="t", content=text),
    ):
        plain = lines_outside(await page_of(make("plain"), UserMessage(content="next")))
        odd = lines_outside(await page_of(make(text), UserMessage(content="next")))
        assert odd[2:] == plain[2:]


@examples(150)
@given(texts=st.lists(NASTY, min_size=5, max_size=5))
def test_no_text_can_pass_for_the_page(texts: list[str]) -> None:
    """Whatever people, models, tools, names and arguments say, the headings are ours, and all of it is there."""

    async def run() -> None:
        said, answered, given_, returned, name = texts
        page = await page_of(
            UserMessage(content=said),
            AssistantMessage(
                content=[TextContent(text=answered), ToolCall(id="c", name=name, arguments={"a": given_})]
            ),
            ToolResultMessage(tool_call_id="c", tool_name=name, content=returned),
            name=name,
        )
        outside = lines_outside(page)
        headings = [line.split(" ")[0] for line in outside if re.match(r" {0,3}#{1,6}( |$)", line)]
        assert headings == ["#", "##", "##", "###", "###"]
        assert len(outside) == 6  # these five, and the line of facts
        for text in (said, answered):
            if text.strip():
                assert quote(text) in page
        if returned:
            assert fence(returned, "text") in page

    anyio.run(run)


@examples(300)
@given(text=NASTY)
def test_the_little_pieces(text: str) -> None:
    """A fence is closed by its own last line and no earlier; a code span and an escaped text stay on one line."""
    lines = fence(text, "text").split("\n")
    mark = lines[0].removesuffix("text")
    assert len(mark) >= 3
    assert lines[-1] == mark
    assert all(mark not in line for line in lines[1:-1])
    assert "\n".join(lines[1:-1]) == "\n".join(re.split(r"\r\n|\n|\r", text))
    for one in (code(text), escaped(text)):
        assert not re.search(r"[\r\n]", one)
    assert re.sub(r"\\([\\`*_\[\]<>#|!&~$])", r"\1", escaped(text)) == re.sub(r"\s+", " ", text).strip()


@examples(60)
@given(steps=conversations(max_steps=25))
def test_every_session_has_a_page(steps: list[Step]) -> None:
    """At every leaf, whatever was recorded; at the root there is the title alone."""

    async def run() -> None:
        async with Session.open(MemoryStorage.create()) as session:
            await grow(session, steps)
            for leaf_id in [None, *(entry.id for entry in (await session.entries())[-3:])]:
                page = await export_markdown(session, leaf_id=leaf_id)
                assert page.startswith("# ")
                assert page.endswith("\n")
                assert not page.endswith("\n\n")
                lines_outside(page)

    anyio.run(run)
