"""Which of a call's time limits is over; looked at a few times a second, and late by as much.

Until its first byte a call may be begun anew, which its relay decides. What streams can only go on
or be broken off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.adapters.base import Verdict
from forebay.policies.contracts import DeadlineExpired, EngineFailed, EngineUnreachable

from .attempt import COMMENT_AFTER
from .places import STALLED

if TYPE_CHECKING:
    from forebay.gateway.config.sections import Timeouts
    from forebay.policies.contracts import Request

    from .attempt import Attempt
    from .intake import Inbound
    from .relay import Relay

_SHORT_BODY = 64 << 10


def hold_start(relay: Relay, attempt: Attempt, limits: Timeouts, now: float) -> None:
    """Hold a call to the limits that count until its first byte."""
    inbound, request = relay.inbound, relay.request
    if now > request.deadline:
        text = f"no answer had begun after {now - request.arrived:.1f} s"
        relay.reject(DeadlineExpired(text))
    elif _is_long_connecting(attempt, inbound, request, now):
        error = EngineUnreachable(f"no connection within {limits.connect:g} s")
        relay.failed(attempt, Verdict.BROKEN, error)
    elif _is_stalled(attempt, inbound, request, now) and relay.leave(STALLED):
        return
    elif now - attempt.last_bytes > limits.first_byte:
        silent = EngineFailed(f"the engine sent nothing for {limits.first_byte:g} s", status=504)
        relay.failed(attempt, Verdict.BROKEN, silent, sent=True)


def _is_long_connecting(attempt: Attempt, inbound: Inbound, request: Request, now: float) -> bool:
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


def _is_stalled(attempt: Attempt, inbound: Inbound, request: Request, now: float) -> bool:
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
