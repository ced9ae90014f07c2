"""A journal of a random life, and the same life out of the journal."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from forebay.policies.contracts import EndpointView, Overloaded, Placement, Request, Route
from forebay.policies.registry import ORDERINGS
from forebay.scheduler.admission import WatermarkSettings
from forebay.scheduler.build import (
    DoubleQueueSettings,
    Scheduling,
    check_journal,
    journal_head,
    make_dispatcher,
)
from forebay.scheduler.cost import Cost
from forebay.scheduler.guards import GuardSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.scheduler.dispatch import Dispatcher

TIGHT = GuardSettings(longest_wait=3.0, long_cost=300.0)


def core_of(settings: Scheduling, lines: list[bytes], seed: int = 1) -> Dispatcher:
    return make_dispatcher(
        settings,
        pool="p",
        rng=Random(seed),
        max_requests=12,
        max_bytes=1 << 30,
        cost=Cost(),
        journal=lines.append,
    )


def live(settings: Scheduling, *, seed: int = 1, steps: int = 600) -> list[bytes]:
    """Let a pool live as the gateway makes it live; return its journal."""
    lines = [journal_head(settings, pool="p", seed=seed, cost=Cost())]
    core = core_of(settings, lines, seed)
    views = [EndpointView("a", "sim", 2, kv_use=0.1), EndpointView("b", "sim", 2)]
    core.set_endpoints(views)
    _events(core, views, Random(seed), steps)
    return lines


def _events(  # noqa: C901 - one branch an event
    core: Dispatcher,
    views: list[EndpointView],
    rng: Random,
    steps: int,
    *,
    going: Sequence[Placement] = (),
    first: int = 0,
) -> list[Placement]:
    running, now = list(going), first / 4

    def others() -> None:
        told = core.take_others()
        if told is not None:
            for placement in told.recalled:
                running.remove(placement)
            running.extend(told.started)

    for number in range(first, first + steps):
        now += rng.random() / 2
        what = rng.random()
        if what < 0.5:
            try:
                placement = core.submit(asked(number, rng, now), now)
            except Overloaded:
                placement = None
            others()
            running += [placement] if placement else []
        elif what < 0.8 and running:
            ended = running.pop(rng.randrange(len(running)))
            freed = core.release(ended, now, rng.choice([None, 0.0, 10.0, 900.0]))
            others()
            running.extend(freed)
        elif what < 0.85 and running:
            core.began(rng.choice(running))
        elif what < 0.9:
            waiting = sorted(core.waiting, key=lambda r: r.sequence)
            if waiting:
                core.leave(waiting[0])
        elif what < 0.95:
            views[0].kv_use, views[0].load_at = rng.random(), now
            core.tick(now)
            core.expire(now)
            others()
        else:
            views[1].usable = not views[1].usable
            freed = core.changed(now)
            others()
            running.extend(freed)
    return running


def asked(number: int, rng: Random, now: float) -> Request:
    rank = rng.randrange(3)
    return Request(
        id=f"r{number}",
        pool="p",
        route=Route.CHAT,
        model="m",
        tenant=rng.choice("xyz"),
        weight=rng.choice([1.0, 3.0]),
        sequence=number,
        arrived=now,
        deadline=now + rng.choice([2.0, 60.0]),
        prompt_tokens_estimate=50,
        output_tokens_estimate=rng.choice([1, 50, 400]),
        uncached_tokens=50,
        stream=True,
        sla=f"c{rank}",
        sla_rank=rank,
        reserve="vip" if number % 5 == 0 else "",
    )


@pytest.mark.parametrize("order", ORDERINGS)
@pytest.mark.parametrize("seed", range(3))
def test_the_core_fed_with_its_journal_decides_the_same_byte_for_byte(order: str, seed: int):
    settings = Scheduling(
        order,
        predicts=True,
        guards=TIGHT,
        watermarks=WatermarkSettings(),
        class_caps={"c0": 6},
        reserves={"vip": 0.3},
    )
    lines = live(settings, seed=seed)

    assert list(check_journal(lines)) == []
    outs = {line.split(b",")[1] for line in lines if line.startswith(b'["out"')}
    assert outs == {b'"submitted"', b'"rejected"', b'"placed"', b'"expired"', b'"others"'}


def test_a_double_queue_is_told_in_the_head():
    settings = Scheduling("fair", guards=None, double_queue=DoubleQueueSettings(100.0, 0.5))

    assert list(check_journal(live(settings))) == []


def test_a_core_of_another_make_decides_otherwise_and_it_shows():
    lines = live(Scheduling("ml", predicts=True, guards=TIGHT))
    lines[0] = journal_head(Scheduling("fcfs", guards=TIGHT), pool="p", seed=1, cost=Cost())

    was, now = next(iter(check_journal(lines)))
    assert was != now


def test_a_journal_holds_no_more_decisions_than_events_explain():
    lines = live(Scheduling("fair"), steps=50)

    assert list(check_journal([*lines, b'["out","placed",[]]\n'])) == [
        (b'["out","placed",[]]\n', b"")
    ]


@pytest.mark.parametrize("lines", [[], [b"{}\n"], [b"nothing"], [b'["in","tick",1.0]\n']])
def test_what_is_no_journal_is_told(lines: list[bytes]):
    with pytest.raises(ValueError, match="this is no journal"):
        check_journal(lines)


@pytest.mark.parametrize("order", ["fcfs", "ml"])
def test_a_journal_goes_on_through_a_reload_that_brings_another_order(order: str):
    first = Scheduling("fair", guards=GuardSettings())
    second = Scheduling(order, predicts=True, guards=TIGHT)
    lines: list[bytes] = [journal_head(first, pool="p", seed=1, cost=Cost())]
    before = core_of(first, lines)
    views = [EndpointView("a", "sim", 2, kv_use=0.1), EndpointView("b", "sim", 2)]
    before.set_endpoints(views)
    running = _events(before, views, Random(2), 300)
    for number in range(300, 312):  # more than there is room for
        placement = before.submit(asked(number, Random(number), 75.0), 75.0)
        running += [placement] if placement else []
        if before.queued >= 6:
            break
    lines.append(journal_head(second, pool="p", seed=1, cost=Cost()))
    after = core_of(second, lines)
    after.take_over(before)
    assert after.in_flight == len(running)
    assert after.queued == before.queued >= 6
    _events(after, views, Random(2), 300, going=running, first=320)

    assert list(check_journal(lines)) == []
    assert len([line for line in lines if line.startswith(b'["core"')]) == 2
