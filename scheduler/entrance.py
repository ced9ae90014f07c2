"""Who may come into one pool's queue, and when whoever may not should return.

Five things keep a new request out: a watermark, its class's cap, its tenant's share of the queue, a
wait that is foretold to be too long, and a full queue. In the last two cases the youngest of the
lowest class gives way to a higher one. A request that comes back after an attempt was let in
before, so nobody asks here again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import Foretelling

from .admission import Admission
from .drain import Drain
from .limits import QueueLimits, past_watermark, queue_full, share_taken, too_long
from .window import SlidingCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from forebay.policies.contracts import EndpointView, Ordering, Overloaded, Request

    from .admission import WatermarkSettings
    from .guards import Guards
    from .waiting import Waiting

_RATE_WINDOW_S = 10.0
_LONGEST_RETRY_AFTER_S = 60.0


class Entrance:
    """Holds new requests against the limits of one queue."""

    __slots__ = (
        "_by_size",
        "_foretells",
        "_guards",
        "_limits",
        "_pool",
        "_waiting",
        "admission",
        "drain",
        "foretold",
        "starts",
    )

    def __init__(  # noqa: PLR0913 - whatever may have a say
        self,
        *,
        pool: str,
        waiting: Waiting,
        limits: QueueLimits,
        watermarks: WatermarkSettings | None,
        guards: Guards | None,
        ordering: Ordering,
    ) -> None:
        self.admission = None if watermarks is None else Admission(watermarks)
        self.starts = SlidingCount(_RATE_WINDOW_S)
        """Placements of the last seconds."""
        self.drain = None if guards is None or not guards.settings.early else Drain()
        """How fast the queue drains; None where nothing is foretold."""
        self.foretold = 0
        """New requests that were refused since they would have waited too long."""
        self._guards = guards
        self._foretells = ordering if isinstance(ordering, Foretelling) else None
        self._by_size = bool(getattr(ordering, "by_size", False))
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

    def is_open(self, request: Request, now: float) -> bool:
        """Tell, in passing, that nothing is near its limit; else `let_in` has the word."""
        limits, drain = self._limits, self.drain
        if limits.caps or request.queue_share is not None:
            return False
        share = 1.0 if self.admission is None else self.admission.queue_share
        if limits.full(request, self._waiting, share):
            return False
        return drain is None or drain.wait(self._waiting.size, now) <= self._left(request, now)

    def _left(self, request: Request, now: float) -> float:
        """Return for how long it may still wait."""
        assert self._guards is not None
        return min(self._guards.patience(request) + request.arrived, request.deadline) - now

    def let_in(self, request: Request, now: float) -> Iterator[Request]:
        """Go through those who have to leave the queue before the request can wait.

        Whoever asks takes each out before the next. Raises Overloaded or QuotaExceeded when it may
        not wait.
        """
        self._check_caps(request, now)
        slow = None if self.drain is None else self._foretell(request, self.drain, now)
        share = 1.0 if self.admission is None else self.admission.queue_share
        full = self._limits.full(request, self._waiting, share)
        if full:  # whoever is too slow then is among those in the way
            yield from self._in_the_way(request, full, share, now)
        elif slow is not None:
            yield slow

    def _check_caps(self, request: Request, now: float) -> None:
        full = self._limits.class_full(request, self._waiting)
        if full:
            raise queue_full(self._pool, full, self.retry_after(now))
        full = self._limits.tenant_full(request, self._waiting)
        if full:
            raise share_taken(self._pool, full, self.retry_after(now))

    def _foretell(self, request: Request, drain: Drain, now: float) -> Request | None:
        """Refuse what would wait until it gives up, or return who of a lower class may leave."""
        left = self._left(request, now)
        if drain.wait(self._waiting.size, now) <= left:
            return None
        wait = drain.wait(self._ahead(request), now)
        if wait <= left:
            return None
        victim = self._waiting.displaceable(request.sla_rank)
        # Where tenants take turns, only its own tenant's leaving brings it forward.
        if victim is None or (self._foretells is not None and victim.tenant != request.tenant):
            self.foretold += 1
            raise too_long(self._pool, wait, max(1.0, min(self.retry_after(now), wait - left)))
        return victim

    def _ahead(self, request: Request) -> float:
        """Count those that go before it to the same endpoints; 0 where that cannot be told."""
        alike = self._waiting.of_shape(request.shape)
        if self._foretells is not None:
            return min(alike, self._foretells.ahead(request))
        return 0.0 if self._by_size else alike

    def _in_the_way(
        self, request: Request, full: str, share: float, now: float
    ) -> Iterator[Request]:
        """Go through those who have to leave a full queue: one, and as many more as its body needs.

        A queue that is too full already, since its limits have shrunk, gets no fuller. Raises
        Overloaded, and nobody has to leave, when such room cannot be made.
        """
        limits, waiting, rank = self._limits, self._waiting, request.sla_rank
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
