"""The base of everything that is written: snake_case in Python, camelCase on disk, absent fields left out.

A field that was never given is not written; a field that a file holds as ``null`` stays ``null``; members that this
version does not know are kept and written again. Pydantic's ``exclude_unset`` gives just that for what was *read*. For
what is *made* in Python, ``__init__`` (which pydantic does not call while it reads) counts the constants and the
timestamp as given, and ``None`` as not given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class RecordModel(BaseModel):
    """A message, an entry, or a part of one."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="allow",
        validate_assignment=True,  # a field changed to what could not be read again is refused where it is changed
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        cache_strings="keys",  # ids and stamps are all different: remembering them costs more than it saves
    )

    always_written: ClassVar[tuple[str, ...]] = ()
    """Fields with a default that are written even when the caller did not give them."""

    needed_to_read: ClassVar[frozenset[str]] = frozenset()
    """Those of them without which the line could not be read again. (Objects that were not made by ``__init__`` but by
    ``model_validate`` or a ``TypeAdapter`` count only what they were given.)"""

    free_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that hold any plain JSON, but no models."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        cls.free_fields = tuple(name for name, field in cls.model_fields.items() if field.annotation is Any)
        names = {"type", "role", "timestamp"} if "id" in cls.always_written else {"type", "role"}
        cls.needed_to_read = frozenset(names.intersection(cls.always_written))

    if not TYPE_CHECKING:

        def __init__(self, /, **data: Any) -> None:
            super().__init__(**data)
            given = self.__pydantic_fields_set__
            given.difference_update([name for name, value in data.items() if value is None and self._absent(name)])
            given.update(self.always_written)

        # Pydantic then builds these objects itself while it reads, without calling Python for each.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def _absent(cls, name: str) -> bool:
        field = cls.model_fields.get(name)
        return field is not None and not field.is_required() and field.default is None
