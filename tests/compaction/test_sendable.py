"""R20: a context can always be sent, whatever the path holds."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.wording import NO_OUTPUT, NOT_RUN, OUTCOME_UNKNOWN, PLACEHOLDER, WAITING
from storage.messages import (
    AssistantMessage,
    BashExecutionMessage,
    CustomMessage,
    ImageContent,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from tests.compaction.conversation import Conversation, call, run, user_message


def results(conversation: Conversation) -> list[tuple[str, str, str | None]]:
    """Call id, text and entry of each result shown."""
    projection = conversation.project()
    return [
        (message.tool_call_id, message.text, entry_id)
        for message, entry_id in zip(projection.messages, projection.entry_ids, strict=True)
        if isinstance(message, ToolResultMessage)
    ]


def test_results_follow_their_reply_in_call_order() -> None:
    """Recorded in order of completion, between other messages; shown in call order, before any other message."""
    conversation = Conversation().user("u1").reply("a1", "x", "y").result("r1", "y").user("steer").result("r2", "x")
    assert conversation.ids() == ["u1", "a1", "r2", "r1", "steer"]


def test_repeated_ids_pair_by_place() -> None:
    """The same id in every turn: each result stays with its own turn's call."""
    conversation = Conversation()
    for number in "123":
        conversation.user(f"u{number}").reply(f"a{number}", "call_0").result(f"r{number}", "call_0", number)
    assert results(conversation) == [("call_0", number, f"r{number}") for number in "123"]


def test_one_id_twice_in_one_reply() -> None:
    """The first result in order answers the first call; a third one has no call."""
    conversation = (
        Conversation().user("u").reply("a", "", "").result("r1", "", "1").result("r2", "", "2").result("r3", "", "3")
    )
    assert results(conversation) == [("", "1", "r1"), ("", "2", "r2")]
    assert conversation.project().dropped == ["r3"]


def test_an_older_open_call_takes_what_the_newer_one_leaves() -> None:
    """Two open calls of one id: the nearer one takes the first result, the farther one the second."""
    conversation = (
        Conversation().user("u").reply("a1", "x").reply("a2", "x").result("r1", "x", "1").result("r2", "x", "2")
    )
    assert results(conversation) == [("x", "2", "r2"), ("x", "1", "r1")]


def test_results_without_a_call_are_listed() -> None:
    """Doubled and stray results are left out and named, oldest first."""
    conversation = Conversation().user("u").reply("a", "c1").result("r1", "c1").result("r2", "c1").result("r3", "c9")
    projection = conversation.project()
    assert projection.entry_ids == ["u", "a", "r1"]
    assert projection.dropped == ["r2", "r3"]


def test_a_call_that_was_never_begun_is_answered() -> None:
    """A made-up result has its reply's entry and time, names the tool, and is an error."""
    conversation = Conversation().user("u").reply("a", call("x", "search")).user("u2")
    assert results(conversation) == [("x", NOT_RUN, "a")]
    made_up = conversation.project().messages[2]
    assert isinstance(made_up, ToolResultMessage)
    assert (made_up.tool_name, made_up.is_error, made_up.timestamp) == ("search", True, 2)
    assert "not run on this branch" in NOT_RUN


def test_a_call_that_was_begun_says_that_its_outcome_is_unknown() -> None:
    """The fact that a call was begun is on the path, a result is not."""
    conversation = Conversation().user("u").reply("a", "x", "y").tool_start("s", "x").user("u2")
    assert results(conversation) == [("x", OUTCOME_UNKNOWN, "a"), ("y", NOT_RUN, "a")]
    assert "begun, outcome unknown" in OUTCOME_UNKNOWN


def test_a_call_with_an_open_approval_waits() -> None:
    """Once a person decided, it does not wait any more; asked again, it does."""
    conversation = Conversation().user("u").reply("a", "x").approval("p1", "x")
    assert results(conversation) == [("x", WAITING, "a")]
    assert "waiting" in WAITING
    conversation.decision("d1", "x")
    assert results(conversation) == [("x", NOT_RUN, "a")]
    conversation.approval("p2", "x")
    assert results(conversation) == [("x", WAITING, "a")]


