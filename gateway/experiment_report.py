"""What an experiment has shown so far, as values: for the admin API, the command line, the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from forebay.policies.experiments.answers import ShadowTally
from forebay.policies.experiments.measures import MEASURES, Pair, alike, effect
from forebay.policies.experiments.ramp import Decision, weights
from forebay.policies.experiments.tallies import BUCKET_NAMES

from .experiments.store import tested_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.policies.experiments.measures import Effect
    from forebay.policies.experiments.plan import Plan
    from forebay.policies.experiments.tallies import Sketch, Tallies, Tally

    from .experiment_live import Live
    from .trials import Trial

_SHOWN = ("ttft", "tpot", "e2e", "queue", "length")
_COUNTED = (
    *("requests", "errors", "answered", "empty", "truncated"),
    *("prompt_tokens", "cached_tokens", "output_tokens"),
)
_CURVE = (*range(1, 100),)


class EndpointLoad(Struct, frozen=True):
    """One endpoint of an arm, now."""

    name: str
    usable: bool
    in_flight: int
    limit: int


class Spread(Struct, frozen=True):
    """A distribution in a few numbers; seconds, or tokens."""

    count: int
    mean: float
    p50: float
    p99: float
    curve: list[float] = []
    """Percentiles 1 to 99."""


class ClassReport(Struct, frozen=True, kw_only=True):
    """What one arm did for one SLA class."""

    sla: str
    requests: int
    errors: int
    answered: int
    empty: int
    truncated: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    goodput: float | None
    spreads: dict[str, Spread]
    """Without their curves."""


class ArmReport(Struct, frozen=True, kw_only=True):
    """What one arm did in this run, over all stages."""

    name: str
    role: str
    """control, candidate or holdout."""
    share: float
    """Of the keys, now."""
    requests: int
    errors: int
    refused: int
    left: int
    answered: int
    empty: int
    truncated: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    goodput: float | None
    """Share of requests that kept to their class's targets; null without targets."""
    cost_per_1k: float | None
    """Of its output tokens, by what its engines cost an hour; null where that is not said."""
    finish_reasons: dict[str, int]
    spreads: dict[str, Spread]
    endpoints: list[EndpointLoad]
    classes: list[ClassReport] = []
    """By SLA class, where there are classes."""


class EffectReport(Struct, frozen=True, kw_only=True):
    """A candidate against the control, by one measure; from the current stage."""

    arm: str
    measure: str
    says: str
    where: str
    """`all`, or an SLA class and a prompt bucket."""
    kind: str
    candidate: float
    control: float
    estimate: float
    """A ratio, or a difference of shares."""
    low: float
    high: float | None
    """Null: no bound yet."""
    detectable: float | None
    """The smallest worsening that would be sure by now; null: none would."""
    margin: float | None
    """How much worse a guardrail lets it get; null: it is none."""
    says_now: str
    """worse, better, or unsure."""


class TrafficReport(Struct, frozen=True):
    """How many requests an arm had of one class and bucket."""

    arm: str
    sla: str
    bucket: str
    requests: int


class Report(Struct, frozen=True, kw_only=True):
    """All of it."""

    name: str
    pool: str
    phase: str
    stage: int
    stages: list[float]
    since: float
    primary: str
    promote: str
    alpha: float
    same_mix: bool
    """The arms' requests are of the same kinds, so that shares and quantiles may be compared."""
    arms: list[ArmReport]
    effects: list[EffectReport]
    traffic: list[TrafficReport]
    decisions: list[Decision]
    shadow: dict[str, object] | None = None


def report_of(live: Live, now: float) -> Report:
    """Tell what is known. Costs milliseconds."""
    trial, state = live.trial, live.state
    plan, whole = trial.plan, live.whole()
    tested = live.together(tested_key(state))
    shares = weights(plan, state)
    names = [*plan.arms, *(name for name in whole.arms if name not in plan.arms)]
    hours = max(now - state.began, 1.0) / 3600
    return Report(
        name=trial.name,
        pool=trial.pool.name,
        phase=state.phase,
        stage=state.stage,
        stages=list(plan.stages),
        since=state.since,
        primary=plan.primary,
        promote=plan.promote,
        alpha=plan.alpha,
        same_mix=all(alike(tested, Pair(plan.control, c, plan.cells)) for c in plan.candidates),
        arms=[_arm(trial, name, whole, shares.get(name, 0.0), hours) for name in names],
        effects=[row for arm in plan.candidates for row in _effects(plan, tested, arm)],
        traffic=_traffic(whole),
        decisions=list(state.log),
        shadow=_shadow(live),
    )


