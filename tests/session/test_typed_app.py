"""An app's code under a strict type checker: what it has fits what is asked for, and what it gets has a type.

The tests run it; that pyright lets it pass is the other half of each.
"""

from __future__ import annotations

from typing import Any, assert_type

import pytest

from harness import (
    AgentHarness,
    AssistantMessage,
    MemoryRepository,
    MemoryStorage,
    Session,
    SessionError,
    SessionRepository,
    TextContent,
    UserMessage,
)
from harness.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "given", ["chat.jsonl", "postgresql://u:s3cret@h/d", MemoryRepository(), MemoryRepository().open_or_create, None]
)
async def test_what_is_no_storage_is_named(given: Any) -> None:
    """A path, a shelf, a function that was not called: each says what to open instead."""
    with pytest.raises(SessionError, match=r"is no storage; open what .* returns") as caught:
        await Session.open(given)
    assert "s3cret" not in str(caught.value)


async def fork_on(shelf: SessionRepository, session: Session) -> Session:
    """On a shelf of some kind."""
    return assert_type(await shelf.fork(session, session_id="three"), Session)


async def test_a_fork_is_a_session() -> None:
    """Of a repository, of whichever kind."""
    shelf = MemoryRepository()
    async with Session.open(shelf.create("one")) as session:
        await session.append_message(UserMessage(content="Hello."))
        async with assert_type(await shelf.fork(session, session_id="two"), Session) as other:
            assert other.id == "two"
        async with await fork_on(shelf, session) as other:
            assert other.id == "three"
        async with assert_type(await session.fork(into=shelf), Session) as other:
            assert other.header.parent_session == "one"


async def test_a_list_of_texts_is_a_content() -> None:
    """Of a message, whoever said it; and a message is a prompt."""
    texts = [TextContent(text="Hello")]
    async with Session.open(MemoryStorage.create()) as session:
        await session.append_message(UserMessage(content=texts))
        await session.append_message(AssistantMessage(content=texts))
        harness = AgentHarness(session, ScriptedModel(["Hello."] * 3))
        for prompt in ("Hello", texts, UserMessage(content=texts)):
            assert (await harness.prompt(prompt)).text == "Hello."
        gone = await harness.navigate(None)
        assert gone.message is None
        assert {message.text for message in (await session.build_context()).messages} == set()
