"""Who may come into one pool's queue, and when whoever may not should return.

Four things keep a new request out: a watermark, its class's cap, its tenant's share of the queue,
and a full queue. From a full
queue the youngest of the lowest class gives way to a higher one. A request that comes back after an
attempt was let in before, so nobody asks here again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .admission import Admission
from .limits import QueueLimits, past_watermark, queue_full, share_taken
from .window import SlidingCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from forebay.policies.contracts import EndpointView, Overloaded, Request

    from .admission import WatermarkSettings
    from .waiting import Waiting

_RATE_WINDOW_S = 10.0
_LONGEST_RETRY_AFTER_S = 60.0


class Entrance:
    """Holds new requests against the limits of one queue."""

    __slots__ = ("_limits", "_pool", "_waiting", "admission", "starts")

    def __init__(
        self,
        *,
        pool: str,
        waiting: Waiting,
        limits: QueueLimits,
        watermarks: WatermarkSettings | None,
    ) -> None:
        self.admission = None if watermarks is None else Admission(watermarks)
        self.starts = SlidingCount(_RATE_WINDOW_S)
        """Placements of the last seconds."""
        self._pool = pool
        self._waiting = waiting
        self._limits = limits

    def set_limits(
        self, *, max_requests: int, max_bytes: int, classes: Mapping[str, int] | None
    ) -> None:
        """Change what may wait; what waits already stays."""
        self._limits = QueueLimits(max_requests, max_bytes, classes)

    def measure(self, views: Iterable[EndpointView], now: float) -> None:
        """Move the watermarks to what the endpoints say."""
        if self.admission is not None:
            self.admission.update(views, self._limits.use(self._waiting), now)

    def check_watermarks(self, request: Request, now: float) -> None:
        """Raise Overloaded where a watermark keeps the request out."""
        admission = self.admission
        if admission is None:
            return
        admission.fill(self._limits.use(self._waiting))
        reason = admission.refusal(request)
        if reason is not None:
            raise past_watermark(self._pool, reason, self.retry_after(now))

    def check_caps(self, request: Request, now: float) -> None:
        """Raise Overloaded or QuotaExceeded where as many of its class or tenant wait as may."""
        full = self._limits.class_full(request, self._waiting)
        if full:
            raise queue_full(self._pool, full, self.retry_after(now))
        full = self._limits.tenant_full(request, self._waiting)
        if full:
            raise share_taken(self._pool, full, self.retry_after(now))

    def in_the_way(self, request: Request, now: float) -> Iterator[Request]:
        """Go through those who have to leave the queue before the request can wait.

        One, and as many more as its body needs: a queue that is too full already, since its limits
        have shrunk, gets no fuller. Whoever asks takes each out before the next. Raises Overloaded,
        and nobody has to leave, when the queue is full and such room cannot be made.
        """
        share = 1.0 if self.admission is None else self.admission.queue_share
        limits, waiting, rank = self._limits, self._waiting, request.sla_rank
        full = limits.full(request, waiting, share)
        if not full:
            return
        over = limits.bytes_over(request, waiting, share)
        victim = waiting.displaceable(rank)
        if victim is None or waiting.bytes_below(rank) < over:
            raise queue_full(self._pool, full, self.retry_after(now))
        yield victim
        over -= victim.body_bytes
        while over > 0 and (victim := waiting.displaceable(rank)) is not None:
            yield victim
            over -= victim.body_bytes

    def displaced(self, now: float) -> Overloaded:
        """Word it for whoever had to leave."""
        return queue_full(self._pool, "a higher class took its place", self.retry_after(now))

    def retry_after(self, now: float) -> float:
        """Return in how many seconds what waits now will have started."""
        rate = self.starts.rate(now)
        if not rate:
            return _RATE_WINDOW_S
        return min(_LONGEST_RETRY_AFTER_S, max(1.0, (self._waiting.size + 1) / rate))
