"""What each ordering promises of who goes next."""

from __future__ import annotations

from math import log2
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from forebay.policies.contracts import Request, Route
from forebay.policies.double_queue import DoubleQueue
from forebay.policies.ordering_aged import Aged
from forebay.policies.ordering_bounded import Pace
from forebay.policies.ordering_edf import Edf
from forebay.policies.ordering_fair import Fair, Ml
from forebay.policies.ordering_fcfs import Fcfs
from forebay.policies.ordering_hrrn import Hrrn
from forebay.policies.ordering_sjf import Sjf
from forebay.policies.registry import ORDERINGS
from forebay.policies.service import service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import Ordering


def request(number: int, output: int = 100, **fields: Any) -> Request:
    plain: dict[str, Any] = {
        "id": f"r{number}",
        "pool": "llama",
        "route": Route.CHAT,
        "model": "big",
        "tenant": "acme",
        "sequence": number,
        "arrived": float(number),
        "deadline": 600.0,
        "prompt_tokens_estimate": 0,
        "output_tokens_estimate": output,
        "uncached_tokens": 0,
    }
    return Request(**{**plain, **fields})


def order(queue: Ordering, some: list[Request], now: float = 10.0) -> list[int]:
    for each in some:
        queue.add(each, each.arrived)
    return drain(queue, now)


def drain(queue: Ordering, now: float = 10.0) -> list[int]:
    taken: list[int] = []
    while (one := queue.next(now, lambda _: True)) is not None:
        taken.append(one.sequence)
    return taken


def test_sjf_takes_the_shortest_and_of_equals_the_oldest():
    some = [request(1, 900), request(2, 10), request(3, 50), request(4, 10)]

    assert order(Sjf(), some) == [2, 4, 3, 1]


def test_edf_takes_whoever_runs_out_of_time_first():
    some = [
        request(1),
        request(2, longest_wait=20.0),
        request(3, longest_wait=5.0),
        request(4, deadline=7.0, longest_wait=20.0),
    ]

    assert order(Edf(), some) == [4, 3, 2, 1]


def test_hrrn_weighs_the_wait_against_the_service():
    some = [request(1, 1000, arrived=0.0), request(2, 50, arrived=9.0)]

    assert order(Hrrn(), some, now=10.0) == [2, 1]
    assert order(Hrrn(), some, now=9.1) == [1, 2]


def test_hrrn_lets_nothing_wait_for_ever():
    queue = Hrrn()
    queue.add(request(0, 1000, arrived=0.0), 0.0)
    for number in range(1, 200):
        queue.add(request(number, 10, arrived=float(number)), float(number))
        taken = queue.next(number + 0.5, lambda _: True)
        assert taken is not None
        if taken.sequence == 0:
            break
    else:
        pytest.fail("the long request was never taken")


def test_hrrn_reads_a_rank_at_most_so_often():
    queue = Hrrn(reread_s=1.0, reread_dispatches=1000)
    queue.add(request(1, 1000, arrived=0.0), 0.0)
    queue.add(request(2, 10, arrived=0.0, sequence=9), 0.0)
    assert queue.next(0.0, lambda _: False) is None
    queue.add(request(3, 30, arrived=0.1), 0.1)

    assert [queue.next(0.5, lambda _: False), queue.rank_changes] == [None, 0]
    assert drain(queue, 0.9) == [1, 3, 9]  # all as they were read: none had waited then


def test_hrrn_looks_again_at_what_a_waiting_prompt_finds_cached():
    cached: dict[str, int] = {}

    def uncached(r: Request) -> int:
        return r.uncached_tokens - cached.get(r.id, 0)

    queue = Hrrn(reread_s=0.0, uncached=uncached)
    queue.add(request(1, 10, uncached_tokens=100, arrived=0.0), 0.0)
    queue.add(request(2, 10, uncached_tokens=5000, arrived=0.0), 0.0)
    cached["r2"] = 4990

    assert drain(queue, 5.0) == [2, 1]


def test_fair_gives_turns_by_weight():
    queue = Fair()
    for number in range(40):
        tenant = ("heavy", "light")[number % 2]
        weight = 3.0 if tenant == "heavy" else 1.0
        queue.add(request(number, tenant=tenant, weight=weight), 0.0)
    turns: list[str] = []
    for _ in range(16):
        taken = queue.next(0.0, lambda _: True)
        assert taken is not None
        queue.started(taken, 100.0, 0.0)
        turns.append(taken.tenant)

    assert (turns.count("heavy"), turns.count("light")) == (12, 4)


