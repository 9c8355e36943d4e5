"""Checks of settings, made where they are set. What cannot be is told in one form: the setting, its value, what to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.errors import BranchlineError, SettingsError


def check_whole(owner: str, name: str, value: object, *, least: int = 0, none: str) -> None:
    """Raise ``SettingsError`` unless ``value`` is a whole number, ``least`` or more, or None; ``none`` says for what."""
    if value is not None and not _is_whole(value, least):
        expected = f"{_wholes(least)}, or None {none}"
        raise SettingsError(
            f"{owner}: {name} is {value!r:.100}; give {expected}", setting=name, value=value, expected=expected
        )


class SettingChecks:
    """Checks the members of one settings object.

    ``error`` makes what is raised of a message and the facts ``setting``, ``value`` and ``expected``. In each check
    ``none`` says what None stands for, where it may be given. True and False are no numbers, and NaN is none either.
    """

    def __init__(self, owner: object, error: Callable[..., BranchlineError]) -> None:
        self._owner = owner
        self._error = error

    def whole(self, *names: str, least: int = 1, none: str | None = None) -> None:
        """A whole number, ``least`` or more."""
        for name in names:
            value = self._value(name)
            self.require(_is_whole(value, least) or (value is None and none is not None), name, _wholes(least), none)

    def number(self, *names: str, none: str | None = None, zero: bool = False, most: float | None = None) -> None:
        """A positive number (or 0, where ``zero``), at most ``most``."""
        expected = ("0 or a positive number" if zero else "a positive number") + (
            "" if most is None else f", {most} at most"
        )
        for name in names:
            value = self._value(name)
            is_number = (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and (value > 0 or (zero and value == 0))
                and (most is None or value <= most)
            )
            self.require(is_number or (value is None and none is not None), name, expected, none)

    def choice(self, *names: str, among: Sequence[str]) -> None:
        """One of these words."""
        for name in names:
            value = self._value(name)
            self.require(isinstance(value, str) and value in among, name, " or ".join(map(repr, among)))

    def kind(self, name: str, *types: type, expected: str, none: str | None = None) -> None:
        """An object of one of these types."""
        value = self._value(name)
        self.require(isinstance(value, types) or (value is None and none is not None), name, expected, none)

    def require(self, holds: bool, name: str, expected: str, none: str | None = None) -> None:
        """Raise, unless it ``holds``, that ``name`` is not as ``expected``."""
        if holds:
            return
        if none is not None:
            expected = f"{expected}, or None {none}".rstrip()
        value = self._value(name)
        owner = type(self._owner).__name__
        raise self._error(
            f"{owner}: {name} is {value!r:.100}; give {expected}", setting=name, value=value, expected=expected
        )

    def _value(self, name: str) -> object:
        return getattr(self._owner, name)


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _wholes(least: int) -> str:
    return "a positive whole number" if least == 1 else f"a whole number, {least} or more"
