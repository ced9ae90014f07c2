"""How fast each endpoint prefills, measured on the answers that pass by, and what it has to do.

Theory of operation. A prompt's first byte comes after a fixed time and after its own prefill and
that of all before it, so over many prompts

    time to first byte = fixed + tokens to prefill / rate

with the tokens of those before it, as they were when it was placed. Both are fitted by least
squares over the last fifty prompts or so (weights fade by `KEPT` a prompt). Where all prompts are
about as long, the slope cannot be told from the fixed time; it is then drawn towards the plain
ratio, which is too slow rather than too fast. Its standard error says how much of a difference
between endpoints is noise: where prompts are mostly cached, first bytes tell of little else.

What an endpoint has to do fades at its rate. A first byte corrects it: whatever was placed before
that prompt is done. Only streams tell: a whole answer's first byte comes at its end.

Weakness: the rate is what callers see, decode of others and waiting inside the engine included; a
hit that did not happen counts as slowness until the endpoint's expectations have shrunk.
"""

from __future__ import annotations

import math

KEPT = 0.98
LEAST = 8
"""Prompts below which no rate is told, and between two fits: a fit takes 1 us."""
_USUAL = 3.0
_USUAL_S = 0.1
"""A time longer than so many times what was foretold, and this, counts as that."""
_SAME = 1.5
_SLOWEST = 8.0
"""Rates that differ less than SAME are taken to be equal, and no endpoint for slower than this."""
_SURE = 1.5
"""Standard errors by which an endpoint must be slower, and the fastest one faster."""
_DRAWN = 0.05
"""How strongly the slope is drawn to the plain ratio, against a spread as large as the mean."""


class Mark:
    """A prompt on its way."""

    __slots__ = ("ahead", "at", "placed")

    def __init__(self, placed: float, ahead: float, at: float) -> None:
        self.placed = placed
        """Tokens placed there until then, its own included."""
        self.ahead = ahead
        """Tokens to prefill until its first byte, its own included."""
        self.at = at


class _Endpoint:
    """Faded sums over prompts: x is tokens ahead, t the time to the first byte."""

    __slots__ = (
        *("ahead", "at", "doubt", "fixed_s", "n", "placed", "since", "slope"),
        *("t", "tt", "x", "xt", "xx"),
    )

    def __init__(self) -> None:
        self.ahead = self.at = self.placed = 0.0
        self.n = self.x = self.t = self.xx = self.xt = self.tt = 0.0
        self.slope = self.doubt = self.fixed_s = 0.0
        self.since = 0
        """Prompts since the last fit."""

    def let_pass(self, now: float) -> float:
        """Return what is still to be prefilled."""
        if now > self.at:
            if self.slope:
                self.ahead = max(0.0, self.ahead - (now - self.at) / self.slope)
            self.at = now
        return self.ahead

    def learn(self, x: float, t: float) -> None:
        self.n = self.n * KEPT + 1.0
        self.x = self.x * KEPT + x
        self.t = self.t * KEPT + t
        self.xx = self.xx * KEPT + x * x
        self.xt = self.xt * KEPT + x * t
        self.tt = self.tt * KEPT + t * t
        self.since += 1
        if self.since >= LEAST:
            self.since = 0
            self.fit()

    def longest(self, x: float) -> float:
        """Return what a first byte may take to be taken for the usual: one stall is no slowness."""
        if not self.slope:
            return math.inf
        return _USUAL * (self.fixed_s + x * self.slope) + _USUAL_S

    def fit(self) -> None:
        mean_x, mean_t = self.x / self.n, self.t / self.n
        if mean_x <= 0:
            return
        spread, both = self.xx / self.n - mean_x**2, self.xt / self.n - mean_x * mean_t
        drawn = _DRAWN * mean_x**2
        slope = (max(0.0, both) + drawn * mean_t / mean_x) / (max(0.0, spread) + drawn)
        self.slope = min(slope, mean_t / mean_x)
        self.fixed_s = max(0.0, mean_t - self.slope * mean_x)
        off = self.tt / self.n - mean_t**2 + self.slope * (self.slope * spread - 2.0 * both)
        self.doubt = math.sqrt(max(0.0, off) / (self.n * (max(0.0, spread) + drawn)))


class PrefillRate:
    """Measures the endpoints of one pool."""

    def __init__(self) -> None:
        self._endpoints: dict[str, _Endpoint] = {}
        self._least = 0.0
        """The fastest one's slope, at most."""

    def placed(self, endpoint: str, tokens: int, now: float) -> Mark:
        """Note a prompt with this much to prefill; hand the mark to `began`."""
        own = self._endpoints.get(endpoint)
        if own is None:
            own = self._endpoints[endpoint] = _Endpoint()
        own.let_pass(now)
        own.ahead += tokens
        own.placed += tokens
        return Mark(own.placed, own.ahead, now)

    def began(self, endpoint: str, mark: Mark, now: float) -> None:
        """Take in a stream's first byte."""
        own = self._endpoints.get(endpoint)
        if own is None or mark.placed > own.placed:  # forgotten since
            return
        own.learn(mark.ahead, min(max(0.0, now - mark.at), own.longest(mark.ahead)))
        if not own.since:
            slopes = (e.slope + _SURE * e.doubt for e in self._endpoints.values() if e.slope)
            self._least = min(slopes, default=0.0)  # none, while all prompts were wholly cached
        own.ahead = min(own.let_pass(now), own.placed - mark.placed)

    def rate(self, endpoint: str) -> float | None:
        """Return tokens a second; None until enough was seen."""
        own = self._endpoints.get(endpoint)
        return None if own is None or not own.slope else 1.0 / own.slope

    def slowness(self, endpoint: str) -> float:
        """Return how many times slower than the fastest an endpoint is; 1 for about as fast."""
        own = self._endpoints.get(endpoint)
        if own is None:
            return 1.0
        slope = own.slope - _SURE * own.doubt
        if slope <= self._least * _SAME:
            return 1.0
        return min(_SLOWEST, slope / (self._least * _SAME))

    def wait(self, endpoint: str, tokens: float, now: float) -> float | None:
        """Return in how many seconds a prompt with this much to prefill would begin to answer."""
        own = self._endpoints.get(endpoint)
        if own is None or not own.slope:
            return None
        return own.fixed_s + (own.let_pass(now) + tokens) * own.slope

    def restarted(self, endpoint: str) -> None:
        """Take in that nothing is under way there any more; it is as fast as before."""
        own = self._endpoints.get(endpoint)
        if own is not None:
            own.ahead = 0.0

    def forget(self, endpoint: str) -> None:
        """Forget an endpoint that left."""
        self._endpoints.pop(endpoint, None)
