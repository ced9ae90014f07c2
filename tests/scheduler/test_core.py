"""What the core holds whatever the ordering, the guards and the luck of the arrivals."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.policies.contracts import EndpointView, Overloaded, Placement, Request, Route
from forebay.policies.registry import ORDERINGS
from forebay.scheduler.build import DoubleQueueSettings, Scheduling, make_dispatcher
from forebay.scheduler.guards import GuardSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.scheduler.dispatch import Dispatcher

LONGEST = 4.0
TIGHT = GuardSettings(longest_wait=LONGEST, long_cost=300.0)
ALL = [
    Scheduling(order=name, predicts=True, guards=guards, double_queue=double)
    for name in ORDERINGS
    for guards in (None, TIGHT)
    for double in (None, DoubleQueueSettings(long_cost=300.0))
]


def named(scheduling: Scheduling) -> str:
    guarded = "guarded" if scheduling.guards else "plain"
    return f"{scheduling.order}-{guarded}{'-double' if scheduling.double_queue else ''}"


def request(number: int, **fields: Any) -> Request:
    plain: dict[str, Any] = {
        "id": f"r{number}",
        "pool": "llama",
        "route": Route.CHAT,
        "model": "big",
        "tenant": "acme",
        "sequence": number,
        "arrived": 0.0,
        "deadline": 1000.0,
        "prompt_tokens_estimate": 10,
        "output_tokens_estimate": 20,
        "uncached_tokens": 10,
        "stream": True,
    }
    return Request(**{**plain, **fields})


def core(scheduling: Scheduling, *views: EndpointView, seed: int = 1, **limits: int) -> Dispatcher:
    made = make_dispatcher(
        scheduling,
        pool="llama",
        rng=Random(seed),
        max_requests=limits.get("max_requests", 1000),
        max_bytes=1 << 40,
    )
    made.set_endpoints(views)
    return made


@dataclass
class Life:
    """A random life of one core: everything that it decided, and what waits and runs."""

    core: Dispatcher
    seed: int
    steps: int
    classes: bool
    now: float = 0.0
    told: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    waiting: dict[str, Request] = field(default_factory=dict[str, Request])
    running: list[Placement] = field(default_factory=list[Placement])
    number: int = 0

    def live(self) -> list[tuple[Any, ...]]:
        rng = Random(self.seed)
        for _ in range(self.steps):
            self.now += rng.random()
            what = rng.random()
            if what < 0.55:
                self.arrive(rng)
            elif what < 0.9 and self.running:
                placement = self.running.pop(rng.randrange(len(self.running)))
                cost = rng.choice([None, 0.5, 1.0, 3.0])
                cost = None if cost is None else cost * placement.cost
                self.take(self.core.release(placement, self.now, cost))
            elif what < 0.95 and self.waiting:
                left = self.waiting.pop(rng.choice(sorted(self.waiting)))
                assert self.core.leave(left)
            else:
                view = rng.choice(list(self.core.endpoints.values()))
                view.usable = not view.usable
                self.take(self.core.changed(self.now))
            self.expire()
            self.check()
        return self.told

    def arrive(self, rng: Random) -> None:
        self.number += 1
        rank = rng.randrange(3) if self.classes else 0
        asked = request(
            self.number,
            model=rng.choice(["big", "big", "small"]),
            tenant=rng.choice("abc"),
            weight=rng.choice([1.0, 4.0]),
            arrived=self.now,
            deadline=self.now + rng.choice([3.0, 50.0]),
            uncached_tokens=rng.choice([1, 50, 500]),
            output_tokens_estimate=rng.choice([1, 20, 200]),
            sla=("", "mid", "top")[rank],
            sla_rank=rank,
        )
        try:
            placement = self.core.submit(asked, self.now)
        except Overloaded as error:
            self.told.append(("no", asked.id, error.status))
        else:
            if placement is None:
                self.waiting[asked.id] = asked
            else:
                self.go(placement)
        self.others()

    def go(self, placement: Placement) -> None:
        self.told.append(("go", self.now, placement.request.id, placement.endpoint))
        self.running.append(placement)

    def take(self, placements: Sequence[Placement]) -> None:
        self.others()
        for placement in placements:
            asked = self.waiting.pop(placement.request.id)
            self.check_turn(asked)
            self.go(placement)

    def others(self) -> None:
        others = self.core.take_others()
        if others is None:
            return
        for placement in others.recalled:
            self.told.append(("back", placement.request.id))
            self.running.remove(placement)
            self.waiting[placement.request.id] = placement.request
        for asked, error in others.refused:
            self.told.append(("refused", asked.id, error.code))
            del self.waiting[asked.id]
        for asked in others.expired:
            self.told.append(("late", asked.id))
            del self.waiting[asked.id]
        for placement in others.started:
            del self.waiting[placement.request.id]
            self.go(placement)

    def expire(self) -> None:
        for asked in self.core.expire(self.now):
            self.told.append(("late", asked.id))
            del self.waiting[asked.id]
        self.others()

    def open_to(self, asked: Request) -> list[str]:
        return [
            v.name
            for v in self.core.endpoints.values()
            if v.usable and (not v.models or asked.model in v.models) and v.room > 0
        ]

    def check_turn(self, started: Request) -> None:
        """Nobody overdue of the same tenant, who could go where it goes, was passed over."""
        if self.core.guards is None or self.core.guards.due(started) <= self.now:
            return
        if self.core.guards.settings.long_share and started.uncached_tokens >= 300:
            return  # the share that is kept for long ones
        overdue = [
            r.id
            for r in self.waiting.values()
            if r.tenant == started.tenant
            and r.model == started.model
            and self.core.guards.due(r) <= self.now
        ]
        assert overdue == []

    def check(self) -> None:
        """No endpoint has room while a request that it could serve waits."""
        assert [r.id for r in self.waiting.values() if self.open_to(r)] == []
        assert self.core.queued == len(self.core.ordering) == len(self.waiting)
        assert self.core.in_flight == len(self.running)
        if self.core.guards is not None:
            assert self.core.guards.starved == 0


def life(scheduling: Scheduling, seed: int, *, classes: bool = True, steps: int = 300) -> Life:
    views = [
        EndpointView("a", "sim", 2),
        EndpointView("b", "sim", 1, models=frozenset({"big"})),
        EndpointView("c", "sim", 1, models=frozenset({"small"})),
    ]
    return Life(core(scheduling, *views, max_requests=8), seed, steps, classes)


@pytest.mark.parametrize("scheduling", ALL, ids=named)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10_000))
def test_the_core_is_work_conserving_and_no_turn_passes_over_who_is_overdue(
    scheduling: Scheduling, seed: int
):
    life(scheduling, seed).live()


@pytest.mark.parametrize("scheduling", ALL, ids=named)
def test_the_same_events_give_the_same_decisions(scheduling: Scheduling):
    told = life(scheduling, 7).live()

    assert life(scheduling, 7).live() == told
    assert {"go", "late"} <= {what[0] for what in told}


def test_a_life_with_classes_sees_everything_that_can_happen():
    told = [life(Scheduling(order="ml", predicts=True, guards=TIGHT), s).live() for s in range(20)]

    assert {what[0] for one in told for what in one} == {"go", "back", "late", "no", "refused"}
    assert {what[2] for one in told for what in one if what[0] == "refused"} == {
        "longest_wait",
        "overloaded",
    }


class Counting(int):
    """A sequence number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counting.compared += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Counting.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.mark.parametrize("order", ["fair", "ml"])
def test_with_guards_a_decision_looks_at_a_few_dozen_of_a_hundred_thousand(order: str):
    """All are alike, so every comparison comes down to who came first."""
    waiting = 100_000
    scheduling = Scheduling(order=order, predicts=True)
    made = core(scheduling, EndpointView("a", "sim", 1), max_requests=2 * waiting)
    going = made.submit(request(0), 0.0)
    for number in range(1, waiting + 1):
        made.submit(request(number, sequence=Counting(number)), 0.0)

    Counting.compared = 0
    for number in range(1, 501):
        assert going is not None
        [going] = made.release(going, 0.0, 50.0)
        made.submit(request(waiting + number, sequence=Counting(waiting + number)), 0.0)

    assert Counting.compared / 1000 < 100
    assert made.queued == waiting
