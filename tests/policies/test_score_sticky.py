"""The prefix is followed until its endpoint is saturated."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace
from tests.asking import a_request

from forebay.policies.contracts import EndpointView, Request
from forebay.policies.prefill_rate import LEAST, PrefillRate
from forebay.policies.score_sticky import RecentWork, StickyUntilSaturated
from forebay.policies.stalls import Stalls
from forebay.prefixcache.index import Index

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash

CHAIN = cast("tuple[BlockHash, ...]", (1, 2, 3, 4))


def request(blocks: tuple[BlockHash, ...] = CHAIN) -> Request:
    return a_request(blocks=blocks)


def view(name: str, tokens: int = 0) -> EndpointView:
    return EndpointView(name=name, engine="vllm", limit=8, in_flight_tokens=tokens)


def best(
    score: StickyUntilSaturated,
    *views: EndpointView,
    blocks: tuple[BlockHash, ...] = CHAIN,
    now: float = 0.0,
) -> str:
    scores = score(request(blocks), views, now)
    assert all(0 < rating <= 1 for rating in scores)
    return views[max(range(len(views)), key=lambda i: scores[i])].name


@pytest.fixture
def score() -> StickyUntilSaturated:
    index = Index()
    index.store("a", CHAIN)
    index.store("b", CHAIN[:2])
    return StickyUntilSaturated(index, block_tokens=25)


def test_the_longest_hit_wins_over_an_idle_endpoint(score: StickyUntilSaturated):
    assert best(score, view("a", 500), view("b"), view("c")) == "a"


def test_a_holder_with_too_much_in_flight_gives_way(score: StickyUntilSaturated):
    assert best(score, view("a", 17_000), view("b", 17_000), view("c", 10)) == "c"


def test_a_holder_that_has_had_most_of_the_work_gives_way(score: StickyUntilSaturated):
    score.work.add("a", 17_000, now=0.0)
    score.work.add("b", 17_000, now=0.0)
    assert best(score, view("a"), view("b"), view("c")) == "c"


def test_the_last_minutes_work_counts_no_more(score: StickyUntilSaturated):
    score.work.add("a", 17_000, now=59.0)
    assert best(score, view("a"), view("c"), now=59.0) == "c"
    assert best(score, view("a"), view("c"), now=60.0) == "a"


@pytest.mark.parametrize(("prompt", "where"), [(100, "b"), (2000, "c")])
def test_room_is_kept_for_large_prompts(score: StickyUntilSaturated, prompt: int, where: str):
    views = tuple(view(name) for name in "abc")
    for name, had in (("a", 2000), ("b", 1900), ("c", 1000)):
        score.work.add(name, had, now=0.0)
    new = replace(request(()), prompt_tokens_estimate=prompt)
    scores = score(new, views, 0.0)
    assert views[scores.index(max(scores))].name == where


def test_what_comes_at_once_is_spread(score: StickyUntilSaturated):
    for name in "ac":
        score.work.add(name, 5000, now=0.0)
    score.work.add("a", 100, now=0.0)
    assert best(score, view("a", 500), view("c"), blocks=()) == "c"


def test_of_two_holders_the_less_loaded_is_taken(score: StickyUntilSaturated):
    score.index.store("c", CHAIN)
    assert best(score, view("a", 900), view("c", 100)) == "c"


def test_the_longest_hit_among_those_that_may_serve_it_counts(score: StickyUntilSaturated):
    assert best(score, view("b", 500), view("c")) == "b"


def test_without_a_hit_the_one_with_least_to_do_is_taken(score: StickyUntilSaturated):
    for blocks in ((), cast("tuple[BlockHash, ...]", (9,))):
        assert best(score, view("a", 900), view("c", 10), blocks=blocks) == "c"


def test_work_is_counted_within_its_window_whoever_tells_late():
    work = RecentWork(window_s=10.0)
    work.add("a", 100, now=9.0)
    assert work.get("a", 9.9) == 100
    work.add("a", 30, now=10.0)
    work.add("a", 5, now=9.9)
    assert work.get("a", 12.0) == 35
    work.forget("a")
    assert work.get("a", 12.0) == 0.0


# -- the limit -------------------------------------------------------------------------------------


def measured(score: StickyUntilSaturated, *names: str, rate: float = 1000.0) -> None:
    """Let endpoints have shown this prefill rate, and be idle since."""
    for name in names:
        for number in range(40):
            mark = score.prefill.placed(name, 100 + number, 1e3 * number)
            score.prefill.began(name, mark, 1e3 * number + (100 + number) / rate)


def test_a_holder_that_would_miss_the_ttft_gives_way_however_long_its_hit(
    score: StickyUntilSaturated,
):
    score.limits = {"fast": 0.5}
    measured(score, "a", "c")
    score.prefill.placed("a", 2000, 1e6)
    views = (view("a"), view("c"))
    fast, slow = (score(replace(request(), sla=sla), views, 1e6) for sla in ("fast", "slow"))
    assert fast[1] > fast[0]
    assert slow[0] > slow[1]


def test_a_holder_within_the_ttft_is_followed(score: StickyUntilSaturated):
    score.limits = {"fast": 0.5}
    measured(score, "a", "c")
    score.prefill.placed("a", 300, 1e6)
    rated = score(replace(request(), sla="fast"), (view("a"), view("c")), 1e6)
    assert rated[0] > rated[1]


def test_where_all_would_be_too_late_the_prefix_is_followed_as_without_a_limit(
    score: StickyUntilSaturated,
):
    views = (view("a"), view("b"), view("c"))
    measured(score, "a", "b", "c")
    for name in ("a", "b", "c"):
        score.prefill.placed(name, 9000, 1e6)
    plain = score(request(), views, 1e6)
    score.limits = {"fast": 0.05}
    assert score(replace(request(), sla="fast"), views, 1e6) == plain


def test_an_endpoint_that_was_never_measured_is_not_saturated(score: StickyUntilSaturated):
    score.limits = {"fast": 0.001}
    rated = score(replace(request(), sla="fast"), (view("a"), view("c")), 0.0)
    assert rated[0] > rated[1]


def test_a_holder_that_has_stopped_answering_is_left_until_it_goes_on():
    index, prefill = Index(), PrefillRate()
    stalls = Stalls(prefill)
    score = StickyUntilSaturated(index, 25, prefill=prefill, stalls=stalls)
    for name, tokens in (("a", 1000), ("b", 2000)) * LEAST:
        prefill.began(name, prefill.placed(name, tokens, 0.0), tokens / 10_000)
    index.store("a", CHAIN)
    views = view("a"), view("b")
    stalls.placed("a", "stuck", 1.0)
    assert best(score, *views, now=1.1) == "a"
    assert best(score, *views, now=60.0) == "b"
    stalls.ended("a", "stuck")
    assert best(score, *views, now=60.0) == "a"


def test_a_slow_endpoint_gets_less_to_do():
    prefill = PrefillRate()
    for name, rate in (("a", 2000), ("b", 10_000)) * LEAST:
        prefill.began(name, prefill.placed(name, 1000, 0.0), 1000 / rate)
    score = StickyUntilSaturated(Index(), 25, prefill=prefill)
    assert best(score, view("a", tokens=100), view("b", tokens=2000)) == "b"
    even = StickyUntilSaturated(Index(), 25)
    assert best(even, view("a", tokens=100), view("b", tokens=2000)) == "a"
