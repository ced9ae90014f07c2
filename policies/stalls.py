"""Engines that have stopped answering for a while, seen by the streams that wait for them.

Theory of operation. A first byte is foretold when a prompt is placed (`prefill_rate`). Engines keep
to that, but for steps that take seconds: a kernel compiled for a new shape, a core taken away. Then
nothing that is sent there begins, hits as little as misses, and tokens in flight hardly show it,
since a hit leaves few. How late the oldest one is, is the best guess of how late it will yet be (of
stalls of all lengths, one that has lasted t lasts about as long again), and in that time another
endpoint could have prefilled so many tokens: that is what a stall costs.

Weakness: only streams tell, and who was sent there before is not called back.
"""

from __future__ import annotations

from .prefill_rate import PrefillRate

TIMES = 2.0
GRACE_S = 0.25
"""A first byte is late after TIMES what was foretold, and this."""
UNKNOWN_S = 1.0
"""What is late where nothing was measured yet."""
UNKNOWN_RATE = 10_000.0
"""Tokens a second, where nothing was measured anywhere."""


class Stalls:
    """Streams of one pool that wait for their first byte."""

    def __init__(self, prefill: PrefillRate | None = None) -> None:
        """`prefill` foretells; it is told of placements before this is."""
        self._prefill = prefill or PrefillRate()
        self._due: dict[str, dict[str, float]] = {}
        """By endpoint and request, until when a first byte is in time; the oldest first."""

    def placed(self, endpoint: str, request: str, now: float) -> None:
        """Note a stream that was sent to an endpoint."""
        wait = self._prefill.wait(endpoint, 0.0, now)
        due = now + (UNKNOWN_S if wait is None else TIMES * wait + GRACE_S)
        self._due.setdefault(endpoint, {})[request] = due

    def ended(self, endpoint: str, request: str) -> None:
        """Take in that it has begun, or is over; harmless twice."""
        waiting = self._due.get(endpoint)
        if waiting is not None:
            waiting.pop(request, None)

    def tokens(self, endpoint: str, now: float) -> float:
        """Return what could be prefilled in the time that an endpoint is late; mostly 0."""
        waiting = self._due.get(endpoint)
        if not waiting:
            return 0.0
        late = now - next(iter(waiting.values()))
        return late * self._rate(endpoint) if late > 0 else 0.0

    def forget(self, endpoint: str) -> None:
        """Forget an endpoint that left."""
        self._due.pop(endpoint, None)

    def _rate(self, endpoint: str) -> float:
        rate = self._prefill.rate(endpoint)
        if rate is not None:
            return rate
        return max(self._prefill.rate(other) or 0.0 for other in self._due) or UNKNOWN_RATE
