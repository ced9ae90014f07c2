"""Keeps endpoints that can serve a request at all: route, model, the one it is bound to.

What an endpoint has not said (routes None, no models) counts as served: the engine's own answer
tells better than a guess. Endpoints that the request already tried, and those that an experiment
keeps it from, are left out.

When not to use it: only in a pool whose endpoints are all alike and where nothing is retried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .contracts import EndpointView, Request


class Capability:
    """Keeps what has the route and the model, is asked for, and was not tried yet."""

    name = "capability"
    stable = True

    def __call__(
        self,
        request: Request,
        endpoints: Sequence[EndpointView],
        now: float,  # noqa: ARG002 - what an endpoint can do does not pass with time
    ) -> Sequence[EndpointView]:
        """Keep the endpoints that can serve the request."""
        return [
            endpoint
            for endpoint in endpoints
            if has_route(endpoint, request)
            and has_model(endpoint, request)
            and request.endpoint in (None, endpoint.name)
            and endpoint.name not in request.avoid
            and endpoint.name not in request.without
        ]


def has_route(endpoint: EndpointView, request: Request) -> bool:
    """Tell whether an endpoint has the request's route; what it has not said, it has."""
    return endpoint.routes is None or request.route in endpoint.routes


def has_model(endpoint: EndpointView, request: Request) -> bool:
    """Tell whether an endpoint serves the request's model; one that names none takes any."""
    return not endpoint.models or request.model in endpoint.models
