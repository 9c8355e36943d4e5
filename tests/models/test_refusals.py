"""What an error means, told from many servers' wordings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.models.refusals import refusal_of
from storage.errors import ContextOverflowError, ModelError

OVERFLOWS: list[tuple[int, Any]] = [
    (400, {"error": {"code": "context_length_exceeded", "message": "too much"}}),
    (400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": "request (3631 tokens) is a lot"}}),
    (
        400,
        {"error": {"message": "request (9 tokens) exceeds the available context size (4 tokens), try increasing it"}},
    ),
    (400, {"error": {"message": "This model's maximum context length is 8192 tokens. However, you requested 9000."}}),
    (
        400,
        {
            "object": "error",
            "type": "BadRequestError",
            "code": 400,
            "message": "The decoder prompt (length 3000) is longer than the maximum model length of 2048.",
        },
    ),
    (400, {"error": "prompt too long; exceeded max context length by 12 tokens"}),
    (500, {"error": "the input length exceeds the context length"}),
    (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 201 > 200"}}),
    (413, {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}}),
    (413, "<html>Payload Too Large</html>"),
    (400, [{"error": {"message": "The input token count (12) exceeds the maximum number of tokens allowed (10)."}}]),
    (422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000", "error_type": "validation"}),
    (
        400,
        {"message": "Prompt contains 4 tokens and 0 draft tokens, too large for model with 3 maximum context length"},
    ),
    (400, {"error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
    (400, {"error": {"message": "Invalid request: Your request exceeded model token limit: 262144"}}),
    (400, {"detail": "Input is too long for requested model."}),
    (400, {"error": {"message": "The input (9 tokens) is longer than the model's context length (4 tokens)."}}),
    (400, {"error": {"message": "Please reduce the length of the messages or completion."}}),
    (
        400,
        {
            "error": {
                "code": 400,
                "message": "Provider returned error",
                "metadata": {"raw": '{"error":{"message":"x","code":"context_length_exceeded"}}'},
            }
        },
    ),
]

OTHERS: list[tuple[int, Any]] = [
    (400, {"error": {"message": "max_tokens is too large: 100000. This model supports at most 16384 output tokens."}}),
    (413, {"error": {"code": "rate_limit_exceeded", "message": "Request too large: tokens per minute, limit 6000"}}),
    (429, {"error": {"message": "Rate limit reached for tokens per min. Please reduce the length of the messages."}}),
    (400, {"message": "Too many tokens, please wait before trying again."}),
    (400, {"error": {"message": "Missing required parameter: messages"}}),
    (401, {"error": {"message": "maximum context length"}}),
    (404, {"error": {"message": "The model `context-length-exceeder` does not exist"}}),
    (
        422,
        {"detail": [{"loc": ["body"], "msg": "field required", "input": "prompt too long; context length exceeded"}]},
    ),
    (
        400,
        {"error": {"message": "String too long. Expected a string with maximum length 64, got 70", "param": "tools"}},
    ),
    (500, "Internal Server Error"),
    (400, ""),
]


@pytest.mark.parametrize(("status", "body"), OVERFLOWS)
def test_too_long(status: int, body: Any) -> None:
    """A request that is too long is recognised in the words of many servers, and not tried again."""
    refusal = refusal_of(status, body if isinstance(body, str) else json.dumps(body))
    assert isinstance(refusal.error("x"), ContextOverflowError)
    assert not refusal.is_temporary


@pytest.mark.parametrize(("status", "body"), OTHERS)
def test_not_too_long(status: int, body: Any) -> None:
    """Other errors that speak of tokens, lengths and limits are not taken for it."""
    refusal = refusal_of(status, body if isinstance(body, str) else json.dumps(body))
    assert type(refusal.error("x")) is ModelError


SIZES: list[tuple[Any, int | None, int | None]] = [
    (OVERFLOWS[1][1], 3631, None),
    (OVERFLOWS[2][1], 9, 4),
    (OVERFLOWS[3][1], 9000, 8192),
    (OVERFLOWS[4][1], 3000, 2048),
    (OVERFLOWS[5][1], None, None),
    (OVERFLOWS[10][1], 12, 10),
    (OVERFLOWS[11][1], 5000, 4096),
    (OVERFLOWS[12][1], 4, 3),
    (OVERFLOWS[13][1], 537812, 131072),
    (OVERFLOWS[14][1], None, 262144),
    ({"type": "error", "error": {"message": "prompt is too long: 201,345 tokens > 200,000 maximum"}}, 201345, 200000),
    (
        {"error": {"message": "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"}},
        209573,
        200000,
    ),
    (
        {"error": {"type": "exceed_context_size_error", "message": "too big", "n_prompt_tokens": 3631, "n_ctx": 2048}},
        3631,
        2048,
    ),
    (
        {"error": {"message": "This endpoint's maximum context length is 131072 tokens. You requested about 140000."}},
        140000,
        131072,
    ),
    # A pair in which the request would fit is none.
    ({"error": {"message": "maximum context length is 9000 tokens, you requested 8000: exceeds"}}, None, None),
]


@pytest.mark.parametrize(("body", "tokens", "window"), SIZES)
def test_the_sizes_that_are_told(body: Any, tokens: int | None, window: int | None) -> None:
    """How long the request was and how long it may be stand in the details, where the server says so."""
    details = refusal_of(400, json.dumps(body)).error("x").details
    assert (details.get("tokens"), details.get("context_window")) == (tokens, window)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"error": {"code": "c", "type": "t", "message": "m"}}, "c", "m"),
        ({"error": {"code": 400, "type": "t", "message": "m"}}, "t", "m"),
        ({"error": {"code": None, "type": None, "message": "m"}}, "", "m"),
        ({"error": "m"}, "", "m"),
        ({"code": "c", "message": "m"}, "c", "m"),
        ({"detail": [{"msg": "m", "type": "missing"}]}, "missing", "m"),
        ([{"error": {"message": "m", "code": 400}}], "400", "m"),
        ("m", "", "m"),
    ],
)
def test_errors_of_any_shape(body: Any, code: str, message: str) -> None:
    """Code and message are found wherever a server puts them."""
    refusal = refusal_of(400, json.dumps(body))
    assert (refusal.code, refusal.message) == (code, message)


@pytest.mark.parametrize(
    "body", ["", "null", "[]", "{}", "7", '{"error": null}', "[" * 100_000, "<p>", '{"error": {}}']
)
def test_errors_without_words(body: str) -> None:
    """Whatever the body is, there is an error with the status in it."""
    assert "HTTP 400" in str(refusal_of(400, body).error("x"))


@pytest.mark.parametrize(
    ("status", "body", "temporary"),
    [
        (503, "{}", True),
        (529, "{}", True),
        (400, '{"error": {"type": "overloaded_error", "message": "x"}}', True),
        (None, '{"error": {"code": 503, "message": "x"}}', True),
        (None, '{"error": {"code": 400, "message": "x"}}', False),
        (None, '{"error": {"message": "Server is busy"}}', True),
        (None, '{"error": {"type": "server_error", "code": null, "message": "x"}}', True),
        (None, '{"error": {"code": "rate_limit_exceeded", "message": "x"}}', True),
        (None, '{"error": {"type": "invalid_request_error", "message": "x"}}', False),
        (501, "{}", False),
        (404, "{}", False),
        (429, '{"error": {"code": "insufficient_quota", "message": "x"}}', False),
    ],
)
def test_what_may_pass(status: int | None, body: str, temporary: bool) -> None:
    """Overload, limits and failing servers may pass; refusals and empty accounts do not."""
    assert refusal_of(status, body).is_temporary is temporary
