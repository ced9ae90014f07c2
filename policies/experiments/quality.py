"""When an endpoint's answers have become bad: empty, one token over and over, no JSON where asked.

Answers are counted in windows. An endpoint is suspect when the share of bad ones in this window and
the last is surely above its limit (the lower end of a confidence sequence), and stays so for a
while; then it begins anew. When every endpoint of a pool is suspect none is: it is the prompts, or
the model, and somebody has to answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .bounds import share_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KINDS = ("empty", "repeated", "broken_json")
_ALPHA = 0.001


@dataclass(frozen=True, slots=True)
class QualityLimits:
    """What is too much."""

    limits: Mapping[str, float]
    """Share of answers, by kind."""
    window_s: float = 60.0
    out_s: float = 60.0
    """How long a suspect endpoint gets nothing more."""


class EndpointQuality:
    """One endpoint's answers of late."""

    __slots__ = ("_now", "_settings", "_since", "_then", "until", "why")

    def __init__(self, settings: QualityLimits, now: float) -> None:
        self._settings = settings
        self._since = now
        self._now: dict[str, list[int]] = {}
        self._then: dict[str, list[int]] = {}
        self.until = 0.0
        """Until when it is suspect; 0: it is not."""
        self.why = ""
        """Why it was suspect last."""

    def add(self, found: Mapping[str, bool], now: float) -> str:
        """Count one answer, by each kind that was looked for; return why it is suspect from now."""
        self._turn(now)
        for kind, bad in found.items():
            counts = self._now.setdefault(kind, [0, 0])
            counts[0] += bad
            counts[1] += 1
        if self.until or not any(found.values()):
            return ""
        return self._suspicion(now)

    def _suspicion(self, now: float) -> str:
        for kind, limit in self._settings.limits.items():
            hits, total = self._counts(kind)
            low, _ = share_bounds(hits, total, _ALPHA)
            if low > limit:
                self.until = now + self._settings.out_s
                self.why = f"{hits} of {total} answers are {kind.replace('_', ' ')}"
                return self.why
        return ""

    def _counts(self, kind: str) -> tuple[int, int]:
        now, then = self._now.get(kind, (0, 0)), self._then.get(kind, (0, 0))
        return now[0] + then[0], now[1] + then[1]

    def tick(self, now: float) -> bool:
        """Let time pass; True when it is suspect no more."""
        self._turn(now)
        if not self.until or now < self.until:
            return False
        self.until = 0.0
        self._now, self._then = {}, {}
        return True

    def _turn(self, now: float) -> None:
        if now - self._since >= self._settings.window_s:
            self._since, self._then, self._now = now, self._now, {}


def out_of(suspects: Iterable[str], usable: Iterable[str]) -> frozenset[str]:
    """Return the suspects that get nothing more: none where they are all there is."""
    gone = frozenset(suspects)
    return gone if set(usable) - gone else frozenset()
