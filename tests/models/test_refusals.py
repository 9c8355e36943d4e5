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
    (413, {"error": {"code": "rate_limit_exceeded", "message": "Request too large"}}),
    (400, {"__type": "ThrottlingException", "message": "Throttling: too many input tokens"}),
    (400, {"message": "Too many tokens per day, please try again tomorrow."}),
    (429, {"error": {"message": "Request too large on tokens per min (TPM): Limit 10000, Requested 12000."}}),
    (400, {"message": "too many tokens: max tokens must be less than or equal to 4096 - received 8192."}),
    (400, {"error": {"message": "image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes"}}),
]


TOLD: list[tuple[str, int, str, int | None, int | None]] = [
    ("openai", 400, "Your input exceeds the context window of this model. Please adjust your input.", None, None),
    (
        "openai",
        400,
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
        9001,
        8192,
    ),
    (
        "vllm",
        400,
        (
            "You passed 4097 input tokens and requested 100 output tokens. However, the model's context length is only 4096 "
            "tokens, resulting in a maximum input length of 3996 tokens. Please reduce the length of the input prompt."
        ),
        4097,
        4096,
    ),
    (
        "vllm",
        400,
        (
            "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens and your prompt "
            "contains at least 262145 input tokens, for a total of at least 262145 tokens."
        ),
        262145,
        262144,
    ),
    (
        "vllm",
        400,
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 2000. This model's maximum context length is 4096 tokens "
            "and your request has 3000 input tokens (2000 > 4096 - 3000)."
        ),
        None,
        None,
    ),
    (
        "sglang",
        400,
        (
            "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9000 "
            "tokens: 8000 tokens from the input messages and 1000 tokens for the completion."
        ),
        9000,
        8192,
    ),
    ("bedrock", 200, "Input Tokens Exceeded: Number of input tokens exceeds maximum length.", None, None),
    ("bedrock", 400, "The model returned the following errors: Input is too long for requested model.", None, None),
    ("bedrock", 400, "Too many input tokens. Max input tokens: 8192, request input token count: 9000", None, None),
    (
        "gemini",
        400,
        "Unable to submit request because the input token count is 40000 but model only supports up to 32768.",
        40000,
        32768,
    ),
    ("gemini", 400, "The input token count exceeds the maximum number of tokens allowed (65536).", None, 65536),
    ("gemini", 400, "Request payload size exceeds the limit: 20971520 bytes.", None, None),
    (
        "cohere",
        400,
        (
            "too many tokens: size limit exceeded by 19296 tokens. Try using shorter or fewer inputs. The limit for this "
            "model is 132000 tokens."
        ),
        None,
        132000,
    ),
    (
        "cohere",
        400,
        (
            "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received 6354. Try using "
            "a shorter prompt or a smaller max_tokens value."
        ),
        None,
        2048,
    ),
    ("z.ai", 400, "Prompt exceeds max length", None, None),
    ("z.ai", 400, "Prompt 超长", None, None),
    ("poolside", 400, "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.", 131393, 131040),
    ("deepinfra", 400, "Requested input length 9000 exceeds maximum input length 8191", 9000, 8191),
    (
        "watsonx",
        400,
        "the number of input tokens 9000 cannot exceed the total tokens limit 8192 for this model",
        9000,
        8192,
    ),
    ("lm studio", 400, "Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)", 15028, 7424),
    (
        "lm studio",
        400,
        (
            "Trying to keep the first 6547 tokens when context overflows. However, the model is loaded with a context "
            "length of only 4096 tokens, which is not enough."
        ),
        6547,
        4096,
    ),
    ("llama-cpp-python", 400, "Requested tokens (3000) exceed context window of 2048", 3000, 2048),
    ("llama.cpp", 400, "prompt has 9,000 tokens, but the configured context size is 4,096 tokens", 9000, 4096),
    ("xai", 500, "Sent message larger than max (50000056 vs. 20971520)", None, None),
    ("litellm", 400, "litellm.ContextWindowExceededError: see above", None, None),
    ("copilot", 400, "prompt token count of 93854 exceeds the limit of 90000", 93854, 90000),
    (
        "cloudflare",
        413,
        "The estimated number of tokens (8000) exceeded this model context window limit (7968).",
        None,
        7968,
    ),
    ("fireworks", 400, "The prompt is too long: 1000008, model maximum context length: 131071", 1000008, 131071),
    ("minimax", 400, "invalid params, context window exceeds limit", None, None),
    ("qwen", 400, "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]", None, None),
    (
        "together",
        422,
        (
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 8000 `inputs` tokens and "
            "4096 `max_new_tokens`"
        ),
        None,
        None,
    ),
    ("a gateway", 400, "The total length of all messages is too long.", None, None),
]


@pytest.mark.parametrize(("server", "status", "message", "tokens", "window"), TOLD)
def test_in_the_words_of(server: str, status: int, message: str, tokens: int | None, window: int | None) -> None:
    """Each of these was seen; the sizes are those that the server tells, and a size of the request is no window."""
    error = refusal_of(status, json.dumps({"error": {"message": message}})).error(server)
    assert isinstance(error, ContextOverflowError)
    assert (error.details.get("tokens"), error.details.get("context_window")) == (tokens, window)


MEMBERS = [
    ("string_above_max_length", "messages[3].content", True),
    ("string_above_max_length", "messages[3].content[0].text", True),
    ("string_above_max_length", "messages[1].tool_calls[0].id", False),
    ("string_above_max_length", "tools[0].function.name", False),
    ("array_above_max_length", "messages", True),
    ("array_above_max_length", "messages[2].tool_calls", False),
    ("array_above_max_length", "tools", False),
]


@pytest.mark.parametrize(("code", "member", "is_overflow"), MEMBERS)
def test_a_member_that_is_too_long(code: str, member: str, is_overflow: bool) -> None:
    """OpenAI names the member: what was said can be made shorter, a tool's name cannot."""
    body = {"error": {"code": code, "param": member, "message": f"Invalid '{member}': too long."}}
    assert refusal_of(400, json.dumps(body)).is_overflow is is_overflow


REPLIES = [
    "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4",
    (
        "`max_tokens` must be less than or equal to `8192`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model"
    ),
    "max_tokens (8192) exceeds the model's context window (4096)",
    "max_tokens=5000 cannot be greater than max_model_len=4096. Please request fewer output tokens.",
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 4096 tokens and "
        "your request has 100 input tokens (4096 > 4096 - 100)."
    ),
    (
        "This model's maximum context length is 4097 tokens, however you requested 5010 tokens (10 in your prompt; 5000 for "
        "the completion). Please reduce your prompt; or completion length."
    ),
    (
        "This model's maximum context length is 65536 tokens. However, you requested 100010 tokens (10 in the messages, "
        "100000 in the completion). Please reduce the length of the messages or completion."
    ),
    (
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 40010 tokens (10 of text "
        "input, 40000 in the output). Please reduce the length of either one"
    ),
    "input length and `max_tokens` exceed context limit: 100 + 200000 > 200000",
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 10 `inputs` tokens and 9000 "
        "`max_new_tokens`"
    ),
    "The maximum tokens you requested exceeds the model limit of 32768.",
]


@pytest.mark.parametrize("code", ["", "context_length_exceeded"])
@pytest.mark.parametrize("message", REPLIES)
def test_a_reply_that_is_too_long(message: str, code: str) -> None:
    """A reply that takes the whole window is no overflow: no summary helps, and the way out is another one."""
    error = refusal_of(400, json.dumps({"error": {"message": message, "code": code}})).error("x")
    assert type(error) is ModelError
    assert str(error).endswith("lower max_tokens.")


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
