"""Facts as the JSON that ``--json`` writes: camelCase, as on disk."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

from pydantic import BaseModel


def json_facts(facts: Any) -> Any:
    """``facts`` as JSON's own types: dataclasses and messages as objects in camelCase, times as ISO 8601."""
    match facts:
        case BaseModel():
            return facts.model_dump(by_alias=True, exclude_unset=True)
        case datetime():
            return facts.isoformat()
        case list() | tuple():
            return [json_facts(each) for each in facts]  # pyright: ignore[reportUnknownVariableType]
        case _ if dataclasses.is_dataclass(facts):
            fields = dataclasses.fields(facts)
            return {_camel(field.name): json_facts(getattr(facts, field.name)) for field in fields}
        case _:
            return facts


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)
