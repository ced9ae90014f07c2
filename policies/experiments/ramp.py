"""The state machine of an experiment: what it decides, and what a decision changes.

    running      arms get their shares; guardrails may stop a candidate, the ramp goes on
    paused       shares stay as they are and nothing is promoted; guardrails still stop
    rolled_back  no candidate is left: the control gets everything
    promoted     one candidate gets everything; it is still stopped when it fails outright

    running -> paused, rolled_back, promoted        paused -> running, rolled_back, promoted
    promoted -> rolled_back                         rolled_back -> running (a person's restart)

`judge` looks at the tallies of the current stage and proposes decisions; `apply` makes a state of a
state and a decision. Tests begin anew with each stage: while shares change, the arms' requests come
from different hours, and comparing them over the change would mistake the hour for the arm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from .bounds import share_bounds
from .measures import MEASURES, Pair, effect, harm
from .tallies import BUCKET_NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from .measures import Effect
    from .plan import Plan
    from .tallies import Tallies

Phase = Literal["running", "paused", "rolled_back", "promoted"]
What = Literal["advance", "promote", "roll back", "pause", "resume", "restart"]
MACHINE = "forebay"
"""Who decides where no person does."""
KEPT = 200
"""Decisions that are kept."""


class Decision(Struct, frozen=True, kw_only=True):
    """One thing that was decided, and why."""

    at: float
    """Unix seconds."""
    what: What
    why: str
    arm: str = ""
    stage: int = 0
    """The stage that follows."""
    who: str = MACHINE
    requests: int = 0
    """Of the arm, when it was decided."""


class State(Struct, frozen=True, kw_only=True):
    """Where an experiment is."""

    phase: Phase = "running"
    stage: int = 0
    since: float = 0.0
    """Unix seconds at which the stage began."""
    out: tuple[str, ...] = ()
    """Candidates that were rolled back."""
    winner: str = ""
    log: tuple[Decision, ...] = field(default_factory=tuple)
    version: int = 0
    """Counts the decisions: a decision on an old version counts for nothing."""
    run: int = 0
    """Counts the restarts; tallies of another run are not these."""
    began: float = 0.0
    """Unix seconds at which the run began."""
    arms: tuple[str, ...] = ()
    """Whose state it is."""


def weights(plan: Plan, state: State) -> dict[str, float]:
    """Return each arm's share of the keys now; they add up to 1."""
    if state.phase == "promoted":
        return {arm: float(arm == state.winner) for arm in plan.arms}
    if state.phase == "rolled_back":
        return {arm: float(arm == plan.control) for arm in plan.arms}
    left = {arm: plan.weights.get(arm, 0.0) for arm in plan.arms}
    if plan.stages:
        left = _staged(plan, plan.stages[min(state.stage, len(plan.stages) - 1)])
    for arm in state.out:
        left[arm] = 0.0
    whole = sum(left.values())
    if whole <= 0:
        return {arm: float(arm == plan.control) for arm in plan.arms}
    return {arm: weight / whole for arm, weight in left.items()}


def _staged(plan: Plan, share: float) -> dict[str, float]:
    own = {arm: plan.weights.get(arm, 0.0) for arm in plan.candidates}
    whole = sum(own.values())
    if whole <= 0:  # no split was given: all alike
        own, whole = dict.fromkeys(plan.candidates, 1.0), float(len(plan.candidates))
    return {plan.control: 1 - share, **{arm: share * own[arm] / whole for arm in own}}


def judge(
    plan: Plan, state: State, tallies: Tallies, now: float, *, down: Collection[str] = ()
) -> Decision | None:
    """Return what is to be decided now; None for nothing. Ask again after a decision.

    `tallies` are those of the current stage, `down` arms of which no endpoint is usable.
    """
    if state.phase == "rolled_back":
        return None
    for arm in _serving(plan, state):
        why = (
            "no endpoint of it is usable" if arm in down else stopped_by(plan, state, tallies, arm)
        )
        if why:
            return _decision("roll back", arm, why, plan, state, tallies, now)
    if state.phase != "running" or plan.promote == "never":
        return None
    return _promotion(plan, state, tallies, now)


def _serving(plan: Plan, state: State) -> Iterator[str]:
    for arm in plan.candidates:
        if arm not in state.out and (state.phase != "promoted" or arm == state.winner):
            yield arm


def stopped_by(plan: Plan, state: State, tallies: Tallies, arm: str) -> str:
    """Return why a candidate has to be stopped; empty where it has not."""
    if not tallies.requests(arm):
        return ""
    why = outright(plan, tallies, arm)
    if why or state.phase == "promoted":
        return why  # the control has no requests of these hours to be compared with
    alphas = plan.alphas
    whole = Pair(plan.control, arm, plan.cells)
    for name, margin in plan.guardrails.items():
        found = harm(tallies, whole, MEASURES[name], alphas.whole, margin)
        if found is not None:
            return worded(found)
    return _stopped_in_a_cell(plan, tallies, arm)


def outright(plan: Plan, tallies: Tallies, arm: str) -> str:
    """Return why a candidate fails whatever the control does; cheap, exact from 1 request on."""
    total = tallies.requests(arm)
    errors = sum(tally.errors for tally in tallies.cells(arm).values())
    if not errors or errors < plan.max_errors * total:
        return ""
    low, _ = share_bounds(errors, total, plan.alphas.whole * 2)
    if low <= plan.max_errors:
        return ""
    return f"errors: {errors} of {total} requests failed; at most {plan.max_errors:.0%} may"


