# pyright: basic, reportMissingImports=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked)
"""What decode's and prefill's launches have in common: types, strides, compile-time constants."""

import functools
import importlib
from typing import Any

import torch
import triton.language as tl

from forebay.kernels._common.host import is_hopper, next_power_of_2

from .layout import QUANTISED, PagedCache, Rule

__all__ = [
    "comes_in_pages",
    "compute_dtype",
    "constants",
    "gluon_fits",
    "gluon_kernel",
    "map_shape",
    "page_map",
    "page_maps",
    "strides",
]


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


def gluon_fits(query: torch.Tensor, cache: PagedCache, rule: Rule, *, narrow: bool = False) -> bool:
    """Whether the Gluon kernels of prefill and decode cover these types, shapes and rules.

    narrow: those of decode_narrow, which may have 8-bit caches.
    """
    dim = query.shape[2]
    if narrow and cache.is_quantised:
        dims, types = {128}, cache.key.dtype in QUANTISED
    else:
        dims, types = {64, 128}, query.dtype == cache.key.dtype
    return (
        is_hopper(query.device)
        and types
        and cache.value.dtype == cache.key.dtype
        and cache.index()[0].dtype == torch.int32  # rows of a map are counted in 32 bits
        and query.element_size() == 2
        and dim == cache.value.shape[3]
        and dim in dims
        and query.stride(0) % 8 == query.stride(1) % 8 == 0
        and not (rule.window or rule.soft_cap)
        and rule.sinks is None
    )


def map_shape(values: torch.Tensor) -> tuple[int, int] | None:
    """Return the shape of a map of a cache's keys or values; None where their pages do not fit.

    `[rows, columns]` with rows one slot apart. Heads are other rows or other columns.
    """
    pages, slots, heads, dim = values.shape
    of_page, of_slot, of_head, _ = values.stride()
    fits = slots >= 16 and slots & (slots - 1) == 0 and of_page % of_slot == 0
    fits = fits and values.data_ptr() % 16 == 0
    if not fits or (of_head > of_slot and of_head % of_slot):
        return None
    end = (pages - 1) * of_page + (slots - 1) * of_slot
    columns = dim
    if of_head > of_slot:
        end += (heads - 1) * of_head
    else:
        columns += (heads - 1) * of_head
    return (end // of_slot + 1, columns) if end // of_slot < 1 << 31 else None


def page_map(values: torch.Tensor, tile: int) -> Any:
    """Return a TMA descriptor of a cache's keys or values; None where their pages do not fit.

    A page's slots, or tile of them, are copied 128 bytes at a time.
    """
    shape = map_shape(values)
    if shape is None:
        return None
    gluon = importlib.import_module("triton.experimental.gluon")
    hopper = importlib.import_module("triton.experimental.gluon.nvidia.hopper")
    size = values.element_size()
    if size == 1:
        values = values.view(torch.int8)
    return hopper.TensorDescriptor(
        values, [*shape], [values.stride(1), 1], [min(values.shape[1], tile), 128 // size],
        gluon.language.NVMMASharedLayout(128, 8 * size, rank=2),
    )  # fmt: skip


def page_maps(cache: PagedCache, tile: int) -> tuple[Any, Any]:
    """Return TMA descriptors of keys and values, both or neither."""
    maps = page_map(cache.key, tile), page_map(cache.value, tile)
    return (None, None) if None in maps else maps


def comes_in_pages(cache: PagedCache) -> bool:
    """Whether `page_maps` has maps for this cache."""
    return map_shape(cache.key) is not None and map_shape(cache.value) is not None


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
