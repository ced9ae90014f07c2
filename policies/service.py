"""How much work a request is predicted to be, for orderings that look at it.

    service = a * uncached prompt tokens + b * predicted output tokens

Prefill reads many tokens in one step and decode makes one, so an output token weighs more. It is
never less than 1: what costs nothing would otherwise always be the shortest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .contracts import Request

A = 1.0
"""Weight of an uncached prompt token."""
B = 2.0
"""Weight of an output token."""


def service_of(request: Request, *, uncached: int | None = None) -> float:
    """Return the predicted service; `uncached` where it is known better than when it came."""
    prompt = request.uncached_tokens if uncached is None else uncached
    return max(1.0, A * prompt + B * request.output_tokens_estimate)
