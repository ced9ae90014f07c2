"""Follow the prefix, until the endpoint that holds it has had too much of the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .prefill_rate import PrefillRate
from .residency import Residency
from .stalls import Stalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.prefixcache.index import Index

    from .contracts import EndpointView, Request

WINDOW_S = 60.0
"""How long work is counted before the count begins anew."""
_LATE = 0.25
"""How much a token's time that an endpoint is late counts, against a token to prefill. With more of
it fewer answers are late and more hits are lost; where nothing stalls it changes nothing."""
_ROOM = 1.25
"""Of its part of the work that an endpoint may have before more counts against it."""
_BEYOND = 2.0
"""How much a token beyond that counts; a token to prefill counts `stickiness`."""
_LARGE = 0.2
"""Of an endpoint's part of the work that a prompt is large at."""
_OUTLIER = 2.0
"""How many times the middle one's work is more than counts."""
_EMPTIER = 0.05
"""How much a token less of work counts against an endpoint within its part."""
_WAITING = 0.1
"""How much a token in flight counts."""
_SCALE = 1000.0
"""The cost that scores one half; which endpoint is best does not depend on it."""


class RecentWork:
    """Prefill work that went to each endpoint in this minute: tokens."""

    __slots__ = ("_before", "_largest", "_tokens", "_window", "_window_s")

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """`window_s` is after how long the count begins anew."""
        self._window_s = window_s
        self._window = 0
        self._tokens: dict[str, float] = {}
        self._largest = self._before = 0.0

    def add(self, endpoint: str, tokens: int, now: float) -> None:
        """Note work that goes to an endpoint now."""
        self._turn(now)
        self._tokens[endpoint] = self._tokens.get(endpoint, 0.0) + tokens
        self._largest = max(self._largest, float(tokens))

    def get(self, endpoint: str, now: float) -> float:
        """Return what it has had."""
        self._turn(now)
        return self._tokens.get(endpoint, 0.0)

    def largest(self) -> float:
        """Return the most that came at once, in this minute or the one before."""
        return max(self._largest, self._before)

    def forget(self, endpoint: str) -> None:
        """Forget an endpoint that left."""
        self._tokens.pop(endpoint, None)

    def _turn(self, now: float) -> None:
        window = int(now // self._window_s)
        if window > self._window:
            self._window = window
            self._tokens.clear()
            self._before, self._largest = self._largest, 0.0


class StickyUntilSaturated:
    """Prefers the endpoint where the least is left to prefill, until it has had too much to do.

    An endpoint's cost is `stickiness` times what it would have to prefill, plus twice what it
    would then have had of this minute's work beyond 1.25 of its part of it. So a long hit is
    followed until its holder has had that much more than its part; then another takes over and
    holds the prefix, too. So does it when the holder has stopped answering: what it is late counts
    as the prefill that it would have done meanwhile, by a quarter of `stickiness`. Where measured
    prefill rates differ by half or more, all that counts that much more at the slower ones. An
    adapter that would have to be fetched counts as some tokens to prefill (`residency`).

    Within its part the one that has had the most comes first (best fit, as in packing bins), by a
    little, so that somebody has room for the next large prompt: one that comes when all have had
    the same makes its endpoint's load whatever that was, and itself on top. Prompts in flight count
    a little against that, so that what comes at once is spread.

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
        residency: Residency | None = None,
    ) -> None:
        self.limits: Mapping[str, float] = {}
        """By SLA class, seconds within which a first byte must come."""
        self.index = index
        self._block_tokens = float(block_tokens)
        self._stickiness = stickiness
        self.work = work or RecentWork()
        self.prefill = prefill or PrefillRate()
        self.stalls = stalls or Stalls()
        self.residency = residency or Residency()

    def __call__(
        self, request: Request, endpoints: Sequence[EndpointView], now: float
    ) -> Sequence[float]:
        """Rate the endpoints."""
        blocks = request.blocks
        hits: Mapping[str, float] = self.index.worth(blocks) if blocks else {}
        prompt = float(request.prompt_tokens_estimate)
        left = [self._left(hits, view.name, prompt) for view in endpoints]
        scores = [_SCALE / (_SCALE + cost) for cost in self._costs(request, endpoints, left, now)]
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

    def _costs(
        self,
        request: Request,
        endpoints: Sequence[EndpointView],
        left: Sequence[float],
        now: float,
    ) -> list[float]:
        """Return what endpoints cost, in tokens that the fastest one prefills."""
        slow: list[float] = []
        had: list[float] = []
        costs: list[float] = []
        for place, view in enumerate(endpoints):
            name, times = view.name, self.prefill.slowness(view.name)
            own = left[place] + _LATE * self.stalls.tokens(name, now)
            own += self.residency.tokens(name, request.model)
            costs.append(self._stickiness * own * times)
            slow.append(times)
            had.append(self.work.get(name, now))
        if self.work.largest() < _LARGE * sum(had) / max(1, len(had)):
            for place, view in enumerate(endpoints):
                costs[place] += (had[place] + view.in_flight_tokens) * slow[place]
            return costs
        for place, view in enumerate(endpoints):
            had[place] = max(had[place], float(view.in_flight_tokens)) * slow[place]
            costs[place] += _WAITING * view.in_flight_tokens * slow[place]
        most, total = max(had, default=0.0), _usual(had)
        for place, load in enumerate(had):
            own = left[place] * slow[place]
            beyond = max(0.0, load + own - _ROOM / len(had) * (total + own))
            costs[place] += _BEYOND * beyond + _EMPTIER * (most - load)
        return costs


def _usual(work: Sequence[float]) -> float:
    """Return the sum of all, none as more than twice the middle one: a few may be flooded."""
    most = _OUTLIER * sorted(work)[len(work) // 2] if work else 0.0
    return sum(min(each, most) for each in work) if most else sum(work)
