"""An agent behind HTTP, for many users: over PostgreSQL where DATABASE_URL names one, else over SQLite.

Each request opens its chat's session and closes it again, so any number of copies of the service may run side by side, and
any of them may be restarted. An answer streams as lines of JSON, and who goes away stops its turn. What a tool would do is
asked first; the answer comes with a later request, to whichever copy.

Run it and it talks to itself over a real socket. As a service:
``uvicorn fastapi_endpoint:app --timeout-graceful-shutdown 20``.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
import httpx
import uvicorn
from fastapi import APIRouter, Body, Depends, FastAPI, Header, Path, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from harness import (
    AgentHarness,
    AgentSettings,
    ApprovalRequest,
    ApprovalRequested,
    Approve,
    BranchlineError,
    Decision,
    ModelRequest,
    OpenAIChatModel,
    PendingCallError,
    PostgresRepository,
    Session,
    SessionStorage,
    SqliteRepository,
    TextDelta,
    ToolContext,
    TurnEnded,
    TurnEndEntry,
    TurnStream,
    TurnSuspended,
    tool,
    whole_conversation,
)
from harness.testing import Reply, Scripted, ScriptedModel, tool_call

NAME = "^[a-z0-9]{1,40}$"
"""Of a user, and of a chat. Without a dot, so that no two pairs of them make the same session id."""
SETTINGS = AgentSettings(max_steps=20, max_turn_seconds=300, max_turn_tokens=200_000)
SECONDS_FOR_OTHERS = 10
"""How long a request waits for another one in the same chat."""
SECONDS_TO_READ = 30
"""How long a client may take nothing, before its turn is stopped."""
SECONDS_TO_END = 10
"""How long the service waits at its end until turns that were cancelled are on record."""
STATUSES = {
    "invalid_entry": 422,  # such as an empty prompt
    "session_not_found": 404,
    "session_locked": 409,  # another request talks in this chat
    "pending_call": 409,  # a question has to be answered first
    "session": 409,  # an answer to a turn that does not wait for one
}
"""What a client is told, by the error's code. For the others it can do nothing: 503."""

log = logging.getLogger("service")


def scripted_reply(request: ModelRequest) -> Scripted:
    """Stands for a model, where there is no key."""
    last = request.messages[-1]
    if last.role == "toolResult":
        return f"{last.text}."
    if "letter" in last.text:
        return tool_call("send_letter", to="Bob", text="Hello!")
    return Reply("One, two, three, four, and so on", chunk_size=5, pause=0.1 if "Count" in last.text else 0)


@tool(needs_approval=True, preview=lambda arguments: f"To {arguments['to']}: {arguments['text']}")
async def send_letter(context: ToolContext, to: str, text: str) -> str:  # noqa: ARG001 - a post office would take them
    """Send a letter."""
    return f"Sent to {to}"  # with context.idempotency_key, so that it is sent once


MODEL = OpenAIChatModel("gpt-5-mini") if "OPENAI_API_KEY" in os.environ else ScriptedModel(scripted_reply)
# One for the whole process: it holds the connections that all sessions share.
chats = PostgresRepository(os.environ["DATABASE_URL"]) if "DATABASE_URL" in os.environ else SqliteRepository("chats.db")


open_chats: list[str] = []
"""Whose sessions are open in this process."""


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
    """Connections to the model's server are kept from turn to turn, and closed with the service.

    A server cancels what still runs, and ends the process when this is over: so this waits for the sessions.
    """
    async with MODEL:
        yield
        with anyio.move_on_after(SECONDS_TO_END):
            while open_chats:  # noqa: ASYNC110 - once, at the end
                await anyio.sleep(0.02)


app = FastAPI(lifespan=lifespan)
chat = APIRouter(prefix="/chats/{chat}")


def session_id(chat: Annotated[str, Path(pattern=NAME)], x_user: Annotated[str, Header(pattern=NAME)]) -> str:
    """The chat's session, among its user's own. The header stands for whatever tells you who asks."""
    return f"{x_user}.{chat}"


SessionId = Annotated[str, Depends(session_id)]


@asynccontextmanager
async def opened(storage: Awaitable[SessionStorage], name: str) -> AsyncGenerator[Session]:
    """A session that the service's end waits for."""
    open_chats.append(name)
    try:
        async with Session.open(storage) as session:
            yield session
    finally:
        open_chats.remove(name)


async def begun(name: SessionId) -> AsyncGenerator[Session]:
    """The chat's session, for as long as the answer takes. Meanwhile nobody else can write to it."""
    async with opened(chats.open_or_create(name, lock_timeout=SECONDS_FOR_OTHERS), name) as session:
        yield session


async def known(name: SessionId) -> AsyncGenerator[Session]:
    """The same, of a chat that there is."""
    async with opened(chats.open(name, lock_timeout=SECONDS_FOR_OTHERS), name) as session:
        yield session


@app.exception_handler(BranchlineError)
async def refused(_request: Request, error: BranchlineError) -> Response:
    """What failed before anything was sent. The message names places of the server's own: it is logged, not sent."""
    status = STATUSES.get(error.code, 503)
    log.log(logging.ERROR if status == 503 else logging.INFO, "%s: %s", error.code, error)
    return JSONResponse({"error": error.code}, status, {"Retry-After": "1"} if status == 503 else None)


