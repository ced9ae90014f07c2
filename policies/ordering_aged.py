"""First come, first served, with a head start for small requests: no predictor is needed.

    place = arrival - boost * (1 - share of recent requests that are smaller)

Size is the uncached prompt and what this tenant's answers cost on average, both plain counts. The
boost is `patience` times the mean wait of late, so it is nothing in an idle pool and grows with the
queue. Nobody is passed over by anyone who came more than the boost after, which is what protects
the tail: a long request waits at most that much longer than first come, first served would have it.

When not to use it: with a good predictor `ml` has a lower mean wait, and it is fair to tenants.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .lanes import Lanes
from .service import A

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contracts import Request

_STEP = 0.02
"""Of each new value in a running mean."""
_MAX_TENANTS = 4096


@dataclass(slots=True)
class Aged:
    """Orders by arrival less a bounded head start; equals by sequence."""

    patience: float = 2.0
    """The head start of the smallest, in mean waits."""
    recent: int = 256
    """How many sizes are remembered."""
    name: str = "aged"
    _lanes: Lanes = field(default_factory=Lanes, init=False, repr=False)
    _sizes: list[float] = field(default_factory=list[float], init=False, repr=False)
    _order: deque[float] = field(default_factory=deque[float], init=False, repr=False)
    _answers: dict[str, float] = field(default_factory=dict[str, float], init=False, repr=False)
    _wait: float = field(default=0.0, init=False)

    def __len__(self) -> int:
        return len(self._lanes)

    def add(self, request: Request, now: float) -> None:  # noqa: ARG002 - its arrival decides
        """Take a request into the queue; ValueError when it waits already."""
        size = A * request.uncached_tokens + self._answers.get(request.tenant, 0.0)
        smaller = bisect_left(self._sizes, size) / (len(self._sizes) or 1)
        boost = self.patience * self._wait * (1.0 - smaller)
        self._lanes.add(request, (request.arrived - boost, request.sequence))
        self._remember(size)

    def discard(self, request: Request) -> bool:
        """Forget a request that left; False when it was not waiting."""
        return self._lanes.discard(request)

    def next(self, now: float, fits: Callable[[Request], bool]) -> Request | None:  # noqa: ARG002 - as Ordering has it
        """Remove and return the first request that `fits`; None when none does."""
        return self._lanes.take(fits)

    def started(self, request: Request, cost: float, now: float) -> None:  # noqa: ARG002 - as Ordering has it
        """Learn how long requests wait."""
        self._wait += _STEP * (max(0.0, now - request.arrived) - self._wait)

    def settled(self, request: Request, charged: float, cost: float) -> None:  # noqa: ARG002 - as Ordering has it
        """Learn what a tenant's answers cost."""
        answer = max(0.0, cost - A * request.uncached_tokens)
        if cost and (request.tenant in self._answers or len(self._answers) < _MAX_TENANTS):
            mean = self._answers.get(request.tenant, answer)
            self._answers[request.tenant] = mean + _STEP * (answer - mean)

    def _remember(self, size: float) -> None:
        insort(self._sizes, size)
        self._order.append(size)
        if len(self._order) > self.recent:
            del self._sizes[bisect_left(self._sizes, self._order.popleft())]
