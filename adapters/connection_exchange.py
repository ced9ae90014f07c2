"""One request and its answer, as the caller holds it.

An exchange outlives its connection when a reused one turns out to be stale: it is then carried once
more, on a fresh one, and the caller never knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from forebay.policies.contracts import EngineFailed

    from .base import Sink


class Carrier(Protocol):
    """What an exchange may ask of the connection that carries it."""

    def heed_pause(self, exchange: Exchange) -> None:
        """Read or not, as the exchange wishes."""
        ...

    def give_up(self) -> None:
        """Let go of the exchange, which wants nothing more."""
        ...


class Exchange:
    """The caller's end of one answer: a `Stream`.

    `sent` is True from the moment that the request is handed to a connected transport, but for the
    time that a large body fills the transport's write buffer past its high-water mark. So it errs
    towards True: False means that the engine cannot have the whole request.
    """

    __slots__ = ("carrier", "ended", "is_head", "paused", "request", "retried", "sent", "sink")

    def __init__(self, sink: Sink, *, is_head: bool) -> None:
        self.sink = sink
        self.is_head = is_head
        self.request: tuple[bytes, bytes] = (b"", b"")
        """Head and body, until the answer begins."""
        self.carrier: Carrier | None = None
        self.sent = False
        self.paused = False
        self.retried = False
        self.ended = False

    def pause(self) -> None:
        """Stop reading; an end or a failure that is known already is still pushed."""
        self.paused = True
        if self.carrier is not None:
            self.carrier.heed_pause(self)

    def resume(self) -> None:
        """Read on."""
        self.paused = False
        if self.carrier is not None:
            self.carrier.heed_pause(self)

    def close(self) -> None:
        """Give up; nothing is pushed any more."""
        self.ended = True
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            carrier.give_up()

    def finish(self) -> None:
        """End well. The carrier has let go before, so the sink may open the next request on it."""
        self.carrier = None
        self.ended = True
        self.sink.on_end()

    def fail(self, error: EngineFailed) -> None:
        """End with a failure, unless it was closed."""
        self.carrier = None
        if self.ended:
            return
        self.ended = True
        self.sink.on_failure(error)
