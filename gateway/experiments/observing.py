"""What an outcome says of its arm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import Finish
from forebay.policies.experiments.tallies import Cell, Observation, bucket_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.policies.contracts import Outcome

_FAILED = frozenset({Finish.ENGINE_ERROR, Finish.TRUNCATED, Finish.TIMEOUT})
_CUT = frozenset({"length", "max_tokens", "incomplete"})
"""Finish reasons of answers that came to their limit, in the three dialects."""
_ANY = float("inf")


def failed_observation(arm: str, sla: str, prompt_tokens: int) -> Observation:
    """Return what is said of an arm that could not serve a request, whoever served it then."""
    return Observation(arm, Cell(sla, bucket_of(prompt_tokens)), errors=True)


def observe(
    outcome: Outcome,
    arm: str,
    *,
    prompt_tokens: int,
    targets: Mapping[str, tuple[float, float]],
    cold: bool = False,
) -> Observation | None:
    """Return what an outcome says; None when it says nothing of its arm.

    `prompt_tokens` is the estimate, which does not depend on the engine; `targets` are each class's
    TTFT and TPOT.
    """
    finish = outcome.finish
    if finish is Finish.DRAINED or (finish is Finish.LEFT and outcome.first_byte is not None):
        return None
    cell = Cell(outcome.sla, bucket_of(prompt_tokens))
    if finish is Finish.LEFT:
        return Observation(arm, cell, left=True)
    if finish is Finish.REJECTED:
        return _rejected(outcome, arm, cell)
    if finish in _FAILED:
        promised = None if outcome.sla not in targets else False
        return Observation(arm, cell, errors=True, good=promised)
    return _answered(outcome, arm, cell, targets, cold=cold)


def _rejected(outcome: Outcome, arm: str, cell: Cell) -> Observation | None:
    if outcome.status == 429 or outcome.status >= 500:
        return Observation(arm, cell, errors=True)  # its endpoints were full, or none was there
    return Observation(arm, cell, refused=True) if outcome.endpoint else None


def _answered(
    o: Outcome, arm: str, cell: Cell, targets: Mapping[str, tuple[float, float]], *, cold: bool
) -> Observation:
    ttft, tpot = times_of(o)
    return Observation(
        arm,
        cell,
        ttft=ttft,
        tpot=tpot,
        e2e=o.ended - o.received,
        queue=None if o.placed is None else max(0.0, o.placed - o.received),
        length=o.output_tokens or None,
        empty=o.empty,
        truncated=o.finish_reason in _CUT,
        good=_kept(o, ttft, tpot, targets),
        finish_reason=o.finish_reason[:32],
        prompt_tokens=o.prompt_tokens or 0,
        cached_tokens=o.cached_tokens or 0,
        output_tokens=o.output_tokens or 0,
        cold=cold,
    )


def times_of(o: Outcome) -> tuple[float | None, float | None]:
    """Return TTFT and TPOT of a stream; a whole answer shows neither."""
    first, last, tokens = o.first_token, o.last_token, o.output_tokens
    if not o.stream or first is None:
        return None, None
    if last is None or not tokens or tokens < 2 or last <= first:
        return first - o.received, None  # all came at once, so nothing is known of the gaps
    return first - o.received, (last - first) / (tokens - 1)


def _kept(
    o: Outcome, ttft: float | None, tpot: float | None, targets: Mapping[str, tuple[float, float]]
) -> bool | None:
    found = targets.get(o.sla)
    if found is None:
        return None
    if not o.stream:
        gaps = max(0, (o.output_tokens or 1) - 1)
        return o.ended - o.received <= found[0] + (found[1] * gaps if gaps else 0.0)
    return (_ANY if ttft is None else ttft) <= found[0] and (tpot or 0.0) <= found[1]