def _stopped_in_a_cell(plan: Plan, tallies: Tallies, arm: str) -> str:
    alpha = plan.alphas.cell
    for cell in tallies.cells(arm):
        pair = Pair(plan.control, arm, (cell,), whole=False)
        for name, margin in plan.guardrails.items():
            found = harm(tallies, pair, MEASURES[name], alpha, margin)
            if found is not None:
                return worded(found)
    return ""


def _promotion(plan: Plan, state: State, tallies: Tallies, now: float) -> Decision | None:
    ready = [
        arm
        for arm in _serving(plan, state)
        if tallies.requests(arm) >= plan.min_requests and now - state.since >= plan.dwell_s
    ]
    if not ready:
        return None
    last = state.stage >= len(plan.stages) - 1
    if not last and len(ready) == len(list(_serving(plan, state))):
        why = f"{plan.min_requests} requests and {plan.dwell_s:g} s without harm"
        return _decision("advance", "", why, plan, state, tallies, now)
    for arm in ready if last else ():
        found = proven(plan, tallies, arm)
        if found is not None:
            return _decision("promote", arm, worded(found), plan, state, tallies, now)
    return None


def proven(plan: Plan, tallies: Tallies, arm: str) -> Effect | None:
    """Return the primary measure's effect where it allows to promote the candidate."""
    measure = MEASURES[plan.primary]
    pair = Pair(plan.control, arm, plan.cells)
    found = effect(tallies, pair, measure, plan.alphas.promote)
    if found is None:
        return None
    if plan.promote == "better":
        return found if found.is_better(measure) else None
    return found if found.is_not_worse(measure, plan.margin) else None


_UNITS = {"ttft": " s", "tpot": " s", "e2e": " s", "queue": " s", "length": " tokens"}
"""Of means; a quantile is over what is usual."""


def worded(found: Effect) -> str:
    """Say an effect in one line."""
    where = ""
    if found.cell is not None:
        bucket = BUCKET_NAMES[found.cell.bucket]
        where = f" ({found.cell.sla or 'no class'}, prompts {bucket})"
    if found.neutral == 0.0:
        values = f"{found.candidate:.2%} against {found.control:.2%}"
        sure = f"difference {found.low:+.2%} to {found.high:+.2%}"
    else:
        unit = _UNITS.get(found.measure, "")
        values = f"{found.candidate:.4g}{unit} against {found.control:.4g}{unit}"
        sure = f"ratio {found.low:.3f} to {found.high:.3f}"
    return f"{found.measure}{where}: {values}, {sure}"


def _decision(  # noqa: PLR0913, PLR0917 - a decision's own fields
    what: What, arm: str, why: str, plan: Plan, state: State, tallies: Tallies, now: float
) -> Decision:
    requests = sum(tallies.requests(each) for each in ([arm] if arm else plan.candidates))
    stage = state.stage + 1 if what == "advance" else state.stage
    return Decision(at=now, what=what, why=why, arm=arm, stage=stage, requests=requests)


def apply(plan: Plan, state: State, decision: Decision) -> State:
    """Return the state after a decision."""
    after = replace(state, log=(*state.log, decision)[-KEPT:], version=state.version + 1)
    match decision.what:
        case "advance":
            return replace(after, phase="running", stage=decision.stage, since=decision.at)
        case "promote":
            return replace(after, phase="promoted", winner=decision.arm, since=decision.at)
        case "roll back":
            return _without(plan, after, decision)
        case "pause":
            return replace(after, phase="paused")
        case "resume":
            return replace(after, phase="running")
        case _:
            fresh = replace(after, phase="running", stage=0, since=decision.at, out=(), winner="")
            return replace(fresh, run=state.run + 1, began=decision.at)


def _without(plan: Plan, state: State, decision: Decision) -> State:
    gone = [decision.arm] if decision.arm else list(plan.candidates)
    out = tuple(dict.fromkeys([*state.out, *gone]))
    over = state.phase == "promoted" or all(arm in out for arm in plan.candidates)
    phase: Phase = "rolled_back" if over else state.phase
    return replace(
        state, out=out, phase=phase, winner="", since=decision.at if over else state.since
    )


_POSSIBLE: Mapping[What, tuple[Phase, ...]] = {
    "promote": ("running", "paused"),
    "roll back": ("running", "paused", "promoted"),
    "pause": ("running",),
    "resume": ("paused",),
}
"""Phases in which a person may decide something; what is not here, in all."""


def by_hand(  # noqa: PLR0913 - all but three by name
    plan: Plan, state: State, what: What, *, arm: str, who: str, now: float
) -> Decision:
    """Return the decision of a person. Raises ValueError where it makes no sense now."""
    if state.phase not in _POSSIBLE.get(what, (state.phase,)):
        then = "; restart it first" if what == "promote" else ""
        raise ValueError(f"cannot {what}: it is {state.phase.replace('_', ' ')}{then}")
    if arm and arm not in plan.candidates:
        raise ValueError(f"there is no candidate '{arm}'; there are: {', '.join(plan.candidates)}")
    stage = state.stage
    if what == "promote" and stage < len(plan.stages) - 1:
        what, stage, arm = "advance", stage + 1, ""
    elif what == "promote":
        arm = _winner(plan, state, arm)
    elif what == "roll back" and len(plan.candidates) == 1:
        (arm,) = plan.candidates
    return Decision(at=now, what=what, why="by hand", arm=arm, stage=stage, who=who)


def _winner(plan: Plan, state: State, arm: str) -> str:
    left = [each for each in plan.candidates if each not in state.out]
    if arm and arm not in left:
        raise ValueError(f"'{arm}' is rolled back; restart the experiment first")
    if not arm and len(left) > 1:
        raise ValueError(f"say which arm: {', '.join(left)}")
    return arm or left[0]
