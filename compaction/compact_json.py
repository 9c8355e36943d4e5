"""JSON as the record has it: compact, non-ASCII raw."""

from __future__ import annotations

import json
from typing import Any


def compact_json(value: Any) -> str:
    """The JSON of a plain value that came out of the record."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
