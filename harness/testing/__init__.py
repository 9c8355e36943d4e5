"""Doubles for tests of agents: a model that follows a script, a real server that does, and every backend by turns.

``harness.testing.fixtures`` has fixtures for pytest; it is imported by itself, since it needs pytest.
"""

from __future__ import annotations

from harness.testing.backends import BACKENDS, Backend, backend_of, each_backend
from harness.testing.replies import Reply, Scripted, ScriptedReply, tool_call
from harness.testing.scripted_model import ScriptedModel
from harness.testing.scripted_server import Answer, HttpAnswer, ReceivedRequest, ScriptedServer, ServerScript

__all__ = [
    "BACKENDS",
    "Answer",
    "Backend",
    "HttpAnswer",
    "ReceivedRequest",
    "Reply",
    "Scripted",
    "ScriptedModel",
    "ScriptedReply",
    "ScriptedServer",
    "ServerScript",
    "backend_of",
    "each_backend",
    "tool_call",
]
