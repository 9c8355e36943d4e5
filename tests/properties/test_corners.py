"""Conversations chosen by hand for the corners of R18 to R20, judged at every leaf and under every budget."""

from __future__ import annotations

import pytest

from harness import MemoryStorage, Session
from tests.properties.growing import grow, plain_of
from tests.properties.steps import Step
from tests.properties.test_contexts import judged, placeholder

pytestmark = pytest.mark.anyio


def user(text: str = "go on") -> Step:
    return Step("user", text)


def reply(*calls: str, text: str = "", option: str = "") -> Step:
    return Step("reply", text, calls=calls, option=option)


def result(call: str, text: str = "found") -> Step:
    return Step("result", text, calls=(call,))


def kept(pick: int) -> Step:
    """A compaction that keeps the path from its entry ``pick`` on."""
    return Step("compaction", "so far", pick, option="kept")


def hide(pick: int) -> Step:
    """A context edit that hides the message ``pick`` of the path (or, without the option, replaces its text)."""
    return Step("edit", "instead", pick, option="hide")


CORNERS: dict[str, list[Step]] = {
    "a hidden reply takes its result along": [user(), reply("k"), reply("k"), result("k"), hide(2), user()],
    "an edited reply loses its calls and their results": [
        user(),
        reply("k"),
        reply("k", "x"),
        result("k"),
        result("x"),
        Step("edit", "instead", 2),
        user(),
    ],
    "a hidden result leaves its call open": [user(), reply("k", "x"), result("k"), result("x"), hide(2), user()],
    "a hidden opener": [user(), reply("k"), result("k"), reply(text="done"), hide(0)],
    "two replies of the same ids, results mixed": [
        user(),
        reply("k", "x"),
        reply("x", "k"),
        result("x", "1"),
        result("k", "2"),
        user(),
        result("k", "3"),
        result("x", "4"),
        result("x", "5"),
    ],
    "one id three times in a reply": [user(), reply("k", "k", "k"), result("k", "1"), result("k", "2")],
    "failed replies": [
        user(),
        reply(option="error"),
        reply("k", option="aborted"),
        reply("k", "x", option="error"),
        result("x"),
        reply("k", text="half a", option="aborted"),
        user(),
    ],
    "a failed reply that is answered late": [user(), reply("k", option="error"), user(), result("k")],
    "a failed reply takes the result an earlier call waits for": [
        user(),
        reply("k"),
        reply("k", option="aborted"),
        result("k"),
    ],
    "the kept range begins within a unit": [user(), reply("k", "x"), result("k"), result("x"), user(), kept(3), user()],
    "a compaction between a call and its result": [user(), reply("k", "x"), result("k"), kept(1), result("x"), user()],
    "a compaction after which a lost call is answered": [user(), reply("k"), user(), kept(2), result("k"), user()],
    "a compaction that keeps itself": [user(), reply("k"), Step("compaction", "all", option="none"), user()],
    "an older summary within the kept range": [user(), kept(0), user(), kept(0), user()],
    "a retained tail with an open call": [
        user(),
        Step("compaction", "so far", option="both", tail=(user("kept"), reply("k", "x"), result("x"))),
        result("k"),
        user(),
    ],
    "a turn with a steer": [
        user("before"),
        reply(text="hello"),
        Step("turn_start", "opens"),
        reply("k"),
        result("k"),
        user("steers"),
        reply("x"),
        result("x"),
        reply(text="done"),
        Step("turn_end"),
        user("a new turn"),
    ],
    "a turn that is cut by a compaction": [Step("turn_start", "opens"), reply("k"), result("k"), kept(2), reply("x")],
    "a turn without a user message": [user(), Step("turn_start"), reply("k"), result("k"), reply(text="done")],
    "a reply that nothing came before": [reply("k"), result("k"), reply(text="done"), user()],
    "only working memory": [Step("memory", "value"), Step("memory", "value", 1)],
    "working memory across compactions and branches": [
        Step("memory", "value"),
        user(),
        Step("memory", "other", 4),
        kept(1),
        Step("memory", option="delete"),
        Step("aside", "elsewhere", 1),
    ],
    "nothing to show": [
        Step("metadata"),
        Step("label"),
        Step("name"),
        user(" "),
        reply(),
        Step("bash", option="hidden"),
    ],
    "only blank": [user("\n"), reply("k", text=" "), result("k", "\t"), user("")],
}


@pytest.mark.parametrize("steps", CORNERS.values(), ids=CORNERS.keys())
async def test_every_context_of_a_corner_holds_the_rules(steps: list[Step]) -> None:
    """The checker finds nothing at any leaf, under any budget that could make a difference."""
    async with Session.open(MemoryStorage.create()) as session:
        await grow(session, steps)
        await judged(session, budgets_for=1_000)


async def test_an_edit_that_hides_everything_leaves_nothing_to_show() -> None:
    """``[]`` only where the path has nothing to show; a budget of one character then holds."""
    async with Session.open(MemoryStorage.create()) as session:
        await grow(session, [user(), hide(0)])
        context = plain_of(await session.build_context(max_chars=1))
        assert (context.messages, context.chars) == ([], 0)


@pytest.fixture(scope="module", autouse=True)
def placeholder_known() -> None:
    """Asked for before an event loop runs."""
    placeholder()