def test_facts_belong_to_the_nearest_reply_with_a_call_of_that_id() -> None:
    """That a later call of the same id was begun says nothing about an earlier one, or the other way round."""
    conversation = (
        Conversation().user("u1").reply("a1", "x").user("u2").reply("a2", "x").tool_start("s", "x").user("u3")
    )
    assert results(conversation) == [("x", NOT_RUN, "a1"), ("x", OUTCOME_UNKNOWN, "a2")]
    conversation = (
        Conversation().user("u1").reply("a1", "x").tool_start("s", "x").user("u2").reply("a2", "x").user("u3")
    )
    assert results(conversation) == [("x", OUTCOME_UNKNOWN, "a1"), ("x", NOT_RUN, "a2")]


def test_of_calls_with_one_id_the_first_were_begun() -> None:
    """One was begun and answered: the other was not begun. Two were begun, one answered: the other's outcome is unknown."""
    conversation = Conversation().user("u").reply("a", "x", "x").tool_start("s1", "x").result("r", "x", "1")
    assert results(conversation) == [("x", "1", "r"), ("x", NOT_RUN, "a")]
    conversation.tool_start("s2", "x")
    assert results(conversation) == [("x", "1", "r"), ("x", OUTCOME_UNKNOWN, "a")]


def test_a_call_answered_on_another_branch_is_answered_here_once() -> None:
    """What is made up is made up in the projection: the entries are what they were, and it comes out the same twice."""
    conversation = Conversation().user("u").reply("a", "x", "y").result("r", "y").user("u2")
    before = [entry.model_copy(deep=True) for entry in conversation.entries]
    assert conversation.project().messages == conversation.project().messages
    assert conversation.entries == before


def test_a_placeholder_precedes_what_is_not_a_users() -> None:
    """Providers want a user's message first; the placeholder is fixed and has no entry."""
    projection = Conversation().reply("a").user("u").project()
    assert projection.entry_ids == [None, "a", "u"]
    assert projection.messages[0].model_dump(exclude_unset=True) == {
        "role": "user",
        "content": PLACEHOLDER,
        "timestamp": 0,
    }
    assert Conversation().user("u").ids() == ["u"]


BLANK: list[Any] = [None, "", "  \n", [], [TextContent(text="")], [TextContent(text=" \t")], [TextContent(text=None)]]


@pytest.mark.parametrize("content", BLANK, ids=repr)
def test_no_empty_text_is_sent(content: Any) -> None:
    """An empty message is left out; an empty result says that it is one, since its call wants it."""
    conversation = Conversation().user("u").reply("a", "x").result("r", "x", content=content)
    user = user_message("x")
    user.content = content
    conversation.message("empty", user)
    parts: Any = [TextContent(text=content)] if isinstance(content, str) else content
    conversation.message("silent", AssistantMessage(content=parts, timestamp=1, stop_reason="stop"))
    conversation.custom_message("note", content)
    assert conversation.ids() == ["u", "a", "r"]
    assert results(conversation) == [("x", NO_OUTPUT, "r")]


def test_blank_parts_go_and_the_others_stay_as_they_are() -> None:
    """Images and signed or redacted thinking are kept member for member."""
    image = ImageContent(data="aGk=", mime_type="image/png")
    signed = ThinkingContent(thinking="", thinking_signature="sig")
    redacted = ThinkingContent(thinking="", redacted=True)
    said = TextContent(text="said")
    conversation = Conversation().user("u")
    conversation.message("u2", user_message("x").model_copy(update={"content": [TextContent(text=" "), image]}))
    content = [signed, TextContent(text=""), ThinkingContent(thinking=" "), redacted, said, call("x")]
    conversation.message("a", AssistantMessage(content=content, timestamp=1, stop_reason="toolUse"))
    messages = conversation.project().messages
    assert messages[1].content == [image]
    assert messages[2].content == [signed, redacted, said, call("x")]


def test_thinking_alone_is_no_reply() -> None:
    """No provider takes back a reply of nothing but thinking."""
    thinking = ThinkingContent(thinking="hm", thinking_signature="sig")
    conversation = Conversation().user("u").message("a", AssistantMessage(content=[thinking], stop_reason="stop"))
    assert conversation.ids() == ["u"]


