"""Keeps endpoints with room, so that requests wait here, where they can still be reordered.

When not to use it: in front of endpoints that queue better than the gateway could, such as another
forebay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .contracts import EndpointView, Request


class Room:
    """Keeps what is below its in-flight limit."""

    name = "room"

    def __call__(
        self,
        request: Request,  # noqa: ARG002 - every request takes one place
        endpoints: Sequence[EndpointView],
        now: float,  # noqa: ARG002 - likewise
    ) -> Sequence[EndpointView]:
        """Keep the endpoints that may take one more."""
        # `room > 0` written out where the whole limit counts: the property costs twice as much.
        return [
            e
            for e in endpoints
            if (e.usable and e.in_flight < e.limit if e.share == 1.0 else e.room > 0)
        ]
