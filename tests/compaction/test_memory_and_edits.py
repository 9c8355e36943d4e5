"""Working memory, context edits, and what the caller adds: projectors, transforms, unknown entries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compaction.wording import TAKEN_OUT
from storage.decode import decode_entry
from storage.entries import CustomEntry, Entry, MessageEntry
from storage.errors import InvalidEntryError, UnsupportedEntryError
from storage.messages import AssistantMessage, ImageContent, Message, TextContent, ToolResultMessage
from tests.compaction.conversation import TIME, Conversation, call, reply_message, result_message, user_message


def test_the_working_memory_is_shown_last_as_it_stands() -> None:
    """One user message of its own, with the newest values; its entry is the newest change."""
    conversation = (
        Conversation().memory("m1", "set", "goal", "win").memory("m2", "set", "list", [1, {"a": "é"}]).user("u")
    )
    conversation.memory("m3", "set", "gone", 1).memory("m4", "delete", "gone").memory("m5", "set", "goal", "draw")
    projection = conversation.reply("a").project()
    assert projection.entry_ids == ["u", "a", "m5"]
    last = projection.messages[-1]
    assert (last.role, last.text) == ("user", 'Working memory, as it stands now:\ngoal: "draw"\nlist: [1,{"a":"é"}]')


def test_a_cleared_working_memory_is_not_shown() -> None:
    """What was set before the newest clear does not count; what was set after does."""
    conversation = Conversation().user("u").memory("m1", "set", "k", 1).memory("m2", "clear")
    assert conversation.ids() == ["u"]
    assert conversation.memory("m3", "set", "other", 2).ids() == ["u", "m3"]
    assert "k:" not in conversation.shown()[-1][1]


def test_the_working_memory_survives_a_compaction() -> None:
    """R22: it is folded along the whole path."""
    assert Conversation().user("u").memory("m", "set", "k", 1).compaction("c").user("u2").ids() == ["c", "u2", "m"]


def test_the_working_memory_alone_is_a_context() -> None:
    """It is a user's message, so no placeholder is needed."""
    assert Conversation().memory("m", "set", "k", 1).ids() == ["m"]


def test_an_edit_hides_a_message() -> None:
    """A hidden reply takes the results of its calls along; nothing of them counts as dropped."""
    conversation = Conversation().user("u1").reply("a1", "x").result("r1", "x").user("u2").hide("e", "a1")
    projection = conversation.project()
    assert projection.entry_ids == ["u1", "u2"]
    assert projection.dropped == []


def test_results_of_a_hidden_reply_answer_no_other_call() -> None:
    """Pairing goes by what was recorded: an earlier open call of the same id does not get a stranger's result."""
    conversation = Conversation().user("u").reply("a1", "x").reply("a2", "x").result("r", "x").hide("e", "a2")
    projection = conversation.project()
    assert projection.entry_ids == ["u", "a1", "a1"]
    assert "not run" in projection.messages[-1].text


def test_a_hidden_result_leaves_its_call_answered() -> None:
    """The call wants a result: one that says where it went, with the reply's entry."""
    conversation = Conversation().user("u").reply("a", "x").result("r", "x", "secret").hide("e", "r")
    projection = conversation.project()
    assert projection.entry_ids == ["u", "a", "a"]
    assert projection.messages[-1].text == TAKEN_OUT


def test_a_hidden_result_without_a_call_is_not_listed() -> None:
    """Somebody took it out on purpose: it is not dropped."""
    projection = Conversation().user("u").result("r1", "x").result("r2", "x").hide("e", "r1").project()
    assert projection.entry_ids == ["u"]
    assert projection.dropped == ["r2"]


