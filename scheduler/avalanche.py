"""Slows a pool's intake while far less of its prompts is cached than usual.

When caches are lost at once (engines restarted, a model swapped, a flood of new prompts), each
request costs the prefill of its whole prompt. At the same number in flight engines fall behind,
callers give up and try again, and what they ask anew is not cached either: an avalanche. So while
the recent hit rate is below a part of the usual one, endpoints get a smaller share of their places,
such that the prompt tokens to prefill of those in flight stay what they were:

    share = (1 - usual) / (1 - recent), but not below `floor`

and the rest waits in the pool's queue, in its order. As prompts come again the recent rate rises,
and the share with it; it is over once `back` of the usual rate is reached (hysteresis).

Two faded means of cached over prompt tokens, one of seconds and one of half an hour. While slowed
the long one stands still, so that it does not get used to it; after `longest` what was unusual is
the usual. A hit counts as it is predicted when a request is placed, and is put right when the
engine says what it was, since that may come minutes later.

Pure: events and `now` in, a share out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

RECENT_S = 15.0
USUAL_S = 1800.0
LEAST_USUAL = 0.1
"""Usual hit rates below this cannot collapse."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """When a hit rate has collapsed, and what follows."""

    below: float = 0.5
    """Of the usual hit rate: less is a collapse."""
    back: float = 0.75
    """Of the usual hit rate: as much ends it."""
    least: int = 20
    """Prompts lately, below which nothing is concluded."""
    floor: float = 0.25
    """Share of the places that is always left."""
    longest: float = 600.0
    """Seconds after which it ends anyway."""


class _Faded:
    """A faded sum of prompts, their tokens and the cached ones among these."""

    __slots__ = ("at", "cached", "fade_s", "prompts", "tokens")

    def __init__(self, fade_s: float) -> None:
        self.fade_s = fade_s
        self.at = self.prompts = self.tokens = self.cached = 0.0

    def add(self, prompts: int, tokens: float, cached: float, now: float) -> None:
        left = exp((self.at - now) / self.fade_s) if now > self.at else 1.0
        self.prompts = self.prompts * left + prompts
        self.tokens = self.tokens * left + tokens
        self.cached = self.cached * left + cached
        self.at = max(self.at, now)

    @property
    def rate(self) -> float:
        return min(1.0, max(0.0, self.cached / self.tokens)) if self.tokens > 0 else 0.0


class HitRateGuard:
    """Watches one pool's hit rate."""

    def __init__(self, settings: GuardSettings) -> None:
        self.slowed = False
        self.times = 0
        """How often it has been slowed."""
        self._settings = settings
        self._recent = _Faded(RECENT_S)
        self._usual = _Faded(USUAL_S)
        self._since = 0.0

    @property
    def recent(self) -> float:
        """The hit rate of the last seconds, 0 to 1."""
        return self._recent.rate

    @property
    def usual(self) -> float:
        """The hit rate of the last half hour; while slowed, as it was before."""
        return self._usual.rate

    @property
    def share(self) -> float:
        """How much of their places endpoints may use now."""
        if not self.slowed:
            return 1.0
        before, now = 1.0 - self.usual, 1.0 - self.recent
        return min(1.0, max(self._settings.floor, before / now if now > 0 else 1.0))

    def placed(self, prompt_tokens: int, hit_tokens: int, now: float) -> None:
        """Take in a request that is placed, with the hit that is predicted for it."""
        self._add(1, prompt_tokens, hit_tokens, now)

    def reported(self, hit_tokens: int, cached_tokens: int, now: float) -> None:
        """Take in what an engine says it had cached of a prompt, in the place of the prediction."""
        if cached_tokens != hit_tokens:
            self._add(0, 0, cached_tokens - hit_tokens, now)

    def _add(self, prompts: int, tokens: float, cached: float, now: float) -> None:
        self._recent.add(prompts, tokens, cached, now)
        if not self.slowed:
            self._usual.add(prompts, tokens, cached, now)

    def tick(self, now: float) -> bool:
        """Let time pass; True when it has begun or ended just now."""
        self._recent.add(0, 0, 0, now)
        recent, settings = self._recent, self._settings
        if self.slowed:
            enough = recent.rate >= settings.back * self.usual and recent.prompts >= 1
            if enough or now - self._since >= settings.longest:
                self._end(used_to_it=not enough)
                return True
            return False
        if recent.prompts < settings.least or self.usual < LEAST_USUAL:
            return False
        if self._usual.prompts < 2 * settings.least or recent.rate >= settings.below * self.usual:
            return False
        self._begin(now)
        return True

    def _begin(self, now: float) -> None:
        self.slowed, self._since = True, now
        self.times += 1
        usual, recent = self._usual, self._recent
        if usual.tokens > recent.tokens:  # the collapse itself is not what is usual
            usual.prompts -= recent.prompts
            usual.tokens -= recent.tokens
            usual.cached = max(0.0, usual.cached - recent.cached)

    def _end(self, *, used_to_it: bool) -> None:
        self.slowed = False
        if used_to_it:
            usual, recent = self._usual, self._recent
            usual.prompts, usual.tokens, usual.cached, usual.at = (
                recent.prompts,
                recent.tokens,
                recent.cached,
                recent.at,
            )
