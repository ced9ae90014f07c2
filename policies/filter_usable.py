"""Keeps endpoints in rotation: probes pass, breaker closed, configuration right.

When not to use it: never leave it out, unless something else decides what is in rotation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .contracts import EndpointView, Request


class Usable:
    """Keeps what is usable."""

    name = "usable"
    stable = True

    def __call__(
        self,
        request: Request,  # noqa: ARG002 - alike for every request
        endpoints: Sequence[EndpointView],
        now: float,  # noqa: ARG002 - likewise
    ) -> Sequence[EndpointView]:
        """Keep the usable endpoints."""
        return [endpoint for endpoint in endpoints if endpoint.usable]
