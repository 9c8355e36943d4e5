"""Going elsewhere and going on from another session, through the real command: texts handed back, summaries, memory."""

from __future__ import annotations

import json
import re
from typing import Any

from harness.testing import HttpAnswer, Reply, ScriptedServer, tool_call
from tests.cli.conftest import Command, texts
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal, chat

GOOD = "## Goal\n- port the parser"


def entries(command: Command, session: str = "last") -> list[dict[str, Any]]:
    """The entries of a session, as its file has them."""
    (row,) = [row for row in command("sessions", "--json").rows if session in ("last", row["id"])][:1]
    (path,) = command.root.glob(f"{row['id']}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def id_of(command: Command, text: str) -> str:
    """The id of the message that says ``text``."""
    messages = [entry for entry in entries(command) if entry["type"] == "message"]
    found = [entry["id"] for entry in messages if text in str(entry["message"]["content"])]
    return found[0]


def ask(command: Command, server: ScriptedServer, *arguments: str) -> str:
    ran = command("chat", *arguments, "--base-url", server.base_url)
    assert ran.code == 0, ran.err
    return ran.err


def test_a_message_stands_at_the_prompt_again(command: Command, terminals: list[Terminal]) -> None:
    """/branch to what one said is before it: it can be changed and sent, and the model has not seen it before."""
    with ScriptedServer(["First answer.", "Second answer.", "Third answer."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.ask("one", "First answer.")
        terminal.ask("two", "Second answer.")
        terminal.ask("/tree", "(here) Second answer.")
        second = re.search(r"(\w{8}) user +two", terminal.text)
        assert second is not None, terminal.text
        terminal.type(f"/branch {second[1]}\r".encode())
        terminal.expect("here now: user two; it is left out, to be changed and asked again")
        terminal.expect("> two")
        terminal.type(b" and a half\r")
        terminal.expect("Third answer.")
        terminal.expect("\n>")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert texts(server.requests[2].messages) == [
        ("user", "one"),
        ("assistant", "First answer."),
        ("user", "two and a half"),
    ]
    assert command("verify").code == 0


def test_branch_with_a_summary(command: Command, terminals: list[Terminal]) -> None:
    """The model is asked for it, one sees it, and it is shown where one arrives; a bad one leaves everything as it was."""
    with ScriptedServer(["First answer.", "Second answer.", " ", GOOD, "Third answer."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.ask("one", "First answer.")
        terminal.ask("two", "Second answer.")
        terminal.ask("/tree", "(here) Second answer.")
        first = re.search(r"● (\w{8}) assistant First answer", terminal.text)
        assert first is not None
        terminal.ask(f"/branch {first[1]} --summary", "try again, or go there without a summary")
        terminal.ask(f"/branch {first[1]} --summary", "port the parser")
        terminal.ask("three", "Third answer.")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert "summarising; Ctrl-C stops it" in terminal.text
    assert "two" in str(server.requests[3].messages)
    third = server.requests[4].messages
    assert [text for _, text in texts(third)][:2] == ["one", "First answer."]
    assert "port the parser" in str(third[-2]["content"])
    (summary,) = [entry for entry in entries(command) if entry["type"] == "branch_summary"]
    assert summary["summary"] == GOOD
    assert summary["fromId"]
    assert summary["usage"]["totalTokens"] > 0


def test_a_summary_can_be_stopped(command: Command, terminals: list[Terminal]) -> None:
    """Ctrl-C while the model writes it: one is where one was."""
    with ScriptedServer(["First answer.", Reply(GOOD, delay=600), "Second answer."]) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url)
        terminal.ask("one", "First answer.")
        terminal.ask("/label x", "x")
        label = id_of(command, "one")[-8:]
        terminal.type(f"/branch {label} --summary\r".encode())
        terminal.expect("summarising; Ctrl-C stops it")
        terminal.until(lambda: len(server.requests) == 2)
        terminal.type(CTRL_C)
        terminal.expect("stopped")
        terminal.expect("\n>")
        terminal.ask("two", "Second answer.")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert [text for _, text in texts(server.requests[2].messages)] == ["one", "First answer.", "two"]


def test_at_an_entry_with_a_summary(command: Command) -> None:
    """``chat --at ENTRY --summarize PROMPT``: one process; what is left is summarised, then the question is asked."""
    with ScriptedServer(["First answer.", "Second answer.", GOOD, "Third answer."]) as server:
        ask(command, server, "one")
        ask(command, server, "-s", "last", "two")
        told = ask(command, server, "-s", "last", "--at", id_of(command, "First answer."), "--summarize", "three")
    assert "port the parser" in told
    shown = [text for _, text in texts(server.requests[3].messages)]
    assert (shown[0], shown[1], shown[3]) == ("one", "First answer.", "three")
    assert GOOD in shown[2]


def test_at_a_message_is_before_it(command: Command) -> None:
    """The new prompt takes its place, and that is said."""
    with ScriptedServer(["First answer.", "Second answer."]) as server:
        ask(command, server, "one")
        told = ask(command, server, "-s", "last", "--at", id_of(command, "one"), "other")
    assert "this is asked in place of: one" in told
    assert texts(server.requests[1].messages) == [("user", "other")]


def test_a_failing_summary_asks_nothing(command: Command) -> None:
    """The server cannot make it: nothing is recorded, and one is told how to go on."""
    down = HttpAnswer(400, {"error": {"message": "no summaries here"}})
    with ScriptedServer(["First answer.", down]) as server:
        ask(command, server, "one")
        before = command.files()
        ran = command(
            "chat", "-s", "last", "--at", id_of(command, "one"), "--summarize", "x", "--base-url", server.base_url
        )
    assert ran.code == 1
    assert "no summaries here" in ran.error and "without a summary" in ran.error
    assert command.files() == before
    assert len(server.requests) == 2


def test_continue_takes_the_memory_along(command: Command) -> None:
    """The model keeps a fact in one session, and sees it in the next; the second says where it came from."""
    remember = tool_call("memory", operation="set", key="task", value="port the parser")
    with ScriptedServer([remember, "Noted.", "Go on."]) as server:
        ask(command, server, "--memory", "remember the task")
        (old,) = [row["id"] for row in command("sessions", "--json").rows]
        told = ask(command, server, "--continue", "last", "--memory", "what was it?")
        new = next(row["id"] for row in command("sessions", "--json").rows if row["id"] != old)
        (header,) = [json.loads((command.root / f"{new}.jsonl").read_text().splitlines()[0])]
    assert f"continues session {old}: the working memory (task)" in told
    assert header["parentSession"] == old
    shown = [text for _, text in texts(server.requests[2].messages)]
    assert shown[0] == "what was it?"
    assert shown[1] == 'Working memory, as it stands now:\ntask: "port the parser"'
    made = entries(command, new)
    assert (made[0]["type"], made[0]["from"]) == ("working_memory", old)
    assert (made[1]["key"], made[1]["value"]["session"]) == ("continuedFrom", old)
    assert "memory" in [tool["function"]["name"] for tool in server.requests[2].body["tools"]]
    assert command("verify").code == 0


def test_continue_with_the_last_summary(command: Command) -> None:
    """What stands for the beginning of the other session stands at the beginning of this one."""
    with ScriptedServer(["First answer.", "Go on."]) as server:
        ask(command, server, "one")
        (path,) = command.root.glob("*.jsonl")
        line = {
            "seq": len(entries(command)), "type": "compaction", "id": "c1", "parentId": entries(command)[-1]["id"],
            "timestamp": "2026-01-01T00:00:00.000Z", "summary": "We ported half of it.", "tokensBefore": 9,
        }  # fmt: skip
        path.write_text(path.read_text() + json.dumps(line) + "\n")
        told = ask(command, server, "--continue", path.stem, "--with-summary", "two")
    assert "no working memory and its last summary" in told
    shown = [text for _, text in texts(server.requests[1].messages)]
    assert "We ported half of it." in shown[0]
    assert shown[1:] == ["two"]


def test_what_does_not_go_together(command: Command) -> None:
    """Said before anything is asked or made."""
    with ScriptedServer(["First answer."]) as server:
        ask(command, server, "one")
        model = ("--base-url", server.base_url)
        for given, word in (
            (("--summarize",), "--at"),
            (("--with-summary",), "--continue"),
            (("--continue", "last", "-s", "last"), "--session"),
            (("--memory", "--no-tools"), "--no-tools"),
            (("--continue", "nowhere"), "nowhere"),
        ):
            before = command.files()
            ran = command("chat", *given, "x", *model)
            assert ran.code == 2
            assert word in ran.error
            assert command.files() == before
    assert len(server.requests) == 1
