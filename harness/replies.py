"""A model's reply, made fit for the record: every call with an id of its own, and with arguments that JSON can hold."""

from __future__ import annotations

import json
from copy import deepcopy
from types import NoneType
from typing import Any, Final, TypeVar

from storage.errors import InvalidEntryError
from storage.identifiers import new_id
from storage.messages import AssistantMessage, ToolCall
from storage.models import RecordModel
from storage.strict_json import encode_value, replace_surrogates

Part = TypeVar("Part", bound=RecordModel)

_PLAIN: Final = frozenset((str, int, float, bool, NoneType))


def fit_for_record(reply: AssistantMessage, *, provider: str, model_id: str) -> AssistantMessage:
    """A copy of ``reply`` that can be recorded, and whose calls can be told apart.

    A call id that is empty, or that came before in this reply, is replaced; what the vendor sent is kept beside, as
    ``vendorId`` (R24). Arguments that no JSON object can hold unchanged (NaN, say) move to ``raw_arguments``, which is
    never executed. Nothing in the copy is shared with ``reply``.
    """
    taken: set[str] = set()
    content = [_fit_call(part, taken) if isinstance(part, ToolCall) else _copied(part) for part in reply.content or ()]
    usage = reply.usage
    copy = reply.model_copy(
        update={"content": content} if usage is None else {"content": content, "usage": _copied(usage)}
    )
    if copy.__pydantic_extra__:
        copy.__pydantic_extra__.update(deepcopy(copy.__pydantic_extra__))
    if copy.provider is None:
        copy.provider = provider
    if copy.model is None:
        copy.model = model_id
    return copy


def _copied(model: Part) -> Part:
    """A copy that shares nothing: deep only where anything lies below, which is seldom."""
    values = [*model.__dict__.values(), *(model.__pydantic_extra__ or {}).values()]
    return model.model_copy(deep=not all(type(value) in _PLAIN for value in values))


def _fit_call(call: ToolCall, taken: set[str]) -> ToolCall:
    if call.__pydantic_extra__:
        call = call.model_copy(deep=True)
    changes: dict[str, Any] = {}
    vendor_id = replace_surrogates(call.id)
    if not vendor_id.strip() or vendor_id in taken:
        changes["id"] = f"call_{new_id().replace('-', '')}"
        # A member that the format does not name is kept as it is; the alias is what it is called on disk.
        changes["vendorId"] = vendor_id
    elif vendor_id != call.id:
        changes["id"] = vendor_id
    taken.add(changes.get("id", call.id))
    try:
        encode_value(call.arguments, "arguments")
        changes["arguments"] = replace_surrogates(call.arguments)
    except InvalidEntryError:
        changes["arguments"] = {}
        if call.raw_arguments is None:
            changes["raw_arguments"] = _as_sent(call.arguments)
    members = {name: value for name, value in call if name in call.model_fields_set} | changes
    return ToolCall(**members)


def _as_sent(arguments: object) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(arguments)
