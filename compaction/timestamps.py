"""From an entry's time to a message's."""

from __future__ import annotations

from datetime import UTC, datetime


def milliseconds_of(timestamp: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time (UTC where it names no zone); 0 if it is none: it is only a stamp."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
