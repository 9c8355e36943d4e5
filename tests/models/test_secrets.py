"""A key goes into a header, and nowhere else."""

from __future__ import annotations

import io
import json
import logging
import traceback
from typing import Any

import pytest

from harness.models import OpenAIChatModel, RetryPolicy, Timeouts
from harness.testing import HttpAnswer, Reply, ScriptedServer
from storage.errors import ModelError
from tests.models.asking import asking, model_at, reply, stream_of

KEY = 'sk-"very/secret+key="'
HEADER = "another-secret-value"


def echo(request: Any) -> str:
    """What a server says that repeats all it was told."""
    return f"you sent {request.headers.get('authorization')} and {request.headers.get('x-api-key')}"


def everything(error: BaseException, *, frames: bool = False) -> str:
    """All that a log would show of an exception: its text, its causes, and their attributes; also its local names."""
    text = io.StringIO()
    traceback.TracebackException.from_exception(error, capture_locals=frames).print(file=text)
    seen: list[str] = [text.getvalue()]
    current: BaseException | None = error
    while current is not None:
        seen += [str(current), repr(current), repr(vars(current)), repr(getattr(current, "details", ""))]
        current = current.__cause__ or current.__context__
    return "\n".join(seen)


ANSWERS: dict[str, Any] = {
    "refused": lambda r: HttpAnswer(401, {"error": {"message": echo(r), "code": echo(r)}}),
    "refused with a page": lambda r: HttpAnswer(500, f"<html>{echo(r)}</html>"),
    "cut in the error": lambda r: HttpAnswer(400, f'{{"error": "{echo(r)}', cut=True),
    "under 200": lambda r: HttpAnswer(200, {"error": echo(r)}),
    "in the stream": lambda r: HttpAnswer(
        200, [*stream_of({"content": "x"}, done=False, finish=None), {"error": echo(r)}]
    ),
    "no chunk": lambda r: HttpAnswer(200, [f"data: {echo(r)}\n\n"]),
    "as JSON text": lambda r: HttpAnswer(200, [f"data: {json.dumps(echo(r))}\n\n"]),
    "as the reason": lambda r: HttpAnswer(200, stream_of({"content": "x"}, finish="error " + echo(r))),
    "silent": lambda _: Reply("x", delay=60),
    "torn": lambda _: HttpAnswer(200, stream_of({"content": "x"}, done=False, finish=None), cut=True),
    "nothing": lambda _: HttpAnswer(200, b""),
}


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ANSWERS)
async def test_no_key_in_errors_and_logs(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a server says or does, no secret stands in an exception, its causes, its frames, or a log."""
    caplog.set_level(logging.DEBUG)
    with ScriptedServer(lambda request: ANSWERS[kind](request)) as server:
        model = model_at(
            server,
            api_key=KEY,
            headers={"X-Api-Key": HEADER},
            retry=RetryPolicy(1, 0.01),
            timeouts=Timeouts(first_event=3 if kind == "silent" else 60),
        )
        try:
            await reply(model)
        except ModelError as error:
            # What a server repeats passes through frames before it is taken out of the text.
            shown = everything(error, frames=kind in ("silent", "torn", "nothing")) + error.message
        else:
            assert kind == "as the reason", "an unknown reason is only kept, not raised"
            shown = ""
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
        assert server.requests[0].headers["x-api-key"] == HEADER
    shown += caplog.text + repr(model) + str(vars(model))
    for form in (KEY, json.dumps(KEY)[1:-1], HEADER):
        assert form not in shown


@pytest.mark.parametrize("key", ["", "sk-abc\ndef", "sk-ключ", "sk-abc\x00", "sk-abc\r\nX-Other: 1", " "])
def test_keys_that_no_header_can_carry(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a key is refused when the model is made, without being shown: the HTTP library would print it."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key == "":
        assert "Authorization" not in repr(vars(OpenAIChatModel("m", base_url="http://h/v1", api_key=key)))
        return
    with pytest.raises(ModelError) as caught:
        OpenAIChatModel("m", base_url="http://h/v1", api_key=key)
    assert key.strip() == "" or key not in everything(caught.value)


@pytest.mark.anyio
async def test_a_line_break_around_a_key_is_forgiven() -> None:
    """A key that was read from a file with its newline works."""
    with ScriptedServer(["Yes."]) as server:
        await reply(model_at(server, api_key="sk-from-a-file\n"))
        assert server.requests[0].headers["authorization"] == "Bearer sk-from-a-file"


def test_passwords_do_not_belong_into_the_address() -> None:
    """A base URL with a password is refused without being shown; a query is not shown either."""
    with pytest.raises(ModelError) as caught:
        OpenAIChatModel("m", base_url="https://me:pass-word@host/v1")
    assert "pass-word" not in str(caught.value)
    model = OpenAIChatModel("m", base_url="https://host/v1?code=pass-word")
    assert "pass-word" not in repr(model) + model.base_url


def test_the_payload_holds_no_key() -> None:
    """The bytes that may be rebuilt from the record hold no key."""
    model = OpenAIChatModel("m", base_url="http://h/v1", api_key=KEY, headers={"X-Api-Key": HEADER})
    assert b"secret" not in model.payload(asking())
