"""How far apart tenants that wait may come, and what gaming brings: no more than the weight."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.policies.contracts import EndpointView, Placement, Request, Route
from forebay.scheduler.build import Scheduling, make_dispatcher
from forebay.scheduler.guards import GuardSettings

if TYPE_CHECKING:
    from collections.abc import Callable

PLACES = 4
GUARDED = GuardSettings(longest_wait=20.0, grace=1000.0, long_cost=500.0)
Sized = tuple[int, float]
"""Predicted output tokens, and the true cost for each unit that was predicted."""


@dataclass
class Backlog:
    """Tenants that always have some requests waiting, in front of one endpoint."""

    scheduling: Scheduling
    weights: dict[str, float]
    sizes: dict[str, Callable[[Random], Sized]]
    seed: int = 1
    waiting_each: int = 6
    served: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    """True cost dispatched, by tenant, divided by its weight."""
    largest: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))
    """Largest charge by tenant, divided by its weight."""
    wrong: float = 0.0
    """The most by which what was in flight at once was mispredicted, divided by weights."""
    apart: float = 0.0
    """The most that two tenants were apart."""
    total: float = 0.0

    def run(self, turns: int) -> Backlog:
        rng = Random(self.seed)
        core = make_dispatcher(
            self.scheduling, pool="p", rng=Random(1), max_requests=10**6, max_bytes=1 << 50
        )
        core.set_endpoints([EndpointView("a", "sim", PLACES)])
        number, running, truth = 0, list[Placement](), dict[str, float]()

        def arrive(tenant: str, now: float) -> None:
            nonlocal number
            number += 1
            output, factor = self.sizes[tenant](rng)
            asked = request(number, tenant, self.weights[tenant], now, output)
            truth[asked.id] = 2.0 * output * factor
            placement = core.submit(asked, now)
            if placement is not None:
                go(placement)

        def go(placement: Placement) -> None:
            running.append(placement)

        for tenant in sorted(self.weights) * (self.waiting_each + PLACES):
            arrive(tenant, 0.0)
        for turn in range(turns):
            now = 1.0 + turn
            ended = running.pop(rng.randrange(len(running)))
            placements = core.release(ended, now, truth[ended.request.id])
            for placement in placements:
                go(placement)
                self.note(placement, truth, running)
                arrive(placement.request.tenant, now)
            assert core.take_others() is None
        assert core.guards is None or core.guards.forced or turns < 100
        return self

    def note(self, placement: Placement, truth: dict[str, float], running: list[Any]) -> None:
        tenant, weight = placement.request.tenant, placement.request.weight
        self.served[tenant] += truth[placement.request.id] / weight
        self.total += truth[placement.request.id]
        self.largest[tenant] = max(self.largest[tenant], placement.cost / weight)
        wrong = sum(abs(p.cost - truth[p.request.id]) / p.request.weight for p in running)
        self.wrong = max(self.wrong, wrong)
        got = [self.served[name] for name in self.weights]
        self.apart = max(self.apart, max(got) - min(got))


def request(number: int, tenant: str, weight: float, now: float, output: int) -> Request:
    return Request(
        id=f"r{number}",
        pool="p",
        route=Route.CHAT,
        model="m",
        tenant=tenant,
        weight=weight,
        sequence=number,
        arrived=now,
        deadline=1e9,
        prompt_tokens_estimate=0,
        output_tokens_estimate=output,
        uncached_tokens=0,
    )


def any_size(rng: Random) -> Sized:
    return rng.choice([1, 10, 100, 400]), 1.0


def any_size_wrong(rng: Random) -> Sized:
    return rng.choice([1, 10, 100, 400]), rng.choice([0.1, 0.5, 1.0, 3.0])


def initial(backlog: Backlog) -> float:
    """What the first requests, which were placed as they came, may have put one tenant ahead."""
    return PLACES * 3.0 * 800.0 / min(backlog.weights.values())


@pytest.mark.parametrize("order", ["fair", "ml"])
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), weight=st.sampled_from([1.0, 2.0, 8.0]))
def test_two_that_wait_are_no_more_than_a_charge_of_each_apart(
    order: str, seed: int, weight: float
):
    scheduling = Scheduling(order=order, predicts=True, guards=None)
    sizes = {"a": any_size, "b": any_size}
    ran = Backlog(scheduling, {"a": 1.0, "b": weight}, sizes, seed).run(400)

    assert ran.apart <= sum(ran.largest.values())


@pytest.mark.parametrize("order", ["fair", "ml"])
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), weight=st.sampled_from([1.0, 2.0, 8.0]))
def test_wrong_predictions_add_what_was_wrong_in_flight_and_no_more(
    order: str, seed: int, weight: float
):
    scheduling = Scheduling(order=order, predicts=True, guards=None)
    sizes = {"a": any_size_wrong, "b": any_size}
    ran = Backlog(scheduling, {"a": 1.0, "b": weight}, sizes, seed).run(400)

    assert ran.apart <= sum(ran.largest.values()) + ran.wrong + initial(ran)


@pytest.mark.parametrize("order", ["fair", "ml"])
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), weight=st.sampled_from([1.0, 4.0]))
def test_guards_add_their_shares_to_that_and_no_more(order: str, seed: int, weight: float):
    scheduling = Scheduling(order=order, predicts=True, guards=GUARDED)
    sizes = {"a": any_size_wrong, "b": any_size}
    ran = Backlog(scheduling, {"a": 1.0, "b": weight}, sizes, seed, waiting_each=30).run(400)

    shares = GUARDED.overdue_share + GUARDED.long_share
    guarded = shares * ran.total + 4 * 3.0 * 800.0  # two credits, each up to two largest costs over
    assert ran.apart <= sum(ran.largest.values()) + ran.wrong + initial(ran) + guarded


def honest(_: Random) -> Sized:
    return 100, 1.0


GAMES: dict[str, Callable[[Random], Sized]] = {
    "splits": lambda _: (10, 1.0),
    "thousands of tiny ones": lambda _: (1, 1.0),
    "says little and takes much": lambda _: (1, 100.0),
    "says much and takes little": lambda _: (4000, 0.01),
    "mixes": lambda rng: rng.choice([(1, 200.0), (1000, 0.001), (50, 1.0)]),
}


@pytest.mark.parametrize("order", ["fair", "ml"])
@pytest.mark.parametrize("guards", [None, GUARDED], ids=["plain", "guarded"])
@pytest.mark.parametrize("game", GAMES)
def test_gaming_brings_no_more_than_the_weight(order: str, guards: GuardSettings | None, game: str):
    scheduling = Scheduling(order=order, predicts=True, guards=guards)
    tenants = {"gamer": 1.0, "honest": 1.0, "other": 1.0}
    sizes = {"gamer": GAMES[game], "honest": honest, "other": honest}
    ran = Backlog(scheduling, tenants, sizes, waiting_each=40 if guards else 6).run(6000)

    got, share = ran.served["gamer"], ran.total / 3
    slack = sum(ran.largest.values()) + ran.wrong + initial(ran)
    assert got <= share + slack
    if guards is None:
        assert min(ran.served.values()) >= share - 2 * slack
