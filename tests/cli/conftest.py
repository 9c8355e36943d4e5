"""The command line as tests call it: in this process where that is enough, in a process of its own where it matters."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli import main
from tests.cli.shelves import KINDS, new_root

if TYPE_CHECKING:
    from tests.cli.terminal import Terminal

REPOSITORY = Path(__file__).parents[2]
CORRUPT = REPOSITORY / "tests" / "data" / "pi-files" / "corrupt"


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """The lines of JSON on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The one line about a failure."""
        lines = [line for line in self.err.splitlines() if line.startswith("branchline: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


class Command:
    """``branchline`` with a sessions folder of its own."""

    def __init__(self, root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.folder = folder
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: str = "") -> Ran:
        """Run it in this process."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.chdir(self.folder)
            code = main(arguments)
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # pyright: ignore[reportAttributeAccessIssue]
        return Ran(code, *texts)

    def environment(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a process that runs it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
        return {**kept, "PYTHONPATH": str(REPOSITORY), **(changes or {})}

    def start(
        self, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start it in a process of its own."""
        streams = {name: options.pop(name, subprocess.PIPE) for name in ("stdin", "stdout", "stderr")}
        process: Any = subprocess.Popen(
            self.line(*arguments), cwd=self.folder, env=self.environment(environment), **streams, **options
        )
        return process

    def line(self, *arguments: str) -> list[str]:
        """What a shell would be given."""
        return [sys.executable, "-m", "harness.cli", *arguments]

    def process(
        self, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None, **options: Any
    ) -> Ran:
        """Run it in a process of its own."""
        process = self.start(*arguments, environment=environment, **options)
        out, err = process.communicate(stdin, timeout=240)
        return Ran(process.returncode, (out or b"").decode("utf-8", "replace"), (err or b"").decode("utf-8", "replace"))

    def put(self, *sources: Path) -> None:
        """Put files into the sessions folder."""
        self.root.mkdir(parents=True, exist_ok=True)
        for source in sources:
            (self.root / source.name).write_bytes(source.read_bytes())

    def files(self) -> dict[str, bytes]:
        """Everything below the sessions folder, by name."""
        if not self.root.exists():
            return {}
        found = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): path.read_bytes() for path in found}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, in an empty folder, with no model chosen by the environment."""
    folder = tmp_path / "work"
    folder.mkdir()
    root = tmp_path / "sessions"
    monkeypatch.setenv("BRANCHLINE_HOME", str(root))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    keys = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")
    for name in (*keys, "BRANCHLINE_MODEL", "BRANCHLINE_TRACEBACK", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    return Command(root, folder, monkeypatch)


@pytest.fixture
def terminals(command: Command) -> Iterator[list[Terminal]]:
    """Terminals that are closed after the test."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def texts(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Role and text of the messages in a request, without the system prompt."""
    return [(each["role"], str(each["content"])) for each in messages if each["role"] != "system"]


@pytest.fixture(autouse=True)
def hang_ups_count() -> Iterator[None]:
    """Under ``nohup`` a hang-up is ignored, and so it would be in every command that a test starts."""
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of place."""
    return request.param


@pytest.fixture
def root(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A place of that kind that holds nothing yet."""
    return new_root(kind, tmp_path, request)
