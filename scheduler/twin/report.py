"""What a run comes to, in numbers.

Waits are those in the gateway's queue. *Goodput* is the share of all requests, refused ones
included, whose first token came within twice what it takes an idle engine, and half a second.

*Fairness* is Jain's index of cost served over weight, 1 when each got the same. It is only asked
of those who could have had more: the run is cut into at most twenty stretches of equal length, each
long against single requests (150 of them on average), and in each count
the tenants that had a request waiting all the time. The index given is the mean over the stretches
with at least two such tenants, each as heavy as its tenants are many; where there is none it is 1.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple, Self

from forebay.scheduler.cost import Cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forebay.scheduler.engine_profiles import Profile
    from forebay.scheduler.traces import TraceRequest

    from .run import Life, Settings

BUCKETS = (50, 200, 1000)
_MOST_STRETCHES, _LEAST_STRETCHES = 20, 4
_PLACED_IN_A_STRETCH = 150
_SLO_TIMES = 2.0
_SLO_PLUS_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One run's numbers: seconds, shares and counts. Times are of those that were served."""

    requests: int
    rejected: int
    mean_wait_s: float
    p99_wait_s: float
    max_wait_s: float
    mean_e2e_s: float
    p99_e2e_s: float
    mean_ttft_s: float
    p99_ttft_s: float
    goodput_share: float
    jain: float
    jain_stretches: int
    """Stretches of time in which at least two tenants always waited."""
    p99_e2e_s_by_bucket: dict[str, float | None]
    """By output tokens: up to 50, 200, 1000, and more; None where there is none."""
    requests_by_bucket: dict[str, int]
    mean_wait_s_by_bucket: dict[str, float | None]
    by_class: dict[str, dict[str, float]]
    """Requests, refusals and waits of each SLA class."""
    by_reserve: dict[str, dict[str, float]]
    """The same of the tenants of each reserve."""
    makespan_s: float


class _Times(NamedTuple):
    """Of some times: mean, 99th percentile and longest; zeros of nothing."""

    mean: float
    p99: float
    longest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        ordered = sorted(values)
        if not ordered:
            return cls(0.0, 0.0, 0.0)
        return cls(_mean(ordered) or 0.0, percentile(ordered, 0.99) or 0.0, ordered[-1])


def summarise(trace: Sequence[TraceRequest], lives: Sequence[Life], settings: Settings) -> Report:
    """Work out a run's numbers."""
    served = [(r, life) for r, life in zip(trace, lives, strict=True) if life.ended is not None]
    waits = _Times.of(_since(life, life.placed) for _, life in served)
    ends = _Times.of(_since(life, life.ended) for _, life in served)
    firsts = _Times.of(_since(life, life.first) for _, life in served)
    by_bucket: dict[str, list[Life]] = {name: [] for name in bucket_names()}
    for request, life in served:
        by_bucket[bucket_of(request.output_tokens)].append(life)
    jain, stretches = fairness(trace, lives, settings.weights)
    return Report(
        requests=len(lives),
        rejected=len(lives) - len(served),
        mean_wait_s=waits.mean,
        p99_wait_s=waits.p99,
        max_wait_s=waits.longest,
        mean_e2e_s=ends.mean,
        p99_e2e_s=ends.p99,
        mean_ttft_s=firsts.mean,
        p99_ttft_s=firsts.p99,
        goodput_share=_in_time(served, settings.profile) / max(1, len(lives)),
        jain=jain,
        jain_stretches=stretches,
        p99_e2e_s_by_bucket={
            name: percentile(sorted(_since(life, life.ended) for life in found), 0.99)
            for name, found in by_bucket.items()
        },
        requests_by_bucket={name: len(found) for name, found in by_bucket.items()},
        mean_wait_s_by_bucket={
            name: _mean([_since(life, life.placed) for life in found])
            for name, found in by_bucket.items()
        },
        by_class={
            each.name: _told([life for life in lives if life.rank == rank])
            for rank, each in enumerate(settings.classes)
        },
        by_reserve={
            name: _told(
                [
                    life
                    for request, life in zip(trace, lives, strict=True)
                    if settings.reserve_of.get(request.tenant) == name
                ]
            )
            for name in settings.scheduling.reserves
        },
        makespan_s=max((life.ended or 0.0 for life in lives), default=0.0),
    )


