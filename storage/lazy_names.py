"""The exported names of a package, each imported from its module when somebody first asks for it (PEP 562).

Who needs one name of a package does not wait for the rest. Type checkers read the imports beside the table; the tests
hold the two together.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], *below: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of ``package``.

    ``homes``: for each module the names that come from it, with blanks between them. All that the packages ``below``
    export is given too; they are imported already.
    """
    own = sys.modules[package]
    places = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        place = places.get(name) or next((other for other in below if name in sys.modules[other].__all__), None)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=own)
        value = getattr(import_module(place), name)
        setattr(own, name, value)  # from now on it is found without this function
        return value

    def names() -> list[str]:
        return sorted({*vars(own), *own.__all__})

    return get, names
