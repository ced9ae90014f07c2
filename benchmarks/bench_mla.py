# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# (a shape has many numbers; closures take the loop's names as defaults)
"""MLA decode on the latent cache (512 + 64): ours against the floor and plain torch.

python benchmarks/bench_mla.py --out benchmarks/results/kernels
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from kernels_common import Report, pool_tables, precompile, time_eager, time_rotating

from forebay.kernels.attention.mla import mla_decode, mla_plan
from forebay.kernels.attention.reference import mla_decode_reference
from forebay.kernels.testing import error, tolerance

SHAPES = [
    (heads, batch, length)
    for heads in (16, 128)
    for batch, length in ((1, 4096), (1, 32768), (8, 4096), (32, 4096), (128, 4096), (32, 16384))
]
PAGE = 64


def meta_call(heads: int) -> Any:
    """Return launches on meta tensors."""

    def call() -> None:
        query = torch.empty(32, heads, 576, dtype=torch.bfloat16, device="meta")
        latent = torch.empty(100, PAGE, 576, dtype=torch.bfloat16, device="meta")
        lens = torch.empty(32, dtype=torch.int32, device="meta")
        rows = torch.empty(32, 512, dtype=torch.int32, device="meta")
        for plan in (None, mla_plan(query=query, latent=latent, seq_lens=lens)):
            mla_decode(
                query=query, latent=latent, seq_lens=lens, block_table=rows, max_seq_len=4096,
                scale=0.07, plan=plan,
            )  # fmt: skip

    return call


def torch_call(query: torch.Tensor, latent: torch.Tensor, rows: torch.Tensor, length: int) -> Any:
    """Absorbed MLA by cuBLAS on gathered rows (the gather is not timed)."""
    pages = length // PAGE
    gathered = latent[rows[:, :pages].long()].flatten(1, 2)

    def call() -> Any:
        scores = torch.bmm(query, gathered.transpose(1, 2)) * 0.07
        return torch.bmm(scores.softmax(-1), gathered[..., :512])

    return call


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    precompile([meta_call(16), meta_call(128)])
    report = Report("mla", options.out)
    try:
        for heads, batch, length in SHAPES:
            sets = max(1, min(8, int(240e6 / (batch * length * 1152)) + 1))
            pages = sets * batch * length // PAGE
            latent = torch.randn(pages, PAGE, 576, device="cuda", dtype=torch.bfloat16)
            tables = pool_tables(pages=pages, page=PAGE, seq_lens=[length] * batch, sets=sets)
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
                want, _ = mla_decode_reference(
                    query=query[:1], latent=latent, seq_lens=lens[:1],
                    block_table=tables[0][:1], scale=0.07,
                )  # fmt: skip
                whole, worst = error(call(tables[0])[:1], want)
                limit = tolerance(torch.bfloat16)
                if not (whole <= limit[0] and worst <= limit[1]):
                    raise AssertionError(f"wrong result: {whole:.2e}, worst row {worst:.2e}")
            us = min(times.values())
            moved = batch * length * 1152 + batch * heads * (576 + 512) * 2
            work = 2 * heads * 1088 * batch * length
            peer = time_eager(torch_call(query, latent, tables[0], length))
            report.add(
                heads=heads, batch=batch, length=length, us=us, tflops=work / us / 1e6,
                of_copy=moved / us * 1e6 / report.facts["copy_bytes_s"],
                error=whole, **times, torch_bmm=peer,
            )  # fmt: skip
    finally:
        report.save()


if __name__ == "__main__":
    main()