def test_an_edit_replaces_the_content() -> None:
    """Text for text, and one part of text in replies and results; everything else stays."""
    image = ImageContent(data="aGk=", mime_type="image/png")
    conversation = (
        Conversation()
        .user("u1")
        .reply("a1", "x", model="m")
        .result("r1", "x", is_error=True)
        .custom_message("n", "old")
    )
    conversation.replace("e1", "u1", "new question").replace("e2", "r1", "short").replace(
        "e3", "n", [TextContent(text="new"), image]
    )
    conversation.replace("e4", "a1", [TextContent(text="new reply"), call("x")])
    messages = conversation.project().messages
    assert messages[0].content == "new question"
    assert messages[1].content == [TextContent(text="new reply"), call("x")]
    assert isinstance(messages[1], AssistantMessage)
    assert messages[1].model == "m"
    result = messages[2]
    assert isinstance(result, ToolResultMessage)
    assert (result.content, result.is_error) == ([TextContent(text="short")], True)
    assert messages[3].content == [TextContent(text="new"), image]


def test_a_call_that_was_edited_away_takes_its_result_along() -> None:
    """And a call that an edit adds is answered like any other that never ran."""
    conversation = Conversation().user("u").reply("a", "x", "y").result("r1", "x").result("r2", "y", "kept")
    conversation.replace("e", "a", [call("y"), call("z")])
    projection = conversation.project()
    assert projection.entry_ids == ["u", "a", "r2", "a"]
    assert projection.dropped == []


def test_the_last_edit_counts() -> None:
    """A later edit takes an earlier one's place, also where it only brings the words back."""
    conversation = Conversation().user("u", "old").hide("e1", "u").replace("e2", "u", "new")
    assert conversation.shown() == [("user", "new")]
    assert conversation.hide("e3", "u").shown() == []


def test_an_edit_counts_across_a_compaction() -> None:
    """Made after the compaction, about an entry that it keeps."""
    conversation = (
        Conversation().user("u1").user("u2").compaction("c", first_kept_entry_id="u2").replace("e", "u2", "new")
    )
    assert conversation.shown()[1:] == [("user", "new")]


def test_an_edit_may_be_about_a_shell_command_or_a_summary() -> None:
    """A summary keeps the sentence that says what it is; a hidden one is gone."""
    conversation = Conversation().branch_summary("b", "old").replace("e", "b", "new")
    ((_, text),) = conversation.shown()
    assert text.endswith("\n\nnew")
    assert conversation.hide("e2", "b").shown() == []


def test_an_edit_to_nothing_says_nothing() -> None:
    """An empty replacement is no text: the message is left out, a result says that it is empty."""
    conversation = (
        Conversation().user("u").reply("a", "x").result("r", "x").replace("e", "r", "").replace("e2", "u", " ")
    )
    assert conversation.shown() == [
        ("user", "(The beginning of this conversation is not shown.)"),
        *conversation.shown()[1:],
    ]
    assert conversation.shown()[-1] == ("toolResult", "(no output)")


def custom(entry_id: str, data: Any) -> CustomEntry:
    return CustomEntry(id=entry_id, timestamp=TIME, custom_type="task", data=data)


def test_custom_entries_are_shown_through_a_projector_only() -> None:
    """One message, several, or nothing; they carry the entry's id and are measured like any other."""
    conversation = Conversation().user("u").add(custom("c1", 1)).add(custom("c2", 2)).add(custom("c3", 0))

    def show(entry: CustomEntry) -> Message | list[Message] | None:
        messages: list[Message] = [user_message(f"task {number}") for number in range(entry.data)]
        return messages if entry.data > 1 else (messages[0] if messages else None)

    assert conversation.ids() == ["u"]
    assert conversation.ids(projectors={"other": show}) == ["u"]
    projection = conversation.project(projectors={"task": show})
    assert projection.entry_ids == ["u", "c1", "c2", "c2"]
    assert [message.text for message in projection.messages[1:]] == ["task 0", "task 0", "task 1"]
    assert conversation.ids(projectors={"task": show}, max_chars=projection.chars) == projection.entry_ids


