"""An adapter's requests go where it is loaded, while that does not load one endpoint alone."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.asking import a_request

from forebay.policies.contracts import EndpointView
from forebay.policies.residency import FETCH_TOKENS, PLACES, Residency
from forebay.policies.score_least_tokens import LeastTokens
from forebay.policies.score_sticky import StickyUntilSaturated
from forebay.prefixcache.index import Index

if TYPE_CHECKING:
    from forebay.policies.contracts import Request

ENDPOINTS: tuple[str, ...] = ("a", "b", "c", "d")
STEP = st.tuples(
    st.sampled_from(("placed", "restarted", "forget", "told")),
    st.sampled_from(ENDPOINTS[:2]),
    st.sampled_from(("m", "x", "y", "z", "v", "w", "u")),
    st.integers(1, 5),
)


def request(model: str, number: int = 0, tokens: int = 100) -> Request:
    return a_request(number, model=model, prompt_tokens_estimate=tokens)


def views() -> list[EndpointView]:
    return [EndpointView(name=name, engine="vllm", limit=8) for name in ENDPOINTS]


def knowing(*models: str) -> Residency:
    residency = Residency()
    for model in models:
        residency.adapter(model)
    return residency


def best(score: StickyUntilSaturated | LeastTokens, asked: Request, now: float) -> str:
    scores = score(asked, views(), now)
    return ENDPOINTS[max(range(len(ENDPOINTS)), key=lambda place: scores[place])]


@settings(deadline=None)
@given(st.lists(STEP, max_size=60))
def test_what_is_loaded_is_what_was_last_sent_there(steps: list[tuple[str, str, str, int]]):
    residency = knowing("x", "y", "z", "v", "w", "u")
    naive = {name: list[str]() for name in ENDPOINTS[:2]}
    places = dict.fromkeys(ENDPOINTS[:2], PLACES)
    for kind, endpoint, model, number in steps:
        if kind in {"restarted", "forget"}:
            getattr(residency, kind)(endpoint)
            naive[endpoint].clear()
            if kind == "forget":
                places[endpoint] = PLACES
            continue
        if kind == "told":
            residency.told(endpoint, number, (model,))
            places[endpoint] = number
        else:
            residency.placed(endpoint, model)
        if model != "m":
            others = [each for each in naive[endpoint] if each != model]
            naive[endpoint] = [*others, model][-places[endpoint] :]
    for endpoint, loaded in naive.items():
        full = len(loaded) >= places[endpoint]
        cost = FETCH_TOKENS if full else FETCH_TOKENS / 2
        expected = {model: 0.0 if model in loaded else cost for model in ("x", "y", "u")}
        assert {model: residency.tokens(endpoint, model) for model in expected} == expected
        assert residency.tokens(endpoint, "m") == 0.0


def test_a_new_prompt_goes_where_its_adapter_is_loaded():
    residency = knowing("sql")
    score = StickyUntilSaturated(Index(), 64, residency=residency)
    for endpoint in ENDPOINTS[:3]:
        score.work.add(endpoint, 1000, 0.0)
    residency.placed("c", "sql")
    assert best(score, request("sql"), 1.0) == "c"
    assert best(score, request("base"), 1.0) == best(
        StickyUntilSaturated(Index(), 64, work=score.work), request("base"), 1.0
    )


def test_an_adapters_endpoint_gives_way_when_it_has_had_too_much():
    residency = knowing("sql")
    score = StickyUntilSaturated(Index(), 64, residency=residency)
    residency.placed("c", "sql")
    score.work.add("c", 20_000, 0.0)
    assert best(score, request("sql"), 1.0) != "c"


def fetched(score: StickyUntilSaturated | LeastTokens, places: int, adapters: int) -> int:
    """Send prompts of many adapters; return how often engines had to fetch one."""
    rng, count = random.Random(1), 0
    engines = {name: OrderedDict[str, None]() for name in ENDPOINTS}
    known = knowing(*(f"adapter-{n}" for n in range(adapters)))
    sticky = isinstance(score, StickyUntilSaturated)
    if isinstance(score, StickyUntilSaturated):
        score.residency = known
    for endpoint in ENDPOINTS:
        known.told(endpoint, places)
    for number in range(1000):
        model, now = f"adapter-{rng.randrange(adapters)}", number * 0.05
        asked = request(model, number, rng.randrange(50, 300))
        name = best(score, asked, now) if sticky else rng.choice(ENDPOINTS)
        if isinstance(score, StickyUntilSaturated):
            score.work.add(name, asked.uncached_tokens, now)
        known.placed(name, model)
        count += model not in engines[name]
        engines[name][model] = None
        engines[name].move_to_end(model)
        while len(engines[name]) > places:
            engines[name].popitem(last=False)
    return count


def test_adapters_that_fit_are_fetched_about_once():
    sticky = StickyUntilSaturated(Index(), 64)
    assert fetched(sticky, places=2, adapters=8) <= 24
    assert fetched(LeastTokens(), places=2, adapters=8) > 500
