"""The simulator: agrees with plain stepping, is deterministic, keeps the guards' promises."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, cast

import pytest

from forebay.scheduler.build import Scheduling
from forebay.scheduler.engine_model import EngineModel
from forebay.scheduler.engine_profiles import H200_8B, Profile
from forebay.scheduler.guards import GuardSettings
from forebay.scheduler.traces import TraceRequest
from forebay.scheduler.twin import (
    Class,
    Settings,
    Twin,
    enough_in_flight,
    fitting_limit,
    make_guess,
    measure_capacity,
    scale_to,
    simulate,
    summarise,
)
from forebay.scheduler.twin.guess import CONFUSION, GUESSES, Oracle
from forebay.scheduler.twin.report import fairness, jain_index, unloaded_ttft_s
from forebay.scheduler.twin.run import NEVER, Life

if TYPE_CHECKING:
    from forebay.scheduler.engine_sequence import Sequence, StepResult
    from forebay.scheduler.twin.station import Station

SMALL = replace(H200_8B, max_num_seqs=8, num_blocks=4000)


def some(count: int, *, seed: int = 0, rate: float = 6.0, tenants: int = 3) -> list[TraceRequest]:
    rng = Random(seed)
    clock = 0.0
    made: list[TraceRequest] = []
    for _ in range(count):
        clock += rng.expovariate(rate)
        prompt = 1 + round(rng.lognormvariate(6, 1))
        output = 1 + round(rng.lognormvariate(4, 1))
        made.append(TraceRequest(clock, prompt, output, f"t{rng.randrange(tenants)}"))
    return made


class Plain:
    """A station that steps through everything, one step at a time."""

    def __init__(self, profile: Profile) -> None:
        self.model = EngineModel(profile)
        self.due = inf
        self._at = 0.0
        self._ended: StepResult | None = None

    def add(self, sequence: Sequence, now: float) -> None:
        if self.due == inf:
            self._at = now
        self.model.add(sequence)

    def tell(self) -> StepResult:
        assert self._ended is not None
        ended, self._ended = self._ended, None
        return ended

    def go_on(self) -> None:
        if self._ended is not None:
            return
        if not self.model.busy:
            self.due = inf
            return
        self._ended = self.model.step(0.0)
        self._at += self._ended.duration_s
        self.due = self._at


def run_plainly(trace: list[TraceRequest], settings: Settings) -> list[Life]:
    twin = Twin(trace, settings, Oracle())
    twin.stations[:] = [cast("Station", Plain(settings.profile)) for _ in twin.stations]
    twin._by_name = dict(  # pyright: ignore[reportPrivateUsage] - follows the stations
        zip(twin.dispatcher.endpoints, twin.stations, strict=True)
    )
    index = 0
    while True:
        due = twin.next_event()
        if index < len(trace) and trace[index].arrival_s < due:
            twin.arrive(trace[index].arrival_s)
            index += 1
            twin.settle()
        elif due < NEVER:
            twin.advance()
        else:
            return twin.lives


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("order", ["fcfs", "ml"])
def test_leaving_quiet_stretches_alone_changes_nothing(order: str, ahead: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    profile = replace(SMALL, schedules_ahead=ahead)
    settings = Settings(
        profile=profile, scheduling=Scheduling(order=order, predicts=True), endpoints=2
    )
    trace = some(400, rate=14.0)

    quick, plain = simulate(trace, settings), run_plainly(trace, settings)

    for one, other in zip(quick, plain, strict=True):
        assert (one.endpoint, one.placed, one.first, one.ended) == (
            other.endpoint,
            pytest.approx(other.placed),
            pytest.approx(other.first),
            pytest.approx(other.ended),
        )


def test_with_preemption_it_is_nearly_the_same() -> None:
    settings = Settings(profile=replace(SMALL, num_blocks=400), endpoints=2)
    trace = [r for r in some(400, seed=3, rate=14.0) if r.prompt_tokens + r.output_tokens < 6000]
    twin = Twin(trace, settings, Oracle())
    assert twin.stations[0].model.preemptions == 0

    quick, plain = simulate(trace, settings), run_plainly(trace, settings)

    def e2e(lives: list[Life]) -> float:
        return mean(life.ended - life.arrived for life in lives if life.ended is not None)

    assert e2e(quick) == pytest.approx(e2e(plain), rel=0.02)


def test_a_run_is_told_by_its_seed() -> None:
    trace = some(500, rate=20.0)
    settings = Settings(profile=SMALL, scheduling=Scheduling(order="ml", predicts=True))

    def run(seed: int) -> list[Life]:
        made = replace(settings, seed=seed)
        return simulate(trace, made, make_guess("ssjf", trace, seed))

    assert run(1) == run(1) != run(2)


def test_load_one_half_is_half_of_what_the_endpoints_can_do() -> None:
    trace = some(2000)
    settings = Settings(profile=SMALL, endpoints=2)
    capacity = measure_capacity(trace, settings)

    half, over = (scale_to(load, trace, capacity) for load in (0.5, 1.5))
    calm = summarise(half, simulate(half, settings), settings)
    busy = summarise(over, simulate(over, settings), settings)

    assert half[-1].arrival_s == pytest.approx(3 * over[-1].arrival_s)
    span = over[-1].arrival_s - over[0].arrival_s
    assert 2000 / span == pytest.approx(1.5 * capacity.requests_per_s)
    # In overload what comes out is the capacity; below it hardly anybody waits.
    assert 2000 / busy.makespan_s == pytest.approx(capacity.requests_per_s, rel=0.05)
    assert calm.mean_wait_s < 0.05 * busy.mean_wait_s


def test_capacity_is_the_endpoints_whatever_a_pool_lets_wait() -> None:
    trace = some(300)
    settings = Settings(profile=SMALL)
    narrow = replace(settings, max_queue=1, classes=(Class("only", 0.1, 1.0),))
    assert measure_capacity(trace, narrow) == measure_capacity(trace, settings)


def test_the_limit_in_flight_is_what_the_blocks_hold() -> None:
    trace = [TraceRequest(0.0, 1000, 200)]
    assert fitting_limit(trace, replace(SMALL, num_blocks=1100, max_num_seqs=256)) == 14
    assert fitting_limit(trace, SMALL) == 8


def test_no_more_are_in_flight_than_help() -> None:
    # Nearly all of the work is prefill, which a few requests keep the engine busy with.
    reading = [r._replace(prompt_tokens=2000, output_tokens=2) for r in some(300)]
    writing = [r._replace(prompt_tokens=100, output_tokens=200) for r in some(300)]
    settings = Settings(profile=replace(SMALL, max_num_seqs=64, num_blocks=16_000))

    assert enough_in_flight(reading, settings) <= 16
    assert enough_in_flight(writing, settings) > 56


def test_all_that_ends_at_once_a_little_earlier_than_foretold_holds_up_nothing() -> None:
    trace = [r._replace(prompt_tokens=100, output_tokens=200) for r in some(300)]
    settings = Settings(
        profile=replace(SMALL, max_num_seqs=64, num_blocks=16_000), max_in_flight=56
    )

    assert measure_capacity(trace, settings).requests_per_s > 0


def test_what_can_never_fit_is_refused_and_holds_up_nobody() -> None:
    trace = [TraceRequest(0.0, 70_000, 10), TraceRequest(0.0, 100, 10)]

    first, second = simulate(trace, Settings(profile=SMALL))

    assert (first.refused, first.placed, second.placed) == (0.0, None, 0.0)
    assert second.ended is not None


def test_nothing_served_waited_past_its_longest_wait_and_a_tenth() -> None:
    trace = some(3000, rate=40.0)
    guards = GuardSettings(longest_wait=5.0)
    settings = Settings(
        profile=SMALL, scheduling=Scheduling(order="ml", predicts=True, guards=guards)
    )

    report = summarise(trace, simulate(trace, settings), settings)

    assert report.rejected > 100
    assert report.max_wait_s <= 5.5
    assert report.requests == 3000


def test_the_lowest_class_is_refused_first() -> None:
    trace = some(3000, rate=16.0)
    settings = Settings(
        profile=SMALL,
        scheduling=Scheduling(order="fair"),
        classes=(Class("batch", 5.0, 0.5), Class("urgent", 5.0, 0.5)),
        max_queue=20,
    )

    told = summarise(trace, simulate(trace, settings), settings).by_class

    assert told["batch"]["rejected"] > 10 * told["urgent"]["rejected"]


def test_overhead_passes_before_the_engine_has_a_request() -> None:
    trace = [TraceRequest(1.0, 100, 5)]
    (life,) = simulate(trace, Settings(profile=replace(SMALL, overhead_s=0.25)))

    assert (life.placed, life.first) == (
        1.0,
        pytest.approx(1.0 + unloaded_ttft_s(replace(SMALL, overhead_s=0.25), 100)),
    )


@pytest.mark.parametrize("name", GUESSES)
def test_each_predictor_keeps_to_what_the_caller_allows(name: str) -> None:
    trace = [r._replace(max_tokens=40) for r in some(50)]
    guess = make_guess(name, trace, 0)
    clipped = [r._replace(output_tokens=min(40, r.output_tokens)) for r in trace]

    assert all(1 <= guess(i, r) <= 40 for i, r in enumerate(clipped))


def test_the_published_errors_are_drawn_as_often_as_they_were_made() -> None:
    trace = [TraceRequest(0.0, 1, 1 + n % 2000) for n in range(20_000)]
    guess = make_guess("ssjf", trace, 7)
    said = sorted({guess(i, r) for i, r in enumerate(trace)})

    shortest = [guess(i, r) for i, r in enumerate(trace) if r.output_tokens <= 100]
    longest = [guess(i, r) for i, r in enumerate(trace) if r.output_tokens > 1900]

    # Five classes, each told as the mean length of those that it was drawn for.
    assert len(said) == 5
    assert said == sorted(said)
    assert shortest.count(said[0]) / len(shortest) == pytest.approx(CONFUSION[0][0], abs=0.03)
    assert longest.count(said[0]) / len(longest) == pytest.approx(CONFUSION[-1][0], abs=0.02)
    assert [round(sum(row), 2) for row in CONFUSION] == [1.0] * 20


def test_the_mean_is_that_of_the_tenants_answers_once_there_are_enough() -> None:
    trace = [TraceRequest(0.0, 1, 10, "a"), TraceRequest(0.0, 1, 1000, "b")]
    guess = make_guess("mean", trace, 0)
    before = guess(0, trace[0])
    for request in trace * 8:
        guess.ended(request)

    assert (before, guess(0, trace[0]), guess(1, trace[1])) == (256, 10, 1000)
    assert guess(0, trace[0]._replace(tenant="new")) == 505


def test_an_unknown_predictor_is_told_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no predictor 'best': take one of oracle, mean, none"):
        make_guess("best", some(1), 0)


def test_jain_is_one_when_all_have_the_same_and_one_nth_when_one_has_all() -> None:
    assert jain_index([2.0, 2.0, 2.0]) == 1.0
    assert jain_index([5.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain_index([0.0, 0.0]) == 1.0


def test_only_tenants_that_always_waited_are_compared() -> None:
    trace = [TraceRequest(0.0, 1, 1, tenant) for tenant in "aabb"] + [TraceRequest(9.0, 1, 1, "c")]
    lives = [
        Life(0.0, 1, placed=10.0, ended=11.0),
        Life(0.0, 1, placed=20.0, ended=21.0),
        Life(0.0, 1, placed=19.0, ended=21.0),
        Life(0.0, 1, placed=20.0, ended=21.0),
        Life(9.0, 1, placed=9.5, ended=10.0),
    ]

    index, stretches = fairness(trace, lives, {})

    # Both waited for all of the four stretches of five seconds: nobody was placed in the first two,
    # one of a in the third, and three and six tokens' worth in the last.
    assert (stretches, index) == (4, pytest.approx((2 + 0.5 + jain_index([3, 6])) / 4))


@pytest.mark.parametrize("order", ["fair", "ml"])
def test_backlogged_tenants_share_evenly(order: str) -> None:
    trace = some(4000, rate=60.0, tenants=2)
    trace = [r._replace(tenant="big" if i % 3 else "small") for i, r in enumerate(trace)]
    guards = GuardSettings(longest_wait=1e6)
    settings = Settings(
        profile=SMALL, scheduling=Scheduling(order=order, predicts=True, guards=guards)
    )
    fair = summarise(trace, simulate(trace, settings, make_guess("ssjf", trace, 0)), settings)
    first_come = replace(settings, scheduling=Scheduling(guards=guards))
    unfair = summarise(trace, simulate(trace, first_come), first_come)

    assert fair.jain_stretches > 0
    assert fair.jain > 0.97
    assert unfair.jain < 0.93
