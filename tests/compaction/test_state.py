"""R22: state is folded along the whole path, across compactions, and along nothing else."""

from __future__ import annotations

import pytest

from compaction import ListPath, ModelChoice, fold_state
from storage.entries import (
    ActiveToolsChangeEntry,
    CompactionEntry,
    Entry,
    MessageEntry,
    ModelChangeEntry,
    RequestHeaderEntry,
    ThinkingLevelChangeEntry,
)
from storage.messages import SystemMessage
from tests.compaction.conversation import TIME, Conversation


def changes() -> list[Entry]:
    return [
        ModelChangeEntry(id="m", timestamp=TIME, provider="p", model_id="one"),
        ThinkingLevelChangeEntry(id="t", timestamp=TIME, thinking_level="high"),
        ActiveToolsChangeEntry(id="a", timestamp=TIME, active_tool_names=["read"]),
        RequestHeaderEntry(
            id="h", timestamp=TIME, model={"id": "one"}, system_prompt="Be brief.", tools=[{"name": "read"}]
        ),
    ]


def test_where_nothing_is_said_nothing_is_set() -> None:
    """An empty path: no model, no tools, no prompt; the thinking level is off."""
    state = fold_state(ListPath([]))
    assert (state.model, state.thinking_level, state.active_tools, state.system_prompt, state.tools) == (
        None,
        "off",
        None,
        None,
        None,
    )
    assert state.working_memory == {}


def test_the_newest_of_each_counts_across_a_compaction() -> None:
    """pi forgets model, level and tools at a compaction; here they stay."""
    entries = [*changes(), CompactionEntry(id="c", timestamp=TIME, summary="s", retained_tail=[])]
    state = fold_state(ListPath(entries))
    assert state.model == ModelChoice("p", "one")
    assert state.thinking_level == "high"
    assert state.active_tools == ["read"]
    assert state.system_prompt == "Be brief."
    assert state.tools == [{"name": "read"}]
    assert state.header is not None
    assert state.header.id == "h"


def test_the_model_is_that_of_the_newest_change_or_reply() -> None:
    """A reply tells what answered; a change after it, what will; a reply without a model tells nothing."""
    conversation = Conversation().user("u").reply("a1", provider="p", model="one")
    assert fold_state(conversation.path).model == ModelChoice("p", "one")
    conversation.add(ModelChangeEntry(id="m", timestamp=TIME, provider="q", model_id="two"))
    assert fold_state(conversation.path).model == ModelChoice("q", "two")
    conversation.reply("a2")
    assert fold_state(conversation.path).model == ModelChoice("q", "two")
    conversation.reply("a3", provider="p", model="one")
    assert fold_state(conversation.path).model == ModelChoice("p", "one")


def test_another_branch_has_its_own_state() -> None:
    """Going back to where something was not yet said gives what held there."""
    entries = changes()
    assert fold_state(ListPath(entries[:1])).thinking_level == "off"
    assert fold_state(ListPath(entries[:1])).model == ModelChoice("p", "one")


def test_working_memory_is_set_deleted_and_cleared() -> None:
    """The newest value of each key, in the order in which keys were first set; null is a value."""
    conversation = Conversation().memory("m1", "set", "a", 1).memory("m2", "set", "b", None).memory("m3", "set", "a", 2)
    assert list(fold_state(conversation.path).working_memory.items()) == [("a", 2), ("b", None)]
    assert fold_state(conversation.memory("m4", "delete", "a").path).working_memory == {"b": None}
    assert fold_state(conversation.memory("m5", "delete", "never").path).working_memory == {"b": None}
    assert fold_state(conversation.memory("m6", "clear").path).working_memory == {}


def system(entry_id: str, **members: object) -> MessageEntry:
    return MessageEntry(id=entry_id, timestamp=TIME, message=SystemMessage.model_validate({"timestamp": 1, **members}))


def test_pis_system_messages_are_replayed() -> None:
    """The first is the base, later ones add; sections are replaced by name, null takes one away; tools come and go."""
    entries: list[Entry] = [
        system("s1", content="Base.", sections={"a": "A1", "b": "B"}, toolsAdded=[{"name": "read"}, {"name": "edit"}]),
        system("s2", content="", sections={"a": "A2", "b": None}, toolsRemoved=[{"name": "read"}]),
        system("s3", content="More.", toolsAdded=[{"name": "grep"}]),
    ]
    state = fold_state(ListPath(entries))
    assert state.system_prompt == "Base.\n\nMore.\n\nA2"
    assert state.tools == [{"name": "edit"}, {"name": "grep"}]


def test_a_compaction_may_carry_the_whole_prompt() -> None:
    """pi writes what held before it into the compaction; messages after that are replayed on top."""
    carried = {"role": "system", "content": "Whole.", "toolsAdded": [{"name": "read"}], "timestamp": 1}
    compaction = CompactionEntry(id="c", timestamp=TIME, summary="s", retained_tail=[], system_message=carried)
    state = fold_state(ListPath([system("s1", content="Old."), compaction, system("s2", content="New.")]))
    assert state.system_prompt == "Whole.\n\nNew."
    assert state.tools == [{"name": "read"}]


@pytest.mark.parametrize("carried", ["text", {"role": "system", "content": 5}, {"role": "system", "sections": []}, 7])
def test_a_carried_prompt_that_is_none_is_not_read(carried: object) -> None:
    """What a file holds there is not trusted: anything else leaves the prompt as it was."""
    compaction = CompactionEntry(id="c", timestamp=TIME, summary="s", retained_tail=[], system_message=carried)
    assert fold_state(ListPath([system("s1", content="Old."), compaction])).system_prompt == "Old."


def test_our_header_stands_for_all_before_it() -> None:
    """The newer of the two ways to record a prompt counts."""
    entries: list[Entry] = [system("s1", content="Old."), *changes()]
    assert fold_state(ListPath(entries)).system_prompt == "Be brief."
    entries.append(system("s2", content="pi went on."))
    state = fold_state(ListPath(entries))
    assert (state.system_prompt, state.tools) == ("pi went on.", [])