def test_fair_lifts_who_comes_back_to_the_latest_turn():
    queue = Fair()
    for number in range(10):
        queue.started(request(number, tenant="busy"), 100.0, 0.0)
    queue.add(request(10, tenant="back"), 0.0)
    queue.add(request(11, tenant="busy"), 0.0)

    assert queue.virtual_times() == {"busy": 1000.0, "back": 900.0}


def test_fair_corrects_a_wrong_prediction_when_the_truth_is_known():
    queue = Fair()
    one = request(1, tenant="a", weight=2.0)
    queue.started(one, 100.0, 0.0)
    queue.add(request(2, tenant="a"), 0.0)

    assert queue.virtual_times() == {"a": 50.0}
    queue.settled(one, 100.0, 300.0)
    assert queue.virtual_times() == {"a": 150.0}


def test_fair_forgets_who_is_gone_and_not_ahead_when_many_are_known():
    queue = Fair()
    ahead = request(0, tenant="ahead")
    queue.started(ahead, 1e6, 0.0)
    queue.settled(ahead, 1e6, 1e6)
    for number in range(1, 10_000):
        one = request(number, tenant=f"t{number}")
        queue.started(one, 1.0, 0.0)
        queue.settled(one, 1.0, 0.0)

    assert len(queue.virtual_times()) <= 1024
    assert queue.virtual_times()["ahead"] == 1e6


def test_ml_is_fair_outside_and_takes_ratios_inside():
    some = [
        request(1, 1000, tenant="a", arrived=0.0),
        request(2, 10, tenant="a", arrived=1.0),
        request(3, 1000, tenant="b", arrived=0.0),
    ]

    assert order(Ml(), some) == [2, 1, 3]
    assert order(Ml(predicts=False), some) == order(Fair(), some) == [1, 2, 3]


def test_aged_is_first_come_first_served_while_nobody_waits_long():
    some = [request(1, uncached_tokens=1000), request(2, uncached_tokens=1)]

    assert order(Aged(), some) == [1, 2]


def test_aged_lets_small_ones_pass_by_a_head_start_and_no_more():
    queue = Aged(patience=2.0)
    for number in range(200):
        size = 1000 if number % 2 else 10
        queue.started(request(number, arrived=0.0), 1.0, 5.0)  # all wait for five seconds
        queue.add(request(number, uncached_tokens=size, arrived=0.0), 0.0)
        queue.next(0.0, lambda _: True)
    queue.add(request(900, uncached_tokens=2000, arrived=100.0), 100.0)
    queue.add(request(901, uncached_tokens=1, arrived=105.0), 105.0)
    queue.add(request(902, uncached_tokens=1, arrived=120.0), 120.0)

    assert drain(queue, 120.0) == [901, 900, 902]


@pytest.mark.parametrize("inside", [Fcfs, Fair])
def test_two_queues_share_cost_while_both_wait(inside: Callable[[], Ordering]):
    queue = DoubleQueue(inside, long_cost=1000.0, long_share=0.25)
    for number in range(200):
        queue.add(request(number, 1000 if number % 2 else 100), 0.0)
    costs = {"long": 0.0, "short": 0.0}
    for _ in range(60):
        taken = queue.next(0.0, lambda _: True)
        assert taken is not None
        cost = 2.0 * taken.output_tokens_estimate
        queue.started(taken, cost, 0.0)
        costs["long" if cost >= 1000 else "short"] += cost

    assert costs["long"] / sum(costs.values()) == pytest.approx(0.25, abs=0.15)
    assert len(drain(queue)) == 140


@pytest.mark.parametrize("name", ORDERINGS)
def test_many_may_wait_and_a_third_of_them_leave(name: str):
    queue = ORDERINGS[name]()
    some = [
        request(n, n % 997, tenant=f"t{n % 50}", arrived=n / 100, uncached_tokens=n % 313)
        for n in range(20_000)
    ]
    for each in some:
        queue.add(each, each.arrived)
    for each in some[::3]:
        assert queue.discard(each)

    assert len(drain(queue, 1000.0)) == len(queue) + 20_000 - len(some[::3])


def test_the_largest_are_told_as_if_all_were_counted_each_time():
    rng, pace, seen = Random(1), Pace(), list[int]()
    for number in range(1500):
        asked = request(number, int(rng.lognormvariate(5, 2)) + 1)
        size = service_of(asked)
        rung = int(log2(size) * 8)
        largest = number >= 100 and sum(r >= rung for r in seen) <= 0.02 * number
        assert pace.is_large(rung, 0.02) == largest
        pace.came(size, rung, 0.0)
        seen.append(rung)
