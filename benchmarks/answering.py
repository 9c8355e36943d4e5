"""``python -m benchmarks.answering STEPS``: a server that answers at once, in a process of its own; it prints its address.

To a prompt with "many times" in it, it asks for a call of ``note`` until there are STEPS results; to others it says a word.
"""

from __future__ import annotations

import sys
from typing import Any

from harness.testing import ReceivedRequest, ScriptedServer, tool_call


def main(steps: int) -> None:
    """Answer until standard input is closed."""

    def answer(request: ReceivedRequest) -> Any:
        results = 0
        for message in reversed(request.messages):
            if message["role"] == "user":
                many = "many times" in str(message["content"])
                return (
                    tool_call("note", f"call_{results}", text="a short text") if many and results < steps else "Done."
                )
            results += message["role"] == "tool"
        return "Done."

    with ScriptedServer(answer, chunk_size=1_000) as server:
        print(server.base_url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
