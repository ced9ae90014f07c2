"""Shortest job first, by predicted service.

Nothing has a lower mean wait where predictions are good.

When not to use it: without the guards long requests wait for as long as short ones come; where
predictions are poor it only shuffles; and a caller who sets a small max_tokens goes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lanes import Lanes
from .service import service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contracts import Request


class Sjf:
    """Orders by the service predicted when a request came, equals by age."""

    name = "sjf"
    by_size = True

    def __init__(self) -> None:
        self._lanes = Lanes()

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, request: Request, now: float) -> None:  # noqa: ARG002 - size alone decides
        """Take a request into the queue; ValueError when it waits already."""
        self._lanes.add(request, (service_of(request), request.sequence))

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        return self._lanes.discard(request)

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:  # noqa: ARG002 - as Ordering has it
        """Remove and return the shortest request that `fits`; None when none does."""
        return self._lanes.take(fits)
