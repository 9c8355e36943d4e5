"""The command in surroundings that are not kind: locales, closed streams, folders that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.testing import Reply, ScriptedServer
from tests.cli.conftest import CORRUPT, Command

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
LATIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}


@pytest.mark.parametrize("locale", [C_LOCALE, LATIN], ids=["ascii", "latin-1"])
def test_text_that_the_locale_lacks(command: Command, locale: dict[str, str]) -> None:
    """In a C locale prompts arrive whole and are kept whole; what cannot be written is escaped, and nothing dies."""
    with ScriptedServer(["Antwort: 界 😀 ü"]) as server:
        ran = command.process("chat", "Grüße 😀", "--base-url", server.base_url, environment=locale)
    assert ran.code == 0 and "Traceback" not in ran.err
    assert server.requests[0].messages[-1]["content"] == "Grüße 😀"
    assert ran.out.startswith("Antwort: \\u754c \\U0001f600")
    assert "😀".encode() in next(iter(command.root.glob("*.jsonl"))).read_bytes()
    drawn = command.process("tree", environment=locale)
    assert drawn.code == 0 and drawn.out.splitlines()[2].startswith("* ") and "(here)" in drawn.out


def test_folders_in_a_c_locale(command: Command, tmp_path: Path) -> None:
    """Folders with letters beyond ASCII work, and are recorded with their letters."""
    root = tmp_path / "sitzungen-ü"
    work = tmp_path / "arbeit-ü"
    work.mkdir()
    with ScriptedServer(["ok"]) as server:
        ran = command.process(
            *("chat", "hi", "--root", str(root), "--cwd", str(work), "--base-url", server.base_url),
            environment=C_LOCALE,
        )
    assert ran.code == 0
    (path,) = root.glob("*.jsonl")
    assert str(work) in path.read_text(encoding="utf-8").splitlines()[0]


def test_a_closed_standard_output(command: Command) -> None:
    """With its output closed before it starts, it works, and nothing is written into a session by mistake."""
    with ScriptedServer(["answer"]) as server:
        line = command.line("chat", "hi", "--base-url", server.base_url)
        ran = subprocess.run(
            [sys.executable, "-c", "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])", *line],
            env=command.environment(),
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert ran.returncode == 0 and b"Traceback" not in ran.stderr
    assert command("verify").code == 0


def test_all_streams_closed(command: Command) -> None:
    """A session never gets the number of a standard stream, or what is printed would land in it."""
    close = "import os, sys; [os.close(n) for n in (0, 1, 2)]; os.execv(sys.argv[1], sys.argv[1:])"
    with ScriptedServer(["answer"]) as server:
        line = command.line("chat", "hi", "--base-url", server.base_url)
        ran = subprocess.run([sys.executable, "-c", close, *line], env=command.environment(), check=False)
    assert ran.returncode == 0
    assert command("verify").code == 0


@pytest.mark.parametrize("arguments", [("tree", "last"), ("verify", "--json")])
def test_a_reader_that_reads_no_more(command: Command, arguments: tuple[str, ...]) -> None:
    """``branchline … | head -1`` ends without a word, as other commands do."""
    command.put(CORRUPT / "00_valid.jsonl")
    process = command.start(*arguments, stdin=subprocess.DEVNULL)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert err == b""


def test_a_full_disk_behind_standard_output(command: Command) -> None:
    """Output that cannot be written is an error, not a success."""
    command.put(CORRUPT / "00_valid.jsonl")
    with open("/dev/full", "wb") as full:
        ran = command.process("tree", "last", stdout=full)
    assert ran.code == 1 and "No space left" in ran.error


def test_a_closed_standard_error(command: Command) -> None:
    """A standard error that is gone is no reason to stop an answer."""
    with ScriptedServer(["answer"]) as server:
        process = command.start("chat", "hi", "--base-url", server.base_url, stdin=subprocess.DEVNULL)
        assert process.stdout is not None and process.stderr is not None
        process.stderr.close()
        assert process.stdout.read() == b"answer\n"
        process.stdout.close()
        assert process.wait(60) == 0


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may look into; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="drops to another user id")
def test_a_home_that_cannot_be_written(command: Command, public: Path) -> None:
    """A read-only home is one line that names the folder, before the model is asked; looking still works."""
    command.put(CORRUPT / "00_valid.jsonl")
    environment = command.environment({"HOME": str(public)})
    environment.pop("BRANCHLINE_HOME")
    with ScriptedServer(["answer"]) as server:
        line = ["chat", "hi", "--base-url", server.base_url, "--cwd", "/"]
        ran = as_nobody(line, environment, command.root)
        assert ran.returncode == 1 and str(public) in ran.stderr and "Traceback" not in ran.stderr
        assert "--root" in ran.stderr and "go on with" not in ran.stderr
        assert not server.requests
    assert as_nobody(["sessions"], environment, command.root).returncode == 0
    assert list(public.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="drops to another user id")
def test_an_unreadable_session_is_not_a_missing_one(command: Command, public: Path) -> None:
    """A file that may not be read is told as that, and not written."""
    command.put(CORRUPT / "00_valid.jsonl")
    path = public / "closed.jsonl"
    path.write_bytes((CORRUPT / "00_valid.jsonl").read_bytes())
    path.chmod(0o600)
    before = path.read_bytes()
    environment = command.environment({"BRANCHLINE_HOME": str(public)})
    for name in ("verify", "tree"):
        ran = as_nobody([name, "closed"], environment, command.root)
        assert ran.returncode == 1 and "Permission denied" in ran.stderr and str(path) in ran.stderr, name
    assert path.read_bytes() == before


SMALL_FILES = """
import os, resource, sys
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_a_disk_that_fills_before_the_first_message(command: Command) -> None:
    """An error before the first message is told, asks no model, and leaves no empty session behind."""
    with ScriptedServer(["answer", "never asked"]) as server:
        arguments = ("chat", "hi", "--base-url", server.base_url)
        assert command(*arguments).code == 0
        before = command.files()
        (whole,) = [data for name, data in before.items() if name.endswith(".jsonl")]
        header, start, _ = whole.split(b"\n", 2)
        size = len(header) + len(start) + 20
        ran = subprocess.run(
            [sys.executable, "-c", SMALL_FILES, str(size), *command.line(*arguments)],
            env=command.environment({"PYTHONDONTWRITEBYTECODE": "1"}),
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 1 and "File too large" in ran.stderr and "Traceback" not in ran.stderr
        assert len(server.requests) == 1
    left = {name: data for name, data in command.files().items() if not name.endswith(".lock")}
    assert left == {name: data for name, data in before.items() if not name.endswith(".lock")}


def test_no_ansi_in_a_pipe_even_with_colour_forced(command: Command) -> None:
    """Plain output when it is no terminal, whatever the continuous-integration variables say."""
    command.put(CORRUPT / "00_valid.jsonl")
    for name in ("--help", "tree"):
        ran = command.process(name, environment={"GITHUB_ACTIONS": "true", "FORCE_COLOR": "1", "CI": "1"})
        assert "\x1b" not in ran.out + ran.err


def test_a_long_answer_over_a_slow_pipe(command: Command) -> None:
    """An answer larger than a pipe holds arrives whole."""
    text = "x" * 300_000
    with ScriptedServer([Reply(text, chunk_size=5000)]) as server:
        ran = command.process("chat", "hi", "--base-url", server.base_url)
    assert ran.out == text + "\n"


DROP = """
import contextlib, io, os, sys
from pathlib import Path
from harness.cli import main
# The other user may not be able to read the interpreter's own modules: load what the commands need before.
import harness, harness.cli.chat, httpx, platformdirs, urllib.request
for name in harness.__all__:  # they are loaded when they are first asked for
    getattr(harness, name)
import anyio._backends._asyncio
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    for name in ("sessions", "verify", "tree", "context"):
        main([name, "--root", sys.argv[1]])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(sys.argv[2:]))
"""


def as_nobody(arguments: list[str], environment: dict[str, str], warm: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user who owns nothing; ``warm`` is a folder with a session to load modules with."""
    return subprocess.run(
        [sys.executable, "-c", DROP, str(warm), *arguments],
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
