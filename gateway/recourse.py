"""Where a call goes on when an attempt at it failed or its pool cannot serve it.

In its pool, at an endpoint that it has not tried; else at the next place that takes it for such a
reason (`places`); else nowhere. Whether that may be is said by `scheduler.retry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.adapters.base import Verdict
from forebay.scheduler.retry import MOVES_ON, Tries, may_retry

from .places import SATURATED, UNHEALTHY, moved_to, next_place

if TYPE_CHECKING:
    from forebay.policies.contracts import Request

    from .app import App
    from .intake import Inbound


class Recourse:
    """One call's: what it has tried, and what is left to it."""

    __slots__ = ("_app", "_inbound", "_tries")

    def __init__(self, app: App, inbound: Inbound) -> None:
        self._app = app
        self._inbound = inbound
        self._tries = Tries()

    def tried(self, verdict: Verdict, *, sent: bool) -> None:
        """Note how an attempt failed; `sent`: the whole request had gone out."""
        self._tries.ended(verdict, sent=sent)

    def may_retry(self, verdict: Verdict, wider: Request, now: float) -> bool:
        """Tell whether it may begin anew in its pool, and take that from the pool's budget.

        `wider` is the request with the endpoint that failed among those to avoid.
        """
        pool = self._inbound.pool
        return may_retry(
            verdict,
            tries=self._tries,
            attempts=pool.section.retry.attempts,
            begun=False,
            elsewhere=pool.dispatcher.could_serve(wider, now),
            deadline=wider.deadline,
            now=now,
            budget=pool.budget,
        )

    def reason(self, verdict: Verdict) -> str:
        """Return what a failed attempt is a reason for, as places name it; empty: to give up."""
        if verdict not in MOVES_ON or self._tries.spent:
            return ""
        return SATURATED if verdict is Verdict.FULL else UNHEALTHY

    def takes(self, reason: str) -> bool:
        """Tell whether a place is left that takes it for this reason."""
        return any(reason in place.reasons for place in self._inbound.places)

    def elsewhere(self, request: Request, reason: str) -> Request | None:
        """Return the request as it goes on at the next place, which becomes its own, if any."""
        place = next_place(self._inbound, reason)
        if place is None:
            return None
        self._app.moved(self._inbound, reason)
        return moved_to(self._inbound, request, place)
