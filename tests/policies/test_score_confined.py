"""A tenant that floods caches is kept to some of the endpoints."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, cast

from tests.asking import a_request

from forebay.policies.contracts import EndpointView, Request
from forebay.policies.pick import Seeded
from forebay.policies.score_confined import Confined
from forebay.policies.score_least_tokens import LeastTokens
from forebay.policies.score_sticky import StickyUntilSaturated
from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import Learned
from forebay.prefixcache.owners import Owners
from forebay.scheduler.twin.prefixes import LruCache

if TYPE_CHECKING:
    from forebay.prefixcache.blocks import BlockHash

NAMES = tuple(f"e{number}" for number in range(8))


def request(tenant: str, blocks: tuple[int, ...] = (1,)) -> Request:
    return a_request(
        tenant=tenant,
        prompt_tokens_estimate=64 * len(blocks),
        blocks=cast("tuple[BlockHash, ...]", blocks),
    )


def views(*names: str) -> list[EndpointView]:
    return [EndpointView(name=name, engine="vllm", limit=8) for name in names or NAMES]


def confined(share: float = 0.5) -> Confined:
    score = Confined(LeastTokens(), lambda tenant, _now: tenant == "flood", share)
    score.among(NAMES)
    return score


def test_who_does_not_flood_is_rated_as_ever():
    plain = LeastTokens()(request("quiet"), views(), 0.0)
    assert confined()(request("quiet"), views(), 0.0) == plain


def test_who_floods_prefers_its_own_endpoints_however_busy_they_are():
    score = confined(0.25)
    own = score.kept_to("flood")
    assert len(own) == 2
    there = views()
    for view in there:
        view.in_flight_tokens = 100_000 if view.name in own else 0
    rated = dict(zip(NAMES, score(request("flood"), there, 0.0), strict=True))
    assert min(rated[name] for name in own) > max(rated[n] for n in NAMES if n not in own)
    assert all(0 <= rating <= 1 for rating in rated.values())


def test_where_its_own_have_no_room_it_goes_elsewhere():
    score = confined(0.25)
    others = [name for name in NAMES if name not in score.kept_to("flood")]
    assert len(score(request("flood"), views(*others), 0.0)) == 6


def test_there_is_one_endpoint_at_least_and_tenants_have_different_ones():
    score = confined(0.01)
    assert {len(score.kept_to(f"t{n}")) for n in range(50)} == {1}
    assert len({min(score.kept_to(f"t{n}")) for n in range(50)}) > 4
    score.among(NAMES[:1])
    assert score.kept_to("t0") == frozenset(NAMES[:1])


class Pool:
    """Eight true caches of a thousand blocks, and what is expected of them."""

    def __init__(self, *, held_to_limits: bool) -> None:
        self.index = Index()
        self.learned = Learned(self.index, capacity_blocks=1000)
        self.caches = {name: LruCache(1000) for name in NAMES}
        self.views = views()
        sticky = StickyUntilSaturated(self.index, 64)
        self.work = sticky.work
        self.score: Confined | StickyUntilSaturated = sticky
        if held_to_limits:
            self.owners = self.learned.owners = Owners(
                self.index, share=0.25, new_blocks_per_s=100.0
            )
            self.score = Confined(sticky, self.owners.floods, 0.25)
            self.score.among(NAMES)
        self._rng = Random(1)
        self.hits: dict[str, int] = dict.fromkeys(("quiet", "flood"), 0)
        self.asked: dict[str, int] = dict.fromkeys(("quiet", "flood"), 0)

    def send(self, tenant: str, blocks: tuple[int, ...], now: float) -> None:
        asked = request(tenant, blocks)
        name = self.views[Seeded()(self.views, self.score(asked, self.views, now), self._rng)].name
        held = self.index.match(asked.blocks).get(name, 0)
        self.work.add(name, 64 * (len(blocks) - held), now)
        self.learned.placed(name, asked.blocks, now=now, owner=tenant)
        hit = self.caches[name].use(blocks)
        self.learned.reported(name, predicted_tokens=64 * held, cached_tokens=64 * hit)
        self.hits[tenant] += hit
        self.asked[tenant] += len(blocks)


def quiet_hit_share(*, held_to_limits: bool, flood: int = 5) -> float:
    """Play 150 system prompts that come again and again, among a flood of five times as much."""
    pool, rng, fresh = Pool(held_to_limits=held_to_limits), Random(2), 1 << 40
    for step in range(2500):
        now = step * 0.02
        system = rng.randrange(150) * 1000
        tail = fresh + step * 1000
        pool.send("quiet", (*range(system + 1, system + 21), *range(tail, tail + 2)), now)
        for number in range(flood):
            first = fresh * 2 + (step * 5 + number) * 1000
            pool.send("flood", tuple(range(first, first + 22)), now)
    return pool.hits["quiet"] / pool.asked["quiet"]


def test_what_a_quiet_tenant_hits_in_true_caches_outlives_anothers_flood():
    free, held = (quiet_hit_share(held_to_limits=limits) for limits in (False, True))
    alone = quiet_hit_share(held_to_limits=False, flood=0)
    assert free < 0.4 * alone
    assert held > 0.8 * alone
