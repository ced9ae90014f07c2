# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# (a shape has many numbers; closures take the loop's names as defaults)
"""Sweep launch settings on this GPU and write the tables that the kernels read.

    python benchmarks/bench_configs.py --tables kernels/configs --out benchmarks/results/kernels

For each shape class the settings with the least sum of relative times over its shapes win. Settings
that give a wrong result are dropped. Nothing of this runs in an engine.
"""

import argparse
import itertools
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from bench_decode import Bench, meta_call, ragged, run, tensors
from kernels_common import Report, pool_tables, precompile, time_rotating

from forebay.kernels._common.host import device_key
from forebay.kernels.attention.decode import DecodeConfig
from forebay.kernels.attention.mla import MlaConfig, mla_decode, mla_plan
from forebay.kernels.attention.prefill import PrefillConfig, paged_prefill
from forebay.kernels.attention.reference import attention_reference, mla_decode_reference
from forebay.kernels.testing import error

# (cache, new tokens, rows of a program): tile tokens, warps, stages, resident programs
DECODE = {
    ("bf16", 1, 16): [
        (64, 4, 3, 2),
        (64, 4, 3, 3),
        (64, 4, 4, 2),
        (128, 4, 2, 2),
        (32, 4, 6, 2),
        (32, 4, 4, 3),
        (64, 8, 3, 2),
    ],
    ("int8", 1, 16): [(128, 4, 3, 2), (128, 4, 3, 3), (64, 4, 4, 3), (64, 4, 6, 2), (128, 4, 4, 2)],
    ("fp8", 1, 16): [(128, 4, 3, 2), (128, 4, 3, 3), (64, 4, 4, 3)],
    ("bf16", 8, 32): [(64, 4, 3, 2), (64, 8, 3, 2), (128, 8, 2, 2)],
    ("bf16", 16, 64): [(64, 4, 3, 2), (64, 4, 3, 1), (128, 8, 2, 1)],
    ("bf16", 64, 128): [(64, 8, 3, 1), (128, 8, 2, 1)],
}
# rows, tile tokens, warps, stages, no masks below the diagonal, the Gluon kernel's tile and buffers
PREFILL = [
    (128, 64, 8, 3, True, 128, 2),
    (128, 64, 8, 3, True, 128, 3),
    (128, 64, 8, 3, True, 64, 4),
    (128, 64, 8, 3, True, 0),
    (128, 64, 8, 4, True, 0),
]
PREFILL_SHAPES = ((2048, 0), (4096, 0), (8192, 0), (4096, 8192), (512, 32768))
# rows, tile tokens, warps, stages, resident programs, parts of the output, the Gluon kernel
MLA = {
    128: [
        (64, 64, 8, 2, 1, 1, True),
        (64, 64, 8, 2, 1),
        (128, 32, 8, 2, 1, 2),
        (64, 32, 4, 1, 2, 2),
    ],
    16: [(16, 32, 4, 3, 2), (16, 64, 4, 2, 2), (16, 64, 8, 3, 1)],
}
SHAPES = {
    1: ((1, 4096), (8, 4096), (12, 4096), (32, 4096), (128, 4096), (32, 0)),
    8: ((8, 4096), (32, 4096), (64, 4096)),
    16: ((8, 4096), (64, 4096)),
    64: ((8, 4096), (32, 4096)),
}

Scores = dict[tuple[str, str], dict[Any, list[float]]]


def decode_configs(kind: tuple[str, int, int]) -> list[DecodeConfig]:
    """All settings to try for one class."""
    peel = kind[0] != "bf16" or kind[1] >= 16
    return [DecodeConfig(kind[2], *settings, peel, 64) for settings in DECODE[kind]]


def prefill_configs() -> list[PrefillConfig]:
    """All settings to try."""
    return [PrefillConfig(*c) for c in PREFILL]


def meta_prefill(config: PrefillConfig, page: int) -> Callable[[], None]:
    """Return a launch on meta tensors."""

    def call() -> None:
        _, cache = tensors("L3-8B", page=page, pages=64, kv="bf16", device="meta")
        cache = replace(
            cache,
            seq_lens=torch.empty(1, dtype=torch.int32, device="meta"),
            block_table=torch.empty(1, 512, dtype=torch.int32, device="meta"),
        )
        query = torch.empty(2048, 32, 128, dtype=torch.bfloat16, device="meta")
        cu = torch.empty(2, dtype=torch.int32, device="meta")
        paged_prefill(query=query, cache=cache, cu_query=cu, config=config)

    return call


