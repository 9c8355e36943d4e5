"""The process that holds a local model: llama.cpp's server, started by ``LocalServer`` and ended with whoever did.

It is a program, run by its path, and imports nothing of ours. The first line of its input is a JSON object of settings;
its one line of output is a JSON object with the ``address``. When its input ends, it ends: that is so however the one
who started it went, killed or not.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sys
import traceback
from typing import NoReturn


def main() -> NoReturn:
    """Serve until the input ends, and leave without the native destructors: they have nothing to save, and may hang."""
    try:
        serve()
    except BaseException:  # noqa: BLE001 - printed, for the one who started us
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # here: afterwards the frames go, and the server with them
    os._exit(0)


def serve() -> None:
    """Start the server, tell its address, and wait until the input ends."""
    settings = json.loads(sys.stdin.buffer.readline())
    # Standard output carries our one line; what native code prints goes where errors go.
    answer = os.dup(1)
    os.dup2(2, 1)
    parent = os.getppid()
    _end_by_signal_with_the_input()
    if _has_ended():  # before the signal could tell
        return

    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model_file"]
    params.model_alias = {settings["model_id"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["api_key"]]
    params.n_ctx = settings["context_window"]
    params.n_parallel = 1
    params.ctx_shift = False
    params.use_jinja = True
    params.chat_template = settings["chat_template"] or ""
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.cache_ram_mib = 0
    params.ui = False
    params.verbosity = 1
    server = xllamacpp.Server(params)

    os.write(answer, json.dumps({"address": server.listening_address}).encode() + b"\n")
    os.close(answer)
    # The parent is looked at as well: a process that it forked may hold our input open after it.
    while os.getppid() == parent and not _has_ended(2.0):
        pass
    os._exit(0)  # here: afterwards the server goes


def _has_ended(seconds: float = 0.0) -> bool:
    """Whether the input has ended, waiting for that."""
    if sys.platform == "win32":  # where pipes cannot be waited for in time
        return bool(seconds) and not os.read(0, 4096)
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 4096)


def _end_by_signal_with_the_input() -> None:
    """Have the kernel end this process when its input ends, also while native code keeps Python from running."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    main()
