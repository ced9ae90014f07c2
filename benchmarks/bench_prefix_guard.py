#!/usr/bin/env python3
"""What `prefix.guard` changes when caches are lost under load, on simulated endpoints.

    python benchmarks/bench_prefix_guard.py [--seeds 2] [--json]

Four endpoints prefill one prompt after the other at 8,000 tokens a second and answer up to 64 at
once; two tenants, one of eight times the weight, send prompts that begin with one of some shared
prefixes. After five minutes all endpoints restart, and for a while the prompts are ones that nobody
has sent before. The dispatcher, the placement and the guard are those that run live. Times are from
receipt to first byte, of the five minutes that follow.
"""

from __future__ import annotations

import argparse
import json
from heapq import heappop, heappush
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, cast

from forebay.policies.contracts import EndpointView, Request, Route
from forebay.policies.score_sticky import StickyUntilSaturated
from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import Learned
from forebay.scheduler.avalanche import GuardSettings, HitRateGuard
from forebay.scheduler.build import Scheduling, make_dispatcher
from forebay.scheduler.twin.prefixes import LruCache

if TYPE_CHECKING:
    from forebay.policies.contracts import Placement
    from forebay.prefixcache.blocks import BlockHash

BLOCK_TOKENS = 64
RATE = 8000.0
DECODE_S = 4.0
CAPACITY = 8000
HEAD, TAIL = 48, 12
"""Blocks of a shared prefix, and of what follows."""
PREFIXES = 60
LOST_AT_S, FOREIGN_S, END_S = 300.0, 45.0, 600.0
PER_S = 12.0
"""Prompts a second of all."""
WEIGHTS = {"interactive": 8.0, "batch": 1.0}
NAMES = ("e0", "e1", "e2", "e3")


class Run:
    """Ten minutes, with the guard or without."""

    def __init__(self, *, seed: int, guarded: bool) -> None:
        self._rng = Random(seed)
        self._index = Index()
        self._learned = Learned(self._index, capacity_blocks=CAPACITY)
        self._score = StickyUntilSaturated(self._index, BLOCK_TOKENS)
        self._guard = HitRateGuard(GuardSettings()) if guarded else None
        self._views = {name: EndpointView(name=name, engine="twin", limit=64) for name in NAMES}
        self._caches = {name: LruCache(CAPACITY) for name in NAMES}
        self._free_at: dict[str, float] = dict.fromkeys(NAMES, 0.0)
        self._dispatcher = make_dispatcher(
            Scheduling(order="fair", guards=None),
            pool="p",
            rng=Random(seed),
            max_requests=100_000,
            max_bytes=1 << 40,
            uncached=self._uncached,
            score=self._score,
        )
        self._dispatcher.set_endpoints(self._views.values())
        self._ends: list[tuple[float, int, Placement]] = []
        self.waits: dict[str, list[float]] = {name: [] for name in WEIGHTS}

    def play(self) -> None:
        """Run to the end."""
        now, number, tick = 0.0, 0, 0.0
        lost = False
        while now < END_S:
            now += self._rng.expovariate(PER_S)
            number += 1
            self._let_pass(now)
            if not lost and now >= LOST_AT_S:
                lost = True
                self._lose()
            if now >= tick:
                tick = now + 0.25
                self._look(now)
            request = self._request(number, now)
            placement = self._dispatcher.submit(request, now)
            if placement is not None:
                self._place(placement, now)

    def _lose(self) -> None:
        for name in NAMES:
            self._learned.forget(name)
            self._caches[name] = LruCache(CAPACITY)

    def _look(self, now: float) -> None:
        guard = self._guard
        if guard is None:
            return
        guard.tick(now)
        for view in self._views.values():
            view.share = guard.share
        for placement in self._dispatcher.changed(now):
            self._place(placement, now)

    def _let_pass(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            at, _, placement = heappop(self._ends)
            for freed in self._dispatcher.release(placement, at):
                self._place(freed, at)

    def _uncached(self, request: Request) -> int:
        held = max(self._index.match(request.blocks).values(), default=0)
        return request.prompt_tokens_estimate - held * BLOCK_TOKENS

    def _request(self, number: int, now: float) -> Request:
        rng = self._rng
        tenant = "interactive" if rng.random() < 0.2 else "batch"
        foreign = LOST_AT_S <= now < LOST_AT_S + FOREIGN_S
        first = (1 << 40) + number * 1000 if foreign else rng.randrange(PREFIXES) * 1000
        own = (1 << 50) + number * 1000
        blocks = (*range(first + 1, first + 1 + HEAD), *range(own, own + TAIL))
        return Request(
            id=str(number),
            pool="p",
            route=Route.CHAT,
            model="m",
            tenant=tenant,
            sequence=number,
            arrived=now,
            deadline=now + 1e6,
            prompt_tokens_estimate=len(blocks) * BLOCK_TOKENS,
            output_tokens_estimate=100,
            uncached_tokens=len(blocks) * BLOCK_TOKENS,
            blocks=cast("tuple[BlockHash, ...]", blocks),
            weight=WEIGHTS[tenant],
        )

    def _place(self, placement: Placement, now: float) -> None:
        request, name = placement.request, placement.endpoint
        prompt = request.prompt_tokens_estimate
        predicted = self._index.match(request.blocks).get(name, 0) * BLOCK_TOKENS
        self._score.work.add(name, prompt - predicted, now)
        self._learned.placed(name, request.blocks)
        hit = self._caches[name].use(request.blocks) * BLOCK_TOKENS
        if self._guard is not None:
            self._guard.placed(prompt, hit, now)
        self._free_at[name] = max(self._free_at[name], now) + (prompt - hit) / RATE
        begins = self._free_at[name]
        heappush(self._ends, (begins + DECODE_S, request.sequence, placement))
        if request.arrived >= LOST_AT_S:
            self.waits[request.tenant].append(begins - request.arrived)


def measure(*, seeds: int, guarded: bool) -> dict[str, dict[str, float]]:
    """Return each tenant's times, as means over all seeds."""
    rows: dict[str, dict[str, list[float]]] = {name: {"p50_s": [], "p99_s": []} for name in WEIGHTS}
    for seed in range(1, seeds + 1):
        run = Run(seed=seed, guarded=guarded)
        run.play()
        for name, waits in run.waits.items():
            waits.sort()
            rows[name]["p50_s"].append(waits[len(waits) // 2])
            rows[name]["p99_s"].append(waits[int(0.99 * len(waits))])
    return {name: {key: fmean(values) for key, values in row.items()} for name, row in rows.items()}


def main() -> None:
    """Measure with and without, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="runs of each (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a row")
    arguments = parser.parse_args()
    for guarded in (False, True):
        row = measure(seeds=arguments.seeds, guarded=guarded)
        if arguments.json:
            print(json.dumps({"guard": guarded, **row}))
            continue
        shown = (f"{name} p50 {r['p50_s']:.2f} p99 {r['p99_s']:.2f} s" for name, r in row.items())
        print("with the guard" if guarded else "without", *shown, sep="  |  ")


if __name__ == "__main__":
    main()
