"""When a request that failed may be tried again, decided in one place.

Only before the first byte has gone to the caller, inside the deadline, a few times, never at an
endpoint that was tried, and only while a pool's retries stay a small share of its requests: when
everything fails, retries must not double the load. A request that broke after it was fully sent may
be what broke the engine, so it takes down two endpoints at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .window import SlidingCount

if TYPE_CHECKING:
    from forebay.policies.contracts import Request

MOVES_ON = frozenset({"broken", "full", "misconfigured", "missing_route"})
"""Verdicts (the adapters' words) after which another endpoint may do better. The others are final:
good is an answer, neutral is the caller's own fault."""

_BROKEN_AT_MOST = 2


class RetryBudget:
    """Lets retries be at most `share` of the requests of the last `window_s` seconds.

    `floor` retries a window are always allowed, so that a quiet pool can retry at all; a share of 0
    allows none.
    """

    __slots__ = ("_floor", "_requests", "_retries", "_share", "refused")

    def __init__(self, share: float, *, window_s: float = 10.0, floor: int = 3) -> None:
        self._share = share
        self._floor = floor if share > 0 else 0
        self.refused = 0
        """Retries that were not allowed."""
        self._requests = SlidingCount(window_s)
        self._retries = SlidingCount(window_s)

    def request(self, now: float) -> None:
        """Count a request of the pool (not its retries)."""
        self._requests.add(now)

    def allow(self, now: float) -> bool:
        """Take one retry from the budget; False, and nothing taken, when it is spent."""
        most = max(self._floor, self._share * self._requests.total(now))
        if self._retries.total(now) + 1 > most:
            self.refused += 1
            return False
        self._retries.add(now)
        return True


@dataclass(slots=True)
class Tries:
    """What has been tried for one request; one a request, written by whoever sends it."""

    made: int = 0
    """Attempts that have ended, however they ended."""
    broken: int = 0
    """Of those: broken after the request was fully sent."""

    @property
    def spent(self) -> bool:
        """It may be what breaks engines, so that it is tried nowhere any more."""
        return self.broken >= _BROKEN_AT_MOST

    def ended(self, verdict: str, *, sent: bool) -> None:
        """Note that an attempt failed; `sent`: the whole request had gone out."""
        self.made += 1
        if sent and verdict == "broken":
            self.broken += 1


def may_retry(  # noqa: PLR0913 - one place sees all that counts
    verdict: str,
    *,
    tries: Tries,
    attempts: int,
    begun: bool,
    elsewhere: bool,
    deadline: float,
    now: float,
    budget: RetryBudget,
) -> bool:
    """Decide whether a failed request is tried again; takes from the budget when it says yes.

    `tries` includes the attempt that just failed; `attempts` is how many further ones after the
    first the pool allows; `begun`: bytes have gone to the caller; `elsewhere`: an endpoint that was
    not tried could serve it (`Dispatcher.could_serve` with the wider `avoid`).
    """
    if begun or not elsewhere or verdict not in MOVES_ON:
        return False
    if tries.made > attempts or tries.broken >= _BROKEN_AT_MOST or now >= deadline:
        return False
    return budget.allow(now)


def again(request: Request, endpoint: str) -> Request:
    """Return the request as it is submitted again after `endpoint` failed: same place, one less."""
    return replace(request, avoid=request.avoid | {endpoint})
