#!/usr/bin/env python3
"""What the ttft limit of `sticky_until_saturated` changes, on simulated endpoints.

    python benchmarks/bench_prefix_limit.py [--seeds 2] [--json]

Endpoints prefill one prompt after the other at 8,000 tokens a second, with true LRU caches; prompts
begin with one of some shared prefixes and come in bursts. The limit's rate is measured as it is
live: from first bytes. One row is a kind of traffic without the limit and with it, over all seeds.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, cast

from forebay.policies.contracts import EndpointView, Request, Route
from forebay.policies.pick import Seeded
from forebay.policies.score_sticky import StickyUntilSaturated
from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import Learned
from forebay.scheduler.twin.prefixes import LruCache

if TYPE_CHECKING:
    from forebay.policies.prefill_rate import Mark
    from forebay.prefixcache.blocks import BlockHash

BLOCK_TOKENS = 64
RATE, FIXED_S = 8000.0, 0.03
CAPACITY = 4000
TARGET_S, SHARE = 1.0, 0.8
PROMPTS = 4000


@dataclass(frozen=True)
class Traffic:
    """What comes."""

    prefixes: int
    skew: float
    """Of the prefixes' popularity (Zipf)."""
    head: int
    """Blocks of a prefix."""
    use: float
    """Of what the endpoints could prefill if 85 % of the heads hit, averaged over bursts."""
    endpoints: int = 4


_PREFIXES = ((3, 1.0, 128, 4), (40, 1.5, 32, 4), (12, 2.5, 64, 4), (200, 1.0, 64, 8))
KINDS = tuple(
    Traffic(prefixes, skew, head, use, endpoints)
    for prefixes, skew, head, endpoints in _PREFIXES
    for use in (0.5, 0.7)
)


class Run:
    """One kind of traffic, with the limit or without."""

    def __init__(self, traffic: Traffic, *, seed: int, limited: bool) -> None:
        self._traffic = traffic
        self._rng = Random(seed)
        self._index = Index()
        self._learned = Learned(self._index, capacity_blocks=CAPACITY)
        self._score = StickyUntilSaturated(self._index, BLOCK_TOKENS)
        self._score.limits = {"fast": TARGET_S * SHARE} if limited else {}
        names = [f"e{number}" for number in range(traffic.endpoints)]
        self._views = [EndpointView(name=name, engine="twin", limit=64) for name in names]
        self._caches = {name: LruCache(CAPACITY) for name in names}
        self._free_at = dict.fromkeys(names, 0.0)
        self._begins: list[tuple[float, int, EndpointView, Mark, int]] = []
        self.waits: list[float] = []
        self.hit = self.asked = 0

    def play(self) -> None:
        """Send all prompts."""
        traffic, rng, now = self._traffic, self._rng, 0.0
        popular = [1 / (number + 1) ** traffic.skew for number in range(traffic.prefixes)]
        mean = BLOCK_TOKENS * (0.15 * traffic.head + 16)
        steady = traffic.use * traffic.endpoints * RATE / mean
        for number in range(PROMPTS):
            now += rng.expovariate(steady * (3.0 if number // 200 % 4 == 0 else 0.6))
            self._let_pass(now)
            prefix = rng.choices(range(traffic.prefixes), popular)[0] * 1000 + 1
            tail = (1 << 30) + number * 100
            own = range(tail, tail + rng.randrange(4, 28))
            self._send(number, (*range(prefix, prefix + traffic.head), *own), now)

    def _let_pass(self, now: float) -> None:
        while self._begins and self._begins[0][0] <= now:
            at, _, view, mark, tokens = heappop(self._begins)
            self._score.prefill.began(view.name, mark, at)
            view.in_flight_tokens -= tokens

    def _send(self, number: int, blocks: tuple[int, ...], now: float) -> None:
        request = _request(number, blocks, now)
        view = self._views[Seeded()(self._views, self._score(request, self._views, now), self._rng)]
        name = view.name
        left = BLOCK_TOKENS * (len(blocks) - self._index.match(request.blocks).get(name, 0))
        self._score.work.add(name, left, now)
        mark = self._score.prefill.placed(name, left, now)
        self._learned.placed(name, request.blocks)
        hit = self._caches[name].use(blocks)
        uncached = BLOCK_TOKENS * (len(blocks) - hit)
        self._free_at[name] = max(self._free_at[name], now) + uncached / RATE
        begins = self._free_at[name] + FIXED_S
        view.in_flight_tokens += uncached
        heappush(self._begins, (begins, number, view, mark, uncached))
        self.waits.append(begins - now)
        self.hit += hit
        self.asked += len(blocks)


def _request(number: int, blocks: tuple[int, ...], now: float) -> Request:
    return Request(
        id=str(number),
        pool="p",
        route=Route.CHAT,
        model="m",
        tenant="t",
        sequence=number,
        arrived=now,
        deadline=now + 60,
        prompt_tokens_estimate=BLOCK_TOKENS * len(blocks),
        output_tokens_estimate=1,
        uncached_tokens=0,
        blocks=cast("tuple[BlockHash, ...]", blocks),
        sla="fast",
    )


def measure(traffic: Traffic, *, seeds: int, limited: bool) -> dict[str, float]:
    """Return the means over all seeds."""
    met: list[float] = []
    p99: list[float] = []
    hits: list[float] = []
    for seed in range(1, seeds + 1):
        run = Run(traffic, seed=seed, limited=limited)
        run.play()
        waits = sorted(run.waits)
        met.append(sum(wait <= TARGET_S for wait in waits) / len(waits))
        p99.append(waits[int(0.99 * len(waits))])
        hits.append(run.hit / run.asked)
    return {"met": fmean(met), "p99_s": fmean(p99), "hit": fmean(hits)}


def main() -> None:
    """Measure all kinds and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="runs of each kind (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a row")
    arguments = parser.parse_args()
    for traffic in KINDS:
        free, held = (
            measure(traffic, seeds=arguments.seeds, limited=limited) for limited in (False, True)
        )
        row = {**asdict(traffic), "without": free, "with": held}
        if arguments.json:
            print(json.dumps(row))
            continue
        what = f"{traffic.prefixes:3} prefixes of {traffic.head:3} blocks, use {traffic.use}"
        print(what, *map(_shown, (free, held)), sep="  |  ")


def _shown(row: dict[str, float]) -> str:
    return f"met {row['met']:.3f} p99 {row['p99_s']:.2f} s hit {row['hit']:.3f}"


if __name__ == "__main__":
    main()
