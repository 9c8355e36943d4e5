"""Conversations from elsewhere: each known form of a message becomes ours, what is not known is named, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import (
    AssistantMessage,
    DamagedSessionError,
    ImageContent,
    InvalidEntryError,
    JsonlRepository,
    JsonlStorage,
    Message,
    MessageEntry,
    Session,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
    SystemMessage,
    TextContent,
    ThinkingContent,
    ToolResultMessage,
    UserMessage,
    import_messages,
    import_session,
)

pytestmark = pytest.mark.anyio

FILES = Path(__file__).parent.parent / "data" / "pi-files"
Json = dict[str, Any]


def plain(message: Message) -> Json:
    """The message's JSON without the time, which an import has to make up."""
    made = json.loads(message.model_dump_json(by_alias=True, exclude_unset=True))
    made.pop("timestamp")
    return made


def imported(*messages: Any) -> list[Json]:
    return [plain(message) for message in import_messages(list(messages))]


def text(content: str) -> Json:
    return {"type": "text", "text": content}


def call(call_id: str, name: str, arguments: Json, **more: Any) -> Json:
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments, **more}


def result(call_id: str, name: str, content: Any, *, is_error: bool = False) -> Json:
    made: Json = {"role": "toolResult", "toolCallId": call_id, "toolName": name, "content": content}
    return {**made, "isError": is_error}


WANTED = [
    {"role": "user", "content": "What is in a.txt?"},
    {"role": "assistant", "content": [text("I look."), call("c1", "read", {"path": "a.txt"}), call("c2", "read", {})]},
    result("c1", "read", "two lines"),
    result("c2", "read", "no path", is_error=True),
    {"role": "assistant", "content": [text("Two.")]},
]