def _shadow(live: Live) -> dict[str, object] | None:
    section = live.trial.section.shadow
    if section is None:
        return None
    buckets = {name: replace(tally) for name, tally in live.kept.shadow.items()}
    for name, tally in live.others_shadow.items():
        buckets.setdefault(name, ShadowTally()).merge(tally)
    return {"arm": section.arm, "share": section.share, "buckets": buckets}


def _arm(trial: Trial, name: str, whole: Tallies, share: float, hours: float) -> ArmReport:
    plan, tally = trial.plan, whole.whole(name)
    known = name in plan.arms
    role = "holdout" if not known else "control" if name == plan.control else "candidate"
    hourly = trial.section.arms[name].hourly if known else 0.0
    cost = hourly * hours / tally.output_tokens * 1000 if hourly and tally.output_tokens else None
    return ArmReport(
        name=name,
        role=role,
        share=share,
        requests=tally.requests,
        errors=tally.errors,
        refused=tally.refused,
        left=tally.left,
        answered=tally.answered,
        empty=tally.empty,
        truncated=tally.truncated,
        prompt_tokens=tally.prompt_tokens,
        cached_tokens=tally.cached_tokens,
        output_tokens=tally.output_tokens,
        goodput=_goodput(tally),
        cost_per_1k=cost,
        finish_reasons=tally.finish_reasons,
        spreads={each: _spread(getattr(tally, each)) for each in _SHOWN},
        endpoints=[
            EndpointLoad(e.name, e.view.usable, e.view.in_flight, e.view.limit)
            for e in (trial.views(name) if known else ())
        ],
        classes=list(_classes(plan, name, whole)) if len(plan.classes) > 1 else [],
    )


def _classes(plan: Plan, name: str, whole: Tallies) -> Iterator[ClassReport]:
    for sla in plan.classes:
        tally = whole.whole(name, [cell for cell in whole.cells(name) if cell.sla == sla])
        if tally.requests:
            spreads = {each: _spread(getattr(tally, each), curve=False) for each in _SHOWN}
            counts = {each: getattr(tally, each) for each in _COUNTED}
            yield ClassReport(sla=sla, goodput=_goodput(tally), spreads=spreads, **counts)


def _goodput(tally: Tally) -> float | None:
    return tally.good / tally.promised if tally.promised else None


def _spread(sketch: Sketch, *, curve: bool = True) -> Spread:
    shown = _CURVE if curve and sketch.count else ()
    points = [sketch.quantile(percent / 100) for percent in shown]
    return Spread(sketch.count, sketch.mean, sketch.quantile(0.5), sketch.quantile(0.99), points)


def _effects(plan: Plan, tested: Tallies, arm: str) -> Iterator[EffectReport]:
    alphas = plan.alphas
    whole = Pair(plan.control, arm, plan.cells)
    for name in MEASURES:
        alpha = alphas.promote if name == plan.primary else alphas.whole
        found = effect(tested, whole, MEASURES[name], alpha)
        if found is not None:
            yield _effect(plan, arm, found)
    for cell in sorted(tested.cells(arm)):
        for name in dict.fromkeys((plan.primary, *plan.guardrails)):
            pair = Pair(plan.control, arm, (cell,), whole=False)
            found = effect(tested, pair, MEASURES[name], alphas.cell)
            if found is not None:
                yield _effect(plan, arm, found)


def _effect(plan: Plan, arm: str, found: Effect) -> EffectReport:
    measure = MEASURES[found.measure]
    margin = plan.guardrails.get(found.measure)
    where = "all"
    if found.cell is not None:
        where = f"{found.cell.sla or 'any class'}, {BUCKET_NAMES[found.cell.bucket]}"
    verdict = "better" if found.is_better(measure) else "unsure"
    if found.is_worse(measure, 0.0 if margin is None else margin):
        verdict = "worse"
    return EffectReport(
        arm=arm,
        measure=found.measure,
        says=measure.says,
        where=where,
        kind=measure.kind,
        candidate=found.candidate,
        control=found.control,
        estimate=found.estimate if found.estimate != _NEVER else 0.0,
        low=found.low,
        high=_finite(found.high),
        detectable=_finite(found.detectable),
        margin=margin,
        says_now=verdict,
    )


_NEVER = float("inf")


def _finite(value: float) -> float | None:
    return None if value >= 1e300 else value


def _traffic(whole: Tallies) -> list[TrafficReport]:
    def row(arm: str, sla: str, bucket: int, tally: Tally) -> TrafficReport:
        return TrafficReport(arm, sla, BUCKET_NAMES[bucket], tally.requests)

    return [row(*each) for each in whole.as_rows()]