def bucket_names() -> list[str]:
    """Name the buckets of output tokens, shortest first."""
    return [*(str(edge) for edge in BUCKETS), "more"]


def bucket_of(output_tokens: int) -> str:
    """Name the bucket that an answer of so many tokens is in."""
    return next((str(edge) for edge in BUCKETS if output_tokens <= edge), "more")


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that `share` of the sorted ones do not exceed; None of nothing."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def unloaded_ttft_s(profile: Profile, prompt_tokens: int) -> float:
    """Return how long an idle engine takes to the first token."""
    steps = ceil(prompt_tokens / profile.max_num_batched_tokens)
    pairs = prompt_tokens * prompt_tokens / 2
    return (
        profile.overhead_s
        + steps * profile.step_s
        + prompt_tokens * profile.prefill_token_s
        + pairs * profile.prefill_pair_s
    )


def jain_index(shares: Sequence[float]) -> float:
    """Return Jain's index: 1 when all are equal, 1/n when one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def fairness(
    trace: Sequence[TraceRequest], lives: Sequence[Life], weights: Mapping[str, float]
) -> tuple[float, int]:
    """Return Jain's index over backlogged tenants, and in how many stretches there were any."""
    placed = [life.placed for life in lives if life.placed is not None]
    count = len(placed) // _PLACED_IN_A_STRETCH
    count = min(_MOST_STRETCHES, max(_LEAST_STRETCHES, count))
    length = max(placed, default=0.0) / count
    if not length:
        return 1.0, 0
    waiting = _waiting(trace, lives)
    got = _served(trace, lives, length, count)
    found: list[tuple[int, float]] = []
    for stretch in range(count):
        start, end = stretch * length, (stretch + 1) * length
        tenants = [t for t, spans in waiting.items() if _covers(spans, start, end)]
        if len(tenants) > 1:
            shares = [got[t, stretch] / weights.get(t, 1.0) for t in tenants]
            found.append((len(tenants), jain_index(shares)))
    if not found:
        return 1.0, 0
    return sum(n * index for n, index in found) / sum(n for n, _ in found), len(found)


def _told(lives: Sequence[Life]) -> dict[str, float]:
    """Tell of some requests how many there were and how they fared."""
    waits = _Times.of(_since(life, life.placed) for life in lives if life.placed is not None)
    refused = [life.refused - life.arrived for life in lives if life.refused is not None]
    return {
        "requests": len(lives),
        "rejected": len(refused),
        "mean_wait_s": waits.mean,
        "p99_wait_s": waits.p99,
        "max_wait_s": waits.longest,
        "max_wait_of_rejected_s": max(refused, default=0.0),
    }


def _served(
    trace: Sequence[TraceRequest], lives: Sequence[Life], length: float, count: int
) -> Mapping[tuple[str, int], float]:
    """Sum up the cost placed by tenant and stretch."""
    cost = Cost()
    got: defaultdict[tuple[str, int], float] = defaultdict(float)
    for request, life in zip(trace, lives, strict=True):
        if life.placed is not None:
            paid = cost(uncached_tokens=request.prompt_tokens, output_tokens=request.output_tokens)
            got[request.tenant, min(count - 1, int(life.placed / length))] += paid
    return got


def _waiting(
    trace: Sequence[TraceRequest], lives: Sequence[Life]
) -> dict[str, list[tuple[float, float]]]:
    """Return when each tenant had something waiting, as merged spans of time."""
    spans: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for request, life in zip(trace, lives, strict=True):
        until = life.placed if life.placed is not None else life.refused
        if until is not None and until > life.arrived:
            _merge(spans[request.tenant], life.arrived, until)
    return spans


def _merge(spans: list[tuple[float, float]], start: float, end: float) -> None:
    """Add a span that begins no earlier than the ones before."""
    if spans and start <= spans[-1][1]:
        spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
    else:
        spans.append((start, end))


def _covers(spans: Iterable[tuple[float, float]], start: float, end: float) -> bool:
    return any(begin <= start and end <= until for begin, until in spans)


def _in_time(served: Iterable[tuple[TraceRequest, Life]], profile: Profile) -> int:
    return sum(
        _since(life, life.first)
        <= _SLO_TIMES * unloaded_ttft_s(profile, request.prompt_tokens) + _SLO_PLUS_S
        for request, life in served
    )


def _since(life: Life, moment: float | None) -> float:
    return 0.0 if moment is None else moment - life.arrived


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
