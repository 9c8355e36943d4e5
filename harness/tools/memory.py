"""The tool by which a model keeps its working memory: what it wants to have before its eyes at each request."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from compaction.compact_json import compact_json
from compaction.wording import MEMORY_CHARACTERS, MEMORY_KEY_CHARACTERS
from harness.tools.context import ToolContext
from harness.tools.definition import Tool, tool
from harness.working_memory import WorkingMemory
from storage.errors import ToolError

MAX_VALUE_CHARACTERS: Final = 2_000
"""How long a value may be that a model sets: what is longer belongs in a file."""

MAX_KEYS: Final = 100

Operation = Literal["set", "get", "delete", "keys"]


def memory_tool(name: str = "memory") -> Tool:
    """The tool ``memory``: ``set``, ``get``, ``delete`` and ``keys`` of the session's working memory.

    One tool, for each schema costs tokens in every request, and what is set is shown to the model anyway. It writes to the
    session that the call's turn runs in, whichever that is.
    """

    async def memory(
        context: ToolContext,
        operation: Annotated[Operation, Field(description="what to do; keys lists all keys")],
        key: Annotated[
            str, Field(description=f"a short name for the fact, at most {MEMORY_KEY_CHARACTERS} characters")
        ] = "",
        value: Annotated[
            str,
            Field(description=f"for set: the fact, at most {MAX_VALUE_CHARACTERS:,} characters; replaces the old one"),
        ] = "",
    ) -> str:
        """Keep short facts that you need later, under keys: the task, what was decided, what was tried.

        They are shown to you at the end of every request, also when the conversation before is no longer shown. Set a key
        again when it changes, and delete what no longer matters.
        """
        kept = context.memory
        if kept is None:
            raise ToolError("there is no session to remember anything in")
        if operation == "keys":
            return "\n".join(await kept.keys()) or "(there are no keys)"
        if not key.strip() or len(key) > MEMORY_KEY_CHARACTERS or not key.isprintable():
            raise ToolError(
                f"{operation} needs a key: one line of at most {MEMORY_KEY_CHARACTERS} characters, not {key!r:.120}"
            )
        if operation == "set":
            return await _set(kept, key, value)
        found = await kept.values()
        if key not in found:
            raise ToolError(f"there is no key {key!r}; the keys are: {', '.join(found) or 'none'}")
        if operation == "get":
            known = found[key]
            return known if isinstance(known, str) else compact_json(known)
        await kept.delete(key)
        return f"forgot {key}"

    return tool(name=name, parallel=False)(memory)


async def _set(kept: WorkingMemory, key: str, value: str) -> str:
    if not value.strip():
        raise ToolError("set needs a value; to forget the key, delete it")
    if len(value) > MAX_VALUE_CHARACTERS:
        raise ToolError(
            f"the value has {len(value):,} characters, and may have {MAX_VALUE_CHARACTERS:,}: keep what matters of it"
        )
    found = await kept.values()
    if key not in found and len(found) >= MAX_KEYS:
        raise ToolError(f"there are {MAX_KEYS} keys already; delete what no longer matters first")
    await kept.set(key, value)
    found[key] = value
    size = sum(len(name) + len(str(known)) for name, known in found.items())
    if size > MEMORY_CHARACTERS:
        return f"remembered {key}; the {len(found)} keys are too much to be shown all of them: delete or shorten some"
    return f"remembered {key}"
