"""What an outcome counts as: the labels that are read off it, and no name that somebody gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import Finish

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome

FAILED = frozenset(map(str, (Finish.ENGINE_ERROR, Finish.TRUNCATED, Finish.TIMEOUT)))


def arm_result(o: Outcome) -> str:
    """Name what became of an arm's request; one that went elsewhere counts as failed."""
    if o.moved or o.finish in FAILED or o.status >= 500 or o.status == 429:
        return "failed"
    if o.finish is Finish.COMPLETED:
        return "answered"
    return "refused" if o.finish is Finish.REJECTED else "left"


def phase(o: Outcome) -> str:
    """Name where a request was when its caller left; one of `labels.PHASES`."""
    if o.first_byte is not None:
        return "streaming"
    if o.placed is not None:
        return "waiting"
    return "queued" if o.pool else "uploading"


def met(o: Outcome, targets: tuple[float, float] | None) -> str:
    """Name whether a request kept to its class's targets, ttft and tpot; empty: not to be said."""
    if targets is None or o.finish is Finish.LEFT or _is_callers_fault(o):
        return ""
    return "yes" if _met(o, *targets) else "no"


def _is_callers_fault(o: Outcome) -> bool:
    """Whether nothing could be promised: the engine found the request itself wrong."""
    return o.finish is Finish.REJECTED and o.status < 500 and o.status != 429


def _met(o: Outcome, ttft: float, tpot: float) -> bool:
    """Whether a request kept to its class's targets.

    A whole answer has no first token of its own: it met both when it was there as soon as the last
    token of a stream that just met them would have been.
    """
    if o.finish is not Finish.COMPLETED or o.first_token is None or o.last_token is None:
        return False
    gaps = max(0, (o.output_tokens or 1) - 1)
    if not o.stream:
        return o.last_token - o.received <= ttft + (tpot * gaps if gaps else 0.0)
    streamed = o.last_token - o.first_token
    return o.first_token - o.received <= ttft and (not gaps or streamed <= tpot * gaps)
