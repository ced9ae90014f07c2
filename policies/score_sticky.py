"""Follow the prefix, until the endpoint that holds it has had too much of the work."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from typing import TYPE_CHECKING

from .prefill_rate import PrefillRate
from .stalls import Stalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.prefixcache.index import Index

    from .contracts import EndpointView, Request

_LATE = 0.25
"""How much a token's time that an endpoint is late counts, against a token to prefill. With more of
it fewer answers are late and more hits are lost; where nothing stalls it changes nothing."""
_SCALE = 1000.0
"""The cost that scores one half; which endpoint is best does not depend on it."""


class RecentWork:
    """Prefill work that went to each endpoint lately: tokens, fading with time."""

    __slots__ = ("_fade_s", "_work")

    def __init__(self, fade_s: float = 60.0) -> None:
        """`fade_s` is the time in which work fades to 1/e."""
        self._fade_s = fade_s
        self._work: dict[str, tuple[float, float]] = {}

    def add(self, endpoint: str, tokens: int, now: float) -> None:
        """Note work that goes to an endpoint now."""
        self._work[endpoint] = (self.get(endpoint, now) + tokens, now)

    def get(self, endpoint: str, now: float) -> float:
        """Return what of it has not faded."""
        tokens, at = self._work.get(endpoint, (0.0, now))
        return tokens * exp((at - now) / self._fade_s) if now > at else tokens

    def forget(self, endpoint: str) -> None:
        """Forget an endpoint that left."""
        self._work.pop(endpoint, None)


@dataclass(slots=True)
class StickyUntilSaturated:
    """Prefers the endpoint where the least is left to prefill, weighed against its recent work.

    An endpoint's cost is `stickiness` times what it would have to prefill, plus the tokens in
    flight there and its recent prefill work. So a long hit is followed until its holder has had
    that much more to do than the others; then another takes over and holds the prefix, too. So does
    it when the holder has stopped answering: what it is late counts as the prefill that it would
    have done meanwhile, by a quarter of `stickiness`. Where the measured prefill rates differ by
    half or more, the cost of the slower ones counts that much more.

    Where the request's SLA class names a `ttft`, an endpoint is saturated for it once its first
    byte would come later than that, as the measured prefill rates foretell: it comes after all that
    are not. Where all are, cost alone decides: to scatter prefixes then would make all still later.

    When not to use it: prompts that have nothing in common, which it spreads by recent prefill work
    at the price of a lookup.
    """

    index: Index
    block_tokens: int
    stickiness: float = 16.0
    work: RecentWork = field(default_factory=RecentWork)
    prefill: PrefillRate = field(default_factory=PrefillRate)
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    """By SLA class, seconds within which a first byte must come."""
    stalls: Stalls = field(default_factory=Stalls)
    name: str = "sticky_until_saturated"

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        """Rate the endpoints."""
        hits: Mapping[str, float] = self.index.worth(request.blocks) if request.blocks else {}
        prompt, work = request.prompt_tokens_estimate, self.work.get
        limit = self.limits.get(request.sla) if self.limits else None
        scores: list[float] = []
        late: list[bool] = []
        for e in endpoints:
            uncached = max(0, prompt - hits.get(e.name, 0) * self.block_tokens)
            cost = self.stickiness * (uncached + _LATE * self.stalls.tokens(e.name, now))
            cost += e.in_flight_tokens + work(e.name, now)
            cost *= self.prefill.slowness(e.name)
            scores.append(_SCALE / (_SCALE + cost))
            if limit is not None:
                wait = self.prefill.wait(e.name, uncached, now)
                late.append(wait is not None and wait > limit)
        if not any(late) or all(late):
            return scores
        rated = zip(scores, late, strict=True)
        return [0.5 * score + (0.0 if is_late else 0.5) for score, is_late in rated]
