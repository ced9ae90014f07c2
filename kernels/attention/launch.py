# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked)
"""What decode's and prefill's launches have in common: types, strides, compile-time constants."""

import functools
import importlib
from typing import Any

import torch
import triton.language as tl

from forebay.kernels._common.host import next_power_of_2

from .layout import PagedCache, Rule

__all__ = ["compute_dtype", "constants", "gluon_kernel", "strides"]


def compute_dtype(query: torch.Tensor, cache: PagedCache) -> tuple[tl.dtype, str]:
    """Type the dots run in and their fp32 precision.

    An 8-bit cache computes in fp16, to which both int8 and e4m3 convert in few instructions; a bf16
    query must then lie inside fp16's range, which rotated and normalised queries do.
    """
    if query.dtype == torch.float32:
        return tl.float32, "ieee"
    if cache.is_quantised:
        return tl.float16, "tf32"
    return (tl.bfloat16 if query.dtype == torch.bfloat16 else tl.float16), "tf32"


@functools.cache
def gluon_kernel(name: str, version: str) -> Any:
    """Return a Gluon kernel, or None: Gluon is experimental, and ours speaks Triton 3.6's."""
    if not version.startswith("3.6."):
        return None  # other versions may lack the names it imports
    return getattr(importlib.import_module(f"{__package__}.{name}"), f"{name}_kernel")


def strides(query: torch.Tensor, cache: PagedCache, out: torch.Tensor) -> tuple[int, ...]:
    """Strides of query, out, key, value and scales, in the kernels' order."""
    scale = cache.key_scale
    return (
        *query.stride()[:2],
        *out.stride()[:2],
        *cache.key.stride()[:3],
        *cache.value.stride()[:3],
        *(scale.stride() if scale is not None else (0, 0, 0)),
    )


def constants(query: torch.Tensor, cache: PagedCache, rule: Rule) -> dict[str, Any]:
    """Compile-time constants that follow from shapes, types and rule."""
    heads, dim = query.shape[1:]
    value_dim = cache.value.shape[3]
    compute, precision = compute_dtype(query, cache)
    return {
        "KV_HEADS": cache.kv_heads,
        "GROUP": heads // cache.kv_heads,
        "HEAD_DIM": dim,
        "VALUE_DIM": value_dim,
        "PAGE": cache.page,
        "WINDOW": rule.window,
        "SINK_TOKENS": rule.sink_tokens,
        # A soft cap needs the plain score, so there log2(e) is taken in after it, through the cap.
        "SOFT_CAP": rule.soft_cap > 0.0,
        "QUANT": cache.is_quantised,
        "ASM": query.device.type != "cpu",
        "COMPUTE": compute,
        "PRECISION": precision,
        "BLOCK_D": next_power_of_2(dim),
        "BLOCK_V": next_power_of_2(value_dim),
    }
