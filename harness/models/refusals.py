"""What a server means by an error: too long, try again, or no. Told by several signs, never by one vendor's wording."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, cast

from harness.models.overflow_sizes import is_reply_alone_too_long, overflow_sizes
from storage.errors import ContextOverflowError, ModelError

_OVERFLOW_CODES = re.compile(
    r"context_length_exceeded|exceed_context_size_error|context_window_exceeded|context_size_exceeded"
    r"|prompt_too_long|input_too_long|request_too_large|max_prompt_tokens_exceeded|ContextWindowExceeded"
)
_TOO_LONG_A_MEMBER = {
    "string_above_max_length": re.compile(r"(?:messages|input)\[\d+\]\.content\b.*"),
    "array_above_max_length": re.compile(r"messages|input"),
}
"""OpenAI's codes for one value that is too long, and which values a shorter conversation has shorter: not a tool's name."""
_OVERFLOW_WORDS = re.compile(
    r"(?:exceed|longer than|greater than|too long for|too large for|over|beyond|maximum|larger than)\w*[^.]{0,80}?"
    r"context (?:length|window|size|limit)"
    r"|context (?:length|window|size|limit)[^.]{0,60}?(?:exceed|is too (?:long|small)|overflow)"
    r"|context length (?:is|of) only|overflows? the context|context (?:the )?overflows|configured context size"
    r"|n_keep\b[^.]{0,30}>=? ?n_ctx"
    r"|(?:prompt|input)s?(?: tokens?| length| token count)? (?:is|are|was) too (?:long|large)|prompt (?:too long|超长)"
    r"|total length of (?:all |the )*messages is too long"
    r"|too many input tokens|too many tokens: (?:size limit exceeded|total number of tokens)"
    r"|number of (?:input|prompt) tokens[^.]{0,40}exceed|tokens in request more than max tokens"
    r"|too many total text bytes|message larger than max"
    r"|(?:request entity|request body|payload) (?:is )?too large|payload size exceeds the limit"
    r"|(?:prompt|input)(?: length)?(?: \(?[\d,]+\)?)? exceeds (?:the )?max(?:imum)?(?: allowed)?(?: input| prompt)? length"
    r"|longer than the (?:maximum )?model(?:'s)? (?:maximum )?(?:context )?length"
    r"|maximum (?:prompt|model|input) length|range of input length"
    r"|reduce the length of (?:the|your) (?:messages?|prompt|input)"
    r"|(?:input|prompt) token count(?:[^.]{0,60}exceeds| is [\d,]+ but)|exceeded model token limit"
    r"|inputs?`? (?:tokens )?(?:\+ `?max_new_tokens`? )?must (?:be <=|have less than)",
    re.IGNORECASE,
)
_RATE_WORDS = re.compile(
    r"per (?:minute|min|hour|day|second)\b|rate.?limit|quota|throttl|too many requests|wait before|\bTP[MD]\b",
    re.IGNORECASE,
)
_OUTPUT_WORDS = re.compile(r"\W*(?:the )?max(?:imum)?[_ ](?:\w+[_ ])?tokens\b", re.IGNORECASE)
"""What the message of a request begins with that asks for too long a reply."""
_INPUT_WORDS = re.compile(r"\b(?:input|prompt|messages)\b", re.IGNORECASE)
_OVERLOADED_WORDS = re.compile(
    r"overloaded|server_?busy|(?:model|server) is (?:currently )?busy|at capacity", re.IGNORECASE
)
_PAID_OUT_WORDS = re.compile(r"insufficient_quota|billing|payment|credit balance|insufficient balance", re.IGNORECASE)

_STATUS_OF_KIND = {
    "api_error": 500,
    "timeout_error": 504,
    "rate_limit_error": 429,
    "overloaded_error": 529,
    "server_error": 500,
    "internal_server_error": 500,
    "rate_limit_exceeded": 429,
    "service_unavailable": 503,
}
"""What errors of Anthropic and OpenAI have for a status where they come with none, inside a stream."""
_TEMPORARY_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_OVERFLOW_STATUSES = frozenset({None, 200, 400, 413, 422, 500})
_LONGEST_EXCERPT = 600

_ADVICE = {
    400: "The same request will be refused again: correct it, or branch from before it.",
    401: "Check the API key.",
    402: "Check the account at the provider.",
    403: "Check the API key and what it may use.",
    404: "Check the model's name and the base URL (it mostly ends in /v1).",
    405: "Check the base URL (it mostly ends in /v1).",
    429: "Wait, or ask for a higher limit.",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as a server told it. ``status`` is the HTTP status, or None for an error inside a stream."""

    status: int | None
    code: str
    message: str
    signs: str
    """All that tells its kind: code, type, message, the upstream's error inside a router's. Never an echoed prompt."""
    retry_after: float | None = None
    """Seconds the server asks for."""
    members: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What stands beside the message, as the server sent it."""

    @property
    def is_overflow(self) -> bool:
        """Whether the request is too long for the model's window, so that a shorter one would be taken."""
        if _RATE_WORDS.search(self.signs) or self.is_reply_too_long:
            return False
        if self.status == 413 or _OVERFLOW_CODES.search(self.signs):
            return True
        if (member := _TOO_LONG_A_MEMBER.get(self.code)) is not None:
            return member.fullmatch(_string(self.members.get("param"))) is not None
        return self.status in _OVERFLOW_STATUSES and bool(_OVERFLOW_WORDS.search(self.signs))

    @property
    def is_reply_too_long(self) -> bool:
        """Whether the reply that was asked for is longer than the model can make: no shorter conversation helps there."""
        if is_reply_alone_too_long(self.signs):
            return True
        return bool(_OUTPUT_WORDS.match(self.message)) and not _INPUT_WORDS.search(self.message)

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may be taken later."""
        if self.is_overflow or _PAID_OUT_WORDS.search(self.signs):
            return False
        status = self.status
        if status in (None, 200):
            is_status = self.code.isdecimal() and len(self.code) == 3
            status = int(self.code) if is_status else _STATUS_OF_KIND.get(self.code)
        return status in _TEMPORARY_STATUSES or bool(_OVERLOADED_WORDS.search(self.signs))

    def error(self, provider: str) -> ModelError:
        """The exception for it. ``details`` holds ``status``, ``vendor_code``, ``retry_after`` and ``temporary``.

        Where the request is too long, it holds ``tokens`` and ``context_window`` as well, if the server tells them.
        """
        signs = ", ".join(sign for sign in (f"HTTP {self.status}" if self.status else "", self.code) if sign)
        told = self.message.strip()[:_LONGEST_EXCERPT].rstrip(".") or "no reason given"
        facts: dict[str, Any] = {
            **(overflow_sizes(self.signs, self.members) if self.is_overflow else {}),
            "status": self.status,
            "vendor_code": self.code or None,
            "retry_after": self.retry_after,
            "temporary": self.is_temporary,
        }
        if self.is_overflow:
            return ContextOverflowError(
                f"{provider} says that the request is too long for the model ({signs}): {told}."
                " Compact the session, show less of it, or branch from before the message that is too long.",
                **facts,
            )
        advice = _ADVICE.get(self.status or 0, "Try again later." if self.is_temporary else "")
        if self.is_reply_too_long:
            advice = "Ask for a shorter reply: lower max_tokens."
        return ModelError(f"{provider} answered with an error ({signs}): {told}. {advice}".rstrip(), **facts)


def refusal_of(status: int | None, body: str, retry_after: float | None = None) -> Refusal:
    """Read an error of any shape: OpenAI's, vLLM's, FastAPI's, a list of them, a bare string, or a proxy's page.

    ``body`` must have had its secrets taken out.
    """
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        text = _without_markup(body)
        return Refusal(status, "", text, text, retry_after)
    members = _innermost(value)
    code, kind = members.get("code"), members.get("type")
    message = _string(members.get("message")) or _string(members.get("msg")) or " ".join(body.split())
    raw = members.get("metadata")
    upstream = _string(cast("Mapping[str, Any]", raw).get("raw")) if isinstance(raw, dict) else ""
    signs = " ".join((_string(code), _string(kind), message[:20_000], upstream[:20_000]))
    return Refusal(status, _words(code, kind), message, signs, retry_after, members)


def _innermost(value: Any) -> Mapping[str, Any]:
    """The members that hold code, type and message, wherever this server puts them."""
    outer: Mapping[str, Any] = {}
    while True:
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        elif isinstance(value, str):
            return {**outer, "message": value}
        elif isinstance(value, dict):
            outer = cast("Mapping[str, Any]", value)
            inner = outer.get("error") or outer.get("detail") or outer.get("errors")
            if not isinstance(inner, dict | list | str):
                return outer
            value = cast("Any", inner)
        else:
            return outer


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _words(code: Any, kind: Any) -> str:
    """The more telling of the two: llama.cpp's code is only the status again, OpenAI's type only the family."""
    if isinstance(code, str) and code and not code.isdecimal():
        return code
    return kind if isinstance(kind, str) and kind else str(code) if isinstance(code, int | str) else ""


def _without_markup(body: str) -> str:
    return " ".join(
        re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", body[:20_000], flags=re.DOTALL | re.IGNORECASE).split()
    )


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """The seconds a server asks to wait, from ``Retry-After-Ms`` or ``Retry-After`` (seconds, or a date); else None."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * factor
        except ValueError:
            try:
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
            except (ValueError, OverflowError):
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
