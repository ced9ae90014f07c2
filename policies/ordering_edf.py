"""Earliest deadline first: whoever would run out of time soonest.

A request's time runs out at its longest wait where it has one, else at its deadline. So classes
with a short longest wait go before patient ones that came at the same time.

When not to use it: in overload it spends its effort on what is about to expire, and all are late.
Without classes every request has the same patience, and this is `fcfs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contracts import Request


class Edf:
    """Orders by the moment at which a request has waited too long, equals by age."""

    name = "edf"

    def __init__(self) -> None:
        self._lanes = Lanes()

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, request: Request, now: float) -> None:  # noqa: ARG002 - its own times decide
        """Take a request into the queue; ValueError when it waits already."""
        due = request.deadline
        if request.longest_wait is not None:
            due = min(due, request.arrived + request.longest_wait)
        self._lanes.add(request, (due, request.sequence))

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        return self._lanes.discard(request)

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:  # noqa: ARG002 - as Ordering has it
        """Remove and return the most pressing request that `fits`; None when none does."""
        return self._lanes.take(fits)