class TurnResponse(Response):
    """Runs one turn while it is sent. A client that goes away cancels it, wherever it is, and that is recorded."""

    media_type = "application/x-ndjson"

    def __init__(self, turn: TurnStream) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.turn = turn
        self.has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - what a server passes
        """What the server calls."""
        refusal: BranchlineError | None = None
        async with anyio.create_task_group() as group:

            async def stop_when_the_client_is_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(stop_when_the_client_is_gone)
            try:
                await self._send_turn(send)
            except BranchlineError as error:
                refusal = error  # raised outside of the group, which would wrap it
            except TimeoutError:
                log.info("a client took nothing for %d seconds; its turn was stopped", SECONDS_TO_READ)
            group.cancel_scope.cancel()
        if refusal is not None:
            raise refusal

    async def _send_turn(self, send: Send) -> None:
        async def line(more: bool = True, **members: Any) -> None:
            body = f"{json.dumps(members)}\n".encode() if members else b""
            with anyio.fail_after(SECONDS_TO_READ):
                await send({"type": "http.response.body", "body": body, "more_body": more})

        try:
            async with self.turn as events:  # a turn that cannot begin is refused here, and has a status of its own
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                self.has_begun = True
                async for event in events:
                    match event:
                        case TextDelta(text):
                            await line(text=text)
                        case ApprovalRequested():
                            await line(question=event.entry_id, preview=event.preview)
                        case TurnSuspended():
                            await line(ended="suspended")
                        case TurnEnded():
                            await line(ended=event.reason)
                        case _:
                            pass
        except BranchlineError as error:
            if not self.has_begun:
                raise
            if not isinstance(error, PendingCallError):  # that was told as "suspended"
                log.warning("a turn failed: %s: %s", error.code, error)
                await line(error=error.code)
        await line(more=False)


def agent(session: Session, approve: Approve | None = None) -> AgentHarness:
    """The harness of one request."""
    return AgentHarness(session, MODEL, tools=[send_letter], settings=SETTINGS, approve=approve)


async def ask_later(_request: ApprovalRequest) -> Decision:
    """Nobody is asked while a request waits: the question goes out, and the turn is suspended."""
    return Decision.later()


@chat.post("/turns")
async def say(session: Annotated[Session, Depends(begun)], prompt: Annotated[str, Body(embed=True)]) -> TurnResponse:
    """Say something in a chat, which is begun by that."""
    return TurnResponse(agent(session, ask_later).stream(prompt))


@chat.post("/answers")
async def decide(session: Annotated[Session, Depends(known)], answers: Mapping[str, bool]) -> TurnResponse:
    """Answer questions by their ids, and go on with the turn that asked them."""

    async def answered(request: ApprovalRequest) -> Decision:
        match answers.get(request.entry_id):
            case None:
                return Decision.later()
            case True:
                return Decision.approve()
            case False:
                return Decision.deny()

    return TurnResponse(agent(session, answered).resume_stream())


@chat.get("")
async def show(name: SessionId) -> dict[str, Any]:
    """What was said in a chat, and what is asked. Also while somebody talks in it: readers wait for nobody."""
    async with Session.open(chats.open(name, mode="read")) as session:
        messages = (await whole_conversation(session)).messages
        said = [{"role": message.role, "text": message.text} for message in messages]
        questions = await agent(session).waiting_questions()
        ends = [entry.reason for entry in await session.branch() if isinstance(entry, TurnEndEntry)]
    return {"said": said, "questions": {asked.id: asked.preview for asked in questions}, "turns": ends}


@chat.delete("", status_code=204)
async def forget(name: SessionId) -> None:
    """Delete a chat."""
    await chats.delete(name, lock_timeout=SECONDS_FOR_OTHERS)


app.include_router(chat)


@asynccontextmanager
async def serving() -> AsyncGenerator[httpx.AsyncClient]:
    """A server on a free port, and Ada's browser."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=20))
    listening = socket.create_server(("127.0.0.1", 0))
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, [listening])
        place = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=place, headers={"X-User": "ada"}, trust_env=False, timeout=30) as client:
            yield client
        server.should_exit = True


async def many_users(client: httpx.AsyncClient) -> None:
    """Twenty people say something at the same time, each in a chat of their own."""
    answers: list[str] = []

    async def talk(user: str) -> None:
        headers = {"X-User": user}
        response = await client.post("/chats/first/turns", json={"prompt": "Hello."}, headers=headers)
        answers.append(response.raise_for_status().text.splitlines()[-1])
        (await client.delete("/chats/first", headers=headers)).raise_for_status()

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(talk, f"user{number}")
    print(f"{len(answers)} users: {', '.join(set(answers))}")


async def main() -> None:
    """Many users; one who leaves in the middle of an answer; and one whose answer comes after a restart."""
    async with serving() as client:
        await many_users(client)

        async with client.stream("POST", "/chats/numbers/turns", json={"prompt": "Count."}) as response:
            first = await anext(response.aiter_lines())
            print(f"{first}, and the client leaves")

        response = await client.post("/chats/numbers/turns", json={"prompt": "Write Bob a letter."})
        print(response.raise_for_status().text.splitlines()[-1])
        refusal = await client.post("/chats/numbers/turns", json={"prompt": "Hello?"})
        print(refusal.status_code, refusal.json())

    async with serving() as client:
        shown = (await client.get("/chats/numbers")).raise_for_status().json()
        ((question, preview),) = shown["questions"].items()
        print(f"after a restart: {preview}")
        response = await client.post("/chats/numbers/answers", json={question: True})
        print(response.raise_for_status().text.splitlines()[-1])
        shown = (await client.get("/chats/numbers")).raise_for_status().json()
        print(f"{shown['said'][-1]['text']} Turns: {', '.join(shown['turns'])}")
        (await client.delete("/chats/numbers")).raise_for_status()
        print((await client.get("/chats/numbers")).status_code)


if __name__ == "__main__":
    anyio.run(main)
