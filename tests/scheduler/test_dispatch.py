"""The dispatcher's rules one by one; `test_dispatch_model` has them all at once."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.asking import a_request

from forebay.policies.contracts import (
    EndpointView,
    InvalidRequest,
    Overloaded,
    Placement,
    Rejected,
    Request,
    Route,
)
from forebay.policies.filter_capability import Capability
from forebay.policies.filter_room import Room
from forebay.policies.filter_usable import Usable
from forebay.policies.ordering_fair import Fair
from forebay.policies.ordering_fcfs import Fcfs
from forebay.policies.pick import Seeded
from forebay.policies.score_least_tokens import LeastTokens
from forebay.scheduler.build import Scheduling, make_dispatcher
from forebay.scheduler.dispatch import Dispatcher
from forebay.scheduler.retry import again

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.policies.contracts import Score


def request(sequence: int = 0, **fields: Any) -> Request:
    plain = {
        "pool": "llama",
        "model": "big",
        "arrived": float(sequence),
        "deadline": sequence + 60.0,
        "output_tokens_estimate": 20,
        "uncached_tokens": 80,
        "body_bytes": 10,
    }
    return a_request(sequence, **{**plain, **fields})


def view(name: str, limit: int = 1, **fields: Any) -> EndpointView:
    return EndpointView(name, "sim", limit, **fields)


def dispatcher(
    *views: EndpointView,
    max_requests: int = 100,
    max_bytes: int = 10_000,
    seed: int = 0,
    scores: Sequence[tuple[Score, float]] = ((LeastTokens(), 1.0),),
) -> Dispatcher:
    made = Dispatcher(
        pool="llama",
        ordering=Fcfs(),
        filters=[Usable(), Capability(), Room()],
        scores=scores,
        pick=Seeded(),
        rng=Random(seed),
        max_requests=max_requests,
        max_bytes=max_bytes,
    )
    made.set_endpoints(views)
    return made


def placed(dispatcher: Dispatcher, request: Request, now: float = 0.0) -> Placement:
    placement = dispatcher.submit(request, now)
    assert placement is not None
    return placement


def where(placements: list[Placement]) -> list[tuple[str, str]]:
    return [(placement.request.id, placement.endpoint) for placement in placements]


def test_a_request_is_placed_at_once_where_there_is_room():
    d = dispatcher(view("a"))

    placement = d.submit(request(1), 5.0)

    assert placement == Placement(request(1), "a", tokens=100, placed=5.0, score=1.0)
    assert (d.endpoints["a"].in_flight, d.endpoints["a"].in_flight_tokens) == (1, 100)
    assert (d.queued, d.in_flight) == (0, 1)


def test_a_freed_place_goes_to_the_oldest_that_waits():
    d = dispatcher(view("a"))
    first = placed(d, request(1))
    assert [d.submit(request(n), 1.0) for n in (2, 3)] == [None, None]

    assert where(d.release(first, 2.0)) == [("r2", "a")]
    assert (d.queued, d.queued_bytes, d.oldest_wait(10.0), d.next_deadline) == (1, 10, 7.0, 63.0)


def test_releasing_twice_is_harmless_and_counted():
    d = dispatcher(view("a"))
    first = placed(d, request(1))
    d.submit(request(2), 0.0)
    d.submit(request(3), 0.0)
    d.release(first, 1.0)

    assert d.release(first, 1.0) == []
    assert (d.endpoints["a"].in_flight, d.released_twice, d.queued) == (1, 1, 1)


def test_a_shape_that_cannot_move_blocks_no_other():
    d = dispatcher(view("a", models=frozenset({"big"})), view("b", models=frozenset({"small"})))
    placed(d, request(1))
    small = placed(d, request(2, model="small"))
    d.submit(request(3), 0.0)
    d.submit(request(4, model="small"), 0.0)

    assert where(d.release(small, 1.0)) == [("r4", "b")]


def test_a_retried_request_goes_before_younger_ones_and_not_where_it_was():
    d = dispatcher(view("a"), view("b"))
    first, second = placed(d, request(1)), placed(d, request(2))
    d.submit(request(3), 0.0)
    retried = again(first.request, first.endpoint)
    assert where(d.release(first, 1.0)) == [("r3", first.endpoint)]
    assert d.submit(retried, 1.0) is None
    d.submit(request(4), 1.0)

    assert where(d.release(second, 2.0)) == [("r1", second.endpoint)]


def test_a_full_queue_says_when_to_return():
    d = dispatcher(view("a"), max_requests=2)
    for n in range(3):
        d.submit(request(n), 0.0)

    with pytest.raises(Overloaded) as caught:
        d.submit(request(3), 0.0)

    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (
        429,
        "overloaded",
        3.0,
    )
    assert str(caught.value) == "pool 'llama' is full: 2 requests wait; try again later"


def test_the_time_to_return_follows_the_rate_at_which_requests_start():
    d = dispatcher(view("a"), max_requests=40)
    going = [placed(d, request(0))]
    for n in range(1, 41):
        d.submit(request(n), 0.0)
    for step in range(1, 101):
        going.extend(d.release(going[-1], step / 10))
        d.submit(request(100 + step), step / 10)

    with pytest.raises(Overloaded) as caught:
        d.submit(request(999), 10.0)

    assert 4.0 < (caught.value.retry_after or 0) < 4.2


def test_a_queue_that_starts_many_a_second_asks_for_one_second_at_least():
    d = dispatcher(view("a"), max_requests=1)
    going = placed(d, request(0))
    d.submit(request(1), 0.0)
    for n in range(2, 50):
        [going] = d.release(going, 0.5)
        d.submit(request(n), 0.5)

    with pytest.raises(Overloaded) as caught:
        d.submit(request(99), 0.5)

    assert caught.value.retry_after == 1.0


def test_bytes_fill_a_queue_too():
    d = dispatcher(view("a"), max_bytes=25)
    for n in range(3):
        d.submit(request(n), 0.0)

    with pytest.raises(Overloaded, match="20 bytes of requests wait"):
        d.submit(request(3), 0.0)


def test_a_retried_request_is_let_into_a_full_queue():
    d = dispatcher(view("a"), view("b"), max_requests=0)
    first = placed(d, request(1))
    placed(d, request(2))
    d.release(first, 1.0)
    placed(d, request(3), 1.0)

    assert d.submit(again(first.request, first.endpoint), 1.0) is None
    assert d.queued == 1


def test_new_limits_hold_for_who_comes_next_and_not_for_who_waits():
    d = dispatcher(view("a"))
    for n in range(4):
        d.submit(request(n), 0.0)

    d.set_limits(max_requests=2, max_bytes=10_000)
    with pytest.raises(Overloaded):
        d.submit(request(4), 0.0)
    assert d.queued == 3
    d.set_limits(max_requests=4, max_bytes=10_000)

    assert (d.submit(request(4), 0.0), d.queued) == (None, 4)


def test_no_queue_at_all_still_places():
    d = dispatcher(view("a"), max_requests=0)

    placed(d, request(1))

    with pytest.raises(Overloaded):
        d.submit(request(2), 0.0)


@pytest.mark.parametrize(
    ("views", "asked", "error", "status", "message"),
    [
        pytest.param(
            [view("a", routes=frozenset({Route.EMBEDDINGS}))],
            request(),
            InvalidRequest,
            404,
            "no endpoint of pool 'llama' has the route /v1/chat/completions",
            id="route",
        ),
        pytest.param(
            [view("a", models=frozenset({"small"}))],
            request(),
            InvalidRequest,
            404,
            "no endpoint of pool 'llama' serves the model 'big' on /v1/chat/completions",
            id="model",
        ),
        pytest.param(
            [view("a")],
            request(endpoint="gone"),
            InvalidRequest,
            404,
            "endpoint 'gone' has left pool 'llama'",
            id="pinned to one that left",
        ),
        pytest.param(
            [view("a", usable=False), view("b", models=frozenset({"small"}))],
            request(),
            Overloaded,
            503,
            "no endpoint of pool 'llama' that could serve this is healthy; try again later",
            id="unhealthy",
        ),
        pytest.param(
            [],
            request(),
            Overloaded,
            503,
            "no endpoint of pool 'llama' that could serve this is healthy; try again later",
            id="no endpoints",
        ),
        pytest.param(
            [view("a")],
            request(avoid=frozenset({"a"})),
            Overloaded,
            503,
            "no endpoint of pool 'llama' that could serve this is healthy and not yet tried;"
            " try again later",
            id="all tried",
        ),
    ],
)
def test_what_nothing_can_serve_is_refused_at_once(
    views: list[EndpointView], asked: Request, error: type[Rejected], status: int, message: str
):
    d = dispatcher(*views)

    with pytest.raises(error) as caught:
        d.submit(asked, 0.0)

    assert (caught.value.status, str(caught.value)) == (status, message)
    assert not d.could_serve(asked, 0.0)


def test_a_changed_endpoint_takes_what_waits():
    d = dispatcher(view("a"), view("b", usable=False))
    placed(d, request(1))
    d.submit(request(2), 0.0)
    d.submit(request(3), 0.0)

    d.endpoints["b"].usable = True
    d.endpoints["a"].limit = 2

    assert where(d.changed(1.0)) in (
        [("r2", "b"), ("r3", "a")],
        [("r2", "a"), ("r3", "b")],
    )


def test_a_slow_return_raises_the_places_step_by_step():
    d = dispatcher(view("a", limit=10, share=0.1))
    for n in range(10):
        d.submit(request(n), 0.0)

    d.endpoints["a"].share = 0.35

    assert (len(d.changed(1.0)), d.endpoints["a"].in_flight) == (2, 3)


def test_a_caller_that_leaves_the_queue_is_forgotten():
    d = dispatcher(view("a"))
    first = placed(d, request(1))
    d.submit(request(2), 0.0)

    assert (d.leave(request(2)), d.leave(request(2)), d.leave(first.request)) == (
        True,
        False,
        False,
    )
    assert d.release(first, 1.0) == []
    assert (d.queued, d.queued_bytes, d.next_deadline, d.oldest_wait(9.0)) == (0, 0, None, 0.0)


def test_what_waits_past_its_deadline_is_taken_out_soonest_first():
    d = dispatcher(view("a"))
    placed(d, request(1))
    for n, deadline in ((2, 9.0), (3, 5.0), (4, 20.0)):
        d.submit(request(n, deadline=deadline), 0.0)

    assert [r.id for r in d.expire(9.0)] == ["r3", "r2"]
    assert (d.queued, d.next_deadline, d.expire(9.0)) == (1, 20.0, [])


def test_new_endpoints_keep_what_is_in_flight_under_their_name():
    d = dispatcher(view("a", limit=4), view("b", limit=4, usable=False))
    going = [placed(d, request(n)) for n in range(3)]

    d.set_endpoints([view("b"), view("c")])
    assert [d.release(going[0], 1.0), d.endpoints["b"].in_flight] == [[], 0]
    d.set_endpoints([view("a", limit=4)])
    assert (d.endpoints["a"].in_flight, d.endpoints["a"].in_flight_tokens) == (2, 200)
    for placement in going[1:]:
        d.release(placement, 1.0)

    assert (d.endpoints["a"].in_flight, d.endpoints["a"].in_flight_tokens) == (0, 0)
    assert d.released_twice == 0


def test_what_nothing_can_serve_any_more_is_found_by_a_recheck():
    d = dispatcher(view("a", models=frozenset({"big"})), view("b", models=frozenset({"small"})))
    placed(d, request(1))
    placed(d, request(2, model="small"))
    d.submit(request(3), 0.0)
    d.submit(request(4, model="small"), 0.0)

    d.set_endpoints([d.endpoints["b"]])

    assert d.changed(1.0) == []
    [(gone, error)] = d.recheck(1.0)
    assert (gone.id, error.status, d.queued) == ("r3", 404, 1)


def test_the_same_seed_gives_the_same_placements():
    def run(seed: int) -> list[str]:
        d = dispatcher(*(view(name, limit=20) for name in "abcd"), seed=seed)
        return [placed(d, request(n)).endpoint for n in range(40)]

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert {run(7).count(name) for name in "abcd"} == {10}


def test_scores_are_weighed_and_held_between_0_and_1():
    class Fixed:
        name = "fixed"

        def __init__(self, *values: float) -> None:
            self.values = values

        def __call__(
            self,
            request: Request,  # noqa: ARG002 - fixed
            endpoints: Sequence[EndpointView],  # noqa: ARG002 - fixed
            now: float,  # noqa: ARG002 - fixed
        ) -> Sequence[float]:
            return self.values

    d = dispatcher(view("a"), view("b"), scores=[(Fixed(9.0, 0.5), 1.0), (Fixed(0.0, 0.4), 2.0)])

    placement = placed(d, request())

    assert (placement.endpoint, round(placement.score, 9)) == ("b", 1.3)


def test_without_the_room_filter_other_filters_alone_make_requests_wait():
    class CoolEnough:
        name = "cool_enough"

        def __call__(
            self,
            request: Request,  # noqa: ARG002 - alike for all
            endpoints: Sequence[EndpointView],
            now: float,  # noqa: ARG002 - likewise
        ) -> Sequence[EndpointView]:
            return [e for e in endpoints if e.kv_use is not None and e.kv_use < 0.9]

    d = Dispatcher(
        pool="llama",
        ordering=Fcfs(),
        filters=[Usable(), Capability(), CoolEnough()],
        scores=[(LeastTokens(), 1.0)],
        pick=Seeded(),
        rng=Random(0),
        max_requests=10,
        max_bytes=1000,
    )
    d.set_endpoints([view("a", kv_use=0.95)])
    assert [d.submit(request(n), 0.0) for n in range(3)] == [None] * 3

    d.endpoints["a"].kv_use = 0.5

    assert where(d.changed(1.0)) == [("r0", "a"), ("r1", "a"), ("r2", "a")]


def test_a_request_that_waits_already_cannot_be_submitted_again():
    d = dispatcher(view("a"))
    placed(d, request(1))
    d.submit(request(2), 0.0)

    with pytest.raises(ValueError, match="'r2' is already waiting"):
        d.submit(request(2), 0.0)
    assert (d.queued, d.queued_bytes) == (1, 10)


def test_invented_shapes_do_not_pile_up():
    d = dispatcher(view("a", limit=1 << 20))

    for n in range(10_000):
        placed(d, request(n, model=f"made-up-{n}"))

    assert d.remembered_shapes <= 4096


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


def test_a_hundred_thousand_waiting_cost_an_event_some_dozen_comparisons():
    waiting = 100_000
    d = dispatcher(view("a"), max_requests=waiting * 2, max_bytes=1 << 40)
    going = placed(d, request(0))
    for n in range(1, waiting + 1):
        d.submit(request(Counting(n), deadline=1e9), 0.0)

    Counting.compared = 0
    for n in range(1, 1001):
        [going] = d.release(going, 0.0)
        assert going.request.sequence == n
        d.submit(request(Counting(waiting + n), deadline=1e9), 0.0)
        d.leave(request(waiting - n))

    assert Counting.compared / 3000 < 40
    assert d.queued == waiting - 1000


def test_another_core_charges_what_runs_as_the_one_before_it_did():
    fair = Scheduling("fair", guards=None)

    def core() -> Dispatcher:
        return make_dispatcher(fair, pool="p", rng=Random(0), max_requests=100, max_bytes=1 << 30)

    before, after = core(), core()
    before.set_endpoints([view("a", limit=4)])
    going = [placed(before, request(n, output_tokens_estimate=1000)) for n in range(3)]
    placed(before, request(3, tenant="other"))
    after.take_over(before)
    for placement in going:  # answers were far shorter than predicted
        after.release(placement, 1.0, cost=90.0)

    assert isinstance(after.ordering, Fair)
    assert after.ordering.virtual_times() == {"acme": 270.0, "other": 4160.0 + 120.0}
