"""One answer of the embedded engine on its way to its sink: pausing, slowness, leaving."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import EngineFailed

    from .base import Headers, Sink
    from .sim_job import Job


class Collector:
    """A sink that keeps one answer, for whoever wants it whole."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.chunks: list[bytes] = []
        self.error: EngineFailed | None = None
        self.ended = asyncio.Event()

    @property
    def body(self) -> bytes:
        """What has come of the body."""
        return b"".join(self.chunks)

    def on_head(self, status: int, headers: Headers) -> None:
        """See `Sink`."""
        self.status, self.headers = status, dict(headers)

    def on_data(self, data: bytes) -> None:
        """See `Sink`."""
        self.chunks.append(data)

    def on_end(self) -> None:
        """See `Sink`."""
        self.ended.set()

    def on_failure(self, error: EngineFailed) -> None:
        """See `Sink`."""
        self.error = error
        self.ended.set()


class Nobody:
    """The sink of an answer that is made in the background."""

    def on_head(self, status: int, headers: Headers) -> None:
        """See `Sink`."""

    def on_data(self, data: bytes) -> None:
        """See `Sink`."""

    def on_end(self) -> None:
        """See `Sink`."""

    def on_failure(self, error: EngineFailed) -> None:
        """See `Sink`."""


class SimStream:
    """A `Stream`. What the engine says while its sink is paused waits here, as in a socket."""

    __slots__ = (
        "_arrived",
        "_held",
        "_left",
        "_loop",
        "_sink",
        "_timer",
        "begun",
        "job",
        "over",
        "paused",
        "sent",
        "slow",
    )

    def __init__(
        self, sink: Sink, loop: asyncio.AbstractEventLoop, left: Callable[[SimStream], None]
    ) -> None:
        self.sent = False
        self.paused = False
        self.over = False
        """Ended, failed or closed: nothing more is pushed."""
        self.begun = False
        """Its first bytes have gone out."""
        self.slow = 1.0
        """How many times as long as usual everything takes."""
        self.job: Job | None = None
        self._sink = sink
        self._loop = loop
        self._left = left
        self._arrived = loop.time()
        self._held: deque[tuple[float, Callable[..., None], tuple[object, ...]]] = deque()
        self._timer: asyncio.Handle | None = None

    def pause(self) -> None:
        """Hold back what comes."""
        self.paused = True

    def resume(self) -> None:
        """Go on; what was held comes in a later turn of the loop."""
        self.paused = False
        if self._held and self._timer is None:
            self._timer = self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Leave: the engine drops the request at once."""
        if not self.over:
            self._finish()
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._left(self)

    def head(self, status: int, headers: Headers) -> None:
        """Tell status and headers."""
        self._tell(self._sink.on_head, status, headers)

    def data(self, data: bytes) -> None:
        """Tell bytes of the body."""
        self._tell(self._sink.on_data, data)

    def end(self) -> None:
        """Tell the end."""
        self._tell(self._end)

    def fail(self, error: EngineFailed) -> None:
        """Tell that there will be no end."""
        self._tell(self._fail, error)

    def _tell(self, say: Callable[..., None], *what: object) -> None:
        if self.over:
            return
        if self.paused or self._held or self.slow > 1:
            now = self._loop.time()
            self._held.append((self._arrived + self.slow * (now - self._arrived), say, what))
            if not self.paused and self._timer is None:
                self._timer = self._loop.call_at(self._held[0][0], self._flush)
        else:
            say(*what)

    def _flush(self) -> None:
        self._timer = None
        while self._held and not self.paused:
            due = self._held[0][0]
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self._flush)
                return
            _, say, what = self._held.popleft()
            say(*what)

    def _end(self) -> None:
        self._finish()
        self._sink.on_end()

    def _fail(self, error: EngineFailed) -> None:
        self._finish()
        self._sink.on_failure(error)

    def _finish(self) -> None:
        self.over = True
