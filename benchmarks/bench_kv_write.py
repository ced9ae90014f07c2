# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
"""Cache write and merging of states: ours against the copy bandwidth and torch.

python benchmarks/bench_kv_write.py --out benchmarks/results/kernels
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from bench_decode import tensors
from kernels_common import Report, time_rotating

from forebay.kernels.attention.kv_write import write_cache
from forebay.kernels.attention.merge import merge_states
from forebay.kernels.attention.reference import merge_reference
from forebay.kernels.testing import error

HEADS, DIM, PAGE, PAGES = 8, 128, 16, 16384


def some_slots(tokens: int, order: str) -> torch.Tensor:
    """Slots at random, as decode's are, or of whole pages at random, as a chunk of prefill's."""
    if order == "random":
        return torch.randperm(PAGES * PAGE, device="cuda")[:tokens]
    pages = torch.randperm(PAGES, device="cuda")[: -(-tokens // PAGE)]
    return (pages[:, None] * PAGE + torch.arange(PAGE, device="cuda")).flatten()[:tokens]


def write_row(tokens: int, kv: str, order: str, copy: float) -> dict[str, Any]:
    """Time one write of `tokens` rows."""
    _, cache = tensors("L3-8B", page=PAGE, pages=PAGES, kv=kv)
    rows = torch.randn(tokens, 2, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    sets = [some_slots(tokens, order) for _ in range(4)]

    def call(slots: torch.Tensor) -> None:
        write_cache(
            key=rows[:, 0], value=rows[:, 1], key_cache=cache.key, value_cache=cache.value,
            slots=slots, key_scale=cache.key_scale, value_scale=cache.value_scale,
        )  # fmt: skip

    us = time_rotating([lambda s=s: call(s) for s in sets])
    size = 2 if kv == "bf16" else 1
    moved = tokens * HEADS * DIM * 2 * (2 + size) + tokens * 8
    moved += 0 if kv == "bf16" else tokens * HEADS * 8
    row: dict[str, Any] = {"op": "write", "kv": kv, "slots": order, "tokens": tokens, "us": us}
    if kv == "bf16":
        slots = sets[-1]
        if not torch.equal(cache.key[slots // PAGE, slots % PAGE], rows[:, 0]):
            raise AssertionError("wrong rows in the cache")

        def peer(slots: torch.Tensor) -> None:
            cache.key[slots // PAGE, slots % PAGE] = rows[:, 0]
            cache.value[slots // PAGE, slots % PAGE] = rows[:, 1]

        row["torch_index_put"] = time_rotating([lambda s=s: peer(s) for s in sets])
    return row | {"of_copy": moved / us * 1e6 / copy}


def merge_row(tokens: int, copy: float) -> dict[str, Any]:
    """Time one merge of two states."""
    heads = 32
    sets = [
        (
            torch.randn(2, tokens, heads, DIM, device="cuda", dtype=torch.bfloat16),
            torch.randn(2, tokens, heads, device="cuda"),
        )
        for _ in range(4)
    ]
    out = torch.empty_like(sets[0][0][0])

    def call(outs: torch.Tensor, lses: torch.Tensor) -> None:
        merge_states(out_a=outs[0], lse_a=lses[0], out_b=outs[1], lse_b=lses[1], out=out)

    us = time_rotating([lambda s=s: call(*s) for s in sets])
    want, _ = merge_reference(outs=sets[-1][0], lses=sets[-1][1])
    if error(out, want)[0] > 4e-3:
        raise AssertionError("wrong merge")
    moved = tokens * heads * (3 * DIM * 2 + 8)
    return {"op": "merge", "tokens": tokens, "us": us, "of_copy": moved / us * 1e6 / copy}


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    report = Report("kv_write", options.out)
    copy = report.facts["copy_bytes_s"]
    try:
        for kv in ("bf16", "int8", "fp8"):
            for tokens in (1, 256, 16384, 131072):
                report.add(**write_row(tokens, kv, "random", copy))
            for tokens in (16384, 131072):
                report.add(**write_row(tokens, kv, "pages", copy))
        for tokens in (256, 4096, 16384):
            report.add(**merge_row(tokens, copy))
    finally:
        report.save()


if __name__ == "__main__":
    main()
