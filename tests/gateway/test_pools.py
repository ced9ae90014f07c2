"""Calls and their pool, where one event leads to the next before the first is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.asking import a_request

from forebay.gateway.config.sections import Config
from forebay.gateway.endpoint import AUTO, Endpoint
from forebay.gateway.pools import Pool
from forebay.gateway.scheduling import Shared
from forebay.gateway.telemetry.histogram import Histogram
from forebay.scheduler.window_adaptive import WindowSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.gateway.relay import Relay
    from forebay.policies.contracts import Placement, Rejected


class Call:
    """A call that notes what becomes of it, and may do something about it at once."""

    def __init__(self, number: int, **fields: Any) -> None:
        self.request = a_request(number, **{"deadline": 1e6, "stream": True, **fields})
        self.told: list[str] = []
        self.placement: Placement | None = None
        self.then: dict[str, Callable[[], object]] = {}

    def _note(self, what: str) -> None:
        self.told.append(what)
        then = self.then.pop(what, None)
        if then is not None:
            then()

    def queued(self) -> None:
        self._note("queued")

    def placed(self, placement: Placement, _now: float) -> None:
        self.placement = placement
        self._note("placed")

    def recalled(self) -> None:
        self._note("recalled")

    def ousted(self, _error: Rejected) -> None:
        self._note("refused")

    def expired(self, _now: float) -> None:
        self._note("expired")


def _nobody(_pool: str, _endpoint: str, _state: str) -> None:
    pass


def pool_of(*, classes: bool = True, **section: Any) -> Pool:
    endpoint = {"name": "e0", "engine": "sim", "max_in_flight": 1, "sim": {"profile": "instant"}}
    config = Config.model_validate(
        {
            "version": 1,
            "pools": [{"name": "p", "models": {"m": "m"}, "endpoints": [endpoint], **section}],
        }
    )
    (own,) = config.pools
    made = Pool(own, seed=1, itl=Histogram((1.0,)), changed=_nobody)
    (told,) = own.endpoints
    made.take(own, [Endpoint(told, own.health, cast("Any", None))], shared=Shared(classes=classes))
    made.wake(0.0)
    return made


def send(pool: Pool, call: Call) -> Call:
    pool.submit(cast("Relay", call), call.request, 0.0)
    if call.told == ["placed"] and call.placement is not None:
        pool.note_placed(call.placement, cast("Relay", call))
    return call


def released(pool: Pool, call: Call) -> None:
    assert call.placement is not None
    pool.release(call.placement, 0.0)


@pytest.mark.interpreted
def test_a_call_whose_turn_comes_while_it_is_being_queued_is_not_lost():
    pool = pool_of(queue={"max_requests": 1}, scheduling={"guards": {"recalls": 0}})
    running, low, high = send(pool, Call(0)), send(pool, Call(1)), Call(2, sla_rank=1)
    low.then["refused"] = lambda: released(pool, running)  # one thing leads to another

    send(pool, high)

    assert (low.told, high.told) == (["queued", "refused"], ["queued", "placed"])
    assert (pool.waiting, pool.dispatcher.queued, pool.dispatcher.in_flight) == ({}, 0, 1)


@pytest.mark.interpreted
def test_whoever_is_called_back_is_stopped_before_another_is_sent():
    pool, order = pool_of(), list[str]()
    low, high = send(pool, Call(0)), Call(1, sla_rank=1)
    low.then["recalled"] = lambda: order.append("stopped")
    high.then["placed"] = lambda: order.append("sent")

    send(pool, high)

    assert (order, low.told) == (["stopped", "sent"], ["placed", "recalled"])


@pytest.mark.interpreted
def test_a_call_that_fails_at_once_leaves_its_place_to_whom_it_was_taken_from():
    pool = pool_of()
    low, high = send(pool, Call(0)), Call(1, sla_rank=1)
    high.then["placed"] = lambda: released(pool, high)

    send(pool, high)

    assert (low.told, high.told) == (["placed", "recalled", "placed"], ["placed"])
    assert (pool.dispatcher.queued, pool.dispatcher.in_flight) == (0, 1)


@pytest.mark.interpreted
def test_a_turn_that_is_taken_back_before_the_call_was_sent_is_not_sent_twice():
    pool = pool_of(queue={"max_requests": 2})
    running, late, low = send(pool, Call(0)), Call(1, longest_wait=1.0), Call(2)
    high = Call(3, sla_rank=1)
    send(pool, late)
    send(pool, low)
    late.then["refused"] = lambda: send(pool, high)  # too late; and in comes a higher class

    assert running.placement is not None
    pool.release(running.placement, 5.0)

    assert (low.told, high.told) == (["queued"], ["placed"])
    assert (list(pool.waiting), pool.dispatcher.queued, pool.dispatcher.in_flight) == (["r2"], 1, 1)


def test_a_reload_of_the_order_keeps_what_is_known_of_prefixes():
    pool = pool_of(prefix={"mode": "learned"})
    known = pool.prefix
    own = pool.section.model_copy(update={"order": "fcfs"})

    pool.take(own, pool.endpoints.values(), shared=Shared(classes=True))

    assert known is not None
    assert pool.prefix is known
    assert pool.dispatcher.ordering.name == "fcfs"


@pytest.mark.interpreted
def test_who_joins_others_passes_a_probe_before_it_gets_anything():
    pool = pool_of()
    (first,) = pool.endpoints.values()
    sections = [first.section, first.section.model_copy(update={"name": "e1"})]
    section = pool.section.model_copy(update={"endpoints": tuple(sections)})
    new = Endpoint(sections[1], section.health, cast("Any", None))
    pool.take(section, [first, new], shared=Shared())
    pool.wake(0.0)
    assert (first.view.usable, new.view.usable) == (True, False)

    change = new.health.probe_passed(1.0)
    assert change is not None
    pool.upkeep.moved(new, change, 1.0)
    assert (new.view.usable, new.view.share) == (True, 0.1)


@pytest.mark.interpreted
def test_who_joins_nobody_may_be_asked_at_once():
    pool = pool_of()
    (first,) = pool.endpoints.values()
    pool.take(pool.section, [first], shared=Shared())
    first.view.usable = False
    new = Endpoint(first.section, pool.section.health, cast("Any", None))
    pool.take(pool.section, [new], shared=Shared())
    assert new.view.usable


@pytest.mark.interpreted
def test_a_part_that_comes_after_the_limit_is_found_is_not_taken():
    (endpoint,) = pool_of().endpoints.values()
    endpoint.take_part(1)
    auto = endpoint.section.model_copy(update={"max_in_flight": AUTO})
    endpoint.configure(auto, WindowSettings())
    found = endpoint.view.limit

    endpoint.take_part(3)

    assert (endpoint.view.limit, endpoint.part_is_less) == (found, False)
