"""Doubles for tests of agents: a model that follows a script, and a real server that does."""

from __future__ import annotations

from harness.testing.replies import Reply, Scripted, ScriptedReply, tool_call
from harness.testing.scripted_model import ScriptedModel
from harness.testing.scripted_server import Answer, HttpAnswer, ReceivedRequest, ScriptedServer, ServerScript

__all__ = [
    "Answer",
    "HttpAnswer",
    "ReceivedRequest",
    "Reply",
    "Scripted",
    "ScriptedModel",
    "ScriptedReply",
    "ScriptedServer",
    "ServerScript",
    "tool_call",
]
