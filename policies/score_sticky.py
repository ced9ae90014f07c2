"""Follow the prefix: the endpoint with the longest hit, until it is saturated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .score_least_tokens import LeastTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.prefixcache.index import Index

    from .contracts import EndpointView, Request


@dataclass(slots=True)
class StickyUntilSaturated:
    """Prefers whoever holds most of the prompt while it has few tokens in flight.

    After that it is the least loaded. When not to use it: prompts that share nothing (it costs a lookup and decides as `least_tokens`),
    or one prefix so hot that every endpoint should hold it from the start (it spreads only when an
    endpoint saturates, and warms the next one then).
    """

    index: Index
    saturated_tokens: int = 16_000
    """Predicted tokens in flight past which a hit is not worth the wait: what an engine prefills
    within its TTFT target."""
    fallback: LeastTokens = field(default_factory=LeastTokens)
    name: str = "sticky_until_saturated"

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        """Rate the endpoints: above one half are those that the prefix calls for."""
        loads = self.fallback(request, endpoints, now)
        if not request.blocks:
            return loads
        hits = self.index.match(request.blocks)
        best = max((hits.get(e.name, 0) for e in endpoints), default=0)
        if not best:
            return loads
        return [
            load / 2 + 0.5
            if hits.get(e.name) == best and e.in_flight_tokens <= self.saturated_tokens
            else load / 2
            for e, load in zip(endpoints, loads, strict=True)
        ]
