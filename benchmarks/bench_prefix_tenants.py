#!/usr/bin/env python3
"""What one tenant's flood of prompts costs another tenant's hits, on simulated caches.

    python benchmarks/bench_prefix_tenants.py [--seeds 3] [--limit 30] [--json]

Eight caches of the kind that engines have, least recently used first. A quiet tenant's prompts
begin with one of 150 system prompts; another tenant sends five times as many that never come again.
The dispatcher, the placement and the limits are those that run live. Hits are the quiet tenant's,
as the caches have them, of the second half of twenty minutes.
"""

from __future__ import annotations

import argparse
import json
from heapq import heappop, heappush
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, cast

from forebay.policies.contracts import EndpointView, Request, Route
from forebay.policies.score_confined import Confined
from forebay.policies.score_sticky import StickyUntilSaturated
from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import Learned
from forebay.prefixcache.owners import Owners
from forebay.scheduler.build import Scheduling, make_dispatcher
from forebay.scheduler.twin.prefixes import LruCache

if TYPE_CHECKING:
    from forebay.policies.contracts import Placement
    from forebay.prefixcache.blocks import BlockHash

BLOCK_TOKENS = 64
CAPACITY = 1000
HEAD, TAIL = 18, 3
"""Blocks of a system prompt, and of what follows."""
PROMPTS, FLOOD = 150, 5
QUIET_PER_S, ANSWER_S, END_S = 2.0, 4.0, 1200.0
NAMES = tuple(f"e{number}" for number in range(8))
CASES = {
    "alone": (False, 0.5, False),
    "beside the flood": (True, 0.5, False),
    "held to half": (True, 0.5, True),
    "held to a quarter": (True, 0.25, True),
}
"""By name: whether there is a flood, `tenant_share`, whether there is a limit on what is new."""


class Run:
    """Twenty minutes of one case."""

    def __init__(self, case: str, seed: int, limit: float) -> None:
        """`limit` is of new blocks a second: the flood brings 210, the quiet tenant 6 and heads."""
        self._flooded, share, limited = CASES[case]
        rate = limit if limited else None
        self._rng = Random(seed)
        self._index = Index()
        self._learned = Learned(self._index, capacity_blocks=CAPACITY)
        self._learned.owners = Owners(self._index, share=share, new_blocks_per_s=rate)
        self._sticky = StickyUntilSaturated(self._index, BLOCK_TOKENS)
        self._caches = {name: LruCache(CAPACITY) for name in NAMES}
        self._dispatcher = make_dispatcher(
            Scheduling(order="fair", guards=None),
            pool="p",
            rng=Random(seed),
            max_requests=100_000,
            max_bytes=1 << 40,
            score=Confined(self._sticky, self._learned.owners.floods, share, names=NAMES),
        )
        self._dispatcher.set_endpoints(EndpointView(name, "twin", limit=64) for name in NAMES)
        self._ends: list[tuple[float, int, Placement]] = []
        self._hit = self._asked = 0

    def play(self) -> float:
        """Run to the end and return the quiet tenant's hit rate."""
        now, number = 0.0, 0
        while now < END_S:
            now += self._rng.expovariate(QUIET_PER_S * (1 + FLOOD * self._flooded))
            number += 1
            while self._ends and self._ends[0][0] <= now:
                at, _, placement = heappop(self._ends)
                for freed in self._dispatcher.release(placement, at):
                    self._place(freed, at)
            placement = self._dispatcher.submit(self._request(number, now), now)
            if placement is not None:
                self._place(placement, now)
        return self._hit / self._asked

    def _request(self, number: int, now: float) -> Request:
        quiet = not self._flooded or self._rng.random() < 1 / (1 + FLOOD)
        own = (1 << 50) + number * 1000
        first = self._rng.randrange(PROMPTS) * 1000 if quiet else own + 500
        blocks = (*range(first, first + HEAD), *range(own, own + TAIL))
        return Request(
            id=str(number),
            pool="p",
            route=Route.CHAT,
            model="m",
            tenant="quiet" if quiet else "flood",
            sequence=number,
            arrived=now,
            deadline=now + 1e6,
            prompt_tokens_estimate=len(blocks) * BLOCK_TOKENS,
            output_tokens_estimate=100,
            uncached_tokens=len(blocks) * BLOCK_TOKENS,
            blocks=cast("tuple[BlockHash, ...]", blocks),
        )

    def _place(self, placement: Placement, now: float) -> None:
        request, name = placement.request, placement.endpoint
        predicted = self._index.match(request.blocks).get(name, 0)
        self._sticky.work.add(name, (len(request.blocks) - predicted) * BLOCK_TOKENS, now)
        self._learned.placed(name, request.blocks, owner=request.tenant, now=now)
        hit = self._caches[name].use(request.blocks)
        heappush(self._ends, (now + ANSWER_S, request.sequence, placement))
        if request.tenant == "quiet" and now >= END_S / 2:
            self._hit += hit
            self._asked += len(request.blocks)


def main() -> None:
    """Measure each case, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (%(default)s)")
    parser.add_argument(
        "--limit", type=float, default=30.0, help="new blocks a second of a tenant (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    hits = {
        case: fmean(
            Run(case, seed, arguments.limit).play() for seed in range(1, arguments.seeds + 1)
        )
        for case in CASES
    }
    if arguments.json:
        print(json.dumps(hits))
        return
    for case, hit in hits.items():
        print(f"{case:20} {hit:.3f}")


if __name__ == "__main__":
    main()
