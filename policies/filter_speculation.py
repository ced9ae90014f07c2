"""Keeps requests where speculation pays for them, and away from where it does not.

A request for which drafts are mostly guessed wrong, or whose answer is too short to make up for
them, goes to a plain endpoint while one has room; one for which they pay goes to a speculative
endpoint whose batch is small enough. It never leaves a request waiting that some endpoint could
take: where only the other kind has room, the other kind it is. So it comes after the filter for
room.

When not to use it: in a pool whose endpoints all speculate, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .contracts import EndpointView, Request


class Speculation:
    """max_batch: requests in flight from which an endpoint's drafts no longer pay."""

    name = "speculation"

    def __init__(self, *, max_batch: int = 32) -> None:
        self.max_batch = max_batch

    def __call__(
        self,
        request: Request,
        endpoints: Sequence[EndpointView],
        now: float,  # noqa: ARG002 - what pays was worked out when it was read
    ) -> Sequence[EndpointView]:
        """Keep the kind that pays, if any of it is left."""
        if request.speculates:
            paying = [e for e in endpoints if e.speculates and e.in_flight < self.max_batch]
            if paying:
                return paying
        return [e for e in endpoints if e.speculates is None] or endpoints
