"""Rates endpoints by predicted load: the tokens in flight there for each place it has.

    load = (tokens in flight + foreign waiting * this request's tokens) / places
    score = 1 / (1 + load / 1000)

*Places* is the limit as far as it may be used now (`limit * share`). *Foreign waiting* is what the
engine says is waiting there and cannot have come from us: other gateways' requests. Each counts as
much as the request at hand, since nothing better is known of them. An idle endpoint scores 1,
however small its share, so one that tries itself half-open soon gets its one request.

An endpoint that has not said how many wait, or said so longer than `stale` seconds ago, is taken
to have as many foreign ones as the worst of the others: silence never makes it look better. When no
endpoint says anything, our own tokens alone decide.

When not to use it: where prompts share long prefixes (it scatters them over all caches).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .contracts import EndpointView, Request

_SCALE = 1000.0
"""The load that scores one half; which endpoint is best does not depend on it."""


@dataclass(slots=True)
class LeastTokens:
    """Prefers the endpoint with the least predicted load a place."""

    stale: float = 10.0
    """Seconds after which a load reading counts as unknown."""
    name: str = "least_tokens"

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        """Rate the endpoints."""
        # One pass for the common case that nothing waits anywhere: .15 us an endpoint.
        scores = [
            _SCALE / (_SCALE + e.in_flight_tokens / (e.limit * e.share or 1.0))
            for e in endpoints
            if not e.waiting
        ]
        if len(scores) == len(endpoints):
            return scores
        return self._with_foreign(request, endpoints, now)

    def _with_foreign(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        own = request.uncached_tokens + request.output_tokens_estimate
        foreign = _foreign_waiting(endpoints, now - self.stale)
        return [
            _SCALE / (_SCALE + (e.in_flight_tokens + own * n) / (e.limit * e.share or 1.0))
            for e, n in zip(endpoints, foreign, strict=True)
        ]


def _foreign_waiting(endpoints: Sequence[EndpointView], oldest: float) -> list[int]:
    """Count those waiting that cannot be ours: what exceeds our requests in flight."""
    counts: list[int] = []
    unknown = False
    for e in endpoints:
        waiting, read = e.waiting, e.load_at
        if waiting is None or read is None or read < oldest:
            counts.append(-1)
            unknown = True
        else:
            others = waiting + (e.running or 0) - e.in_flight
            counts.append(0 if others <= 0 else min(others, waiting))
    if not unknown:
        return counts
    worst = max(0, *counts)
    return [worst if n < 0 else n for n in counts]
