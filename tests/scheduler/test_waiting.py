"""What waits, by several clocks, against plain lists."""

from __future__ import annotations

from random import Random

from forebay.policies.contracts import Request, Route
from forebay.scheduler.timeline import Timeline
from forebay.scheduler.waiting import Waiting


def request(number: int, arrived: float = 0.0, rank: int = 0) -> Request:
    return Request(
        id=f"r{number}",
        pool="p",
        route=Route.CHAT,
        model="m",
        tenant=f"t{number % 3}",
        sequence=number,
        arrived=arrived,
        deadline=60.0,
        prompt_tokens_estimate=1,
        output_tokens_estimate=1,
        uncached_tokens=1,
        body_bytes=number,
        sla=f"c{rank}",
        sla_rank=rank,
    )


def test_it_agrees_with_plain_lists():
    rng, waiting, model = Random(3), Waiting(ranked=True), list[Request]()
    for number in range(2000):
        if rng.random() < 0.55:
            came = max(0.0, number - rng.choice([0.0, 0.0, 0.0, 50.0]))
            one = request(number, came, rng.randrange(3))
            waiting.add(one, came + 10)
            model.append(one)
        elif model:
            gone = model.pop(rng.randrange(len(model)))
            assert waiting.remove(gone.id) is gone
            assert waiting.remove(gone.id) is None
        classes = {r.sla for r in model}
        assert waiting.oldest() == {c: min(r.arrived for r in model if r.sla == c) for c in classes}
        assert (len(waiting), waiting.bytes) == (len(model), sum(r.body_bytes for r in model))
        assert sum(waiting.counts.values()) == len(model)
        assert waiting.of_class("c1") == sum(r.sla == "c1" for r in model)
        shape = request(0).shape
        assert waiting.of_shape(shape) == len(model)
        below = [r for r in model if r.sla_rank < 2]
        lowest = [r for r in below if r.sla_rank == min(b.sla_rank for b in below)]
        assert waiting.bytes_below(2) == (
            sum(r.body_bytes for r in below) if waiting.displaceable(2) else 0
        )
        assert waiting.displaceable(2) is max(lowest, key=lambda r: r.sequence, default=None)
        assert waiting.any_of_rank(1) == any(r.sla_rank >= 1 for r in model)


def test_a_first_request_of_a_class_may_displace_those_of_none():
    waiting = Waiting(ranked=True)
    waiting.add(request(1), 10.0)

    assert waiting.displaceable(1) == request(1)
    assert Waiting(ranked=True).displaceable(1) is None


def test_another_try_of_a_request_is_not_the_one_that_waits():
    waiting = Waiting(ranked=False)
    waiting.add(request(1), 10.0)

    (held,) = waiting
    assert (waiting.is_waiting(held), waiting.is_waiting(request(1))) == (True, False)


def test_a_timeline_forgets_the_dead_and_stays_short():
    alive = set[str]()
    line = Timeline(lambda r: r.id in alive)
    for number in range(10_000):
        line.add(request(number, float(number)))
        alive = {f"r{number}"}

    assert line.first() == request(9999, 9999.0)
    assert len(line._line) == 1
