"""Why no endpoint can serve a request: nothing such here, or nothing healthy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import InvalidRequest, Overloaded
from forebay.policies.filter_capability import has_model, has_route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.policies.contracts import EndpointView, Rejected, Request

_RETRY_AFTER_S = 1.0
"""An endpoint may return at any time, and to be refused again costs nobody much."""


def unservable(request: Request, pool: str, endpoints: Mapping[str, EndpointView]) -> Rejected:
    """Say why no endpoint can serve it: nothing such here (404), or nothing usable (503)."""
    views = endpoints.values()
    have_route = [view for view in views if has_route(view, request)]
    if views and not have_route:
        return InvalidRequest(
            f"no endpoint of pool {pool!r} has the route {request.route.value}",
            status=404,
            code="route_not_found",
        )
    if views and not any(has_model(view, request) for view in have_route):
        return InvalidRequest(
            f"no endpoint of pool {pool!r} serves the model {request.model!r}"
            f" on {request.route.value}",
            status=404,
            code="model_not_found",
            param="model",
        )
    if request.endpoint is not None and request.endpoint not in endpoints:
        return InvalidRequest(
            f"endpoint {request.endpoint!r} has left pool {pool!r}",
            status=404,
            code="endpoint_not_found",
        )
    untried = " and not yet tried" if request.avoid else ""
    return Overloaded(
        f"no endpoint of pool {pool!r} that could serve this is healthy{untried}; try again later",
        status=503,
        code="no_healthy_endpoint",
        retry_after=_RETRY_AFTER_S,
    )
