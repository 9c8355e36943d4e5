"""Keys stay out of everything that is shown: a key goes into a request's header and nowhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Mapping
from urllib.parse import quote

import httpx
from pydantic import SecretStr

from storage.errors import ModelError

_LOOKS_LIKE_A_KEY = re.compile(r"(?i)\bbearer\s+[^\s\"',]{6,}|\b(?:sk[-_]|gsk_|xai-)[\w*.-]{6,}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_SHORTEST = 6
"""A shorter secret is no secret, and blotting it out would make every message unreadable."""


def checked_secret(value: str, what: str) -> SecretStr:
    """The secret, if it can stand in a header; one that cannot would be printed in h11's exception.

    Raises:
        ModelError: it is empty, or holds a line break, a control character or anything else that is not plain ASCII.
    """
    value = value.strip()
    if not _HEADER_VALUE.fullmatch(value):
        raise ModelError(
            f"{what} is empty or holds characters that no HTTP header can carry; copy it again, without line breaks."
        )
    return SecretStr(value)


class SecretHeaders(httpx.Auth):
    """Sets headers while a request goes out, so that no dictionary of ours ever holds their values."""

    def __init__(self, headers: Mapping[str, SecretStr]) -> None:
        self._headers = dict(headers)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Called by httpx."""
        for name, value in self._headers.items():
            request.headers[name] = value.get_secret_value()
        yield request


class Redactor:
    """Blots out known secrets, and what looks like one, in text that came from a server or another library."""

    def __init__(self, secrets: Iterable[SecretStr]) -> None:
        self._secrets = tuple(secrets)

    def __call__(self, text: str) -> str:
        """The text with every secret replaced by ``[key]``: raw, JSON-escaped, or percent-encoded."""
        for secret in self._secrets:
            value = secret.get_secret_value()
            if len(value) >= _SHORTEST:
                for form in {value, json.dumps(value)[1:-1], quote(value, safe="")}:
                    text = text.replace(form, "[key]")
        return _LOOKS_LIKE_A_KEY.sub("[key]", text)
