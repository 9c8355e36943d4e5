"""A real server that speaks OpenAI's or Anthropic's protocol from a script: for tests through sockets and processes."""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self, cast

from harness.testing.protocols import ANTHROPIC, WireProtocol, protocol_of
from harness.testing.replies import Reply, Scripted, reply_of, rough_tokens
from storage.errors import BranchlineError


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    r"""An answer below the level of replies: any status, any headers, any bytes, at any pace.

    ``body`` may be bytes, text, an object (sent as JSON), or a sequence of pieces, in which bytes and texts are sent as
    they are, objects as an event of the stream, and numbers are seconds to wait. With ``cut`` the connection is torn
    after the last piece, in the middle of the body; with the status 0 it is closed without a word.

    ```python
    HttpAnswer(429, {"error": {"message": "slow down"}}, {"Retry-After": "1"})
    HttpAnswer(200, [{"choices": [{"delta": {"content": "Hel"}}]}, 0.1, "data: [DONE]\n\n"])
    ```
    """

    status: int = 200
    body: bytes | str | Mapping[str, Any] | Sequence[bytes | str | Mapping[str, Any] | float] = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as the server got it. Header names are in small letters."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    client: tuple[str, int]
    """The client's end of the connection: the same for requests that came over one."""

    @property
    def body(self) -> dict[str, Any]:
        """The body, parsed anew each time."""
        return cast("dict[str, Any]", json.loads(self.raw))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages in it."""
        return cast("list[dict[str, Any]]", self.body["messages"])


Answer = Scripted | HttpAnswer
ServerScript = Answer | Callable[[ReceivedRequest], Answer]


class ScriptedServer:
    """A model's server on a free port of this machine, in threads of its own; a context manager.

    ```python
    with ScriptedServer([HttpAnswer(503), tool_call("list", path="."), "Two files."]) as server:
        model = OpenAIChatModel("any", base_url=server.base_url, api_key="any")
        ...
        assert server.requests[2].messages[-1]["role"] == "tool"
    ```

    It speaks OpenAI's chat completions, and to who asks at a path that ends in ``/messages``, Anthropic's protocol
    (``AnthropicModel("any", base_url=server.base_url, api_key="any")``). Thinking is signed there.

    The script is that of ``ScriptedModel`` (an exception becomes an error in the stream, a ``Reply`` with ``cut`` a
    torn connection), and ``HttpAnswer`` besides; functions get the ``ReceivedRequest``, and what they raise is raised
    again on leaving the ``with``. Being threads, it also serves other processes, and tests that block. When the script
    is over it answers 400 and says so.

    ``usage`` counts tokens (a quarter of the bytes) when asked to (``stream_options``; Anthropic's protocol always asks),
    ``"always"`` or ``"never"``. A
    request longer than ``context_window`` tokens gets ``overflow`` as its answer, and one that is more than
    ``rate_limit`` allows (so many requests in so many seconds) a 429 with the seconds to wait; both use up none of the
    script, and both stand in ``requests``. ``keys`` are the API keys that it takes; None takes any, and none.
    ``hang_ups`` counts the requests whose client went away before the answer was whole.
    """

    def __init__(
        self,
        replies: Iterable[ServerScript] | Callable[[ReceivedRequest], Answer],
        *,
        chunk_size: int = 8,
        usage: Literal["asked", "always", "never"] = "asked",
        context_window: int | None = None,
        overflow: HttpAnswer | None = None,
        rate_limit: tuple[int, float] | None = None,
        keys: Collection[str] | None = None,
    ) -> None:
        self.requests: list[ReceivedRequest] = []
        self.hang_ups: int = 0
        self._script: Iterator[ServerScript] = _endless(replies) if callable(replies) else iter(replies)
        self._chunk_size = chunk_size
        self._usage = usage
        self._context_window = context_window
        self._overflow = overflow
        self._rate_limit = rate_limit
        self._taken: deque[float] = deque()
        """When requests were taken that the rate limit still counts."""
        self._keys = keys
        self._lock = threading.Condition()
        self._closing = threading.Event()
        self._failure: Exception | None = None
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="scripted server")

    @property
    def base_url(self) -> str:
        """What ``OpenAIChatModel(base_url=…)``, ``AnthropicModel(base_url=…)`` and ``--base-url`` want."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if self._failure is not None and kind is None:
            raise self._failure

    def close(self) -> None:
        """Stop, breaking off what is being answered, and wait until all threads have ended."""
        self._closing.set()
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.hang_up()
        self._server.server_close()

    def wait_for_hang_up(self, count: int = 1, timeout: float = 5.0) -> bool:
        """Whether ``count`` clients have gone away within ``timeout`` seconds. It blocks: call it in a thread."""
        with self._lock:
            return self._lock.wait_for(lambda: self.hang_ups >= count, timeout)

    # What the handler needs.

    def answer_to(
        self, request: ReceivedRequest, protocol: WireProtocol
    ) -> HttpAnswer | tuple[Reply, list[dict[str, Any]]]:
        """The script's answer, as bytes to send or as a reply and its chunks."""
        with self._lock:
            self.requests.append(request)
            size = rough_tokens(request.raw)
            if self._keys is not None and _key_of(request) not in self._keys:
                return HttpAnswer(401, protocol.error("That is not one of the API keys.", "authentication_error"))
            if (wait := self._wait()) > 0:
                told = protocol.error("Too many requests.", "rate_limit_error")
                return HttpAnswer(429, told, {"Retry-After": f"{wait:.3f}"})
            if self._context_window is not None and size > self._context_window:
                return self._overflow or HttpAnswer(400, protocol.overflow(size, self._context_window))
            scripted = next(self._script, None)
        if scripted is None:
            told = f"The script is over; this is request {len(self.requests)}."
            return HttpAnswer(400, protocol.error(told, "script_over"))
        if not isinstance(scripted, HttpAnswer) and callable(scripted):
            try:
                scripted = scripted(request)
            except Exception as error:  # noqa: BLE001 - it belongs to the test, which gets it on leaving
                self._failure = self._failure or error
                told = f"The script raised {type(error).__name__}: {error}"
                return HttpAnswer(400, protocol.error(told, "script_failed"))
        if isinstance(scripted, HttpAnswer):
            return scripted
        if isinstance(scripted, Exception):
            scripted = Reply(error=scripted)
        reply, message = reply_of(scripted)
        options: dict[str, Any] = request.body.get("stream_options") or {}
        asked = protocol is ANTHROPIC or bool(options.get("include_usage"))
        counted = self._usage == "always" or (self._usage == "asked" and asked)
        model = str(request.body.get("model"))
        chunks = protocol.chunks_of(message, model, reply.chunk_size or self._chunk_size, size if counted else None)
        if reply.error is not None or reply.cut:
            chunks = [chunk for chunk in chunks if not protocol.is_end(chunk)]
        if reply.error is not None:
            code = reply.error.code if isinstance(reply.error, BranchlineError) else type(reply.error).__name__
            chunks.append(protocol.error(str(reply.error), code))
        return reply, chunks

    def _wait(self) -> float:
        """Seconds until the rate limit takes one more request; 0 takes this one."""
        if self._rate_limit is None:
            return 0
        count, seconds = self._rate_limit
        now = time.monotonic()
        while self._taken and self._taken[0] <= now - seconds:
            self._taken.popleft()
        if len(self._taken) >= count:
            return self._taken[0] + seconds - now
        self._taken.append(now)
        return 0

    def note_hang_up(self) -> None:
        """A client went away."""
        with self._lock:
            self.hang_ups += 1
            self._lock.notify_all()

    def pause(self, seconds: float, connection: socket.socket) -> None:
        """Wait, unless the server closes. Raises ``ConnectionResetError`` as soon as the client is gone."""
        remaining = seconds
        while True:
            readable, _, _ = select.select([connection], [], [], 0)
            if readable and not connection.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError("the client closed the connection")
            if self._closing.is_set():
                raise ConnectionAbortedError("the server is closing")
            if remaining <= 0:
                return
            self._closing.wait(min(remaining, 0.02))
            remaining -= 0.02


def _key_of(request: ReceivedRequest) -> str | None:
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return bearer or request.headers.get("x-api-key")


def _endless(function: Callable[[ReceivedRequest], Answer]) -> Iterator[ServerScript]:
    while True:
        yield function


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128

    def __init__(self, script: ScriptedServer) -> None:
        self.script = script
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong in a handler, as usual; but not that a client is gone between two requests."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def hang_up(self) -> None:
        """Close the connections that clients keep open between requests."""
        for connection in tuple(self.connections):
            with suppress(OSError):  # it may be closed already
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        with suppress(OSError):  # flushing to a client that is gone
            super().finish()

    def do_GET(self) -> None:
        self._send(HttpAnswer(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]}))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = ReceivedRequest(self.path, headers, raw, (self.client_address[0], self.client_address[1]))
        script = self.server.script
        try:
            protocol = protocol_of(self.path)
            answer = script.answer_to(request, protocol)
            if isinstance(answer, HttpAnswer):
                self._send(answer)
            else:
                reply, chunks = answer
                script.pause(reply.delay, self.connection)
                paced = [piece for chunk in chunks for piece in (reply.pause, chunk)][1:]
                ending = () if reply.cut or reply.error else protocol.ending
                self._send(HttpAnswer(200, [*paced, *ending], cut=reply.cut))
        except (ConnectionResetError, BrokenPipeError):
            self.close_connection = True
            script.note_hang_up()
        except ConnectionAbortedError:
            self.close_connection = True

    def _send(self, answer: HttpAnswer) -> None:
        if answer.status == 0:
            self.close_connection = True
            return
        body = answer.body
        is_stream = not isinstance(body, bytes | str | Mapping)
        is_json = isinstance(body, Mapping)
        kind = "text/event-stream" if is_stream else "application/json" if is_json else "text/plain; charset=utf-8"
        self.send_response(answer.status)
        names = {name.lower() for name in answer.headers}
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "content-type" not in names:
            self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = body if is_stream else [json.dumps(body) if is_json else body]
        for piece in cast("Sequence[Any]", pieces):
            self._send_piece(piece)
        if answer.cut:
            self.close_connection = True
        else:
            with suppress(OSError):  # a client may leave once it has everything
                self.wfile.write(b"0\r\n\r\n")

    def _send_piece(self, piece: Any) -> None:
        if isinstance(piece, int | float):
            self.server.script.pause(piece, self.connection)
            return
        self.server.script.pause(0, self.connection)
        if isinstance(piece, Mapping):
            piece = protocol_of(self.path).event(cast("Mapping[str, Any]", piece))
        data = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else cast("bytes", piece)
        if data:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing is printed."""
