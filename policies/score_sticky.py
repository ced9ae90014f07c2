"""Follow the prefix, until the endpoint that holds it has had too much of the work."""

from __future__ import annotations

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


class _Work:
    """Of one endpoint: tokens, as they were at a moment."""

    __slots__ = ("at", "tokens")

    def __init__(self) -> None:
        self.at = self.tokens = 0.0

    def left(self, now: float, fade_s: float) -> float:
        return self.tokens * exp((self.at - now) / fade_s) if now > self.at else self.tokens


class RecentWork:
    """Prefill work that went to each endpoint lately: tokens, fading with time."""

    __slots__ = ("_fade_s", "_work")

    def __init__(self, fade_s: float = 60.0) -> None:
        """`fade_s` is the time in which work fades to 1/e."""
        self._fade_s = fade_s
        self._work: dict[str, _Work] = {}

    def add(self, endpoint: str, tokens: int, now: float) -> None:
        """Note work that goes to an endpoint now."""
        own = self._work.get(endpoint)
        if own is None:
            own = self._work[endpoint] = _Work()
        own.tokens, own.at = own.left(now, self._fade_s) + tokens, now

    def get(self, endpoint: str, now: float) -> float:
        """Return what of it has not faded."""
        own = self._work.get(endpoint)
        return 0.0 if own is None else own.left(now, self._fade_s)

    def forget(self, endpoint: str) -> None:
        """Forget an endpoint that left."""
        self._work.pop(endpoint, None)


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

    name = "sticky_until_saturated"

    def __init__(  # noqa: PLR0913 - each can be another's, too
        self,
        index: Index,
        block_tokens: int,
        stickiness: float = 16.0,
        *,
        work: RecentWork | None = None,
        prefill: PrefillRate | None = None,
        stalls: Stalls | None = None,
    ) -> None:
        self.limits: Mapping[str, float] = {}
        """By SLA class, seconds within which a first byte must come."""
        self.index = index
        self._block_tokens = float(block_tokens)
        self._stickiness = stickiness
        self.work = work or RecentWork()
        self.prefill = prefill or PrefillRate()
        self.stalls = stalls or Stalls()

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        """Rate the endpoints."""
        blocks = request.blocks
        hits: Mapping[str, float] = self.index.worth(blocks) if blocks else {}
        prompt = float(request.prompt_tokens_estimate)
        left = [self._left(hits, view.name, prompt) for view in endpoints]
        costs = [
            self._cost(view, tokens, now) for view, tokens in zip(endpoints, left, strict=True)
        ]
        scores = [_SCALE / (_SCALE + cost) for cost in costs]
        limit = self.limits.get(request.sla) if self.limits else None
        if limit is None:
            return scores
        waits = [
            self.prefill.wait(view.name, tokens, now)
            for view, tokens in zip(endpoints, left, strict=True)
        ]
        late = [wait is not None and wait > limit for wait in waits]
        if not any(late) or all(late):
            return scores
        rated = zip(scores, late, strict=True)
        return [0.5 * score + (0.0 if is_late else 0.5) for score, is_late in rated]

    def _left(self, hits: Mapping[str, float], endpoint: str, prompt: float) -> float:
        """Return the tokens that an endpoint would have to prefill."""
        if not hits:
            return prompt
        return max(0.0, prompt - hits.get(endpoint, 0.0) * self._block_tokens)

    def _cost(self, view: EndpointView, uncached: float, now: float) -> float:
        name = view.name
        cost = self._stickiness * (uncached + _LATE * self.stalls.tokens(name, now))
        cost += view.in_flight_tokens + self.work.get(name, now)
        return cost * self.prefill.slowness(name)
