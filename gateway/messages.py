"""What the server protocol and those who answer say to each other.

A *message* is one request as it was read, whole; a *responder* is the connection as the one who
answers sees it; a *guest* answers a message (a `Relay`, mostly) and is told when the caller
leaves, stops taking bytes, or takes them again; the *host* is the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .intake import AnyBody

_FOREVER = float("inf")


class Message:
    """One request as it was read."""

    __slots__ = (
        "body",
        "chunked",
        "headers",
        "keep_alive",
        "length",
        "method",
        "old",
        "path",
        "query",
        "read",
        "received",
        "refusal",
        "target",
        "tenant",
        "until",
    )

    def __init__(self, received: float) -> None:
        self.received = received
        """Loop time of the first byte of its head."""
        self.method = ""
        self.target = b""
        self.path = ""
        self.query = ""
        self.headers: dict[bytes, bytes] = {}
        """Names in lower case; repeated ones joined by commas (RFC 9110, 5.3)."""
        self.length: int | None = None
        self.chunked = False
        self.old = False
        """HTTP/1.0: no chunked answers."""
        self.keep_alive = True
        self.body = b""
        self.read: AnyBody | None = None
        """What the host made of a long body, which it reads before it answers."""
        self.refusal: Refusal | None = None
        self.tenant: object = None
        """Who is asking: set by the host when it admits the head."""
        self.until = _FOREVER
        """Loop time from which on the key that was shown counts no more."""


class Refusal(msgspec.Struct, frozen=True):
    """An answer that is given without anyone looking at the body."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Responder(Protocol):
    """A connection, for as long as one message is being answered on it."""

    peer: str
    slow: bool
    """The caller does not take bytes as fast as they come."""

    def send(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Give a whole answer."""
        ...

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]], data: bytes) -> None:
        """Begin an answer of unknown length with its first bytes."""
        ...

    def write(self, data: bytes) -> None:
        """Send more of a started answer."""
        ...

    def finish(self, data: bytes = b"") -> None:
        """Send the last bytes of a started answer and end it."""
        ...

    def abort(self) -> None:
        """Break off: the caller sees the connection close before the end of the answer."""
        ...

    def forget_body(self) -> None:
        """Give back the memory of the request's body: it will not be sent again."""
        ...


class Guest(Protocol):
    """Whoever answers a message. Nothing is told after its answer is finished."""

    def caller_left(self) -> None:
        """Stop: nobody is there any more."""
        ...

    def caller_slow(self) -> None:
        """Hold the engine's bytes back."""
        ...

    def caller_ready(self) -> None:
        """Let the engine's bytes come again."""
        ...


class Host(Protocol):
    """What the protocol asks of the application."""

    def admit(self, message: Message) -> Refusal | None:
        """Look at a request's head; a refusal saves reading its body."""
        ...

    def serve(self, message: Message, responder: Responder) -> Guest | None:
        """Answer a whole request; None when the answer has been given already."""
        ...

    def refuse(self, status: int, message: str, path: str) -> Refusal:
        """Word an error that the protocol itself has found."""
        ...

    def buffered(self, change: int) -> bool:
        """Count bytes of bodies held in memory; False when they are too many now."""
        ...


class Limits(msgspec.Struct, frozen=True):
    """What a connection may do. Seconds and bytes."""

    max_body: int = 32 << 20
    max_header: int = 64 << 10
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    keep_alive: float = 75.0
    client_stall: float = 30.0
