"""What ended requests teach a pool's scheduling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import Charged
from forebay.scheduler.length import Learning

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import Ordering, Outcome, Placement, Request
    from forebay.scheduler.cost import Cost
    from forebay.scheduler.length import Estimator
    from forebay.scheduler.window_adaptive import AdaptiveWindow

    from .media import MediaTokens


class Feedback:
    """What becomes of an outcome: a true cost, better predictions, a wider window."""

    __slots__ = ("_charged", "_cost", "_learn", "_media")

    def __init__(
        self, ordering: Ordering, predictor: Estimator, cost: Cost, media: MediaTokens
    ) -> None:
        self._media = media
        self._charged = isinstance(ordering, Charged)
        self._cost = cost
        self._learn: Callable[[Request, Outcome], None] | None = (
            predictor.learn if isinstance(predictor, Learning) else None
        )

    def ended(
        self, placement: Placement, outcome: Outcome, window: AdaptiveWindow | None
    ) -> tuple[float | None, bool]:
        """Take in how a placed request ended.

        Return its true cost, None where it is not known, and whether its window has changed.
        """
        if self._learn is not None:
            self._learn(placement.request, outcome)
        self._media.learn(placement.request, outcome)
        moved = window is not None and window.ended(*_times(placement, outcome))
        output = outcome.output_tokens
        if output is None and outcome.stream:
            output = outcome.events or None  # who leaves before the end pays for what came
        if not self._charged or output is None:
            return None, moved
        prompt = outcome.prompt_tokens
        if prompt is None:
            uncached = placement.request.uncached_tokens
        else:
            uncached = max(0, prompt - (outcome.cached_tokens or 0))
        return self._cost(uncached_tokens=uncached, output_tokens=output), moved


def _times(placement: Placement, outcome: Outcome) -> tuple[float | None, float | None]:
    """Return TTFT from the placement, and TPOT, of a stream; whole answers show neither."""
    first, last = outcome.first_token, outcome.last_token
    if first is None or not outcome.stream:
        return None, None
    tokens = outcome.output_tokens
    if last is None or not tokens or tokens < 2:
        return first - placement.placed, None
    return first - placement.placed, (last - first) / (tokens - 1)
