"""How fast a queue drains, and who is refused since it would wait too long."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.asking import a_request

from forebay.policies.contracts import EndpointView, Overloaded, Request
from forebay.scheduler.build import DoubleQueueSettings, Scheduling, make_dispatcher
from forebay.scheduler.drain import Drain
from forebay.scheduler.guards import GuardSettings

if TYPE_CHECKING:
    from forebay.scheduler.dispatch import Dispatcher


def request(number: int, **fields: Any) -> Request:
    plain = {
        "arrived": 100.0,
        "deadline": 1e6,
        "prompt_tokens_estimate": 10,
        "output_tokens_estimate": 20,
        "stream": True,
        "longest_wait": 10.0,
    }
    return a_request(number, **{**plain, **fields})


def at_one_a_second(order: str = "fcfs", **guards: Any) -> Dispatcher:
    """Return a core that has placed one request a second and has ten that wait, at 100 s."""
    settings = Scheduling(
        order.removeprefix("double-"),
        predicts=True,
        guards=GuardSettings(recalls=0, **guards),
        double_queue=DoubleQueueSettings() if order.startswith("double-") else None,
    )
    core = make_dispatcher(settings, pool="p", rng=Random(1), max_requests=100, max_bytes=1 << 40)
    core.set_endpoints([EndpointView("a", "sim", 1)])
    running = core.submit(request(0, arrived=60.0), 60.0)
    core.submit(request(59, arrived=60.0), 60.0)
    for second in range(60, 100):
        core.submit(request(second, arrived=float(second)), float(second))
        assert running is not None
        (running,) = core.release(running, second + 1.0)
    for number in range(101, 110):
        assert core.submit(request(number), 100.0) is None
    return core


def refusal(core: Dispatcher, asked: Request) -> tuple[str, float | None]:
    with pytest.raises(Overloaded) as refused:
        core.submit(asked, 100.0)
    return refused.value.code, refused.value.retry_after


def test_only_the_time_during_which_requests_wait_counts():
    drain = Drain()
    for hour in range(40):
        drain.began()
        for second in range(5):  # the first after a cold start of some minutes
            drain.placed(3600.0 * hour + 300.0 + 0.5 * second)

    assert drain.wait(10, 3600.0 * 39 + 302.0) == pytest.approx(5.0, rel=0.05)


def test_a_pause_makes_the_pace_slower_and_not_what_it_is():
    drain, now = Drain(), 0.0
    for _ in range(6000):
        drain.placed(now)
        now += 0.01
    assert drain.wait(100, now) == pytest.approx(1.0, rel=0.01)
    now += 10.0
    assert 1.1 < drain.wait(100, now) < 1.4
    drain.placed(now)
    assert 1.1 < drain.wait(100, now) < 1.4


def test_nothing_is_foretold_of_a_queue_that_has_hardly_moved():
    drain = Drain()
    for second in range(32):
        drain.placed(float(second))

    assert drain.wait(1e6, 320.0) == 0.0


def test_what_would_wait_until_it_gives_up_is_refused_at_once():
    core = at_one_a_second()

    assert core.submit(request(110), 100.0) is None
    assert core.submit(request(111, longest_wait=60.0), 100.0) is None
    assert refusal(core, request(112)) == ("expected_wait", 1.0)
    assert core.submit(request(113, longest_wait=60.0), 100.0) is None
    assert refusal(core, request(114, deadline=105.0, longest_wait=60.0)) == ("expected_wait", 8.0)
    assert (core.queued, core.foretold, core.take_others()) == (13, 2, None)


def test_the_lowest_class_makes_way_first():
    core = at_one_a_second()
    core.submit(request(110), 100.0)
    core.submit(request(111, longest_wait=60.0), 100.0)

    assert core.submit(request(112, sla_rank=1), 100.0) is None
    others = core.take_others()
    assert others is not None
    assert [each.id for each, _ in others.refused] == ["r111"]
    assert (core.displaced, core.queued) == (1, 12)


@pytest.mark.parametrize("order", ["fair", "double-fair"])
def test_nobody_is_refused_for_another_tenants_queue(order: str):
    core = at_one_a_second(order)
    for number in range(110, 112):
        core.submit(request(number, longest_wait=60.0), 100.0)

    assert refusal(core, request(112)) == ("expected_wait", 1.0)
    assert core.submit(request(113, tenant="other", sla_rank=1), 100.0) is None
    assert core.submit(request(114, tenant="other", weight=3.0), 100.0) is None
    assert core.take_others() is None


def test_a_short_one_is_not_refused_for_long_ones_where_it_goes_before_them():
    core = at_one_a_second("ml")
    for number in range(110, 112):
        core.submit(request(number, longest_wait=60.0), 100.0)

    assert refusal(core, request(112, output_tokens_estimate=5000))[0] == "expected_wait"
    assert core.submit(request(113, output_tokens_estimate=1, uncached_tokens=1), 100.0) is None


def test_nobody_makes_way_for_a_body_that_does_not_fit_all_the_same():
    core = at_one_a_second()
    core.submit(request(110), 100.0)
    core.submit(request(111, longest_wait=60.0), 100.0)
    core.set_limits(max_requests=100, max_bytes=10)

    assert refusal(core, request(112, sla_rank=1, body_bytes=11))[0] == "overloaded"
    assert (core.take_others(), core.queued) == (None, 12)


@pytest.mark.parametrize("order", ["fcfs", "fair", "ml"])
def test_nobody_is_refused_for_what_waits_for_other_endpoints(order: str):
    core = at_one_a_second(order)
    core.set_endpoints(
        [
            EndpointView("a", "sim", 1, models=frozenset({"m"})),
            EndpointView("b", "sim", 1, models=frozenset({"n"})),
        ]
    )
    for number in range(110, 112):
        core.submit(request(number, longest_wait=60.0), 100.0)
    running = core.submit(request(112, model="n"), 100.0)

    assert running is not None
    assert core.submit(request(113, model="n", output_tokens_estimate=5000), 100.0) is None


def test_it_can_be_left_to_the_longest_wait():
    core = at_one_a_second(early=False)
    for number in range(110, 180):
        assert core.submit(request(number), 100.0) is None
