# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: ANN001, PLR0913, PLR0917
# (a shape has many numbers; closures take the loop's names as defaults)
"""Chunked prefill over a paged cache: ours, SDPA on contiguous data, and vLLM's kernels if there.

python benchmarks/bench_prefill.py --out benchmarks/results/kernels
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench_decode import Bench, say, tensors
from kernels_common import Report, precompile, time_rotating
from kernels_peers import PEERS

from forebay.kernels.attention.prefill import paged_prefill
from forebay.kernels.attention.reference import attention_reference

SHAPES = [(2048, 0), (4096, 0), (8192, 0), (4096, 8192), (512, 32768)]
HEADS, KV_HEADS, DIM = 32, 8, 128
LAST = slice(-64, None)


def flops(chunk: int, prefix: int) -> float:
    """Two matrix products over the visible part."""
    return 4 * HEADS * DIM * (chunk * prefix + chunk * (chunk + 1) / 2)


def meta_call(page: int, kv: str) -> Any:
    """Return a launch on meta tensors."""

    def call() -> None:
        _, cache = tensors("L3-8B", page=page, pages=64, kv=kv, device="meta")
        cache = replace(
            cache,
            seq_lens=torch.empty(1, dtype=torch.int32, device="meta"),
            block_table=torch.empty(1, 512, dtype=torch.int32, device="meta"),
        )
        query = torch.empty(2048, HEADS, DIM, dtype=torch.bfloat16, device="meta")
        cu = torch.empty(2, dtype=torch.int32, device="meta")
        paged_prefill(query=query, cache=cache, cu_query=cu)

    return call


def peers(
    bench: Bench, query: torch.Tensor, cache: Any, prefix: int, want: Any, paged: list[str]
) -> dict[str, Any]:
    """Time SDPA, where there is no prefix (it has no such mask), and what reads our cache."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 - only where it is needed
    from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: PLC0415 - only where it is needed

    times: dict[str, Any] = {}
    q = query.transpose(0, 1)[None]
    kv = torch.randn(2, 1, KV_HEADS, query.shape[0], DIM, device="cuda", dtype=torch.bfloat16)
    for name, backend in (
        ("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION),
        ("sdpa_flash", SDPBackend.FLASH_ATTENTION),
    ):
        if prefix:
            break
        try:
            with sdpa_kernel([backend]):
                times[name] = time_rotating(
                    [lambda: sdpa(q, kv[0], kv[1], is_causal=True, enable_gqa=True)] * 4
                )
        except Exception as problem:  # noqa: BLE001 - peers are optional
            say(f"skip {name}: {type(problem).__name__}: {str(problem)[:200]}")
    for name in paged:
        times |= paged_peer(name, bench, query, cache, want)
    return times


def paged_peer(name: str, bench: Bench, query, cache: Any, want: Any) -> dict[str, float]:
    """Time a peer that reads our cache, its last 64 rows checked."""
    times: dict[str, float] = {}
    length = int(cache.seq_lens[0])
    try:
        calls = PEERS[name](bench, [(query, cache)], [length], query.shape[0], None)
    except Exception as problem:  # noqa: BLE001 - peers are optional
        say(f"skip {name}: {type(problem).__name__}: {str(problem)[:300]}")
        return times
    for label, call in calls.items():
        try:
            bench.check(call(0), (LAST, want))
            times[label] = time_rotating([lambda call=call: call(0)] * 4)
        except Exception as problem:  # noqa: BLE001 - likewise
            torch.cuda.synchronize()
            say(f"skip {label}: {type(problem).__name__}: {str(problem)[:300]}")
    return times


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", nargs="*", default=["vllm_triton", "flash_attn_3", "flashinfer"])
    parser.add_argument("--pages", type=int, nargs="*", default=[], help="bf16 with these alone")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kinds = [(16, "bf16"), (64, "bf16"), (128, "bf16"), (16, "int8"), (16, "fp8")]
    if options.pages:
        kinds = [(page, "bf16") for page in options.pages]
    precompile([meta_call(page, kv) for page, kv in kinds])
    report = Report("prefill", options.out)
    try:
        for page, kv in kinds:
            bench = Bench("L3-8B", page=page, kv=kv, gib=2)
            for chunk, prefix in SHAPES:
                _, cache = bench.sets([chunk + prefix], 1)[0]
                query = torch.randn(chunk, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
                cu = torch.tensor([0, chunk], dtype=torch.int32, device="cuda")
                out = torch.full_like(query, float("nan"))

                def call(query=query, cache=cache, cu=cu, out=out) -> Any:
                    return paged_prefill(query=query, cache=cache, cu_query=cu, out=out)

                us = time_rotating([call] * 4)
                last = torch.tensor([0, 64], device="cuda")
                want, _ = attention_reference(query=query[LAST], cache=cache, cu_query=last)
                whole = bench.check(out, (LAST, want))
                others = (
                    peers(bench, query, cache, prefix, want, options.peers) if kv == "bf16" else {}
                )
                work = flops(chunk, prefix)
                report.add(
                    kv=kv, page=page, chunk=chunk, prefix=prefix, us=us, tflops=work / us / 1e6,
                    error=whole, **{k: work / v / 1e6 for k, v in others.items()},
                )  # fmt: skip
    finally:
        report.save()


if __name__ == "__main__":
    main()