def meta_mla(heads: int, config: MlaConfig) -> Callable[[], None]:
    """Return launches on meta tensors."""

    def call() -> None:
        query = torch.empty(32, heads, 576, dtype=torch.bfloat16, device="meta")
        latent = torch.empty(100, 64, 576, dtype=torch.bfloat16, device="meta")
        lens = torch.empty(32, dtype=torch.int32, device="meta")
        rows = torch.empty(32, 512, dtype=torch.int32, device="meta")
        for plan in (None, mla_plan(query=query, latent=latent, seq_lens=lens, config=config)):
            mla_decode(
                query=query, latent=latent, seq_lens=lens, block_table=rows, max_seq_len=4096,
                scale=0.07, config=config, plan=plan,
            )  # fmt: skip

    return call


def attempt(scores: dict[Any, list[float]], config: Any, measure: Callable[[], float]) -> float:
    """Add one measurement, or drop the settings for good when they fail."""
    try:
        us = measure()
    except Exception as problem:  # noqa: BLE001 - say it and go on
        print("dropped", config, f"{type(problem).__name__}: {str(problem)[:200]}", flush=True)
        us = float("inf")
    scores[config].append(us)
    return us


def sweep_decode(report: Report, scores: Scores) -> None:
    """Time decode's settings."""
    copy = report.facts["copy_bytes_s"]
    benches = {kv: Bench("L3-8B", page=16, kv=kv, gib=6) for kv in ("bf16", "int8", "fp8")}
    for kind in DECODE:
        kv, q, rows = kind
        bench = benches[kv]
        size = {"bf16": 16, "int8": 8, "fp8": 8}[kv]
        mine = scores["decode", f"kv{size}-d128-m{rows}"]
        for batch, length in SHAPES[q]:
            lens = [length] * batch if length else ragged(batch)
            sets = bench.sets(lens, q)
            floor = bench.floor_us(lens, q, copy)
            wanted = bench.reference(*sets[0], q)
            for config in decode_configs(kind):
                times: dict[str, float] = {}
                for policy in ("occupancy", "balanced"):

                    def measure(policy: Any = policy, config: DecodeConfig = config) -> float:
                        call = bench.ours(sets, lens, q=q, config=config, policy=policy)  # noqa: B023 - called in this very turn
                        us = run(call, len(sets))  # noqa: B023 - called in this very turn
                        bench.check(call(0), wanted)  # noqa: B023 - called in this very turn
                        return us

                    times[policy] = attempt(defaultdict(list), config, measure)
                mine[config].append(min(times.values()))
                report.add(
                    op="decode", kv=kv, q=q, batch=batch, length=length,
                    of_floor=floor / min(times.values()), **times, **asdict(config),
                )  # fmt: skip


def sweep_prefill(report: Report, scores: Scores) -> None:
    """Time prefill's settings."""
    for page, (chunk, prefix) in itertools.product((16, 64), PREFILL_SHAPES):
        mine = scores["prefill", "kv16-d128" if page >= 64 else "kv16-d128-gather"]
        bench = Bench("L3-8B", page=page, gib=2)
        _, cache = bench.sets([chunk + prefix], 1)[0]
        query = torch.randn(chunk, 32, 128, device="cuda", dtype=torch.bfloat16)
        cu = torch.tensor([0, chunk], dtype=torch.int32, device="cuda")
        work = 4 * 32 * 128 * (chunk * prefix + chunk * (chunk + 1) / 2)
        last = torch.tensor([0, 64], device="cuda")
        want, _ = attention_reference(query=query[-64:], cache=cache, cu_query=last)
        for config in prefill_configs():

            def measure(config: PrefillConfig = config) -> float:
                def call() -> torch.Tensor:
                    return paged_prefill(query=query, cache=cache, cu_query=cu, config=config)  # noqa: B023 - called in this very turn

                us = time_rotating([call] * 3)
                if error(call()[-64:], want)[0] > 4e-3:  # noqa: B023 - called in this very turn
                    raise AssertionError("wrong result")
                return us

            us = attempt(mine, config, measure)
            report.add(
                op="prefill", page=page, chunk=chunk, prefix=prefix, us=us,
                tflops=work / us / 1e6, **asdict(config),
            )  # fmt: skip


