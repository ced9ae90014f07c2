# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: PLR0913, PLR0917
# (a shape has many numbers; closures take the loop's names as defaults)
"""Paged decode: ours against the floor and the peers that are installed.

    python benchmarks/bench_decode.py --out benchmarks/results/kernels

Every timed call is checked against the float64 reference on three of its sequences, and a wrong
one ends the run. Peers are skipped with a printed reason.
"""

import argparse
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from kernels_common import Report, pool_tables, precompile, time_rotating
from kernels_peers import PEERS

from forebay.kernels.attention.decode import (
    DecodeConfig,
    Workspace,
    decode_config,
    decode_plan,
    paged_decode,
)
from forebay.kernels.attention.layout import PagedCache, Rule
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.attention.splits import Policy
from forebay.kernels.testing import binary_trees, error, tolerance

MODELS = {
    "L3-8B": (32, 8, 128),
    "L3-70B-TP8": (8, 1, 128),
    "L3-70B-TP4": (16, 2, 128),
    "Q72B": (64, 8, 128),
    "MHA": (32, 32, 128),
    "MQA": (32, 1, 128),
}
GIB = 1 << 30


def ragged(batch: int, seed: int = 7) -> list[int]:
    """Lengths log-uniform in 256..32k."""
    rng = random.Random(seed)
    return [int(256 * 2 ** rng.uniform(0, 7)) for _ in range(batch)]


def meta_call(model: str, *, page: int, batch: int, q: int, kv: str, config: DecodeConfig) -> Any:
    """Return a launch on meta tensors that compiles what the real one will use."""
    heads, kv_heads, dim = MODELS[model]

    def call() -> None:
        query, cache = tensors(model, page=page, pages=64, kv=kv, device="meta")
        cache = replace(
            cache,
            seq_lens=torch.empty(batch, dtype=torch.int32, device="meta"),
            block_table=torch.empty(batch, 512, dtype=torch.int32, device="meta"),
        )
        query = torch.empty(batch * q, heads, dim, dtype=torch.bfloat16, device="meta")
        options: dict[str, Any] = {"config": config, "max_query_len": q}
        plan = decode_plan(query=query, cache=cache, **options)
        for made in (None, plan):
            paged_decode(query=query, cache=cache, max_seq_len=8192, plan=made, **options)

    del kv_heads
    return call


def tensors(
    model: str, *, page: int, pages: int, kv: str, device: str = "cuda"
) -> tuple[torch.Tensor, PagedCache]:
    """Make a pool of random pages in the layout vLLM passes, and an empty query."""
    heads, kv_heads, dim = MODELS[model]
    shape = (pages, kv_heads, page, 2 * dim)
    if kv == "bf16":
        both = torch.empty(shape, dtype=torch.bfloat16, device=device)
        if device != "meta":
            both.normal_()
        scales: tuple[Any, Any] = (None, None)
    else:
        both = torch.empty(shape, dtype=torch.int8, device=device)
        if device != "meta":
            if kv == "int8":
                for part in both.split(8192):
                    part.copy_((torch.randn(part.shape, device=device) * 40).clamp(-127, 127))
            else:
                e4m3 = both.view(torch.float8_e4m3fn)
                for at in range(0, pages, 8192):
                    part = torch.randn(e4m3[at : at + 8192].shape, device=device) * 140
                    e4m3[at : at + 8192] = part.clamp(-448, 448).to(torch.float8_e4m3fn)
        if kv == "fp8":
            both = both.view(torch.float8_e4m3fn)
        flat = torch.empty(2, pages, kv_heads, page, dtype=torch.float32, device=device)
        if device != "meta":
            flat.uniform_(0.005, 0.015)
        scales = (flat[0].transpose(1, 2), flat[1].transpose(1, 2))
    both = both.transpose(1, 2)
    none = torch.empty(0, dtype=torch.int32, device=device)
    cache = PagedCache(
        both[..., :dim], both[..., dim:], none, none, key_scale=scales[0], value_scale=scales[1]
    )
    return torch.empty(0, heads, dim, dtype=torch.bfloat16, device=device), cache


