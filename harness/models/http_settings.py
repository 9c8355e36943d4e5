"""What can be set about a model behind an HTTP API, and what differs from one vendor's API to another's."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from storage.errors import SettingsError
from storage.setting_checks import SettingChecks


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait in each phase of a request, in seconds. Raises ``SettingsError`` for what is no such time."""

    connect: float = 10.0
    """For a connection."""
    write: float = 60.0
    """For each piece of the request to be taken."""
    first_event: float = 300.0
    """For the first piece of the answer, from the moment the request is sent: the model reads it all first."""
    between_events: float = 120.0
    """For the next piece of the answer. A server's keep-alive comments are no pieces. Anthropic's pings are none either,
    but while they come, the next piece has as long as the first."""
    after_finish: float = 10.0
    """For the usage numbers, after the model said that it has finished; the reply counts without them."""
    whole: float = 3600.0
    """For all of an answer together: a model that never stops has to stop. Only waiting counts, not what its reader does
    between two pieces; and each try has it anew."""

    def __post_init__(self) -> None:
        SettingChecks(self, SettingsError).number(*(each.name for each in fields(self)))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What is tried again: 429, 5xx, overload, and lost connections, as long as nothing has been said, thought or called.

    The wait doubles from ``first_delay`` seconds; a server's own ``Retry-After`` counts instead. Neither is ever longer
    than ``longest_delay`` seconds. Raises ``SettingsError`` for what is no such number.
    """

    retries: int = 4
    first_delay: float = 0.5
    longest_delay: float = 60.0

    def __post_init__(self) -> None:
        checks = SettingChecks(self, SettingsError)
        checks.whole("retries", least=0)
        checks.number("first_delay", "longest_delay", zero=True)

    def delay(self, attempt: int, retry_after: float | None) -> float:
        """Seconds to wait after the ``attempt``-th failure, counted from 0."""
        if retry_after is not None:
            return min(retry_after, self.longest_delay)
        spread = random.uniform(0.75, 1.0)  # noqa: S311 - so that clients do not come back all at once
        return min(self.first_delay * 2**attempt, self.longest_delay) * spread


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatApi:
    """What tells one vendor's API from another's, as far as sending is concerned."""

    name: str
    base_url: str
    path: str
    """What is put behind the base URL."""
    endings: tuple[str, ...]
    """What a base URL may end in besides; taken off in this order."""
    key_variable: str
    url_variable: str
    key_header: str
    key_form: str = "{}"
    """The header's value, with the key for the braces."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    chunk_name: str
    """What a piece of the stream is called in an error."""
    advice: str
    """What to check where a server sends something else."""
