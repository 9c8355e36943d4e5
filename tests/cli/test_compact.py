"""Compaction through the command line: on its own while one chats, by hand, and across a kill in the middle of one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.testing import Answer, ReceivedRequest, Reply, ScriptedServer
from tests.agent.compacting import SUMMARY, WORDS, answering, conversation, is_summary
from tests.cli.conftest import Command, texts
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal, chat

WINDOW = 2_048
LITTLE = ("--no-tools", "--context-window", str(WINDOW))


def entries_of(command: Command) -> list[dict[str, Any]]:
    (path,) = command.root.glob("*.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()[1:]]


def fill(command: Command, server: ScriptedServer, turns: int = 5) -> None:
    """A session with so many turns, each longer than a summary."""
    for number in range(turns):
        again = ("--session", "last") if number else ()
        assert command("chat", f"{number}: {WORDS}", "--base-url", server.base_url, "--no-tools", *again).code == 0


def test_by_hand(command: Command) -> None:
    """The older part is summarised as the person says, and the next prompt is asked with that and the last turn."""
    with ScriptedServer(answering()) as server:
        fill(command, server)
        ran = command("compact", "last", "--instructions", "Keep the ports.", "--base-url", server.base_url)
        assert ran.code == 0
        assert ran.out == ""
        assert "summarised; " in ran.err
        assert "tokens of context before" in ran.err
        assert "Keep the ports." in server.requests[-1].messages[-1]["content"]
        assert command("chat", "And now?", "--base-url", server.base_url, "--session", "last", "--no-tools").code == 0
        said = texts(server.requests[-1].messages)
        assert SUMMARY in said[0][1]
        assert [text[:8] for _, text in said[1:]] == ["4: What ", "Answered", "And now?"]
    assert command("verify").code == 0


def test_by_hand_as_json_and_without_a_model(command: Command) -> None:
    """Nothing is asked; the facts are one line of JSON."""
    with ScriptedServer(answering()) as server:
        fill(command, server)
        asked = len(server.requests)
        (row,) = command("compact", "--without-model", "--json").rows
        assert len(server.requests) == asked
    assert row["tokensAfter"] < row["tokensBefore"]
    assert "0: What about this one" in row["summary"]
    assert entries_of(command)[-1]["id"] == row["entry"]


def test_what_is_wrong_is_told(command: Command) -> None:
    """A summary that is refused, nothing to summarise, no such session: one line, and the session is as it was."""
    with ScriptedServer(answering(summary=lambda _: Reply(""))) as server:
        fill(command, server, 4)
        before = command.files()
        ran = command("compact", "--base-url", server.base_url)
        assert ran.code == 1
        assert "the summary is empty; nothing was changed" in ran.error
        assert command("compact", "nowhere", "--base-url", server.base_url).code == 2
        assert command.files() == before
        assert command("compact", "--without-model").code == 0
        assert "there is nothing to summarise" in command("compact", "--without-model").error


def test_in_a_terminal(command: Command, terminals: list[Terminal]) -> None:
    """/compact says what it does; Ctrl-C stops it, and nothing was changed; then it is done."""
    replies: list[Any] = [Reply("late", delay=600), SUMMARY]
    with ScriptedServer(answering(summary=lambda _: replies.pop(0))) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url, "--no-tools")
        terminal.ask("/compact", "there is no session yet")
        for number in range(4):
            terminal.ask(f"{number}: {WORDS}", "Answered. So it is.")
        terminal.type(b"/compact Keep the ports.\r")
        terminal.expect("summarising; Ctrl-C stops it")
        terminal.until(lambda: len(replies) == 1)
        terminal.type(CTRL_C)
        terminal.expect("stopped")
        terminal.expect("\n>")
        assert not [entry for entry in entries_of(command) if entry["type"] == "compaction"]
        terminal.ask("/compact Keep the ports.", "/context shows it")
        terminal.ask("/context", "(summarised) 2: What")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
        assert "Keep the ports." in server.requests[-1].messages[-1]["content"]
    assert command("verify").code == 0


def test_never(command: Command, terminals: list[Terminal]) -> None:
    """With --no-compact nothing is summarised: what does not fit the window is left out."""
    with ScriptedServer(answering(), context_window=2_500) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url, *LITTLE, "--no-compact")
        for number in range(20):
            terminal.ask(f"{number}: {WORDS}", "Answered. So it is.")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
        assert len(server.requests) == 20
        assert '"0: What' not in server.requests[-1].raw.decode()


@pytest.mark.heavy
def test_sixty_turns_and_a_kill(command: Command, terminals: list[Terminal]) -> None:
    """In a window of 2,048 tokens: it compacts several times on its own, is killed in the middle of one, and goes on."""
    summaries = 0

    def summary(_: ReceivedRequest) -> Answer:
        nonlocal summaries
        summaries += 1
        return Reply("late", delay=600) if summaries == 3 else f"{SUMMARY} {summaries}"

    def ask(number: int) -> None:
        terminal.ask(f"{number}: {WORDS}", "Answered. So it is.")

    with ScriptedServer(answering(summary=summary), context_window=WINDOW) as server:
        terminal = chat(command, terminals, "--base-url", server.base_url, *LITTLE)
        number = 0
        while summaries < 2:
            ask(number)
            number += 1
        assert "the older part is being summarised" in terminal.text
        assert "summarised; " in terminal.text
        before = 0
        while summaries < 3:
            before = len(conversation(server))
            terminal.type(f"{number}: {WORDS}\r".encode())
            number += 1
            terminal.until(lambda before=before: len(conversation(server)) > before or summaries == 3)
            if summaries < 3:
                terminal.expect("Answered. So it is.")
                terminal.expect("\n>")
        terminal.kill()
        killed = entries_of(command)
        assert sum(entry["type"] == "compaction" for entry in killed) == 2
        assert killed[-1]["type"] != "turn_end"
        terminal = chat(command, terminals, "--base-url", server.base_url, "--session", "last", *LITTLE)
        assert "the last turn was cut off" in terminal.text
        while number < 60:
            ask(number)
            number += 1
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
        assert len(conversation(server)) == 59  # one was never sent
        last = texts(server.requests[-1].messages)
        assert last[0][1].count(SUMMARY) == 1
    entries = entries_of(command)
    compacted = [entry for entry in entries if entry["type"] == "compaction"]
    assert len(compacted) >= 4
    assert all(entry["usage"]["totalTokens"] > 0 for entry in compacted)
    ends = [entry["reason"] for entry in entries if entry["type"] == "turn_end"]
    assert ends.count("interrupted") == 1
    assert ends.count("completed") == 59
    assert command("verify").code == 0


def test_the_events_as_json(command: Command) -> None:
    """Each event of a compaction is a line."""
    with ScriptedServer(answering()) as server:
        fill(command, server, 8)
        rows = command(
            "chat", WORDS, "--base-url", server.base_url, "--session", "last", "--json", "--no-tools",
            "--context-window", "1000",
        ).rows  # fmt: skip
        assert any(is_summary(request) for request in server.requests)
    kinds = [row["type"] for row in rows]
    assert kinds.index("compaction_started") < kinds.index("compaction_finished") < kinds.index("message_finished")
    finished = rows[kinds.index("compaction_finished")]
    assert finished["reason"] == "size"
    assert finished["summary"] == SUMMARY
