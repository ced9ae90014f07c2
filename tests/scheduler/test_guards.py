"""The guards one by one; `test_core` has them all at once."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.asking import a_request

from forebay.policies.contracts import EndpointView, Overloaded, Placement, Request
from forebay.scheduler.admission import WatermarkSettings
from forebay.scheduler.build import Scheduling, make_dispatcher
from forebay.scheduler.guards import Credit, GuardSettings

if TYPE_CHECKING:
    from forebay.scheduler.dispatch import Dispatcher


def request(number: int, output: int = 50, **fields: Any) -> Request:
    plain = {"deadline": 1e6, "prompt_tokens_estimate": 0, "output_tokens_estimate": output}
    return a_request(number, **{**plain, "stream": True, **fields})


def core(order: str = "fair", *, limit: int = 1, rows: int = 100, **guards: Any) -> Dispatcher:
    settings = Scheduling(
        order=order,
        predicts=True,
        guards=GuardSettings(**guards),
        watermarks=WatermarkSettings(stale_as=0.85) if guards.get("grace") == 9.0 else None,
    )
    made = make_dispatcher(settings, pool="p", rng=Random(1), max_requests=rows, max_bytes=1 << 40)
    made.set_endpoints([EndpointView("a", "sim", limit)])
    return made


def drain(d: Dispatcher, running: Placement, now: float) -> list[int]:
    """Let one after the other end, all of a sudden."""
    order: list[int] = []
    while placements := d.release(running, now):
        (running,) = placements
        order.append(running.request.sequence)
    return order


def started(d: Dispatcher, asked: Request, now: float = 0.0) -> Placement:
    placement = d.submit(asked, now)
    assert placement is not None
    return placement


def told(d: Dispatcher) -> dict[str, list[str]]:
    others = d.take_others()
    if others is None:
        return {}
    found = {
        "recalled": [p.request.id for p in others.recalled],
        "refused": [r.id for r, _ in others.refused],
        "expired": [r.id for r in others.expired],
        "started": [p.request.id for p in others.started],
    }
    return {what: ids for what, ids in found.items() if ids}


def test_credit_is_a_share_that_cannot_be_hoarded():
    credit = Credit(0.25)
    for _ in range(1000):
        credit.earn(100.0)
    used = 0
    while credit.open:
        credit.spend(100.0)
        used += 1
    assert used == 1

    for _ in range(1000):
        credit.earn(100.0)
        if credit.open:
            credit.spend(100.0)
            used += 1
    assert used == pytest.approx(250, abs=3)


def test_an_overdue_request_goes_first_in_its_tenants_turn():
    d = core("sjf", longest_wait=10.0, overdue_share=0.0)
    running = started(d, request(0))
    d.submit(request(1, output=900, arrived=0.0), 0.0)
    d.submit(request(2, output=1, arrived=8.0), 8.0)
    d.submit(request(3, output=2, arrived=8.0, tenant="other"), 8.0)

    assert drain(d, running, 10.5) == [1, 2, 3]


def test_of_what_is_overdue_the_higher_class_goes_first():
    d = core(longest_wait=10.0, recalls=0)
    running = started(d, request(1))
    for number, rank in ((2, 0), (3, 1), (4, 0), (5, 1)):
        d.submit(request(number, sla_rank=rank, arrived=number / 10), number / 10)
    d.submit(request(6, sla_rank=2, arrived=9.0), 9.0)  # is not

    assert drain(d, running, 10.6) == [3, 5, 2, 4, 6]


def test_across_tenants_overdue_requests_take_no_more_than_their_share():
    d = core("fair", rows=1000, longest_wait=1e5, grace=1e6, overdue_share=0.25)
    running = started(d, request(0, tenant="x"))
    for number in range(1, 201):
        tenant, longest = ("late", 1.0) if number <= 100 else ("young", None)
        d.submit(request(number, tenant=tenant, longest_wait=longest), 0.0)
    order = drain(d, running, 5.0)[:100]

    # A fair half is its own; of what is left a quarter more may be forced, and is made good for.
    assert 50 <= sum(number <= 100 for number in order) <= 64
    assert d.guards is not None
    assert d.guards.forced > 0


def test_what_cannot_start_in_time_is_refused_and_told_why():
    d = core(longest_wait=10.0)
    started(d, request(0))
    d.submit(request(1), 0.0)
    d.submit(request(2, longest_wait=2.0), 0.0)
    d.submit(request(3, deadline=5.0), 0.0)

    assert d.next_deadline == 2.2
    assert (d.expire(2.1), told(d)) == ([], {})
    assert (d.expire(2.2), told(d)) == ([], {"refused": ["r2"]})
    assert ([r.id for r in d.expire(5.0)], told(d)) == (["r3"], {})
    assert (d.expire(11.0), told(d)) == ([], {"refused": ["r1"]})
    assert d.gave_up == 2


def test_nothing_starts_after_its_time_even_when_the_clock_was_late():
    d = core(longest_wait=10.0)
    running = started(d, request(0))
    d.submit(request(1), 0.0)
    d.submit(request(2, arrived=50.0), 50.0)

    assert drain(d, running, 55.0) == [2]
    assert told(d) == {"refused": ["r1"]}
    assert d.guards is not None
    assert d.guards.starved == 0


def test_a_request_that_was_tried_is_not_given_up():
    d = core(longest_wait=10.0)
    started(d, request(0))
    d.set_endpoints([EndpointView("a", "sim", 1), EndpointView("b", "sim", 1, usable=True)])
    started(d, request(9))
    d.submit(request(1, avoid=frozenset({"z"}), deadline=100.0), 0.0)

    assert (d.expire(50.0), told(d)) == ([], {})


def test_long_requests_keep_a_share_where_size_decides():
    d = core("sjf", longest_wait=1e9, long_cost=1000.0, long_share=0.1)
    running = started(d, request(0))
    for number in range(1, 101):
        d.submit(request(number, output=500 if number <= 10 else 50), 0.0)
    order = drain(d, running, 1.0)

    first = [number for number in order[:40] if number <= 10]
    assert first == [1]
    assert order.index(1) < 15


def test_an_ordering_that_ignores_size_needs_no_such_share():
    d = core("fcfs", long_cost=10.0)
    running = started(d, request(0))
    for number in (3, 1, 2):
        d.submit(request(number, output=500), 0.0)

    assert drain(d, running, 1.0) == [1, 2, 3]


def test_short_ones_go_first_in_a_turn_while_the_cache_is_nearly_full():
    d = core("fair", grace=9.0)
    running = started(d, request(0))
    for number, tenant, output in ((1, "a", 90), (2, "a", 9), (3, "b", 50), (4, "b", 5)):
        d.submit(request(number, output=output, tenant=tenant), 0.0)
    d.changed(0.0)

    assert drain(d, running, 1.0) == [2, 4, 3, 1]


def test_a_higher_class_calls_back_the_youngest_of_the_lowest_twice_at_most():
    d = core(limit=3)
    for number, rank in ((0, 1), (1, 0), (2, 0)):
        started(d, request(number, sla=f"c{rank}", sla_rank=rank))

    high = started(d, request(3, sla="c2", sla_rank=2))
    assert told(d) == {"recalled": ["r2"]}
    assert [p.request.id for p in d.release(high, 1.0)] == ["r2"]
    high = started(d, request(4, sla="c2", sla_rank=2), 2.0)
    assert told(d) == {"recalled": ["r2"]}
    d.release(high, 3.0)
    started(d, request(5, sla="c2", sla_rank=2), 4.0)
    assert told(d) == {"recalled": ["r1"]}
    assert d.recalls == 3


@pytest.mark.parametrize(
    "lower",
    [
        pytest.param({"stream": False}, id="a whole answer"),
        pytest.param({"sla_rank": 2}, id="as high a class"),
        pytest.param({"longest_wait": 0.5}, id="one that is overdue"),
    ],
)
def test_some_are_never_called_back(lower: dict[str, Any]):
    d = core()
    started(d, request(0, **lower))

    assert d.submit(request(1, sla_rank=2), 1.0) is None
    assert told(d) == {}


def test_one_that_has_begun_is_not_called_back():
    d = core()
    d.began(started(d, request(0)))

    assert d.submit(request(1, sla_rank=1), 1.0) is None


def test_a_full_queue_displaces_the_youngest_of_the_lowest_class():
    d = core(rows=2, recalls=0)
    started(d, request(0, sla_rank=2))
    d.submit(request(1), 0.0)
    d.submit(request(2), 0.0)

    assert d.submit(request(3, sla_rank=1), 0.0) is None
    assert told(d) == {"refused": ["r2"]}
    assert d.submit(request(4, sla_rank=2), 0.0) is None
    assert told(d) == {"refused": ["r1"]}
    with pytest.raises(Overloaded, match="2 requests wait"):
        d.submit(request(5, sla_rank=1), 0.0)
    assert (d.displaced, d.queued) == (2, 2)


def test_a_class_at_its_cap_displaces_nobody():
    d = core(recalls=0)
    d.set_limits(max_requests=100, max_bytes=1 << 40, classes={"batch": 1})
    started(d, request(0))
    d.submit(request(1), 0.0)
    d.submit(request(2, sla="batch", sla_rank=1), 0.0)

    with pytest.raises(Overloaded, match="1 requests of class 'batch' wait"):
        d.submit(request(3, sla="batch", sla_rank=1), 0.0)
    assert (told(d), d.queued) == ({}, 2)


def test_a_body_that_cannot_fit_displaces_nobody():
    d = core(rows=100, recalls=0)
    d.set_limits(max_requests=100, max_bytes=100)
    started(d, request(0))
    for number in (1, 2, 3):
        d.submit(request(number, body_bytes=20), 0.0)
    d.submit(request(4, body_bytes=40, sla_rank=1), 0.0)

    with pytest.raises(Overloaded, match="100 bytes of requests wait"):
        d.submit(request(5, body_bytes=61, sla_rank=1), 0.0)
    assert told(d) == {}
    assert d.submit(request(6, body_bytes=40, sla_rank=1), 0.0) is None
    assert (told(d), d.queued_bytes) == ({"refused": ["r3", "r2"]}, 100)


def test_a_queue_whose_limits_have_shrunk_gives_up_one_for_one():
    d = core(rows=100, recalls=0)
    started(d, request(0))
    for number in range(1, 9):
        d.submit(request(number, body_bytes=10), 0.0)
    d.set_limits(max_requests=2, max_bytes=20)

    assert d.submit(request(9, body_bytes=10, sla_rank=1), 0.0) is None
    assert (told(d), d.queued, d.queued_bytes) == ({"refused": ["r8"]}, 8, 80)


def test_what_was_counted_goes_on_where_another_core_does():
    before, after = core(rows=1), core("sjf", rows=1)
    started(before, request(0, sla_rank=0))
    before.submit(request(1, sla_rank=1), 0.0)  # takes the place of the first, which waits now
    before.submit(request(2, sla_rank=1), 0.0)  # takes its place in the queue, too
    before.expire(1000.0)
    after.take_over(before)

    assert (after.recalls, after.displaced, after.gave_up) == (1, 1, 1)
