"""What a harness is made of, looked at when it is made: what is wrong would else show in the middle of a turn."""

from __future__ import annotations

from typing import NoReturn

from harness.session import Session
from storage.errors import SettingsError


def check_parts(session: object, system_prompt: object, approve: object, summarizer: object) -> None:
    """Raise ``SettingsError`` for the first that is of another kind, with what to give."""
    if not isinstance(session, Session):
        _refuse("session", session, "an open Session: async with Session.open(…) as session")
    if system_prompt is not None and not isinstance(system_prompt, str):
        _refuse("system_prompt", system_prompt, "a text, or None")
    if approve is not None and not callable(approve):
        _refuse("approve", approve, "an async function that takes an ApprovalRequest and returns a Decision")
    if summarizer is not None and not callable(getattr(summarizer, "summarize", None)):
        _refuse(
            "summarizer",
            summarizer,
            "a Summarizer, such as ModelSummarizer(model), or None for the model that is asked",
        )


def _refuse(name: str, value: object, expected: str) -> NoReturn:
    raise SettingsError(
        f"the {name} of a harness is {value!r:.100}; give {expected}", setting=name, value=value, expected=expected
    )