@pytest.mark.parametrize("reason", ["error", "aborted"])
def test_a_failed_reply_counts_only_for_what_it_said_or_what_was_answered(reason: str) -> None:
    """It is left out if it has no text and no answered call; its text or an answered call keeps it, with all its calls."""
    assert Conversation().user("u").reply("a", text="", stop_reason=reason).ids() == ["u"]
    assert Conversation().user("u").reply("a", "x", text="", stop_reason=reason).ids() == ["u"]
    assert Conversation().user("u").reply("a", text="half", stop_reason=reason).ids() == ["u", "a"]
    with_text = Conversation().user("u").reply("a", "x", text="half", stop_reason=reason)
    assert results(with_text) == [("x", NOT_RUN, "a")]
    answered = Conversation().user("u").reply("a", "x", "y", text="", stop_reason=reason).result("r", "y", "1")
    assert results(answered) == [("x", NOT_RUN, "a"), ("y", "1", "r")]


def test_raw_arguments_are_shown_as_an_empty_object() -> None:
    """What a model sent that was no JSON object is beside the arguments, never in them."""
    broken = ToolCall(id="x", name="read", arguments={}, raw_arguments='{"path": "a')
    message = Conversation().user("u").reply("a", broken, text="").project().messages[1]
    assert isinstance(message, AssistantMessage)
    assert message.tool_calls[0].arguments == {}


def test_shell_commands_are_shown_as_a_user_message_that_says_so() -> None:
    """Command, output, and how it ended; excluded ones are not shown."""
    conversation = Conversation()
    endings: list[dict[str, Any]] = [
        {},
        {"exit_code": 0},
        {"exit_code": 3},
        {"cancelled": True},
        {"truncated": True, "full_output_path": "out.txt"},
        {"truncated": True},
        {"exclude_from_context": True},
    ]
    for number, more in enumerate(endings):
        conversation.message(f"b{number}", BashExecutionMessage(command="ls -l", output="a.py", timestamp=1, **more))
    conversation.message("silent", BashExecutionMessage(command="true", output=None, timestamp=1))
    shown = conversation.shown()
    assert {role for role, _ in shown} == {"user"}
    texts = [text for _, text in shown]
    plain = "The user ran a shell command:\n$ ls -l\n\na.py"
    assert texts == [
        plain,
        plain,
        f"{plain}\n(The command ended with exit code 3.)",
        f"{plain}\n(The command was cancelled.)",
        f"{plain}\n(The output was cut; all of it is in out.txt.)",
        f"{plain}\n(The output was cut.)",
        "The user ran a shell command:\n$ true\n\n(no output)",
    ]


def test_the_apps_own_messages_are_shown_as_the_users() -> None:
    """``custom`` messages and ``custom_message`` entries: their content, parts and images included, nothing added."""
    image = ImageContent(data="aGk=", mime_type="image/png")
    conversation = Conversation().custom_message("c1", "note").custom_message("c2", [TextContent(text="see"), image])
    conversation.message("c3", CustomMessage(custom_type="x", content="more", display=False, timestamp=1))
    messages = conversation.project().messages
    assert [(message.role, message.content) for message in messages] == [
        ("user", "note"),
        ("user", [TextContent(text="see"), image]),
        ("user", "more"),
    ]
    assert messages[0].timestamp == 1767225600000


def test_a_branch_summary_says_what_it_is() -> None:
    """With its summary behind a sentence of ours; without one it is not shown."""
    ((role, text),) = Conversation().branch_summary("b", "it failed").branch_summary("b2", " ").shown()
    assert role == "user"
    assert text.endswith("\n\nit failed")
    assert text.startswith("Another branch")


def test_system_messages_are_state_and_not_shown() -> None:
    """pi records prompt and tools as messages; they are no part of the conversation."""
    conversation = Conversation().message("s", SystemMessage(content="You are pi.", timestamp=1)).user("u")
    assert conversation.ids() == ["u"]
    assert conversation.project().state.system_prompt == "You are pi."


def test_what_is_shown_is_made_anew() -> None:
    """R11: a caller may do to a context what it likes; neither the record nor the next context sees it."""
    conversation = (
        Conversation()
        .reply("a", call("x", path=["a"]))
        .result("r", "x")
        .compaction("c", retained_tail=[user_message("t")])
    )
    path = conversation.path
    for options in ({}, {"max_chars": 10_000}):
        first = run(path, **options)
        copy = [message.model_copy(deep=True) for message in first.messages]
        for message in first.messages:
            message.content = None
        assert run(path, **options).messages == copy


def test_the_placeholder_is_made_anew_too() -> None:
    """Whatever is done to it, the next context has the fixed one."""
    path = Conversation().reply("a").path
    first = run(path).messages[0]
    assert isinstance(first, UserMessage)
    first.content = "changed"
    assert run(path).messages[0].content == PLACEHOLDER
