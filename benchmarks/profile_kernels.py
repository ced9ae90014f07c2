# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
"""One call of each kernel at a shape whose target was missed, for a profiler.

    ncu --clock-control none -k regex:kernel$ python benchmarks/profile_kernels.py decode mla

Names of cases choose; without one all run.
"""

import sys
from collections.abc import Callable

import torch
from bench_decode import Bench
from bench_rejection import arguments
from kernels_common import pool_tables

from forebay.kernels.attention.layout import Rule
from forebay.kernels.attention.mla import mla_decode
from forebay.kernels.attention.prefill import paged_prefill
from forebay.kernels.sampling.rejection import rejection_sample
from forebay.kernels.testing import binary_trees


def decode(kv: str = "bf16", new: int = 1) -> None:
    """8 sequences of 4k, cut as the default does."""
    bench = Bench("L3-8B", page=16, kv=kv, gib=1)
    sets = bench.sets([4096] * 8, new)
    rule = Rule(tree=binary_trees([new] * 8)) if new > 8 else None
    bench.ours(sets, [4096] * 8, q=new, rule=rule)(0)


def mla(heads: int) -> None:
    """32 sequences of 4k."""
    latent = torch.randn(32 * 64, 64, 576, device="cuda", dtype=torch.bfloat16)
    rows = pool_tables(pages=32 * 64, page=64, seq_lens=[4096] * 32, sets=1)[0]
    lens = torch.full((32,), 4096, dtype=torch.int32, device="cuda")
    query = torch.randn(32, heads, 576, device="cuda", dtype=torch.bfloat16)
    mla_decode(
        query=query, latent=latent, seq_lens=lens, block_table=rows, max_seq_len=4096, scale=0.07
    )


def prefill() -> None:
    """Prefill 4k without a prefix, in pages of 16."""
    bench = Bench("L3-8B", page=16, gib=1)
    _, cache = bench.sets([4096], 1)[0]
    query = torch.randn(4096, 32, 128, device="cuda", dtype=torch.bfloat16)
    cu = torch.tensor([0, 4096], dtype=torch.int32, device="cuda")
    paged_prefill(query=query, cache=cache, cu_query=cu)


CASES: dict[str, Callable[[], object]] = {
    "decode": decode,
    "decode8": lambda: decode("int8"),
    "tree": lambda: decode(new=64),
    "mla16": lambda: mla(16),
    "mla128": lambda: mla(128),
    "prefill": prefill,
    "reject": lambda: rejection_sample(**arguments(32, drawn=False, temperature=0.8)),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        CASES[name]()
    torch.cuda.synchronize()
