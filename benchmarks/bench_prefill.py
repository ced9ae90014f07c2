# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
# ruff: noqa: ANN001
# (a shape has many numbers; closures take the loop's names as defaults)
"""Chunked prefill over a paged cache: ours, SDPA on contiguous data, and vLLM's kernels if there.

python benchmarks/bench_prefill.py --out benchmarks/results/kernels
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench_decode import Bench, error, say, tensors
from kernels_common import Report, precompile, time_eager, time_rotating

from forebay.kernels.attention.prefill import paged_prefill
from forebay.kernels.attention.reference import attention_reference
from forebay.kernels.testing import tolerance

SHAPES = [(2048, 0), (4096, 0), (8192, 0), (4096, 8192), (512, 32768)]
HEADS, KV_HEADS, DIM = 32, 8, 128


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


def peers(query: torch.Tensor, cache: Any, chunk: int, prefix: int) -> dict[str, Any]:
    """Time SDPA, where there is no prefix (it has no such mask), and vLLM's kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 - only where it is needed
    from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: PLC0415 - only where it is needed

    times: dict[str, Any] = {}
    q = query.transpose(0, 1)[None]
    kv = torch.randn(2, 1, KV_HEADS, chunk + prefix, DIM, device="cuda", dtype=torch.bfloat16)
    for name, backend in (
        ("sdpa_cudnn", SDPBackend.CUDNN_ATTENTION),
        ("sdpa_flash", SDPBackend.FLASH_ATTENTION),
    ):
        if prefix:
            break
        try:
            with sdpa_kernel([backend]):
                times[name] = time_eager(
                    lambda: sdpa(q, kv[0], kv[1], is_causal=True, enable_gqa=True)
                )
        except Exception as problem:  # noqa: BLE001 - peers are optional
            say(f"skip {name}: {type(problem).__name__}: {str(problem)[:200]}")
    try:
        from vllm.v1.attention.ops.triton_unified_attention import (  # noqa: PLC0415 - only where it is needed
            unified_attention,
        )
        from vllm.vllm_flash_attn import flash_attn_varlen_func  # noqa: PLC0415 - only where it is needed
    except Exception as problem:  # noqa: BLE001 - likewise
        say(f"skip vllm: {type(problem).__name__}: {problem}")
        return times
    out = torch.empty_like(query)
    cu = torch.tensor([0, chunk], dtype=torch.int32, device="cuda")
    common = {
        "q": query, "k": cache.key, "v": cache.value, "out": out, "cu_seqlens_q": cu,
        "max_seqlen_q": chunk, "seqused_k": cache.seq_lens, "max_seqlen_k": chunk + prefix,
        "softmax_scale": DIM**-0.5, "causal": True, "block_table": cache.block_table,
    }  # fmt: skip
    extra = {"window_size": (-1, -1), "softcap": 0, "q_descale": None, "k_descale": None}
    calls = {
        "vllm_triton": lambda: unified_attention(**common, **extra, v_descale=None),
        "flash_attn_3": lambda: flash_attn_varlen_func(**common, fa_version=3),
    }
    for name, call in calls.items():
        try:
            times[name] = time_eager(call)
        except Exception as problem:  # noqa: BLE001 - likewise
            say(f"skip {name}: {type(problem).__name__}: {str(problem)[:200]}")
    return times


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kinds = [(16, "bf16"), (64, "bf16"), (128, "bf16"), (16, "int8"), (16, "fp8")]
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
                want, _ = attention_reference(query=query[-64:], cache=cache, cu_query=last)
                whole, worst = error(out[-64:], want)
                limit = tolerance(torch.bfloat16)
                if not (whole <= limit[0] and worst <= limit[1]):
                    raise AssertionError(f"wrong result: {whole:.2e}, worst row {worst:.2e}")
                others = peers(query, cache, chunk, prefix) if kv == "bf16" else {}
                work = flops(chunk, prefix)
                report.add(
                    kv=kv, page=page, chunk=chunk, prefix=prefix, us=us, tflops=work / us / 1e6,
                    error=whole, **{k: work / v / 1e6 for k, v in others.items()},
                )  # fmt: skip
    finally:
        report.save()


if __name__ == "__main__":
    main()
