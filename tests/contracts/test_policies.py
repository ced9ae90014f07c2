"""What every policy of the registry must hold: none, one, ties, and any order of its input."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.policies.contracts import EndpointView, Request, Route
from forebay.policies.registry import FILTERS, KINDS, ORDERINGS, PICKS, SCORES

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import Filter, Ordering, Pick, Score

NOW = 100.0
MODELS = [frozenset[str](), frozenset({"big"}), frozenset({"big", "small"})]
ROUTES = [None, frozenset({Route.CHAT}), frozenset({Route.CHAT, Route.EMBEDDINGS})]

orderings = pytest.mark.parametrize("make", ORDERINGS.values(), ids=ORDERINGS)
filters = pytest.mark.parametrize("make", FILTERS.values(), ids=FILTERS)
scores = pytest.mark.parametrize("make", SCORES.values(), ids=SCORES)
picks = pytest.mark.parametrize("make", PICKS.values(), ids=PICKS)


def request(sequence: int = 0, model: str = "big", avoid: frozenset[str] = frozenset()) -> Request:
    return Request(
        id=f"r{sequence}",
        pool="llama",
        route=Route.CHAT,
        model=model,
        tenant="acme",
        sequence=sequence,
        arrived=float(sequence // 3),
        deadline=sequence + 60.0,
        prompt_tokens_estimate=100,
        output_tokens_estimate=20,
        uncached_tokens=80,
        avoid=avoid,
    )


waiting = st.lists(
    st.builds(request, st.integers(0, 50), st.sampled_from(["big", "small"])),
    unique_by=lambda r: r.id,
    max_size=12,
)
asked = st.builds(
    request,
    st.just(0),
    st.sampled_from(["big", "small"]),
    st.frozensets(st.sampled_from("abcdef"), max_size=2),
)
any_view = st.builds(
    EndpointView,
    name=st.just("a"),
    engine=st.just("vllm"),
    limit=st.integers(1, 300),
    usable=st.booleans(),
    share=st.sampled_from([1.0, 0.5, 1e-9, 0.0]),
    models=st.sampled_from(MODELS),
    routes=st.sampled_from(ROUTES),
    in_flight=st.integers(0, 300),
    in_flight_tokens=st.integers(0, 10**7),
    running=st.none() | st.integers(0, 500),
    waiting=st.none() | st.integers(0, 500),
    load_at=st.none() | st.floats(0, NOW),
)
views = st.lists(any_view, max_size=6).map(
    lambda some: [replace(view, name=name) for name, view in zip("abcdef", some, strict=False)]
)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, table in KINDS.items() for name in table]
)
def test_a_policy_is_made_without_settings_and_knows_its_name(kind: str, name: str):
    assert KINDS[kind][name]().name == name


@orderings
def test_an_empty_queue_has_nobody_next(make: Callable[[], Ordering]):
    queue = make()

    assert (len(queue), queue.next(NOW, lambda _: True), queue.discard(request())) == (
        0,
        None,
        False,
    )


@orderings
def test_one_that_waits_is_next_or_left(make: Callable[[], Ordering]):
    queue = make()
    queue.add(request(1), NOW)
    assert (queue.next(NOW, lambda _: False), len(queue)) == (None, 1)
    assert (queue.next(NOW, lambda _: True), len(queue)) == (request(1), 0)

    queue.add(request(1), NOW)
    assert (queue.discard(request(1)), queue.discard(request(1)), len(queue)) == (True, False, 0)


@orderings
@settings(deadline=None)
@given(some=waiting, left=st.sets(st.integers(0, 50)), rng=st.randoms(use_true_random=False))
def test_everyone_goes_once_in_an_order_that_does_not_depend_on_how_they_came(
    make: Callable[[], Ordering], some: list[Request], left: set[int], rng: Random
):
    def order(coming: list[Request]) -> list[Request]:
        queue = make()
        for each in coming:
            queue.add(each, NOW)
        for each in coming:
            if each.sequence in left:
                assert queue.discard(each)
        taken: list[Request] = []
        while (one := queue.next(NOW, lambda _: True)) is not None:
            taken.append(one)
        assert len(queue) == 0
        return taken

    shuffled = rng.sample(some, len(some))

    assert order(some) == order(shuffled)
    assert sorted(r.sequence for r in order(some)) == sorted(
        r.sequence for r in some if r.sequence not in left
    )


@orderings
@settings(deadline=None)
@given(some=waiting, model=st.sampled_from(["big", "small"]))
def test_only_who_fits_is_next_and_somebody_is_while_one_fits(
    make: Callable[[], Ordering], some: list[Request], model: str
):
    queue = make()
    for each in some:
        queue.add(each, NOW)
    shapes: list[object] = []

    def fits(r: Request) -> bool:
        shapes.append(r.shape)
        return r.model == model

    for _ in [r for r in some if r.model == model]:
        shapes.clear()
        taken = queue.next(NOW, fits)
        assert taken is not None
        assert taken.model == model
        assert len(shapes) == len(set(shapes))
    assert queue.next(NOW, fits) is None
    assert len(queue) == sum(r.model != model for r in some)


@filters
@settings(deadline=None)
@given(request=asked, some=views, rng=st.randoms(use_true_random=False))
def test_a_filter_keeps_some_in_their_order_whatever_the_order(
    make: Callable[[], Filter], request: Request, some: list[EndpointView], rng: Random
):
    keep, before = make(), deepcopy(some)

    kept = [view.name for view in keep(request, some, NOW)]

    assert kept == [view.name for view in some if view.name in kept]
    assert {v.name for v in keep(request, rng.sample(some, len(some)), NOW)} == set(kept)
    assert [view for one in some for view in keep(request, [one], NOW)] == [
        view for view in some if view.name in kept
    ]
    assert some == before


@filters
@settings(deadline=None)
@given(request=asked, some=views, more=views)
def test_a_stable_filter_looks_at_nothing_that_moves(
    make: Callable[[], Filter], request: Request, some: list[EndpointView], more: list[EndpointView]
):
    keep = make()
    if not getattr(keep, "stable", False):
        return
    moved = [
        replace(m, name=s.name, usable=s.usable, models=s.models, routes=s.routes)
        for s, m in zip(some, more, strict=False)
    ]
    other = msgspec.structs.replace(
        request, id="other", sequence=9, arrived=99.0, uncached_tokens=1
    )

    assert [v.name for v in keep(request, some[: len(moved)], NOW)] == [
        v.name for v in keep(other, moved, NOW + 1000)
    ]


@filters
def test_a_filter_keeps_nothing_of_nothing(make: Callable[[], Filter]):
    assert list(make()(request(), [], NOW)) == []


@scores
@settings(deadline=None)
@given(request=asked, some=views, rng=st.randoms(use_true_random=False))
def test_a_score_is_between_0_and_1_and_follows_its_endpoint(
    make: Callable[[], Score], request: Request, some: list[EndpointView], rng: Random
):
    rate, before = make(), deepcopy(some)
    places = rng.sample(range(len(some)), len(some))

    rated = list(rate(request, some, NOW))

    assert len(rated) == len(some)
    assert all(0.0 <= value <= 1.0 for value in rated)
    assert list(rate(request, [some[i] for i in places], NOW)) == [rated[i] for i in places]
    assert some == before


@scores
@settings(deadline=None)
@given(request=asked, view=any_view, number=st.integers(1, 5))
def test_equal_endpoints_tie(
    make: Callable[[], Score], request: Request, view: EndpointView, number: int
):
    alike = [replace(view, name=name) for name in "abcdef"[:number]]

    assert len(set(make()(request, alike, NOW))) == 1


@picks
@settings(deadline=None)
@given(rated=st.lists(st.floats(0, 1), min_size=1, max_size=8, unique=True), seed=st.integers())
def test_without_a_tie_the_pick_depends_on_neither_order_nor_luck(
    make: Callable[[], Pick], rated: list[float], seed: int
):
    some = [EndpointView(f"e{value}", "vllm", 1) for value in rated]
    pick = make()

    chosen = some[pick(some, rated, Random(seed))]
    again = some[::-1][pick(some[::-1], rated[::-1], Random(seed + 1))]

    assert chosen is again


@picks
@settings(deadline=None)
@given(rated=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=8), seed=st.integers())
def test_a_pick_is_one_of_the_best_and_repeats_by_seed(
    make: Callable[[], Pick], rated: list[float], seed: int
):
    some = [EndpointView(f"e{n}", "vllm", 1) for n in range(len(rated))]
    pick = make()

    index = pick(some, rated, Random(seed))

    assert rated[index] == max(rated)
    assert pick(some, rated, Random(seed)) == index
    if len(rated) > 1 and len(set(rated)) == 1:
        rng = Random(seed)
        assert len({pick(some, rated, rng) for _ in range(64)}) > 1
