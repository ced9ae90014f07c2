# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, N806, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Chunked prefill over a paged cache: new tokens attend to the cached prefix and to each other.

One program per (kv head, block of query tokens). Its BLOCK_M rows are (token, query head of the
group) pairs: all heads of a group share the keys they read, and a short chunk still fills the rows.
Tiles wholly below the diagonal run without a mask, the diagonal ones with one. The grid is an upper
bound that needs no length on the host; blocks late in a sequence, the heavy ones, start first.
On Hopper prefill_hopper has a kernel for the plain causal case.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import (
    LOG2E,
    check,
    config_for,
    next_power_of_2,
    sm_count,
)
from forebay.kernels._common.jit import find_sequence, load_pages, table_row

from .launch import constants, gluon_fits, gluon_kernel, page_maps, strides
from .layout import PagedCache, Rule
from .rope import load_queries, rope_config, rope_constants
from .tile import WEIGHT_SHIFT, attend_range, new_acc, store_acc

__all__ = ["PrefillConfig", "paged_prefill", "prefill_config"]


@triton.jit(do_not_specialize=["sequences", "blocks", "stride_table"])
def prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    lse_ptr,
    table_ptr,
    indptr_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    sinks_ptr,
    scale_log2,
    cap,
    sequences,
    blocks,
    stride_table,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_k_page: tl.constexpr,
    stride_k_slot: tl.constexpr,
    stride_k_head,
    stride_v_page: tl.constexpr,
    stride_v_slot: tl.constexpr,
    stride_v_head,
    stride_s_page: tl.constexpr,
    stride_s_slot: tl.constexpr,
    stride_s_head,
    cos_ptr,
    sin_ptr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINK_TOKENS: tl.constexpr,
    ROPE: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    QUANT: tl.constexpr,
    ASM: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    PEEL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    BLOCK_Q: tl.constexpr = BLOCK_M // GROUP
    kv_head = tl.program_id(0) % KV_HEADS
    block = blocks - 1 - tl.program_id(0) // KV_HEADS
    b = find_sequence(cu_query_ptr, block, sequences, BLOCK_Q)
    q_start = tl.load(cu_query_ptr + b)
    q_len = tl.load(cu_query_ptr + b + 1) - q_start
    q_first = (block - (q_start // BLOCK_Q + b)) * BLOCK_Q
    if q_first >= q_len:
        return
    seq_len = tl.load(seq_lens_ptr + b)
    prefix = seq_len - q_len

    rows = tl.arange(0, BLOCK_M)
    row_token = q_first + rows // GROUP
    row_head = kv_head * GROUP + rows % GROUP
    row_valid = (rows < BLOCK_Q * GROUP) & (row_token < q_len)
    row_pos = prefix + row_token
    offs_d = tl.arange(0, BLOCK_D)
    q_at = (q_start + row_token).to(tl.int64) * stride_q_token + row_head * stride_q_head
    q, q_sinks, base = load_queries(
        q_ptr, q_at, offs_d, row_valid, row_token, q_first, seq_len, q_len, cos_ptr, sin_ptr,
        WINDOW, SINK_TOKENS, ROPE, ROTARY_DIM, HEAD_DIM, COMPUTE,
    )  # fmt: skip
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    if sinks_ptr is not None:
        m = tl.load(sinks_ptr + row_head, mask=row_valid, other=0.0).to(tl.float32)
        m = m * 1.4426950408889634
        norm = norm + 1.0
    row_ptr = table_row(table_ptr, indptr_ptr, b, stride_table)
    k_ptr += kv_head * stride_k_head
    v_ptr += kv_head * stride_v_head
    if QUANT:
        k_scale_ptr += kv_head * stride_s_head
        v_scale_ptr += kv_head * stride_s_head

    end = prefix + tl.minimum(q_first + BLOCK_Q, q_len)
    start = 0
    if WINDOW > 0:
        start = tl.maximum(prefix + q_first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    whole = (prefix + q_first + 1) // BLOCK_N * BLOCK_N
    acc, m, norm = attend_range(
        new_acc(BLOCK_M, BLOCK_V, False), m, norm, q, q_sinks, row_ptr,
        load_pages(row_ptr, start, end, PAGE, BLOCK_N),
        tl.minimum(SINK_TOKENS, end if ROPE else start),
        start, whole, end, row_pos, row_pos,
        k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, scale_log2, cap, prefix, cos_ptr, sin_ptr, base,
        stride_k_page, stride_k_slot, stride_v_page, stride_v_slot, stride_s_page, stride_s_slot,
        PEEL and WINDOW == 0, False, WINDOW, SINK_TOKENS, SOFT_CAP, QUANT, False, ASM,
        ROPE, ROTARY_DIM, HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, PAGE, BLOCK_N, PRECISION,
    )  # fmt: skip

    safe_norm = tl.where(norm == 0.0, 1.0, norm)
    factor = 1.0 / safe_norm
    if QUANT:
        factor = factor / WEIGHT_SHIFT
    out_at = (q_start + row_token).to(tl.int64) * stride_out_token + row_head * stride_out_head
    store_acc(acc, factor, out_ptr, out_at, row_valid, VALUE_DIM, BLOCK_V, False)
    if lse_ptr is not None:
        lse = tl.where(norm == 0.0, float("-inf"), (m + tl.log2(safe_norm)) * 0.6931471805599453)
        lse_at = (q_start + row_token).to(tl.int64) * (KV_HEADS * GROUP) + row_head
        tl.store(lse_ptr + lse_at, lse, mask=row_valid)


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """Launch settings.

    hopper: tokens of a tile in the Gluon kernel of prefill_hopper, which runs where it applies;
    hopper_stages: its buffers of keys, and of values.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    peel: bool = True
    hopper: int = 0
    hopper_stages: int = 2


def prefill_config(*, query: torch.Tensor, cache: PagedCache) -> PrefillConfig:
    """Look the launch settings up by element size and dim, and for pages that a tile gathers."""
    key_bytes = cache.key.element_size()
    dim = next_power_of_2(query.shape[2])
    group = query.shape[1] // cache.kv_heads
    built_in = {"block_m": 128, "block_n": 64, "num_warps": 8, "num_stages": 3}
    if dim > 128:
        built_in |= {"block_m": 64, "num_stages": 2}
    if query.dtype == torch.float32:
        built_in |= {"block_m": 64, "block_n": 32, "num_stages": 1}
    key = f"kv{key_bytes * 8}-d{dim}"
    found = config_for("prefill", key, query.device, built_in)
    if cache.page % found["block_n"]:
        found = config_for("prefill", f"{key}-gather", query.device, found)
    found["block_m"] = max(found["block_m"], next_power_of_2(group))
    return PrefillConfig(**found)


def paged_prefill(
    *,
    query: torch.Tensor,
    cache: PagedCache,
    cu_query: torch.Tensor,
    scale: float | None = None,
    rule: Rule | None = None,
    config: PrefillConfig | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    trusted: bool = False,
) -> torch.Tensor:
    """Attend with chunks of new tokens, whose keys are cached already, causally; returns out.

    query: `[tokens, heads, dim]`, rows of sequence b at cu_query[b] : cu_query[b + 1] (int32), the
    first at 0.
    lse: `[tokens, heads]` fp32, written when given. Tree rules are for decode only.
    """
    rule = rule or Rule()
    if not trusted:
        cache.validate(query)
        rule.validate(query)
    check(rule.tree is None, "prefill takes no tree mask, use paged_decode")
    config = rope_config(config or prefill_config(query=query, cache=cache), rule, cache)
    tokens, heads, dim = query.shape
    value_dim = cache.value.shape[3]
    sequences = cache.seq_lens.shape[0]
    group = heads // cache.kv_heads
    if out is None:
        out = torch.empty(tokens, heads, value_dim, dtype=query.dtype, device=query.device)
    if tokens == 0:
        return out
    blocks = tokens // (config.block_m // group) + sequences
    table, indptr, stride_table = cache.index()
    scale = dim**-0.5 if scale is None else scale
    grid = (cache.kv_heads * blocks,)
    hopper = None
    if config.hopper > 0 and config.block_m == 128 and gluon_fits(query, cache, rule):
        hopper = gluon_kernel("prefill_hopper", triton.__version__)
    if hopper is not None:
        # One sequence's blocks can be shared out evenly beforehand; of several nobody knows, here,
        # which are heavy, so that a program takes one and the GPU hands them out.
        programs = grid[0]
        if sequences == 1:
            blocks = -(-tokens // (config.block_m // group))
            programs = min(cache.kv_heads * blocks, sm_count(query.device))
        hopper[(programs,)](
            query, cache.key, cache.value, *page_maps(cache, config.hopper), out, lse, table,
            indptr, cache.seq_lens, cu_query, scale * LOG2E, sequences, blocks, stride_table,
            *strides(query, cache, out)[:10],
            KV_HEADS=cache.kv_heads, GROUP=group, DIM=dim, PAGE=cache.page,
            BLOCK_M=config.block_m, BLOCK_N=config.hopper, STAGES=config.hopper_stages,
            num_warps=4,
        )  # fmt: skip
        return out
    prefill_kernel[grid](
        query, cache.key, cache.value, cache.key_scale, cache.value_scale, out, lse,
        table, indptr, cache.seq_lens, cu_query, rule.sinks,
        scale * LOG2E, rule.soft_cap * LOG2E, sequences, blocks, stride_table,
        *strides(query, cache, out), **constants(query, cache, rule),
        **rope_constants(rule, min(tokens, config.block_m // group)),
        PEEL=config.peel, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return out
