"""Serves one embedded engine on a port: the server protocol before its `Opener`, no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import InvalidRequest

from .dialects import OPENAI
from .messages import Refusal

if TYPE_CHECKING:
    from forebay.adapters.base import Headers, Opener, Stream
    from forebay.policies.contracts import EngineFailed

    from .messages import Guest, Message, Responder

_HOP = frozenset({b"content-length", b"transfer-encoding", b"connection", b"date"})
_OWN = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"})


class EngineHost:
    """Hands every message to the engine, and its answer back."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    def admit(self, message: Message) -> Refusal | None:
        """See messages.Host."""

    def buffered(self, change: int) -> bool:  # noqa: ARG002 - see Host
        """See messages.Host."""
        return True

    def refuse(self, status: int, message: str, path: str) -> Refusal:  # noqa: ARG002 - see Host
        """See messages.Host."""
        return Refusal(status, OPENAI.body(InvalidRequest(message, status=status)))

    def serve(self, message: Message, responder: Responder) -> Guest:
        """See messages.Host."""
        passage = _Passage(responder)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in message.headers.items()
            if name not in _OWN
        ]
        target = message.target.decode("latin-1")
        passage.stream = self._opener.open(message.method, target, headers, message.body, passage)
        return passage


class _Passage:
    """One answer of the engine on its way to a connection."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._whole = False
        self._held: list[bytes] = []
        self._started = False
        self.stream: Stream | None = None

    # -- adapters.base.Sink ----------------------------------------------------------------------

    def on_head(self, status: int, headers: Headers) -> None:
        """See Sink."""
        self._status = status
        self._whole = any(name == b"content-length" for name, _ in headers)
        self._headers = [pair for pair in headers if pair[0] not in _HOP]

    def on_data(self, data: bytes) -> None:
        """See Sink."""
        if self._whole:
            self._held.append(data)
        elif self._started:
            self._responder.write(data)
        else:
            self._started = True
            self._responder.start(self._status, self._headers, data)

    def on_end(self) -> None:
        """See Sink."""
        self.stream = None
        if self._started:
            self._responder.finish()
        else:
            self._responder.send(self._status, self._headers, b"".join(self._held))

    def on_failure(self, error: EngineFailed) -> None:  # noqa: ARG002 - a dead engine says nothing
        """See Sink."""
        self.stream = None
        self._responder.abort()

    # -- messages.Guest --------------------------------------------------------------------------

    def caller_left(self) -> None:
        """See Guest."""
        if self.stream is not None:
            self.stream.close()

    def caller_slow(self) -> None:
        """See Guest."""
        if self.stream is not None:
            self.stream.pause()

    def caller_ready(self) -> None:
        """See Guest."""
        if self.stream is not None:
            self.stream.resume()
