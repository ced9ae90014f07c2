# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
"""Paged decode: ours against the floor and the peers that are installed.

    python benchmarks/bench_decode.py table --out benchmarks/results/kernels
    python benchmarks/bench_decode.py tune

`table` checks every timed call against the float64 reference on three of its sequences, and fails
loudly. Peers are skipped with a printed reason.
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
from kernels_common import Report, pool_tables, precompile, time_eager, time_rotating

from forebay.kernels.attention.decode import (
    DecodeConfig,
    Workspace,
    decode_config,
    decode_plan,
    paged_decode,
)
from forebay.kernels.attention.layout import PagedCache, Rule
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.testing import error, tolerance

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
        paged_decode(query=query, cache=cache, max_seq_len=8192, plan=plan, **options)
        paged_decode(query=query, cache=cache, max_seq_len=8192, **options)

    del kv_heads
    return call


def tensors(
    model: str, *, page: int, pages: int, kv: str, device: str = "cuda"
) -> tuple[torch.Tensor, PagedCache]:
    """A pool of random pages in the layout vLLM passes, and an empty query."""
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
        heads, kv_heads, dim = MODELS[model]
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
        policy: str = "occupancy",
        config: DecodeConfig | None = None,
        rule: Rule | None = None,
        pdl: bool | None = None,
    ) -> Callable[[int], Any]:
        """Return a call over set i, with everything allocated ahead."""
        query, cache = sets[0]
        heads, dim = query.shape[1], query.shape[2]
        config = config or decode_config(query=query, cache=cache, max_query_len=q)
        plan = None
        if policy == "balanced":
            plan = decode_plan(
                query=query, cache=cache, config=config, max_query_len=q, rule=rule
            )
        items = max(plan.capacity if plan else 0, len(lens) * 128)
        workspace = Workspace.allocate(items, q, heads, dim, query.device)
        out = torch.full_like(query, math.nan)

        def call(i: int) -> torch.Tensor:
            return paged_decode(
                query=sets[i][0], cache=sets[i][1], max_seq_len=max(lens), max_query_len=q,
                rule=rule, policy=policy if plan is None else "balanced", plan=plan,
                config=config, workspace=workspace, out=out, pdl=pdl,
            )  # fmt: skip

        return call

    def check(
        self, got: torch.Tensor, query: torch.Tensor, cache: PagedCache, q: int,
        rule: Rule | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        """Compare three sequences with the reference; raise when out of tolerance."""
        count = cache.seq_lens.shape[0]
        pick = sorted({0, count // 2, int(cache.seq_lens.argmax())})
        index = torch.tensor(pick, device="cuda")
        part = replace(
            cache, seq_lens=cache.seq_lens[index], block_table=cache.block_table[index]
        )
        rows = (index[:, None] * q + torch.arange(q, device="cuda")).flatten()
        if rule is not None and rule.tree is not None:
            rule = replace(rule, tree=rule.tree[rows])
        want, _ = attention_reference(query=query[rows], cache=part, rule=rule)
        whole, worst = error(got[rows], want)
        limit = tolerance(torch.bfloat16)
        if not (whole <= limit[0] and worst <= limit[1]):
            raise AssertionError(f"wrong result: {whole:.2e} whole, {worst:.2e} worst row")
        return whole, worst


def run(calls: Callable[[int], Any], count: int) -> float:
    """Time a call over all sets."""
    return time_rotating([lambda i=i: calls(i) for i in range(count)])


def tune(report: Report, kinds: list[tuple[str, str, int, int]], configs: Any) -> None:
    """Time configurations on the shapes that decide, for each (model, kv, page, q)."""
    for model, kv, page, q in kinds:
        bench = Bench(model, page=page, kv=kv, gib=6)
        copy = report.facts["copy_bytes_s"]
        for batch, length in ((8, 4096), (32, 4096), (1, 32768)):
            lens = [length] * batch
            sets = bench.sets(lens, q)
            floor = bench.floor_us(lens, q, copy)
            scored = []
            for config, policy in itertools.product(configs(kv, q), ("occupancy", "balanced")):
                try:
                    call = bench.ours(sets, lens, q=q, config=config, policy=policy)
                    scored.append((run(call, len(sets)), policy, config))
                    bench.check(call(0), *sets[0], q)
                except Exception as problem:  # noqa: BLE001 - say it and go on
                    print("failed", config, f"{type(problem).__name__}: {str(problem)[:300]}")
            scored.sort(key=lambda s: s[0])
            for us, policy, config in scored:
                report.add(
                    model=model, kv=kv, page=page, q=q, batch=batch, length=length, us=us,
                    floor=floor / us, policy=policy, bm=config.block_m, bn=config.block_n,
                    warps=config.num_warps, stages=config.num_stages, res=config.resident,
                    peel=config.peel,
                )  # fmt: skip
