"""A pool's prefixes over time: tenants' shares, lost caches, versions, what it was worth."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

import pytest
from starlette.testclient import TestClient
from tests.asking import a_request

from forebay.adapters.base import ModelCard, Probe
from forebay.gateway import wire
from forebay.gateway.admin import admin_app
from forebay.gateway.config.sections import Config
from forebay.gateway.endpoint import Endpoint
from forebay.gateway.intake import READ_OR_WRITTEN
from forebay.gateway.pools import Pool
from forebay.gateway.scheduling import shared_of
from forebay.gateway.status import take_snapshot
from forebay.gateway.telemetry.histogram import Histogram
from forebay.gateway.telemetry.labels import LabelSpace
from forebay.gateway.telemetry.metrics import Metrics
from forebay.policies.contracts import Outcome, Placement, Request, Route
from forebay.prefixcache.deltas import Outbox, read, write

if TYPE_CHECKING:
    from forebay.gateway.prefix import PoolPrefix
    from forebay.policies.score_sticky import StickyUntilSaturated

BLOCK = 64 * 4
"""Bytes of text."""
TENANTS = [
    {"name": "acme", "keys": ["sha256:" + "a1" * 32]},
    {"name": "b", "keys": ["sha256:" + "b2" * 32]},
]


def config_of(prefix: dict[str, Any], **rest: Any) -> Config:
    endpoints = [
        {"name": name, "engine": "sim", "max_in_flight": 8, "sim": {"profile": "instant"}}
        for name in ("e0", "e1")
    ]
    pool = {"name": "p", "models": {"m": "m", "canary": "m-2"}, "endpoints": endpoints}
    pool["prefix"] = {"mode": "learned", **prefix}
    return Config.model_validate({"version": 1, "pools": [pool], **rest})


def _nobody(_pool: str, _endpoint: str, _state: str) -> None:
    pass


class Live:
    """A pool whose calls the test plays, at times of its own."""

    def __init__(self, prefix: dict[str, Any] | None = None, **rest: Any) -> None:
        self.config = config_of(prefix or {}, **rest)
        (section,) = self.config.pools
        self.pool = Pool(section, seed=1, itl=Histogram((1.0,)), changed=_nobody)
        made = [Endpoint(own, section.health, cast("Any", None)) for own in section.endpoints]
        self.pool.take(section, made, shared=shared_of(self.config))
        self.pool.wake(0.0)
        self._count = 0

    @property
    def prefix(self) -> PoolPrefix:
        assert self.pool.prefix is not None
        return self.pool.prefix

    def reload(self, prefix: dict[str, Any], **rest: Any) -> None:
        self.config = config_of(prefix, **rest)
        (section,) = self.config.pools
        endpoints = tuple(self.pool.endpoints.values())
        self.pool.take(section, endpoints, shared=shared_of(self.config))

    def request(self, text: str, *, model: str = "m", tenant: str = "acme", now: float) -> Request:
        self._count += 1
        body = wire.read(b'{"prompt":"%b"}' % text.encode(), READ_OR_WRITTEN)
        blocks = self.prefix.blocks(Route.COMPLETIONS, body, model=model, salt=tenant.encode())
        prompt = len(text) // 4
        return a_request(
            self._count,
            route=Route.COMPLETIONS,
            model=model,
            tenant=tenant,
            arrived=now,
            deadline=now + 60,
            prompt_tokens_estimate=prompt,
            output_tokens_estimate=1,
            uncached_tokens=prompt - self.prefix.longest(blocks, prompt),
            stream=True,
            blocks=blocks,
        )

    def play(
        self,
        text: str,
        *,
        endpoint: str = "e0",
        now: float = 0.0,
        cached: int | None = None,
        took_s: float = 0.01,
        tokens: int | None = None,
        **rest: Any,
    ) -> int:
        """Place a request, answer it, and return the hit that was predicted for it.

        The engine counts `tokens` of its prompt.
        """
        request = self.request(text, now=now, **rest)
        placement = Placement(request, endpoint, 1, now)
        self.prefix.placed(placement)
        self.prefix.began(placement, now + took_s)
        hit = self.prefix.expected(request.id)
        assert hit is not None
        outcome = Outcome(request.id, "p", "x", request.tenant, status=200)
        outcome.first_byte = now + took_s
        outcome.prompt_tokens = tokens or request.prompt_tokens_estimate
        outcome.cached_tokens = hit if cached is None else cached
        self.prefix.released(placement, outcome, now + took_s)
        return hit

    def metrics(self, now: float) -> str:
        snapshot = take_snapshot([self.pool], now=now)
        return Metrics(LabelSpace.from_config(self.config)).render("", snapshot)[1].decode()


def words(number: int, blocks: int = 4) -> str:
    return f"{number:08d}" * (blocks * BLOCK // 8)


# -- tenants ---------------------------------------------------------------------------------------


def test_a_tenants_flood_leaves_the_others_prefixes_known():
    live = Live({"capacity_blocks": 100}, tenants=TENANTS)
    live.play(words(0, 10), tenant="b")
    for number in range(100):
        live.play(words(number + 1, 10), tenant="acme", now=1.0)
    assert live.play(words(0, 10), tenant="b", now=2.0) == 640
    text = live.metrics(2.0)
    assert 'forebay_prefix_tenant_blocks{pool="p",tenant="b"} 10.0' in text
    assert 'forebay_prefix_tenant_blocks{pool="p",tenant="acme"} 90.0' in text
    assert 'forebay_prefix_tenant_evicted_blocks_total{pool="p",tenant="acme"} 910.0' in text


def test_a_tenant_may_enter_only_so_many_new_blocks_a_minute():
    live = Live({"tenant_new_tokens": 6400}, tenants=TENANTS)
    for number in range(30):
        live.play(words(number, 10), tenant="acme", now=1.0)
    live.play(words(99, 10), tenant="b", now=1.0)
    text = live.metrics(1.0)
    assert 'forebay_prefix_tenant_blocks{pool="p",tenant="acme"} 100.0' in text
    assert 'forebay_prefix_tenant_refused_blocks_total{pool="p",tenant="acme"} 200.0' in text
    assert live.play(words(99, 10), tenant="b", now=2.0) == 640


def test_a_tenant_may_enter_no_more_with_two_replicas_than_with_one():
    one, other = (Live({"tenant_new_tokens": 6400}, tenants=TENANTS) for _ in range(2))
    outbox = Outbox()
    for live in (one, other):
        live.prefix.probed("e0", Probe("vllm"))
    one.prefix.share(outbox)
    for number in range(6):
        one.play(words(number, 10), tenant="acme", now=1.0)
    for delta in read(write(outbox.take())):
        other.prefix.heard(delta, 1.0)
    for number in range(6, 12):
        other.play(words(number, 10), tenant="acme", now=1.0)
    text = other.metrics(1.0)
    assert 'forebay_prefix_tenant_blocks{pool="p",tenant="acme"} 100.0' in text
    assert 'forebay_prefix_tenant_refused_blocks_total{pool="p",tenant="acme"} 20.0' in text


def test_a_tenant_that_floods_is_kept_to_its_share_of_the_endpoints_for_a_minute():
    live = Live({"tenant_new_tokens": 6400}, tenants=TENANTS)

    def went(tenant: str, now: float) -> set[str]:
        chosen: set[str] = set()
        for number in range(40):
            request = live.request(words(500 + number), tenant=tenant, now=now)
            placement = live.pool.dispatcher.submit(request, now)
            assert placement is not None
            live.prefix.placements.work.add(placement.endpoint, 256, now)
            live.pool.dispatcher.release(placement, now)
            chosen.add(placement.endpoint)
        return chosen

    assert went("acme", 1.0) == {"e0", "e1"}
    for number in range(30):
        live.play(words(number, 10), tenant="acme", now=1.0)
    assert len(went("acme", 2.0)) == 1
    assert went("b", 2.0) == {"e0", "e1"}
    assert went("acme", 90.0) == {"e0", "e1"}


def test_one_tenant_alone_is_held_to_nothing():
    live = Live({"capacity_blocks": 100, "tenant_new_tokens": 64}, tenants=TENANTS[:1])
    assert live.prefix.learned.owners is None
    live.play(words(0, 10))
    assert live.play(words(0, 10)) == 640


def test_when_a_tenant_goes_nothing_is_kept_of_what_was_kept_before():
    live = Live({"warm": {}}, tenants=TENANTS)
    warmer = live.prefix.warmer
    assert warmer is not None
    for number in range(5):
        text = words(0, 4) + words(number + 1, 1)
        request = live.request(text, now=1.0)
        body = wire.read(b'{"prompt":"%b"}' % text.encode(), READ_OR_WRITTEN)
        live.prefix.met(request, body, salt=None)
        live.play(text, now=1.0)
    assert (len(warmer.hot), warmer.hot.size > 1000) == (1, True)
    live.reload({"warm": {}}, tenants=TENANTS)
    assert len(warmer.hot) == 1
    live.reload({"warm": {}}, tenants=TENANTS[:1])
    assert live.prefix.warmer is warmer
    assert (len(warmer.hot), warmer.hot.size) == (0, 0)


# -- lost caches -----------------------------------------------------------------------------------


def test_a_collapse_of_the_hit_rate_takes_places_away_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
):
    live = Live({"guard": {}})
    now = 0.0

    def minutes(count: int, text: int | None) -> None:
        nonlocal now
        for number in range(count * 60):
            now += 1.0
            for second in range(4):
                live.play(words(number * 10 + second + 10 if text is None else text), now=now)
            live.pool.tick(now)

    with caplog.at_level(logging.INFO, "forebay.gateway.prefix"):
        minutes(5, 0)
        assert live.pool.endpoints["e0"].view.share == 1.0
        minutes(1, None)
        assert live.pool.endpoints["e0"].view.share == 0.25
        assert live.pool.endpoints["e0"].view.room == 2
        text = live.metrics(now)
        assert 'forebay_prefix_intake_slowed{pool="p"} 1.0' in text
        assert 'forebay_prefix_intake_share_ratio{pool="p"} 0.25' in text
        assert 'forebay_prefix_slowdowns_total{pool="p"} 1.0' in text
        minutes(2, 0)
    assert live.pool.endpoints["e0"].view.share == 1.0
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "prefix hit rate has collapsed; intake is slowed"),
        ("INFO", "intake is no longer slowed"),
    ]


def test_without_a_guard_nothing_is_slowed():
    live = Live()
    for second in range(300):
        live.play(words(0 if second < 200 else second), now=float(second))
        live.pool.tick(float(second))
    assert live.pool.endpoints["e0"].view.share == 1.0
    assert "forebay_prefix_intake_slowed{" not in live.metrics(300.0)


# -- versions --------------------------------------------------------------------------------------


def test_another_version_does_not_find_the_old_ones_prefixes_and_these_fade_as_room_is_needed():
    live = Live({"capacity_blocks": 100, "evict": "lru", "version": "1"})
    for number in range(10):
        live.play(words(number, 10))
    before = live.prefix
    live.reload({"capacity_blocks": 100, "evict": "lru", "version": "2"})
    assert live.prefix is before
    held = [live.prefix.index.held("e0")]
    for number in range(5):
        assert live.play(words(number, 10), now=1.0) == 0
        held.append(live.prefix.index.held("e0"))
    assert held == [100] * 6
    assert live.play(words(0, 10), now=2.0) == 640
    live.reload({"capacity_blocks": 100, "evict": "lru", "version": "1"})
    found = [live.request(words(number, 10), now=3.0).uncached_tokens for number in range(10)]
    assert found == [640] * 5 + [0] * 5


def test_two_versions_side_by_side_have_prefixes_of_their_own():
    live = Live()
    live.play(words(0), model="m", endpoint="e0")
    live.play(words(0), model="m-2", endpoint="e1")
    for model, holder in (("m", "e0"), ("m-2", "e1")):
        blocks = live.request(words(0), model=model, now=1.0).blocks
        assert live.prefix.index.match(blocks) == {holder: 4}


def test_a_prompt_of_an_adapter_goes_where_that_is_loaded_until_the_engine_restarts():
    live = Live()
    told = Probe("vllm", models=(ModelCard("m"), ModelCard("m-2", None, "m")), adapters=1)
    for endpoint in ("e0", "e1"):
        live.prefix.probed(endpoint, told)
    live.play(words(1), model="m-2", endpoint="e1")
    views = [endpoint.view for endpoint in live.pool.endpoints.values()]

    def best(number: int) -> str:
        scores = live.prefix.score(live.request(words(number), model="m-2", now=61.0), views, 61.0)
        return views[scores.index(max(scores))].name

    chosen = [best(2)]
    live.prefix.probed("e0", Probe("vllm", models=told.models, running_adapters=("m-2",)))
    live.prefix.forget("e1")
    chosen.append(best(3))
    assert chosen == ["e1", "e0"]


@pytest.mark.parametrize(
    "changed",
    [{"stickiness": 4.0}, {"warm": {}}, {"guard": {}}, {"ttl": 60.0}, {"policy": "weighted"}],
)
def test_what_is_known_outlives_a_reload_of_settings_it_does_not_depend_on(
    changed: dict[str, Any],
):
    live = Live()
    live.play(words(0))
    live.reload(changed)
    assert live.play(words(0), now=1.0) == 256
    assert live.pool.dispatcher.endpoints.keys() == {"e0", "e1"}


def test_what_is_known_does_not_outlive_other_blocks():
    live = Live()
    live.play(words(0))
    live.reload({"block_tokens": 128})
    assert live.prefix.index.held("e0") == 0


def test_a_smaller_capacity_takes_effect_with_the_next_prompt():
    live = Live({"capacity_blocks": 1000})
    for number in range(10):
        live.play(words(number, 10))
    live.reload({"capacity_blocks": 64})
    live.play(words(99, 1), now=1.0)
    assert live.prefix.index.held("e0") == 64


# -- the limit, and what it was worth --------------------------------------------------------------


def test_the_limit_is_a_part_of_each_classs_ttft_and_the_rate_is_measured():
    live = Live(sla={"fast": {"ttft": 0.5}, "slow": {}})
    score = cast("StickyUntilSaturated", live.prefix.score)
    assert score.limits == {"fast": 0.4}
    for number in range(40):
        blocks = 1 + number % 9
        live.play(words(number, blocks), now=100.0 * number, took_s=0.1 + blocks * 64 / 1000)
    assert live.prefix.placements.prefill.rate("e0") == pytest.approx(1000, rel=0.1)
    assert "forebay_prefix_prefill_tokens_per_second{" in live.metrics(1e4)
    assert live.prefix.score is score


def test_without_a_share_of_the_ttft_there_is_no_limit():
    live = Live({"ttft_share": 0}, sla={"fast": {"ttft": 0.5}})
    assert cast("StickyUntilSaturated", live.prefix.score).limits == {}


def test_saved_seconds_are_cached_tokens_over_the_measured_rate():
    live = Live()
    for number in range(40):
        live.play(words(number, 4), now=100.0 * number, took_s=0.256)
    live.play(words(0, 4), now=1e4, took_s=0.01)
    assert live.prefix.placements.numbers.saved_s == pytest.approx(0.256, rel=0.05)
    assert 'forebay_prefix_saved_seconds_total{pool="p"} 0.2' in live.metrics(1e4)


def test_a_rate_is_told_in_the_engines_own_tokens_whatever_was_estimated():
    live = Live()
    for number in range(300):
        blocks = 1 + number % 9
        took_s = 0.01 + blocks * 64 / 1000
        live.play(words(number, blocks), now=100.0 * number, took_s=took_s, tokens=blocks * 32)
    assert live.prefix.placements.prefill_rate("e0") == pytest.approx(500, rel=0.1)
    saved = live.prefix.placements.numbers.saved_s
    live.play(words(299 - 299 % 9, 1), now=1e6, tokens=32, cached=32)
    assert live.prefix.placements.numbers.saved_s - saved == pytest.approx(0.064, rel=0.1)


def test_padding_is_told_apart_from_business():
    live = Live()
    live.play(words(0, 4), cached=20)
    live.play(words(1, 4), cached=127)
    live.play(words(2, 4), cached=128)
    live.play(words(3, 4), cached=0)
    text = live.metrics(0.0)
    hits = 'forebay_prefix_hit_tokens_total{kind="%s",pool="p",source="learned"} %d.0'
    assert hits % ("padding", 147) in text
    assert hits % ("business", 128) in text
    assert 'forebay_prefix_prompt_tokens_total{pool="p",source="learned"} 1024.0' in text


def test_the_age_of_the_oldest_block_is_told_to_a_second():
    live = Live()
    age = 'forebay_prefix_oldest_block_seconds{endpoint="e0",pool="p"} %s'
    assert "forebay_prefix_oldest_block_seconds{" not in live.metrics(0.0)
    live.play(words(0), now=100.0)
    for second in range(100, 160):
        live.pool.tick(float(second))
    live.play(words(1), now=160.0)
    assert age % "60.0" in live.metrics(160.0)
    live.play(words(0), now=160.0)
    for second in range(160, 170):
        live.pool.tick(float(second))
    assert age % "10.0" in live.metrics(170.0)


def test_the_admin_view_shows_it():
    live = Live({"guard": {}, "warm": {}}, tenants=TENANTS)
    live.play(words(0, 10))
    live.play(words(0, 10), now=1.0)

    class State:
        def snapshot(self) -> Any:
            return take_snapshot([live.pool], now=2.0)

        def totals(self) -> dict[str, Any]:
            return {}

    client = TestClient(
        admin_app(cast("Any", State()), None), base_url="http://localhost", client=("127.0.0.1", 1)
    )
    (pool,) = client.get("/admin/v1/status").json()["pools"]
    shown = pool["prefix"]
    assert (shown["blocks"], shown["business_tokens"], shown["padding_tokens"]) == (10, 640, 0)
    assert shown["shares"] == [{"tenant": "acme", "blocks": 10, "evicted": 0, "refused": 0}]
    assert shown["guard"]["slowed"] is False
    assert shown["warming"]["hot"] == 0
    assert [source["endpoint"] for source in shown["sources"]] == ["e0", "e1"]


# -- endpoints that come and go --------------------------------------------------------------------


def test_what_still_runs_on_an_endpoint_that_left_teaches_nothing():
    live = Live()
    live.play(words(1), endpoint="e1")
    ends = [Placement(live.request(words(n), now=1.0), "e1", 1, 1.0) for n in (2, 3)]
    for placement in ends:
        live.prefix.placed(placement)
    live.prefix.tick(1e3, ("e0", "e1"))  # its hopes are given up: no byte has come for long
    live.prefix.left("e1")
    for placement in ends:
        live.prefix.began(placement, 1e3)
        outcome = Outcome(placement.request.id, "p", "x", "acme", status=200)
        outcome.first_byte, outcome.prompt_tokens, outcome.cached_tokens = 1e3, 256, 0
        live.prefix.released(placement, outcome, 1e3)
        assert live.prefix.expected(placement.request.id) is None
    assert live.prefix.index.held("e1") == 0
    assert live.prefix.learned.capacity("e1") == live.prefix.learned.capacity("new")
    assert live.play(words(2), endpoint="e1", now=1e3) == 0


def test_of_endpoints_that_are_not_there_little_is_kept():
    one, other = Live(), Live()
    outbox = Outbox()
    one.prefix.share(outbox)
    for number in range(100):
        one.prefix.probed(f"gone-{number}", Probe("vllm"))
        one.play(words(number), endpoint=f"gone-{number}")
    deltas = read(write(outbox.take()))
    assert len(deltas) == 100
    for delta in deltas:
        other.prefix.heard(delta)
    for number in range(100):
        other.prefix.probed(f"gone-{number}", Probe("vllm"))
    found = [n for n in range(100) if other.prefix.index.held(f"gone-{n}")]
    assert found == [*range(36, 100)]
    other.prefix.left("gone-99")
    assert not other.prefix.index.held("gone-99")
