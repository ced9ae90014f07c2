"""The prefix is followed until its endpoint is saturated."""

from __future__ import annotations

from typing import cast, TYPE_CHECKING

import pytest

from forebay.policies.contracts import EndpointView, Request, Route
from forebay.policies.score_least_tokens import LeastTokens
from forebay.policies.score_sticky import StickyUntilSaturated
from forebay.prefixcache.index import Index

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash

CHAIN = cast("tuple[BlockHash, ...]", (1, 2, 3, 4))


def request(blocks: tuple[BlockHash, ...] = CHAIN) -> Request:
    return Request(
        id="r",
        pool="p",
        route=Route.CHAT,
        model="m",
        tenant="t",
        sequence=1,
        arrived=0.0,
        deadline=60.0,
        prompt_tokens_estimate=100,
        output_tokens_estimate=10,
        uncached_tokens=100,
        blocks=blocks,
    )


def view(name: str, tokens: int = 0) -> EndpointView:
    return EndpointView(name=name, engine="vllm", limit=8, in_flight_tokens=tokens)


def best(
    score: StickyUntilSaturated, *views: EndpointView, blocks: tuple[BlockHash, ...] = CHAIN
) -> str:
    scores = score(request(blocks), views, 0.0)
    return views[max(range(len(views)), key=lambda i: scores[i])].name


@pytest.fixture
def score() -> StickyUntilSaturated:
    index = Index()
    index.store("a", CHAIN)
    index.store("b", CHAIN[:2])
    return StickyUntilSaturated(index, saturated_tokens=1000)


def test_the_longest_hit_wins_over_an_idle_endpoint(score: StickyUntilSaturated):
    assert best(score, view("a", 900), view("b"), view("c")) == "a"


def test_a_saturated_holder_gives_way_to_the_least_loaded(score: StickyUntilSaturated):
    assert best(score, view("a", 1001), view("b", 500), view("c", 10)) == "c"


def test_of_two_holders_the_less_loaded_is_taken(score: StickyUntilSaturated):
    score.index.store("c", CHAIN)
    assert best(score, view("a", 900), view("c", 100)) == "c"


def test_the_longest_hit_among_those_that_may_serve_it_counts(score: StickyUntilSaturated):
    assert best(score, view("b", 900), view("c")) == "b"


def test_without_a_hit_or_a_prompt_it_is_the_least_load(score: StickyUntilSaturated):
    views = (view("a", 900), view("c", 10))
    for blocks in ((), cast("tuple[BlockHash, ...]", (9,))):
        asked = request(blocks)
        assert score(asked, views, 0.0) == LeastTokens()(asked, views, 0.0)