FORMS: dict[str, list[Json]] = {
    "ours": WANTED,
    "mini-agent": [
        WANTED[0],
        {
            "role": "assistant",
            "content": "I look.",
            "toolCalls": [
                {"id": "c1", "name": "read", "input": {"path": "a.txt"}},
                {"id": "c2", "name": "read", "input": {}},
            ],
        },
        {"role": "tool", "toolCallId": "c1", "content": "two lines", "isError": False},
        {"role": "tool", "toolCallId": "c2", "content": "no path", "isError": True},
        {"role": "assistant", "content": "Two.", "toolCalls": []},
    ],
    "OpenAI": [
        WANTED[0],
        {
            "role": "assistant",
            "content": "I look.",
            "refusal": None,
            "annotations": [],
            "audio": None,
            "function_call": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.txt"}'}},
                {"id": "c2", "type": "function", "function": {"name": "read", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "two lines"},
        {"role": "tool", "tool_call_id": "c2", "content": "no path"},
        {"role": "assistant", "content": [text("Two.")], "tool_calls": None},
    ],
    "Anthropic": [
        {"role": "user", "content": "What is in a.txt?"},
        {
            "role": "assistant",
            "content": [
                text("I look."),
                {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a.txt"}},
                {"type": "tool_use", "id": "c2", "name": "read", "input": {}, "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "two lines"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "no path", "is_error": True},
            ],
        },
        {"role": "assistant", "content": "Two."},
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_conversation(form: str) -> None:
    """Roles, texts, calls, names of tools in results, errors; OpenAI has no word for a result that is one."""
    wanted = json.loads(json.dumps(WANTED))
    if form == "OpenAI":
        wanted[3]["isError"] = False
    assert imported(*FORMS[form]) == wanted


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["lines", "array", "object", "crlf and blank lines", "a mark, and no last newline"])
def test_files_of_every_layout(form: str, layout: str, tmp_path: Path) -> None:
    """One message a line, a list, or a body with ``messages``: the same."""
    lines = [json.dumps(message, ensure_ascii=False) for message in FORMS[form]]
    data = {
        "lines": "".join(f"{line}\n" for line in lines),
        "array": json.dumps(FORMS[form], indent=2),
        "object": json.dumps({"model": "m", "messages": FORMS[form]}),
        "crlf and blank lines": "\r\n \t\r\n".join(lines) + "\r\n\r\n",
        "a mark, and no last newline": "\ufeff" + "\n".join(lines),
    }[layout]
    (tmp_path / "messages.json").write_bytes(data.encode())
    for given in (tmp_path / "messages.json", str(tmp_path / "messages.json")):
        assert [plain(message) for message in import_messages(given)] == imported(*FORMS[form])


def test_our_own_messages_come_back_whole() -> None:
    """Times, usage, thinking, details, blobs, members of tomorrow: as they were."""
    message = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "thinkingSignature": "s"},
            text("x"),
            call("a", "b", {"n": 1}),
        ],
        "provider": "p",
        "model": "m",
        "usage": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 3},
        "stopReason": "toolUse",
        "timestamp": 1_700_000_000_123,
        "tomorrow": {"x": [1]},
    }
    tool = {**result("a", "b", [text("cut")]), "details": {"n": 0.1}, "blobs": ["name"], "timestamp": 7}
    others: list[Json] = [
        {
            "role": "bashExecution",
            "command": "ls",
            "output": "a",
            "cancelled": False,
            "truncated": False,
            "timestamp": 1,
        },
        {"role": "custom", "customType": "n", "content": "note", "timestamp": 2},
        {"role": "system", "content": "You help.", "sections": {"a": "b"}, "timestamp": 3},
    ]
    for given in (message, tool, *others):
        (made,) = import_messages([given])
        assert json.loads(made.model_dump_json(by_alias=True, exclude_unset=True)) == given


def test_parts_that_vendors_have() -> None:
    """Images, thinking, reasoning, refusals, system prompts in parts; and what is no JSON object among arguments."""
    png = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    openai = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    anthropic = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    elsewhere = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    assert imported({"role": "user", "content": [text("see"), openai, anthropic, png, elsewhere]}) == [
        {"role": "user", "content": [text("see"), png, png, png, text("(an image, at https://example.org/a.png)")]}
    ]
    (reply,) = import_messages(
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "redacted_thinking", "data": "opaque"},
                    text("Yes."),
                ],
                "reasoning_content": "first",
                "refusal": "No.",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{cut off"}},
                    {"id": "d", "type": "function", "function": {"name": "f", "arguments": "[1]"}},
                ],
            }
        ]
    )
    assert isinstance(reply, AssistantMessage)
    assert reply.content is not None
    thinking = [part for part in reply.content if isinstance(part, ThinkingContent)]
    assert [(part.thinking, part.thinking_signature, part.redacted) for part in thinking] == [
        ("first", "reasoning_content", None),
        ("hm", "sig", None),
        ("", "opaque", True),
    ]
    assert reply.text == "Yes.No."
    assert [(one.arguments, one.raw_arguments) for one in reply.tool_calls] == [({}, "{cut off"), ({}, "[1]")]
    for role in ("system", "developer"):
        (prompt,) = import_messages([{"role": role, "content": [text("You"), text("help.")]}])
        assert isinstance(prompt, SystemMessage)
        assert prompt.content == "You\n\nhelp."


def test_results_of_anthropic_stand_before_what_the_user_said() -> None:
    """One message of theirs is several of ours, in order; images in results are kept."""
    png = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    block = {"type": "tool_result", "tool_use_id": "lone", "content": [text("a"), png]}
    first, second = import_messages([{"role": "user", "content": [block, text("and?")]}])
    assert isinstance(first, ToolResultMessage)
    assert first.tool_name == "unknown"  # nobody called it here
    assert isinstance(first.content, list)
    assert [type(part) for part in first.content] == [TextContent, ImageContent]
    assert isinstance(second, UserMessage)
    assert second.text == "and?"


