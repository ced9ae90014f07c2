"""Places kept for some tenants: theirs when they want them, everybody's when they do not."""

from __future__ import annotations

from collections import Counter
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from forebay.policies.contracts import EndpointView, Placement, QuotaExceeded, Request, Route
from forebay.policies.registry import ORDERINGS
from forebay.policies.shares import Claim, entitlements
from forebay.scheduler.build import Scheduling, make_dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forebay.scheduler.dispatch import Dispatcher

NUMBERS = count()
VIP = {"vip": 0.2}


def request(tenant: str, **fields: Any) -> Request:
    number = next(NUMBERS)
    plain: dict[str, Any] = {
        "id": f"r{number}",
        "pool": "p",
        "route": Route.CHAT,
        "model": "m",
        "tenant": tenant,
        "sequence": number,
        "arrived": 0.0,
        "deadline": 1e6,
        "prompt_tokens_estimate": 10,
        "output_tokens_estimate": 20,
        "uncached_tokens": 10,
        "stream": True,
        "reserve": "vip" if tenant.startswith("vip") else "",
    }
    return Request(**{**plain, **fields})


def core(
    reserves: Mapping[str, float], *, order: str = "fair", limit: int = 10, rows: int = 1000
) -> Dispatcher:
    settings = Scheduling(order, predicts=True, reserves=reserves)
    made = make_dispatcher(settings, pool="p", rng=Random(1), max_requests=rows, max_bytes=1 << 40)
    made.set_endpoints([EndpointView("a", "sim", limit // 2), EndpointView("b", "sim", limit // 2)])
    return made


def ask(d: Dispatcher, tenant: str, times: int = 1, **fields: Any) -> list[Placement]:
    found = [d.submit(request(tenant, **fields), 0.0) for _ in range(times)]
    return [placement for placement in found if placement is not None]


def of(placements: list[Placement]) -> list[str]:
    return [placement.request.tenant for placement in placements]


def turns(d: Dispatcher, running: list[Placement], times: int) -> Iterator[list[Placement]]:
    """Let the longest running one end, again and again."""
    for _ in range(times):
        freed = d.release(running.pop(0), 0.0, 50.0)
        running += freed
        yield freed


@pytest.mark.parametrize("order", ORDERINGS)
def test_what_is_lent_is_taken_back_at_the_next_dispatches(order: str):
    d = core(VIP, order=order)
    running = ask(d, "mob", 30)
    assert len(running) == 10  # all of the pool, the reserve's two places with it
    ask(d, "vip", 5)

    freed = [of(each) for each in turns(d, running, 2)]

    assert freed == [["vip"], ["vip"]]
    assert d.reserves is not None
    assert d.reserves.held == {"vip": 2}


def test_an_idle_reserve_leaves_no_place_empty():
    d = core({"vip": 0.5}, limit=4)
    running = ask(d, "mob", 6)
    ask(d, "vip")
    for _ in turns(d, running, 2):
        assert d.in_flight == 4

    assert Counter(of(running)) == {"mob": 3, "vip": 1}


def test_the_rest_is_shared_by_weight_with_those_who_have_a_reserve():
    d = core(VIP, limit=40, rows=5000)
    claims = [Claim("mob", 3.0), Claim("vip-a", 1.0, "vip"), Claim("vip-b", 2.0, "vip")]
    running: list[Placement] = []
    for claim in claims:
        running += ask(d, claim.tenant, 2000 // len(claims), weight=claim.weight)
    held: Counter[str] = Counter()
    for step, _ in enumerate(turns(d, running, 600)):
        if step >= 100:
            held.update(of(running))

    wanted = [Claim(c.tenant, c.weight, c.reserve, waiting=1000) for c in claims]
    entitled = entitlements(wanted, 40, VIP)
    assert {tenant: n / 500 for tenant, n in held.items()} == pytest.approx(entitled, rel=0.03)


def test_reserves_beyond_the_pool_give_way_and_a_few_places_are_rounded_up():
    d = core({"vip": 1.0, "own": 1.0, "off": 0.0}, limit=4)
    running = ask(d, "mob", 4)
    ask(d, "vip", 4)
    ask(d, "x", 4, reserve="own")
    ask(d, "y", 4, reserve="gone")  # of a reserve that a reload has taken away

    assert Counter(tenant for each in turns(d, running, 4) for tenant in of(each)) == {
        "vip": 2,
        "x": 2,
    }
    small = core(VIP, limit=2)
    running = ask(small, "mob", 4)
    ask(small, "vip", 4)
    assert [of(each) for each in turns(small, running, 1)] == [["vip"]]


def test_a_call_that_leaves_or_is_released_twice_keeps_the_account_even():
    d = core(VIP)
    running = ask(d, "vip", 1) + ask(d, "mob", 9)
    waiting = request("vip")
    d.submit(waiting, 0.0)
    d.leave(waiting)
    d.release(running[0], 0.0)
    d.release(running[0], 0.0)

    assert d.reserves is not None
    assert (d.reserves.held, d.reserves.owed(d.endpoints.values())) == ({"vip": 0}, [])


def test_another_core_takes_over_who_draws_on_a_reserve():
    before, after = core(VIP), core({"vip": 0.1})
    running = ask(before, "vip", 4) + ask(before, "mob", 6)
    ask(before, "mob", 2)
    after.take_over(before)
    assert after.reserves is not None
    assert after.reserves.held == {"vip": 1}
    for _ in turns(after, running, 12):
        pass
    assert after.reserves.held == {"vip": 0}


def test_a_tenant_takes_no_more_of_the_queue_than_its_share():
    d = core({}, limit=2, rows=10)
    ask(d, "mob", 2)
    ask(d, "mob", 3, queue_share=0.3)
    with pytest.raises(
        QuotaExceeded, match="3 requests of this tenant wait, its share of the queue"
    ):
        ask(d, "mob", queue_share=0.3)

    assert ask(d, "other", queue_share=0.05) == []  # one at least
    assert d.queued == 4
