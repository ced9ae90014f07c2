"""Which placements may be called back."""

from __future__ import annotations

from forebay.policies.contracts import Placement, Request, Route
from forebay.scheduler.recall import Recalls


def placement(number: int, rank: int = 0, endpoint: str = "a", *, stream: bool = True) -> Placement:
    request = Request(
        id=f"r{number}",
        pool="p",
        route=Route.CHAT,
        model="m",
        tenant="t",
        sequence=number,
        arrived=0.0,
        deadline=60.0,
        prompt_tokens_estimate=1,
        output_tokens_estimate=1,
        uncached_tokens=1,
        stream=stream,
        sla_rank=rank,
    )
    return Placement(request, endpoint, 2, 0.0)


def test_the_youngest_of_the_lowest_class_on_a_wanted_endpoint_is_the_one():
    recalls = Recalls(2)
    placements = [placement(1, 1), placement(2), placement(3), placement(4, endpoint="b")]
    for each in placements:
        recalls.placed(each)

    assert recalls.victim(2, {"a"}) is placements[2]
    recalls.begun(placements[2])
    recalls.begun(placements[1])
    assert recalls.victim(2, {"a"}) is placements[0]
    assert recalls.victim(1, {"a"}) is None
    assert recalls.victim(0, {"a", "b"}) is None


def test_whole_answers_are_never_called_back():
    recalls = Recalls(2)
    recalls.placed(placement(1, stream=False))

    assert recalls.victim(1, {"a"}) is None


def test_each_is_called_back_so_often_and_counted_until_it_is_over():
    recalls, one = Recalls(1), placement(1)
    recalls.placed(one)
    recalls.call_back(one)
    recalls.placed(one)
    assert recalls.victim(1, {"a"}) is None

    recalls.forget("r1")
    recalls.placed(one)
    assert recalls.victim(1, {"a"}) is one


def test_what_is_never_told_as_over_is_forgotten_in_the_end():
    recalls = Recalls(1)
    for number in range(10_000):
        recalls.call_back(placement(number))

    assert len(recalls._times) == 4096
