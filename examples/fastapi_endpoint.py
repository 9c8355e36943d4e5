"""An agent behind HTTP: each chat is a session, an answer streams as lines of JSON, and who goes away stops its turn.

Run it and it talks to itself over a real socket. As a service: ``uvicorn fastapi_endpoint:app``.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
import httpx
import uvicorn
from fastapi import Body, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from harness import (
    AgentHarness,
    BranchlineError,
    ChatModel,
    JsonlRepository,
    ModelError,
    OpenAIChatModel,
    Session,
    SessionError,
    TextDelta,
    TurnEnded,
    TurnEndEntry,
)
from harness.testing import Reply, ScriptedModel

SCRIPT = [
    "Forty-two.",
    Reply("Let me count: one, two, three, four and so on", chunk_size=4, pause=0.1),
    "As I said, forty-two.",
]
MODEL: ChatModel = OpenAIChatModel("gpt-5-mini") if "OPENAI_API_KEY" in os.environ else ScriptedModel(SCRIPT)

app = FastAPI()
chats = JsonlRepository("chats")


async def opened(chat_id: str) -> AsyncIterator[Session]:
    """The chat's session, for as long as the answer takes. Meanwhile nobody else can write to it."""
    async with Session.open(chats.open_or_create(chat_id)) as session:
        yield session


@app.exception_handler(SessionError)
async def refused(_request: Request, error: BranchlineError) -> Response:
    """A chat that another request is talking to, or an id that is none."""
    status = 409 if error.code == "session_locked" else 400
    return JSONResponse({"error": error.code, "message": error.message}, status)


class TurnResponse(Response):
    """Runs one turn while it is sent. A client that goes away cancels it, wherever it is, and that is recorded."""

    media_type = "application/x-ndjson"

    def __init__(self, session: Session, prompt: str) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.harness = AgentHarness(session, MODEL)
        self.prompt = prompt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - what a server passes
        """What the server calls."""
        async with anyio.create_task_group() as group:

            async def stop_when_the_client_is_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(stop_when_the_client_is_gone)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send_events(send)
            group.cancel_scope.cancel()

    async def _send_events(self, send: Send) -> None:
        async def line(more: bool = True, **members: Any) -> None:
            body = f"{json.dumps(members)}\n".encode() if members else b""
            await send({"type": "http.response.body", "body": body, "more_body": more})

        try:
            async with self.harness.stream(self.prompt) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        await line(text=event.text)
                    elif isinstance(event, TurnEnded):
                        await line(ended=event.reason)
        except ModelError as error:
            await line(error=error.code, message=error.message)
        await line(more=False)


@app.post("/chats/{chat_id}")
async def ask(session: Annotated[Session, Depends(opened)], prompt: Annotated[str, Body(embed=True)]) -> TurnResponse:
    """Ask something in a chat."""
    return TurnResponse(session, prompt)


async def main() -> None:
    """Serve on a free port; ask, leave in the middle of an answer, and ask again."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    listening = socket.create_server(("127.0.0.1", 0))
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, [listening])
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", trust_env=False
        ) as client:
            await talk(client)
        server.should_exit = True


async def talk(client: httpx.AsyncClient) -> None:
    """The client's side."""
    chat = "/chats/ada"
    response = await client.post(chat, json={"prompt": "What is six times seven?"})
    print(response.raise_for_status().text, end="")

    async with client.stream("POST", chat, json={"prompt": "Count to it."}) as response:
        first = await anext(response.aiter_lines())
        print(f"{first}, and the client leaves")

    # 409 while the server still records that the turn was cancelled.
    while (response := await client.post(chat, json={"prompt": "So?"})).status_code == 409:  # noqa: ASYNC110
        await anyio.sleep(0.02)
    print(response.raise_for_status().text.splitlines()[-1])

    async with Session.open(chats.open("ada", mode="read")) as session:
        ends = [entry.reason for entry in await session.entries() if isinstance(entry, TurnEndEntry)]
        print(f"turns: {', '.join(ends)}")


if __name__ == "__main__":
    anyio.run(main)
