"""What a failed call becomes: the caller's error, and the last step of its life."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from forebay.adapters.base import Verdict
from forebay.policies.contracts import (
    DeadlineExpired,
    EngineFailed,
    EngineRefused,
    EngineUnreachable,
    Finish,
    ForebayError,
    InvalidRequest,
    Overloaded,
)
from forebay.scheduler.lifecycle import Event, State

if TYPE_CHECKING:
    from forebay.adapters.base import Headers

RETRY_AFTER = 1.0
"""Seconds after which it may look different."""

_LONGEST_WAIT = 3600.0

_ENDS = {
    Finish.COMPLETED: Event.COMPLETE,
    Finish.REJECTED: Event.REJECT,
    Finish.ENGINE_ERROR: Event.FAIL,
    Finish.TRUNCATED: Event.CUT,
    Finish.LEFT: Event.LEAVE,
    Finish.TIMEOUT: Event.EXPIRE,
    Finish.DRAINED: Event.DRAIN,
}


def last_event(state: State, finish: Finish) -> Event:
    """Return the step that ends a call which finishes so."""
    if finish is Finish.ENGINE_ERROR and state is State.STREAMING:
        return Event.CUT  # its own error event came after bytes had gone
    return _ENDS[finish]


def not_started(pool: str, waited: float) -> DeadlineExpired:
    """Word that nothing could be placed before the deadline."""
    return DeadlineExpired(
        f"no endpoint of pool '{pool}' could start this in {waited:.1f} s", retry_after=RETRY_AFTER
    )


def shutting_down() -> Overloaded:
    """Word what the drain limit has left."""
    return Overloaded(
        "the gateway is shutting down; send this again",
        status=503,
        code="draining",
        retry_after=RETRY_AFTER,
    )


def retry_after(error: ForebayError) -> list[tuple[bytes, bytes]]:
    """Return the `Retry-After` of an error (RFC 9110, 10.2.3), in whole seconds, rounded up.

    Whoever came back a second early would be refused again.
    """
    seconds = error.retry_after
    return [] if seconds is None else [(b"retry-after", b"%d" % max(1, math.ceil(seconds)))]


def engines_retry_after(headers: Headers) -> float | None:
    """Return the seconds of an engine's `Retry-After`; None for a date, which no engine sends."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return min(float(value), _LONGEST_WAIT)
    return None


def told(error: ForebayError, status: int) -> str:
    """Return the reason that health and the log may hold.

    An engine's own words may quote the caller, so of those only the status is told.
    """
    return f"it answered {status}" if isinstance(error, EngineRefused) else error.message


def final(verdict: Verdict, error: ForebayError, pool: str) -> ForebayError:
    """Turn the last attempt's failure into what the caller is told."""
    if verdict is Verdict.FULL:
        text = f"an engine of pool '{pool}' is full, and no other may be tried: {error.message}"
        return Overloaded(text, retry_after=error.retry_after or RETRY_AFTER)
    if verdict is Verdict.MISSING_ROUTE:
        if isinstance(error, InvalidRequest) and error.status != 404:
            return error  # the adapter says what this engine cannot take
        text = f"no endpoint of pool '{pool}' has this route"
        return InvalidRequest(text, status=404, code="route_not_found")
    if verdict is Verdict.MISCONFIGURED:
        text = "the engine refused the gateway's key or model; its operator has to look at this"
        return EngineFailed(text, code="engine_misconfigured")
    if not isinstance(error, EngineRefused):
        # What went wrong names addresses: that is for the log.
        text = "cannot be reached" if isinstance(error, EngineUnreachable) else "broke off"
        status = 504 if error.status == 504 else 502
        return EngineFailed(f"an engine of pool '{pool}' {text}", status=status, code=error.code)
    return error