def sweep_mla(report: Report, scores: Scores) -> None:
    """Time MLA's settings."""
    for heads, (batch, length) in itertools.product(MLA, ((32, 4096), (128, 4096), (1, 32768))):
        mine = scores["mla", f"kv16-m{min(heads, 64)}"]
        pages = max(2 * batch * length // 64, 4096)
        latent = torch.randn(pages, 64, 576, device="cuda", dtype=torch.bfloat16)
        rows = pool_tables(pages=pages, page=64, seq_lens=[length] * batch, sets=2)
        lens = torch.full((batch,), length, dtype=torch.int32, device="cuda")
        query = torch.randn(batch, heads, 576, device="cuda", dtype=torch.bfloat16)
        want, _ = mla_decode_reference(
            query=query[:1], latent=latent, seq_lens=lens[:1], block_table=rows[0][:1], scale=0.07
        )
        for config in (MlaConfig(*c) for c in MLA[heads]):
            times: dict[str, float] = {}
            for policy in ("occupancy", "balanced"):

                def measure(policy: str = policy, config: MlaConfig = config) -> float:
                    plan = None
                    if policy == "balanced":
                        plan = mla_plan(query=query, latent=latent, seq_lens=lens, config=config)  # noqa: B023 - called in this very turn

                    def call(table: torch.Tensor) -> torch.Tensor:
                        return mla_decode(
                            query=query, latent=latent, seq_lens=lens, block_table=table,  # noqa: B023 - called in this very turn
                            max_seq_len=length, scale=0.07, plan=plan, config=config,  # noqa: B023 - called in this very turn
                        )  # fmt: skip

                    us = time_rotating([lambda t=t: call(t) for t in rows])  # noqa: B023 - called in this very turn
                    if error(call(rows[0])[:1], want)[0] > 4e-3:  # noqa: B023 - called in this very turn
                        raise AssertionError("wrong result")
                    return us

                times[policy] = attempt(defaultdict(list), config, measure)
            us = min(times.values())
            mine[config].append(us)
            report.add(
                op="mla", heads=heads, batch=batch, length=length, us=us,
                tflops=2 * heads * 1088 * batch * length / us / 1e6,
                of_copy=batch * length * 1152 / us * 1e6 / report.facts["copy_bytes_s"],
                **times, **asdict(config),
            )  # fmt: skip


def write_tables(scores: Scores, root: Path, facts: dict[str, Any]) -> None:
    """Write the winners of each class, under the names config_for looks up."""
    tables: dict[str, dict[str, Any]] = defaultdict(dict)
    for (op, key), mine in scores.items():
        shapes = max(len(t) for t in mine.values())
        best = [min(t[i] for t in mine.values() if len(t) > i) for i in range(shapes)]

        def cost(times: list[float], best: list[float] = best) -> float:
            return sum(t / b for t, b in zip(times, best, strict=False)) / len(times)

        config, _ = min(mine.items(), key=lambda item: cost(item[1]))
        fields = asdict(config)
        if op == "mla":
            del fields["block_m"]
        tables[op][key] = fields
    folder = root / device_key(torch.device("cuda"))
    folder.mkdir(parents=True, exist_ok=True)
    for op, configs in tables.items():
        known = {k: facts[k] for k in ("card", "torch", "triton", "date")}
        text = json.dumps({"measured_on": known, "configs": configs}, indent=1)
        (folder / f"{op}.json").write_text(text + "\n")


def main() -> None:
    """Sweep, and write what won."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ops", nargs="*", default=["decode", "prefill", "mla"])
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--only-compile", action="store_true")
    options = parser.parse_args()
    thunks = {
        "decode": [
            meta_call("L3-8B", page=16, batch=8, q=q, kv=kv, config=config)
            for kv, q, rows in DECODE
            for config in decode_configs((kv, q, rows))
        ],
        "prefill": [meta_prefill(c, page) for c in prefill_configs() for page in (16, 64)],
        "mla": [meta_mla(heads, MlaConfig(*c)) for heads, tried in MLA.items() for c in tried],
    }
    precompile([t for op in options.ops for t in thunks[op]], workers=options.workers)
    if options.only_compile:
        return
    report = Report("configs", options.out)
    scores: Scores = defaultdict(lambda: defaultdict(list))
    try:
        for op in options.ops:
            {"decode": sweep_decode, "prefill": sweep_prefill, "mla": sweep_mla}[op](report, scores)
    finally:
        report.save()
    write_tables(scores, options.tables, report.facts)


if __name__ == "__main__":
    main()