class Bench:
    """One model's pool of pages, and timed calls over it."""

    def __init__(self, model: str, *, page: int, kv: str = "bf16", gib: float = 12.0) -> None:
        self.model, self.page, self.kv = model, page, kv
        self.heads = MODELS[model]
        _, kv_heads, dim = self.heads
        self.token_bytes = kv_heads * 2 * dim * (2 if kv == "bf16" else 1)
        self.scale_bytes = 0 if kv == "bf16" else kv_heads * 8
        self.pages = int(gib * GIB / (self.token_bytes * page))
        _, self.pool = tensors(model, page=page, pages=self.pages, kv=kv)

    def sets(self, lens: list[int], q: int) -> list[tuple[torch.Tensor, PagedCache]]:
        """Rotating (query, cache) pairs, more than three times the L2 in all."""
        heads, _, dim = MODELS[self.model]
        tokens = sum(lens)
        room = self.pages // max(1, sum(-(-n // self.page) for n in lens))
        count = max(1, min(room, math.ceil(240e6 / (tokens * self.token_bytes)), 64))
        seq_lens = torch.tensor(lens, dtype=torch.int32, device="cuda")
        tables = pool_tables(pages=self.pages, page=self.page, seq_lens=lens, sets=count)
        return [
            (
                torch.randn(len(lens) * q, heads, dim, device="cuda", dtype=torch.bfloat16),
                replace(self.pool, seq_lens=seq_lens, block_table=table),
            )
            for table in tables
        ]

    def floor_us(self, lens: list[int], q: int, copy: float) -> float:
        """Bytes that must move over the measured copy bandwidth."""
        heads, _, dim = MODELS[self.model]
        moved = sum(lens) * (self.token_bytes + self.scale_bytes)
        moved += 4 * len(lens) * q * heads * dim + 4 * sum(-(-n // self.page) for n in lens)
        return moved / copy * 1e6

    def ours(
        self,
        sets: list[tuple[torch.Tensor, PagedCache]],
        lens: list[int],
        *,
        q: int = 1,
        policy: Policy = "occupancy",
        config: DecodeConfig | None = None,
        rule: Rule | None = None,
    ) -> Callable[[int], Any]:
        """Return a call over set i, with everything allocated ahead."""
        query, cache = sets[0]
        heads, dim = query.shape[1], query.shape[2]
        config = config or decode_config(query=query, cache=cache, max_query_len=q)
        plan = None
        if policy == "balanced":
            plan = decode_plan(query=query, cache=cache, config=config, max_query_len=q, rule=rule)
        items = max(plan.capacity if plan else 0, len(lens) * 128)
        workspace = Workspace.allocate(items, q, heads, dim, query.device)
        out = torch.full_like(query, math.nan)

        def call(i: int) -> torch.Tensor:
            return paged_decode(
                query=sets[i][0], cache=sets[i][1], max_seq_len=max(lens), max_query_len=q,
                rule=rule, policy=policy if plan is None else "balanced", plan=plan,
                config=config, workspace=workspace, out=out,
            )  # fmt: skip

        return call

    def reference(
        self, query: torch.Tensor, cache: PagedCache, q: int, rule: Rule | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows of three sequences, and what they should be."""
        assert cache.block_table is not None
        count = cache.seq_lens.shape[0]
        pick = sorted({0, count // 2, int(cache.seq_lens.argmax())})
        index = torch.tensor(pick, device="cuda")
        part = replace(cache, seq_lens=cache.seq_lens[index], block_table=cache.block_table[index])
        rows = (index[:, None] * q + torch.arange(q, device="cuda")).flatten()
        if rule is not None and rule.tree is not None:
            rule = replace(rule, tree=rule.tree[rows])
        return rows, attention_reference(query=query[rows], cache=part, rule=rule)[0]

    def check(self, got: torch.Tensor, reference: tuple[Any, torch.Tensor]) -> float:
        """Compare some rows with what they should be; raise when out of tolerance."""
        whole, worst = error(got[reference[0]], reference[1])
        limit = tolerance(torch.bfloat16)
        if not (whole <= limit[0] and worst <= limit[1]):
            raise AssertionError(f"wrong result: {whole:.2e} whole, {worst:.2e} worst row")
        return whole


LEAST = [1]
"""Calls of a graph at least, as `--calls` says."""


def run(calls: Callable[[int], Any], count: int) -> float:
    """Time a call over all sets, in turn, as often as makes LEAST calls of a graph."""
    rounds = -(-LEAST[0] // count)
    return time_rotating([lambda i=i: calls(i) for i in range(count)] * rounds)


PAGED = ("vllm_triton", "flash_attn_3")
_SAID: set[str] = set()


def time_peers(
    bench: Bench, sets: Any, lens: list[int], q: int, peers: list[str], wanted: Any, tree: Any
) -> dict[str, Any]:
    """Median microseconds of each peer that runs; the rest say why, once."""
    times: dict[str, Any] = {}
    for name in peers:
        try:
            calls = PEERS[name](bench, sets, lens, q, tree)
        except Exception as problem:  # noqa: BLE001 - peers are optional
            calls = {}
            say(f"skip {name}: {type(problem).__name__}: {str(problem)[:300]}")
        for label, call in calls.items():
            try:
                # SDPA has data of its own, and trees are FlashInfer's alone.
                if name == "flashinfer" or (name in PAGED and q < 16):
                    bench.check(call(0), wanted)
                times[label] = run(call, len(sets))
            except Exception as problem:  # noqa: BLE001 - likewise
                torch.cuda.synchronize()
                say(f"skip {label}: {type(problem).__name__}: {str(problem)[:200]}")
    return times


def say(text: str) -> None:
    """Print a line the first time."""
    if text not in _SAID:
        _SAID.add(text)
        print(text, flush=True)


TABLE: list[tuple[str, str, int, int, int]] = [
    *(("L3-8B", "bf16", 1, b, n) for b, n in (
        (1, 1024), (1, 4096), (1, 32768), (1, 131072), (8, 1024), (8, 4096), (8, 16384),
        (12, 4096), (16, 4096), (24, 4096), (32, 1024), (32, 4096), (32, 16384), (48, 4096),
        (128, 1024), (128, 4096), (32, 0), (128, 0),
    )),
    *(("L3-70B-TP8", "bf16", 1, b, n) for b, n in (
        (8, 4096), (8, 32768), (32, 4096), (128, 4096), (128, 16384), (128, 0),
    )),
    *(("L3-70B-TP4", "bf16", 1, b, n) for b, n in ((8, 4096), (8, 32768), (32, 4096), (128, 4096))),
    *(("Q72B", "bf16", 1, b, n) for b, n in ((8, 4096), (32, 4096))),
    *(("MHA", "bf16", 1, b, n) for b, n in ((8, 4096), (32, 4096))),
    *(("MQA", "bf16", 1, b, n) for b, n in ((8, 4096), (128, 4096))),
    *(("L3-8B", kv, q, b, n) for kv in ("int8", "fp8") for q, b, n in (
        (1, 1, 1024), (1, 1, 4096), (1, 1, 32768), (1, 8, 1024), (1, 8, 4096), (1, 8, 32768),
        (1, 16, 4096), (1, 24, 4096), (1, 32, 1024), (1, 32, 4096), (1, 48, 4096), (1, 64, 4096),
        (1, 128, 1024), (1, 128, 4096), (1, 32, 0), (1, 128, 0), (4, 1, 4096), (4, 8, 4096),
        (4, 32, 4096), (8, 8, 4096), (8, 32, 4096),
    )),
    *(("L3-70B-TP8", kv, 1, b, n) for kv in ("int8", "fp8") for b, n in (
        (8, 4096), (8, 32768), (32, 4096), (128, 4096),
    )),
    *(("L3-8B", "bf16", q, b, 4096) for q in (2, 4, 8, 16, 64) for b in (1, 8, 32, 64)),
]  # fmt: skip


def table(
    report: Report, peers: list[str], page: int, wanted_q: list[int], wanted_kv: list[str]
) -> None:
    """Time the shape table; length 0 stands for ragged lengths, q of 16 and 64 for trees."""
    copy = report.facts["copy_bytes_s"]
    benches: dict[tuple[str, str], Bench] = {}
    for model, kv, q, batch, length in TABLE:
        if (wanted_q and q not in wanted_q) or (wanted_kv and kv not in wanted_kv):
            continue
        if (model, kv) not in benches:
            benches.clear()
            torch.cuda.empty_cache()
            benches[model, kv] = Bench(model, page=page, kv=kv, gib=16 if kv == "bf16" else 8)
        bench = benches[model, kv]
        lens = [length] * batch if length else ragged(batch)
        sets = bench.sets(lens, q)
        rule = Rule(tree=binary_trees([q] * batch)) if q >= 16 else None
        row: dict[str, Any] = {}
        wanted = bench.reference(*sets[0], q, rule)
        for policy in ("occupancy", "balanced", "mission"):
            call = bench.ours(sets, lens, q=q, policy=policy, rule=rule)
            row[policy] = run(call, len(sets))
            whole = bench.check(call(0), wanted)
        config = decode_config(query=sets[0][0], cache=sets[0][1], max_query_len=q)
        if config.hopper:  # Triton's kernel, where a Gluon one may run
            for policy in ("occupancy", "balanced"):
                plain = replace(config, hopper=0)
                call = bench.ours(sets, lens, q=q, policy=policy, config=plain, rule=rule)
                row[f"triton_{policy}"] = run(call, len(sets))
                bench.check(call(0), wanted)
        floor = bench.floor_us(lens, q, copy)
        best = min(row["occupancy"], row["balanced"])
        tree = rule.tree if rule else None
        others = time_peers(bench, sets, lens, q, peers, wanted, tree)
        quickest = min(others.values()) if others else None
        report.add(
            model=model, kv=kv, q=q, batch=batch, length=length or "ragged", page=page,
            floor_us=floor, us=best, of_floor=floor / best, error=whole, **row, **others,
            of_best_peer=quickest / best if quickest else "",
            num_stages=config.num_stages,
        )  # fmt: skip


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument("--new-tokens", type=int, nargs="*", default=[], help="these rows alone")
    parser.add_argument("--kv", nargs="*", default=[], help="likewise: bf16, int8, fp8")
    parser.add_argument("--calls", type=int, default=1, help="in a graph at least")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    LEAST[0] = options.calls
    kinds = dict.fromkeys(
        (model, kv, q)
        for model, kv, q, _, _ in TABLE
        if (not options.new_tokens or q in options.new_tokens)
        and (not options.kv or kv in options.kv)
    )
    thunks = []
    for (model, kv, q), batch in itertools.product(kinds, (1, 8, 128)):
        query, cache = tensors(model, page=options.page, pages=1, kv=kv, device="meta")
        cache = replace(cache, seq_lens=torch.empty(batch, dtype=torch.int32, device="meta"))
        config = decode_config(query=query, cache=cache, max_query_len=q)
        thunks += [
            meta_call(model, page=options.page, batch=batch, q=q, kv=kv, config=made)
            for made in {config, replace(config, hopper=0)}
        ]
    precompile(thunks)
    report = Report("decode", options.out)
    try:
        table(report, options.peers, options.page, options.new_tokens, options.kv)
    finally:
        report.save()


if __name__ == "__main__":
    main()