def test_surrogates_and_separators() -> None:
    """A lone surrogate becomes U+FFFD, as everywhere (R5); U+2028 ends no line."""
    lines = ['{"role":"user","content":"\\ud800 \u2028 x"}']
    assert imported(*lines) == [{"role": "user", "content": "\ufffd \u2028 x"}]


REFUSED: dict[str, tuple[Any, str]] = {
    "no object": ([1], "it is no JSON object"),
    "no role": ({"content": "x"}, "it has no role"),
    "a number as role": ({"role": 1, "content": "x"}, "it has no role"),
    "another role": ({"role": "narrator", "content": "x"}, "the role 'narrator' is none that we know"),
    "no content": ({"role": "user"}, "content: Field required"),
    "content is a number": ({"role": "user", "content": 7}, "content"),
    "parts are texts": ({"role": "user", "content": ["x"]}, "lists of objects"),
    "sound": (
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        "'input_audio' cannot be kept",
    ),
    "a file": ({"role": "assistant", "content": [{"type": "file"}]}, "'file' cannot be kept"),
    "audio": ({"role": "assistant", "content": None, "audio": {"id": "x"}}, "sound cannot be kept"),
    "function_call": ({"role": "assistant", "content": None, "function_call": {"name": "f"}}, "function_call"),
    "a call without id": (
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        "an id and a name",
    ),
    "a call without arguments": (
        {"role": "assistant", "content": "", "toolCalls": [{"id": "a", "name": "b"}]},
        "arguments",
    ),
    "calls are no list": ({"role": "assistant", "content": "", "toolCalls": {"id": "a"}}, "lists of objects"),
    "a result without call": ({"role": "tool", "content": "x"}, "toolCallId"),
    "isError is text": ({"role": "tool", "toolCallId": "a", "content": "x", "isError": "no"}, "isError"),
    "NaN": ({"role": "user", "content": "x", "score": float("nan")}, "no plain JSON"),
    "an image of nothing": ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "data or a URL"),
    "a prompt that is an image": ({"role": "system", "content": [{"type": "image"}]}, "holds text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_message_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    """The line (or the number in a list), and why; nothing is skipped."""
    bad, why = REFUSED[name]
    good = {"role": "user", "content": "fine"}
    path = tmp_path / "messages.jsonl"
    path.write_text(f"{json.dumps(good)}\n\n{json.dumps(bad)}\n{json.dumps(good)}\n")
    with pytest.raises(InvalidEntryError, match="invalid message at line 3: ") as caught:
        import_messages(path)
    assert why in str(caught.value)
    assert (caught.value.line, caught.value.path) == (3, str(path))
    path.write_text(json.dumps([good, bad]))
    with pytest.raises(InvalidEntryError, match="invalid message at message 2: "):
        import_messages(path)
    with pytest.raises(InvalidEntryError, match="invalid message at message 1: "):
        import_messages([bad])


@pytest.mark.parametrize(
    "line", [b"{nonsense", b'{"role":"user"', b"\xff", b'{"role":"user","content":"\xff"}', b"[" * 9999]
)
def test_what_is_no_json_is_named_with_its_line(line: bytes, tmp_path: Path) -> None:
    """Also a last line that was cut off: a message file promises nothing about its end."""
    path = tmp_path / "messages.jsonl"
    path.write_bytes(b'{"role":"user","content":"x"}\n' + line)
    with pytest.raises(InvalidEntryError, match="invalid message JSON at line 2: ") as caught:
        import_messages(path)
    assert caught.value.line == 2


def test_files_that_are_none(tmp_path: Path) -> None:
    """Missing, empty, a folder: typed errors. An empty list of lines is no error: there is nothing to import."""
    with pytest.raises(SessionNotFoundError):
        import_messages(tmp_path / "missing.jsonl")
    for data in (b"", b" \n\n", b"[]"):
        (tmp_path / "empty.jsonl").write_bytes(data)
        with pytest.raises(SessionNotFoundError, match="no messages"):
            import_messages(tmp_path / "empty.jsonl")
    with pytest.raises(StorageError):
        import_messages(tmp_path)
    assert import_messages([]) == []


# --- as sessions


async def test_messages_become_a_session_that_goes_on(tmp_path: Path) -> None:
    """A chain of entries in a new session of ours, with the times of the messages; the system prompt is in force."""
    path = tmp_path / "messages.jsonl"
    given = [{"role": "system", "content": "You help."}, *FORMS["mini-agent"]]
    path.write_text("".join(json.dumps({**one, "timestamp": 1_700_000_000_000}) + "\n" for one in given))
    repository = JsonlRepository(tmp_path / "shelf")
    made = await import_session(path, repository, cwd="/somewhere")
    assert (made.kind, made.version, made.entries, made.warnings) == ("messages", None, 6, ())
    assert made.place == str(tmp_path / "shelf" / f"{made.session_id}.jsonl")
    async with Session.open(repository.open(made.session_id)) as session:
        assert session.header.cwd == "/somewhere"
        assert session.header.branchline == 1
        entries = await session.entries()
        assert [entry.seq for entry in entries] == list(range(6))
        assert {entry.timestamp for entry in entries} == {"2023-11-14T22:13:20.000Z"}
        context = await session.build_context()
        assert context.system_prompt == "You help."
        assert [message.role for message in context.messages] == [one["role"] for one in WANTED]
        assert context.dropped == []
        await session.append_message(UserMessage(content="and now?"))
        assert (await session.branch())[-2].id == entries[-1].id
        assert all(isinstance(entry, MessageEntry) for entry in entries)
    again = await import_session(path, repository, session_id="named")
    assert again.session_id == "named"
    with pytest.raises(SessionExistsError):
        await import_session(path, repository, session_id="named")


@pytest.mark.parametrize(
    ("name", "version", "session_id"),
    [
        ("legacy-v1-input", 1, "legacy-1"),
        ("legacy-v2-input", 2, "legacy-2"),
        ("harness-0.83.0-tree", 3, None),
        ("coding-agent-1.6.0-branched", 3, None),
    ],
)
async def test_files_of_pi_become_sessions(name: str, version: int, session_id: str | None, tmp_path: Path) -> None:
    """Every version, under its own id, with its branches; what it shows is what the file shows where it lies."""
    source = FILES / f"{name}.jsonl"
    repository = JsonlRepository(tmp_path)
    made = await import_session(source, repository)
    assert (made.kind, made.version) == ("session", version)
    assert session_id in (None, made.session_id)
    async with Session.open(repository.open(made.session_id)) as session:
        assert session.writable
        assert len(await session.entries()) == made.entries
        if version == 3:
            async with Session.open(JsonlStorage.open(source, mode="read")) as there:
                ours, theirs = await session.build_context(), await there.build_context()
                assert (ours.messages, ours.entry_ids) == (theirs.messages, theirs.entry_ids)
                assert session.leaf_id == there.leaf_id
        await session.append_message(UserMessage(content="on"))


async def test_damage_makes_nothing(tmp_path: Path) -> None:
    """Damaged sessions and messages: an error that names the line, and an empty shelf."""
    repository = JsonlRepository(tmp_path / "shelf")
    with pytest.raises(DamagedSessionError):
        await import_session(FILES / "corrupt" / "03_corrupt_middle_line.jsonl", repository)
    with pytest.raises(DamagedSessionError):
        await import_session(FILES / "corrupt" / "08_duplicate_id.jsonl", repository)
    with pytest.raises(InvalidEntryError):
        await import_session(FILES / "corrupt" / "15_missing_header.jsonl", repository)
    with pytest.raises(SessionNotFoundError):
        await import_session(FILES / "corrupt" / "13_empty_file.jsonl", repository)
    with pytest.raises(SessionNotFoundError):
        await import_session(tmp_path / "missing", repository)
    assert [*await repository.list()] == []
