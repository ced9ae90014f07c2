#!/usr/bin/env python3
"""What the prefix index and the event reader cost.

    python benchmarks/bench_prefix_index.py [--blocks 10M]

Memory and lookups of an index of that many blocks at a thousand endpoints, its longest step, the
price of naming a prompt of 100,000 tokens, and how many events a second one reader places.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import statistics
import time
from typing import TYPE_CHECKING, cast

import msgspec

from forebay.gateway import wire
from forebay.gateway.intake import READ_OR_WRITTEN
from forebay.gateway.prefix_text import prompt_text
from forebay.policies.contracts import Route
from forebay.prefixcache.blocks import chain_text, root
from forebay.prefixcache.chains import Chains
from forebay.prefixcache.events import read_frames
from forebay.prefixcache.index import Index
from forebay.prefixcache.recut import Recut
from forebay.prefixcache.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.prefixcache.blocks import BlockHash

ENDPOINTS = 1000


def timed(work: Callable[[], object], times: int) -> list[float]:
    """Return sorted times in microseconds."""
    taken: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1e6)
    return sorted(taken)


def chain(rng: random.Random, size: int) -> list[BlockHash]:
    """Return a prompt's hashes."""
    return cast("list[BlockHash]", [rng.getrandbits(64) for _ in range(size)])


def index_of(blocks: int) -> dict[str, object]:
    """Fill an index and look things up."""
    index, rng, longest = Index(), random.Random(1), 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gc.collect()
    gc.freeze()
    for endpoint in range(ENDPOINTS):
        for _ in range(blocks // ENDPOINTS // 100):
            new = chain(rng, 100)
            began = time.perf_counter()
            index.store(f"e{endpoint}", new)
            longest = max(longest, time.perf_counter() - began)
    asked = chain(rng, 256)
    for number in range(8):
        index.store(f"e{number}", asked[: 32 * (number + 1)])
    found = timed(lambda: index.match(asked), 5000)
    tiered = chain(rng, 256)
    for number in range(8, 16):
        told = tiered[: 32 * (number - 7)]
        third = len(told) // 3
        for tier in Tier:
            end = None if tier is Tier.DISK else third * (tier + 1)
            index.hold(f"e{number}", told[third * tier : end], tier)
    weighed = timed(lambda: index.worth(tiered), 5000)
    began = time.perf_counter()
    gc.collect()
    collected = time.perf_counter() - began
    cleared = timed(lambda: index.clear("e3"), 1)[0]
    swept = timed(lambda: index.sweep(4096), 20)[-1]
    return {
        "blocks": len(index),
        "index_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
        "store_100_blocks_longest_ms": round(longest * 1000, 2),
        "lookup_256_blocks_us": {"p50": round(found[2500], 1), "p99": round(found[4950], 1)},
        "lookup_with_tiers_us": {"p50": round(weighed[2500], 1), "p99": round(weighed[4950], 1)},
        "gc_ms": round(collected * 1000, 2),
        "forget_endpoint_us": round(cleared, 1),
        "sweep_4096_blocks_us": round(swept, 1),
    }


def naming() -> dict[str, object]:
    """Name a prompt of 100,000 tokens of text: one that is new, and a turn that goes on from one.

    Hashing alone is also told, in microseconds, beside hashing all without a memory.
    """
    said = "some words of a long prompt " * 14_300
    turns = [f"{number} {said}" for number in range(50)]
    new = [_body({"role": "user", "content": turn}) for turn in turns]
    more = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": said[:2000]}]
    longer = [_body({"role": "user", "content": turn}, *more) for turn in turns]
    chains = Chains(block_bytes=256)
    taken = {"new": _each(chains, new)}
    _each(chains, new)
    taken["goes_on"] = _each(chains, longer)
    texts = [prompt_text(Route.CHAT, body) for body in new]
    parent, fresh = root(model="m"), Chains(block_bytes=256)
    found = [
        timed(lambda text=text: chain_text(parent, text, block_bytes=256), 1)[0] for text in texts
    ]
    hashed = {"without_memory": statistics.median(found)}
    for name in ("new", "second", "goes_on"):
        found = [timed(lambda text=text: fresh.hashes(parent, text), 1)[0] for text in texts]
        hashed[name] = statistics.median(found)
    return {
        "prompt_bytes": len(new[0].raw),
        "us": {name: round(us, 1) for name, us in taken.items()},
        "hashing_us": {name: round(us, 1) for name, us in hashed.items()},
    }


def _body(*messages: dict[str, str]) -> wire.Body:
    return wire.read(msgspec.json.encode({"model": "m", "messages": messages}), READ_OR_WRITTEN)


def _each(chains: Chains, bodies: list[wire.Body]) -> float:
    parent = root(model="m")
    return statistics.median(
        timed(lambda body=body: chains.hashes(parent, prompt_text(Route.CHAT, body)), 1)[0]
        for body in bodies
    )


def reading(size: int, blocks: int) -> dict[str, object]:
    """Decode and place events of `blocks` engine blocks, one event a message."""
    rng, frames = random.Random(2), list[list[bytes]]()
    count, parent = 20_000, None
    for number in range(count):
        hashes = [rng.getrandbits(64) for _ in range(blocks)]
        event = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent if number % 64 else None,
            "token_ids": [rng.randrange(128_000) for _ in range(size * blocks)],
            "block_size": size,
            "medium": "GPU",
            "group_idx": 0,
        }
        parent = hashes[-1]
        body = msgspec.msgpack.encode([1.0, [event], 0])
        frames.append([b"kv", number.to_bytes(8, "big"), body])
    gc.disable()
    recut, stored, removed = Recut(64), dict[int, int](), dict[int, None]()
    began = time.process_time()
    for each in frames:
        for event in read_frames(each).events:
            recut.apply(event, stored, removed)
    taken = time.process_time() - began
    gc.enable()
    return {"block_size": size, "blocks": blocks, "events_per_cpu_s": round(count / taken)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=10_000_000)
    args = parser.parse_args()
    print(json.dumps({"naming": naming()}), flush=True)
    for size, blocks in ((16, 1), (32, 1), (16, 8)):
        print(json.dumps({"reading": reading(size, blocks)}), flush=True)
    print(json.dumps({"index": index_of(args.blocks)}), flush=True)


if __name__ == "__main__":
    main()
