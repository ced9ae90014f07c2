"""The last step of a placement: one endpoint out of the scored ones.

When not to use it: where many gateways place by the same stale scores, taking the best makes all of
them take the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from .contracts import EndpointView


class Seeded:
    """Takes the best score; `rng` spreads ties, so equal endpoints share evenly."""

    name = "seeded"

    def __call__(
        self,
        endpoints: Sequence[EndpointView],  # noqa: ARG002 - the scores say it all
        scores: Sequence[float],
        rng: Random,
    ) -> int:
        """Return the index of the chosen endpoint. The random source is only asked on a tie."""
        best = max(scores)
        if scores.count(best) == 1:
            return scores.index(best)
        ties = [index for index, score in enumerate(scores) if score == best]
        return ties[int(rng.random() * len(ties))]
