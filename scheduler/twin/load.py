"""Load: offered work over capacity, reached by scaling arrival times only.

Capacity is the highest throughput of this trace's requests that the modelled endpoints reach when
served first come, first served: requests come whenever fewer than a few wait, so no endpoint ever
lacks one, and the queue is bounded. The mix of requests is the trace's, in its order, and repeated
where the trace is too short to fill the endpoints ten times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forebay.scheduler.build import Scheduling

from .guess import Oracle
from .run import NEVER, NO_LIMIT, Twin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.scheduler.engine_profiles import Profile
    from forebay.scheduler.traces import TraceRequest

    from .run import Settings

_DEPTH = 64
_FILLS = 10
_KV_USE = 0.9
_SAMPLE = 3000
_GOOD = 0.95
_CLOSE = 8


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a set of endpoints can do with a trace's requests."""

    requests_per_s: float
    natural_load: float
    """The load of the trace as it is, unscaled."""


def fitting_limit(trace: Sequence[TraceRequest], profile: Profile) -> int:
    """Return how many of such requests fit into an engine's KV blocks at once, nine tenths full.

    At most the profile's `max_num_seqs`. Who is met in flight is longer than who arrives: each
    counts as long as it decodes, with half of its answer made.
    """
    weight = sum(r.output_tokens for r in trace)
    held = sum(r.output_tokens * (r.prompt_tokens + r.output_tokens / 2) for r in trace) / weight
    blocks = profile.num_blocks * profile.block_tokens
    return max(1, min(profile.max_num_seqs, int(_KV_USE * blocks / held)))


def enough_in_flight(trace: Sequence[TraceRequest], settings: Settings) -> int:
    """Return the least limit in flight with which the endpoints are as good as at their best.

    More would only move the queue into the engines, where nobody can put it in order. Starts at
    `fitting_limit` and halves, over a sample of the trace, until it is too few; then halves the
    difference, down to an eighth.
    """
    sample = trace[:: max(1, len(trace) // _SAMPLE)]

    def rate(limit: int) -> float:
        return measure_capacity(sample, replace(settings, max_in_flight=limit)).requests_per_s

    enough = fitting_limit(trace, settings.profile)
    best, too_few = rate(enough), 0
    while enough - too_few > max(1, enough // _CLOSE):
        limit = (enough + too_few) // 2
        found = rate(limit)
        best = max(best, found)
        if found < _GOOD * best:
            too_few = limit
        else:
            enough = limit
    return enough


def measure_capacity(
    trace: Sequence[TraceRequest],
    settings: Settings,
    *,
    progress: Callable[[int], None] | None = None,
) -> Capacity:
    """Measure the capacity of the endpoints for a trace's requests."""
    slots = settings.endpoints * settings.limit
    wanted = max(len(trace), _FILLS * slots)
    first_come = replace(
        settings,
        scheduling=Scheduling(order="fcfs", guards=None),
        classes=(),
        max_queue=NO_LIMIT,
    )
    twin = Twin(trace, first_come, Oracle())
    begun: tuple[float, int] | None = None
    while len(twin.lives) < wanted:
        while twin.dispatcher.queued < _DEPTH and len(twin.lives) < wanted:
            twin.arrive(twin.now)
        twin.settle()
        if progress is not None:
            progress(len(twin.lives) * len(trace) // wanted)
        if twin.next_event() == NEVER:
            break
        twin.advance()
        if begun is None and twin.finished >= min(slots, wanted // 4):
            begun = (twin.now, twin.finished)
    since, before = begun or (0.0, 0)
    rate = (twin.finished - before) / (twin.now - since) if twin.now > since else 0.0
    return Capacity(rate, _rate(trace) / rate if rate else 0.0)


def scale_to(load: float, trace: Sequence[TraceRequest], capacity: Capacity) -> list[TraceRequest]:
    """Return the trace with its arrival times scaled so that it offers that load."""
    factor = capacity.natural_load / load
    return [request._replace(arrival_s=request.arrival_s * factor) for request in trace]


def _rate(trace: Sequence[TraceRequest]) -> float:
    span = trace[-1].arrival_s - trace[0].arrival_s
    return len(trace) / span if span else 0.0
