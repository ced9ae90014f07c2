"""Which of a call's time limits is over; looked at a few times a second, and late by as much.

Until its first byte a call may be begun anew, so `relay` acts on what is found here. What streams
can only go on or be broken off, which is done here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import EngineFailed

from .attempt import COMMENT_AFTER

if TYPE_CHECKING:
    from forebay.gateway.config.sections import Timeouts
    from forebay.policies.contracts import Request

    from .attempt import Attempt
    from .intake import Inbound

_SHORT_BODY = 64 << 10


def is_long_connecting(attempt: Attempt, inbound: Inbound, request: Request, now: float) -> bool:
    """Tell whether a class's own time to connect is over; the pool's is kept by its connections.

    A long body may be under way when it looks as if nothing was sent: those are left to the pool's
    limit.
    """
    own = inbound.timeouts
    return (
        own is not None
        and attempt.stream is not None
        and not attempt.sent
        and request.body_bytes <= _SHORT_BODY
        and now - attempt.sent_at > own.connect
    )


def is_stalled(attempt: Attempt, inbound: Inbound, request: Request, now: float) -> bool:
    """Tell whether a stream in an arm on trial has had no byte for too long."""
    trial = inbound.trial
    return (
        trial is not None
        and bool(inbound.places)
        and request.stream
        and now - attempt.sent_at > trial.trial.section.stall
    )


def hold_stream(attempt: Attempt, limits: Timeouts, now: float, *, slow: bool) -> None:
    """Break a stream off that takes too long; keep the edge of one open whose engine is silent."""
    if now - attempt.sent_at > limits.total:
        _break_off(attempt, f"the answer took longer than {limits.total:g} s")
    elif slow:
        attempt.last_bytes = now  # it is the caller that nothing can be sent to
    elif now - attempt.last_bytes > limits.idle:
        _break_off(attempt, f"the engine sent nothing for {limits.idle:g} s")
    elif now - attempt.last_bytes < COMMENT_AFTER:
        attempt.endpoint.health.good_bytes(attempt.last_bytes)
    else:
        attempt.comment(now)


def _break_off(attempt: Attempt, text: str) -> None:
    attempt.stop()
    attempt.break_off(EngineFailed(text, status=504, code="engine_timeout"))
