"""First come, first served: the oldest request that some endpoint has room for.

When not to use it: where tenants share a pool (one that sends much makes all others wait) or where
short answers wait behind long ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lanes import Lanes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contracts import Request


class Fcfs:
    """Orders by `sequence`, so a request that comes back keeps its place."""

    name = "fcfs"

    def __init__(self) -> None:
        self._lanes = Lanes()

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, request: Request, now: float) -> None:  # noqa: ARG002 - time decides nothing here
        """Take a request into the queue; ValueError when it waits already."""
        self._lanes.add(request, (request.sequence, 0.0))

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        return self._lanes.discard(request)

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:  # noqa: ARG002 - as Ordering has it
        """Remove and return the oldest request that `fits`; None when none does."""
        return self._lanes.take(fits)