def test_projected_calls_are_answered_too() -> None:
    """R20 holds for what a projector makes; a message of the caller's is copied, and refused if it is no JSON."""
    reply = reply_message("", "x", "y")
    mine: list[Message] = [reply, result_message("x")]
    conversation = Conversation().user("u").add(custom("c", 1))
    projection = conversation.project(projectors={"task": lambda entry: mine})
    assert [message.role for message in projection.messages] == ["user", "assistant", "toolResult", "toolResult"]
    copy = projection.messages[1]
    assert isinstance(copy, AssistantMessage)
    copy.content = []
    assert len(reply.tool_calls) == 2
    with pytest.raises(InvalidEntryError, match="details"):
        conversation.project(projectors={"task": lambda entry: result_message("x", details={1, 2})})


def test_transforms_get_the_selected_entries_in_order() -> None:
    """After the compaction was chosen: it, what it keeps, what came after; each transform gets what the last one gave."""
    conversation = (
        Conversation().user("u1").user("u2").compaction("c", first_kept_entry_id="u2").turn_start("t").user("u3")
    )
    seen: list[list[str]] = []

    def look(entries: list[Entry]) -> list[Entry]:
        seen.append([entry.id for entry in entries])
        return entries[:-1]

    assert conversation.ids(transforms=[look, look]) == ["c", "u2"]
    assert seen == [["c", "u2", "t", "u3"], ["c", "u2", "t"]]


def test_what_transforms_return_is_projected_by_all_rules() -> None:
    """They may change, add and take away entries; calls are answered, texts cleaned, budgets hold, nothing is shared."""
    conversation = Conversation().user("u1").reply("a1", "x").result("r1", "x").user("u2")

    def change(entries: list[Entry]) -> list[Entry]:
        kept = [entry for entry in entries if entry.id != "r1"]
        return [*kept, MessageEntry(id="new", timestamp=TIME, message=user_message("added"))]

    projection = conversation.project(transforms=[change])
    assert projection.entry_ids == ["u1", "a1", "a1", "u2", "new"]
    assert conversation.ids(transforms=[change], max_chars=projection.chars - 1) == ["u2", "new"]


def test_a_transform_may_take_the_summary_away() -> None:
    """Then none is shown; the working memory stays that of the path."""
    conversation = Conversation().memory("m", "set", "k", 1).user("u1").compaction("c").user("u2")
    projection = conversation.project(transforms=[lambda entries: entries[1:]])
    assert projection.entry_ids == ["u2", "m"]
    assert projection.compaction_id is None


def unknown(entry_id: str, **more: Any) -> Entry:
    line = {"id": entry_id, "parentId": None, "timestamp": TIME, **more}
    return decode_entry(json.dumps(line).encode())


UNKNOWN = {
    "type": {"seq": 1, "type": "mystery", "x": 1},
    "role": {"seq": 1, "type": "message", "message": {"role": "oracle", "content": "?"}},
}


@pytest.mark.parametrize("members", UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_entry_is_refused_unless_it_may_be_skipped(members: dict[str, Any]) -> None:
    """R4: a context would be a guess; the error names the entry and both ways out. Skipped, a warning names it."""
    conversation = Conversation().user("u")
    conversation.entries.append(unknown("strange", **members))
    with pytest.raises(UnsupportedEntryError, match="'strange' is .*unknown_entries=\"skip\"") as caught:
        conversation.project()
    assert caught.value.entry_id == "strange"
    projection = conversation.project(unknown_entries="skip")
    assert projection.entry_ids == ["u"]
    assert [(warning.code, warning.entry_id) for warning in projection.warnings] == [
        ("unknown_entry_skipped", "strange")
    ]


@pytest.mark.parametrize("members", UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_entry_that_may_be_ignored_is_passed_by(members: dict[str, Any]) -> None:
    """R4: it says so itself, or pi wrote it (it has no ``seq``)."""
    conversation = Conversation().user("u")
    conversation.entries.append(unknown("ours", **members, ignorable=True))
    conversation.entries.append(unknown("pis", **{name: value for name, value in members.items() if name != "seq"}))
    projection = conversation.project()
    assert projection.entry_ids == ["u"]
    assert projection.warnings == []
