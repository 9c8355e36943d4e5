"""What it means that a connection failed: the error for it, whether it may pass, and which limit ran out."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import cast

import httpx

from storage.errors import ModelError, ModelTimeoutError

_NO_SUCH_NAME = {getattr(socket, name) for name in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, name)}
"""``EAI_NODATA`` is not known on every platform."""
_STAYS = (httpx.ReadTimeout, httpx.WriteTimeout, httpx.UnsupportedProtocol, httpx.LocalProtocolError)


def broken_way(
    error: Exception,
    *,
    where: str,
    is_here: bool,
    when: str,
    phase: str,
    seconds: float | None,
    redact: Callable[[str], str],
) -> ModelError:
    """The error for one of httpx's, or for a time that ran out, ``when`` (before an answer, in the middle of one).

    ``phase`` and ``seconds`` tell which of our limits it was, if it was one of ours; httpx has those of connecting and
    sending. ``details["temporary"]`` is whether trying again may help: not where a name does not exist, a certificate is
    refused, nothing listens on this machine (``is_here``), or a server fell silent.
    """
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        text = (
            f"{where} cannot be reached: it did not take the connection in time. Check the base URL, and the network."
        )
        return ModelTimeoutError(text, phase="connect", temporary=True)
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        phase = "write" if isinstance(error, httpx.WriteTimeout) else phase
        limit = f" (its limit of {seconds:g} seconds is over)" if seconds is not None and phase != "write" else ""
        text = f"{where} fell silent {when}{limit}. Try again, or allow more time (timeouts=)."
        return ModelTimeoutError(text, phase=phase, seconds=None if phase == "write" else seconds, temporary=False)
    if isinstance(error, httpx.ConnectError):
        causes = _innermost(error)
        told = redact(causes[0].strerror or str(causes[0]) if causes else str(error)) or type(error).__name__
        stays = bool(causes) and all(_stays(cause, is_here) for cause in causes)
        text = f"{where} cannot be reached: {told}. Check the base URL, and that the server runs."
        return ModelError(text, temporary=not stays)
    told = redact(str(error)) or type(error).__name__
    may_pass = isinstance(error, httpx.TransportError) and not isinstance(error, _STAYS)
    return ModelError(f"The connection to {where} broke {when}: {told}. Try again.", temporary=may_pass)


def _innermost(error: BaseException) -> list[OSError]:
    """What the system said, once for each address that was tried."""
    found: list[OSError] = []
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", current).exceptions
        elif (below := current.__cause__ or current.__context__) is not None:
            waiting.append(below)
        elif isinstance(current, OSError):
            found.append(current)
    return found


def _stays(error: OSError, is_here: bool) -> bool:
    if isinstance(error, socket.gaierror):
        return error.errno in _NO_SUCH_NAME
    return isinstance(error, ssl.SSLCertVerificationError) or (is_here and isinstance(error, ConnectionRefusedError))
