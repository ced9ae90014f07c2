# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, N803
# (device functions take pointers and UPPER_CASE compile-time constants)
"""What a call costs beside its bytes: time over size, for ours and for passes that only move data.

    python benchmarks/bench_floor.py --out benchmarks/results/kernels

A line through the times of small and of large sizes has a slope, the bandwidth that is reached, and
a start, what launch, chains of dependent reads, tail and merge cost however little is read. `copy`
reads and writes half each, `read` is a pass that reads all and keeps a maximum of 16 KB: no kernel
that must look at as many bytes is done sooner. Stages are timed by themselves where there are two.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from bench_decode import Bench, run
from bench_rejection import VOCAB, sets_of
from kernels_common import Report, pool_tables, time_rotating

from forebay.kernels.attention.mla import mla_decode, mla_plan
from forebay.kernels.sampling.rejection import (
    rejection_config,
    rejection_sample,
    rejection_stats_kernel,
)

MIB = 1 << 20


@triton.jit
def read_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Read a block and keep its maximum."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0), tl.max(tl.load(x_ptr + offs), 0))


def sets_for(size: int) -> int:
    """Buffers that leave the L2 cache cold."""
    return max(2, min(64, -(-240_000_000 // size)))


def passes(report: Report) -> None:
    """Time copies and reads of 4 to 1,024 MiB."""
    pool = torch.randn(1536 * MIB, device="cuda", dtype=torch.bfloat16)  # 3 GiB
    out = torch.empty(1 << 17, device="cuda", dtype=torch.bfloat16)
    for mib in (4, 8, 16, 32, 64, 128, 256, 512, 1024):
        size = mib * MIB // 2  # elements
        count = min(sets_for(mib * MIB), pool.numel() // size)

        def read(i: int, size: int = size) -> None:
            read_kernel[(size // 8192,)](pool[i * size :], out, BLOCK=8192, num_warps=4)

        def copy(i: int, size: int = size) -> None:
            half = size // 2
            pool[i * size : i * size + half].copy_(pool[i * size + half : (i + 1) * size])

        for name, call in (("read", read), ("copy", copy)):
            us = time_rotating([lambda i=i, c=call: c(i) for i in range(count)])
            report.add(what=name, mb=mib * MIB / 1e6, us=us)


def decode(report: Report) -> None:
    """Time decode over contexts, both cuts, with and without an early launch."""
    for kv in ("bf16", "int8"):
        bench = Bench("L3-8B", page=16, kv=kv, gib=12 if kv == "bf16" else 6)
        for batch, length in (
            (8, 512), (8, 1024), (8, 2048), (8, 4096), (8, 8192), (8, 16384), (8, 32768),
        ):  # fmt: skip
            lens = [length] * batch
            sets = bench.sets(lens, 1)
            wanted = bench.reference(*sets[0], 1)
            times: dict[str, float] = {}
            for policy in ("occupancy", "balanced"):
                call = bench.ours(sets, lens, policy=policy)
                times[policy] = run(call, len(sets))
                bench.check(call(0), wanted)
            moved = bench.floor_us(lens, 1, 1e12)
            report.add(
                what=f"decode {kv}", mb=moved, us=min(times.values()), length=length, **times
            )
        del bench
        torch.cuda.empty_cache()


def mla(report: Report) -> None:
    """Time MLA over contexts."""
    for heads in (16, 128):
        for length in (512, 1024, 2048, 4096, 8192, 16384):
            batch, count = 32, sets_for(32 * length * 1152)
            pages = min(count, 8) * batch * length // 64
            latent = torch.randn(pages, 64, 576, device="cuda", dtype=torch.bfloat16)
            tables = pool_tables(
                pages=pages, page=64, seq_lens=[length] * batch, sets=min(count, 8)
            )
            lens = torch.full((batch,), length, dtype=torch.int32, device="cuda")
            query = torch.randn(batch, heads, 576, device="cuda", dtype=torch.bfloat16)
            plan = mla_plan(query=query, latent=latent, seq_lens=lens)
            times: dict[str, float] = {}
            for name, chosen in (("occupancy", None), ("balanced", plan)):

                def call(rows: Any, chosen: Any = chosen) -> Any:
                    return mla_decode(
                        query=query, latent=latent, seq_lens=lens, block_table=rows,  # noqa: B023 - called in this very turn
                        max_seq_len=length, scale=0.07, plan=chosen,  # noqa: B023 - called in this very turn
                    )  # fmt: skip

                times[name] = time_rotating([lambda r=r, c=call: c(r) for r in tables])
            moved = batch * length * 1152 + batch * heads * (576 + 512) * 2
            us = min(times.values())
            rate = 2 * heads * 1088 * batch * length / us / 1e6
            report.add(
                what=f"mla {heads}", mb=moved / 1e6, us=us, length=length, tflops=rate, **times
            )


def rejection(report: Report) -> None:
    """Time rejection sampling's pass over the logits by itself, and the whole."""
    for batch, temperature in ((1, 0.8), (32, 0.8), (32, 0.0), (128, 0.8), (128, 0.0)):
        sets = sets_of(batch, drawn=False, temperature=temperature)
        rows = sets[0]["logits"].shape[0]
        config = rejection_config(logits=sets[0]["logits"], rows=rows)
        chunks = -(-VOCAB // config.chunk)
        part = torch.empty((2, rows * chunks), dtype=torch.float32, device="cuda")
        arg = torch.empty(rows * chunks, dtype=torch.int32, device="cuda")

        def stats(told: dict[str, Any]) -> None:
            rejection_stats_kernel[(chunks, told["most"] + 1, batch)](  # noqa: B023 - called in this very turn
                told["logits"], told["cu_draft"], told["temperature"], part[0], arg, part[1],  # noqa: B023 - called in this very turn
                VOCAB, VOCAB, CHUNKS=chunks, BLOCK=config.chunk, PDL=True, launch_pdl=True,  # noqa: B023 - called in this very turn
                num_warps=config.num_warps,  # noqa: B023 - called in this very turn
            )  # fmt: skip

        alone = time_rotating([lambda told=told: stats(told) for told in sets])
        whole = time_rotating([lambda told=told: rejection_sample(**told) for told in sets])
        report.add(
            what="rejection", mb=rows * VOCAB * 2 / 1e6, us=whole, batch=batch,
            temperature=temperature, stats_us=alone, **vars_of(config),
        )  # fmt: skip


def vars_of(config: Any) -> dict[str, Any]:
    """Name a setting's fields."""
    return {"chunk": config.chunk, "num_warps": config.num_warps}


def lines(report: Report) -> None:
    """Print each series' line: microseconds at no bytes, and TB/s, by least squares."""
    for what in dict.fromkeys(row["what"] for row in report.rows):
        points = [(row["mb"], row["us"]) for row in report.rows if row["what"] == what]
        points = [p for p in points if p[0] >= 16]
        if len(points) < 3:
            continue
        # Relative errors count: else the largest size alone decides.
        weight = [1 / us**2 for _, us in points]
        total = sum(weight)
        x = sum(w * p[0] for w, p in zip(weight, points, strict=True)) / total
        y = sum(w * p[1] for w, p in zip(weight, points, strict=True)) / total
        num = sum(w * (p[0] - x) * (p[1] - y) for w, p in zip(weight, points, strict=True))
        den = sum(w * (p[0] - x) ** 2 for w, p in zip(weight, points, strict=True))
        print(f"line {what}: {y - num / den * x:.1f} us + bytes at {den / num:.2f} TB/s")


PARTS: dict[str, Callable[[Report], None]] = {
    "passes": passes, "decode": decode, "mla": mla, "rejection": rejection,
}  # fmt: skip


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    report = Report("floor", options.out)
    try:
        for part in options.parts:
            PARTS[part](report)
            report.save()
        lines(report)
    finally:
        report.save()


if __name__ == "__main__":
    main()
