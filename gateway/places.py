"""Where a request may go, one place after the other.

A place is a pool and the part of it that counts. The first is where a request belongs; it moves on
when that one cannot serve it, for a reason that the next place takes it for. Each place is named
once, so there is no loop.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from forebay.policies.contracts import ForebayError, Request

    from .intake import Inbound
    from .pools import Pool

UNHEALTHY = "unhealthy"
"""Nothing usable, or the engines broke off."""
SATURATED = "saturated"
"""Full: the queue, or all engines."""
TOO_LONG = "too_long"
"""The engine's context is too short for it."""
BAD_ANSWER = "bad_answer"
"""The answer was empty, or one token over and over."""
STALLED = "stalled"
"""No first byte for too long, in an arm on trial."""
ROLLED_BACK = "rolled_back"
"""Its arm was taken back while it waited there."""
FROM_AN_ARM = frozenset({UNHEALTHY, SATURATED, TOO_LONG, STALLED, ROLLED_BACK})


class Place(Struct, frozen=True, gc=False):
    """A pool, the model's name there, and the endpoints of it that do not count."""

    pool: Pool
    model: str
    without: frozenset[str] = frozenset()
    reasons: frozenset[str] = FROM_AN_ARM
    """What a request may come here for, when it belonged elsewhere."""


def next_place(inbound: Inbound, reason: str) -> Place | None:
    """Return the next place that takes a request for this reason; those before it are passed by."""
    for number, place in enumerate(inbound.places, 1):
        if reason in place.reasons:
            inbound.places = inbound.places[number:]
            return place
    return None


def moved_to(inbound: Inbound, request: Request, place: Place) -> Request:
    """Return the request as it goes to another place, and make that one its pool."""
    call, pool = inbound.call, place.pool
    same = pool is inbound.pool
    inbound.pool, call.model, call.allow = pool, place.model, pool.allow
    return replace(
        request,
        pool=pool.name,
        model=place.model,
        without=place.without,
        blocks=request.blocks if same else (),
        avoid=request.avoid if same else frozenset(),
    )


def reason_of(error: ForebayError) -> str:
    """Return why a pool refused a request, as places name it."""
    return SATURATED if error.status == 429 else UNHEALTHY


_TOO_LONG = re.compile(
    r"context (?:length|size|window)|maximum (?:context|sequence|model) length|max_model_len|"
    r"too (?:long|many tokens)|exceeds? the (?:available|model)",
    re.IGNORECASE,
)


def is_too_long(message: str) -> bool:
    """Tell whether an engine's refusal is about its context length, by the words engines use."""
    return _TOO_LONG.search(message) is not None
