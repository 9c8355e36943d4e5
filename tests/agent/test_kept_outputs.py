"""What a tool keeps beside the record: it is there when the result names it, also for another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.agent import AgentHarness
from harness.session import Session
from harness.testing import ScriptedModel, tool_call
from harness.tools import ToolContext, ToolOutput, tool
from storage.errors import BlobNotFoundError
from storage.jsonl import JsonlStorage
from storage.protocols import SessionStorage
from tests.agent.agents import check_well_formed, results

pytestmark = pytest.mark.anyio


@tool
async def run(context: ToolContext) -> ToolOutput:
    """Say much."""
    name = await context.keep(b"line\n" * 1000)
    assert await context.kept(name) == b"line\n" * 1000
    return ToolOutput(f"1,000 lines, all of them in blob:{name}", blobs=[name])


async def test_a_large_output_is_kept(tmp_path: Path) -> None:
    """The result names the blob, and after reopening it is there."""
    place = tmp_path / "session.jsonl"
    async with Session.open(JsonlStorage.create(place)) as session:
        await AgentHarness(session, ScriptedModel([tool_call("run"), "Done."]), tools=[run]).prompt("Go")
        check_well_formed(await session.entries())
    async with Session.open(JsonlStorage.open(place)) as session:
        (result,) = (await results(session)).values()
        assert result.blobs is not None
        assert result.text == f"1,000 lines, all of them in blob:{result.blobs[0]}"
        assert await session.read_blob(result.blobs[0]) == b"line\n" * 1000


@pytest.mark.parametrize("names", [["../../etc/passwd"], ["a/b"], [3], "a/b"])
async def test_what_is_no_name_of_a_blob(session: Session, names: object) -> None:
    """A result that names what cannot be becomes an error result; the history stays whole."""

    @tool
    async def odd() -> ToolOutput:
        """Name something else."""
        return ToolOutput("text", blobs=names)  # type: ignore[arg-type]

    await AgentHarness(session, ScriptedModel([tool_call("odd"), "Done."]), tools=[odd]).prompt("Go")
    (result,) = (await results(session)).values()
    assert result.is_error
    assert result.blobs is None
    check_well_formed(await session.entries())


async def test_a_blob_that_is_not_there(session: Session) -> None:
    """The tool gets a ``LookupError`` that it may handle, else the model is told."""

    @tool
    async def look(context: ToolContext) -> str:
        """Look for it."""
        with pytest.raises(BlobNotFoundError):
            await context.kept("nothing-there")
        await context.kept("nothing-there")
        return "never"

    await AgentHarness(session, ScriptedModel([tool_call("look"), "Done."]), tools=[look]).prompt("Go")
    (result,) = (await results(session)).values()
    assert "there is no blob 'nothing-there'" in result.text


class WithoutBlobs:
    """A storage's four members and no more."""

    def __init__(self, inner: SessionStorage) -> None:
        self._inner = inner
        self.read = inner.read
        self.commit = inner.commit
        self.close = inner.close

    @property
    def info(self) -> object:
        """The inner one's."""
        return self._inner.info


async def test_a_storage_without_blobs(tmp_path: Path) -> None:
    """The tool is told in words that name the way out."""
    inner = await JsonlStorage.create(tmp_path / "session.jsonl")
    storage: SessionStorage = WithoutBlobs(inner)  # type: ignore[assignment]
    async with await Session.open(storage) as session:
        await AgentHarness(session, ScriptedModel([tool_call("run"), "Done."]), tools=[run]).prompt("Go")
        (result,) = (await results(session)).values()
        assert result.is_error
        assert "keeps no blobs" in result.text
        check_well_formed(await session.entries())
