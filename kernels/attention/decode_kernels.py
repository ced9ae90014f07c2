# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, C901, N803, N806, PLR0913, PLR0915, PLR0917, SIM102
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Paged decode attention with split-KV: one new token a sequence, or up to 64 to verify.

Stage 1 runs one program per (kv head, row block, grid column). Its rows are the (new token, query
head of the group) pairs, so that a verify step of q tokens reads the cache once like a plain
decode. A column is one split of one sequence, or, with a plan, a run of work items that may cross
from one sequence to the next. Stage 2 merges the states of sequences that were cut.

Both are launched while the kernel before them still runs (programmatic dependent launch). Until it
has ended they read only what tells them where to look: lengths, plan and page ids. Those must not
come from a kernel that lets its successor start early; ours that do so write caches and outputs.
"""

import triton
import triton.language as tl

from forebay.kernels._common.jit import (
    first_item,
    load_pages,
    next_item,
    query_rows,
    split_of,
    table_row,
    visible_start,
)

from .rope import load_queries
from .states import merge_if_last
from .tile import WEIGHT_SHIFT, attend_range, new_acc, store_acc

__all__ = ["decode_split_kernel"]


@triton.jit
def attend_item(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    arrived_ptr,
    table_ptr,
    indptr_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    tree_ptr,
    sinks_ptr,
    cos_ptr,
    sin_ptr,
    kv_head,
    row_block,
    b,
    start,
    end,
    count,
    item,
    first_of,
    scale_log2,
    cap,
    max_query,
    stride_table,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_k_page,
    stride_k_slot,
    stride_v_page,
    stride_v_slot,
    stride_s_page,
    stride_s_slot,
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
    WORDS: tl.constexpr,
    ASM: tl.constexpr,
    SPLIT: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    PEEL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Attend to tokens start : end of sequence b, and store the result or the item's state."""
    TREE: tl.constexpr = tree_ptr is not None
    q_start, q_len = query_rows(cu_query_ptr, b, max_query)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    row_token = rows // GROUP
    row_head = kv_head * GROUP + rows % GROUP
    row_valid = row_token < q_len
    seq_len = tl.load(seq_lens_ptr + b)
    row_ptr = table_row(table_ptr, indptr_ptr, b, stride_table)
    pages = load_pages(row_ptr, start, end, PAGE, BLOCK_N)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    offs_d = tl.arange(0, BLOCK_D)
    q_at = (q_start + row_token).to(tl.int64) * stride_q_token + row_head * stride_q_head
    q, q_sinks, base = load_queries(
        q_ptr, q_at, offs_d, row_valid, row_token, 0, seq_len, q_len, cos_ptr, sin_ptr,
        WINDOW, SINK_TOKENS, ROPE, ROTARY_DIM, HEAD_DIM, COMPUTE,
    )  # fmt: skip
    lowest = visible_start(seq_len, q_len, WINDOW, BLOCK_N)
    prefix = seq_len - q_len
    row_pos = prefix + row_token
    row_bits = tl.zeros([BLOCK_M], dtype=tl.int64)
    if TREE:
        row_bits = tl.load(tree_ptr + q_start + row_token, mask=row_valid, other=0)

    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    if sinks_ptr is not None:
        if start == lowest:
            m = tl.load(sinks_ptr + row_head).to(tl.float32) * 1.4426950408889634
            norm = norm + 1.0
    sinks_end = 0
    if SINK_TOKENS > 0:
        sinks_limit = seq_len if ROPE else lowest
        sinks_end = tl.where(start == lowest, tl.minimum(SINK_TOKENS, sinks_limit), 0)
    # Tokens that every row sees: all but the queries' own, and with one token that one too.
    seen_by_all = prefix if TREE else prefix + 1
    whole = start + tl.maximum(tl.minimum(end, seen_by_all) - start, 0) // BLOCK_N * BLOCK_N
    acc, m, norm = attend_range(
        new_acc(BLOCK_M, BLOCK_V, WORDS), m, norm, q, q_sinks, row_ptr, pages, sinks_end,
        start, whole, end, row_pos, row_bits,
        k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, scale_log2, cap, prefix, cos_ptr, sin_ptr, base,
        stride_k_page, stride_k_slot, stride_v_page, stride_v_slot, stride_s_page, stride_s_slot,
        PEEL and WINDOW == 0, TREE, WINDOW, SINK_TOKENS, SOFT_CAP, QUANT, WORDS, ASM,
        ROPE, ROTARY_DIM, HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, PAGE, BLOCK_N, PRECISION,
    )  # fmt: skip

    safe_norm = tl.where(norm == 0.0, 1.0, norm)
    lse2 = tl.where(norm == 0.0, float("-inf"), m + tl.log2(safe_norm))
    factor = 1.0 / safe_norm
    if QUANT:
        factor = factor / WEIGHT_SHIFT
    heads: tl.constexpr = KV_HEADS * GROUP
    if not SPLIT or count == 1:
        out_at = (q_start + row_token).to(tl.int64) * stride_out_token + row_head * stride_out_head
        store_acc(acc, factor, out_ptr, out_at, row_valid, VALUE_DIM, BLOCK_V, WORDS)
        if lse_ptr is not None:
            lse_at = (q_start + row_token).to(tl.int64) * heads + row_head
            tl.store(lse_ptr + lse_at, lse2 * 0.6931471805599453, mask=row_valid)
    else:
        part_at = (tl.cast(item, tl.int64) * max_query + row_token) * heads + row_head
        store_acc(
            acc, factor, part_out_ptr, part_at * VALUE_DIM, row_valid, VALUE_DIM, BLOCK_V, WORDS
        )
        tl.store(part_lse_ptr + part_at, lse2, mask=row_valid)
        if arrived_ptr is not None:
            rows_of = b * tl.num_programs(0) + tl.program_id(0)
            merge_if_last(
                out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, arrived_ptr + rows_of, first_of,
                count, max_query, q_start, row_token, row_head, row_valid,
                stride_out_token, stride_out_head, heads, VALUE_DIM, BLOCK_M, BLOCK_V,
            )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "max_splits",
        "min_tokens",
        "single_below",
        "fixed_tokens",
        "max_query",
        "stride_table",
    ]
)
def decode_split_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    arrived_ptr,
    table_ptr,
    indptr_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    items_ptr,
    first_ptr,
    parts_ptr,
    tree_ptr,
    sinks_ptr,
    scale_log2,
    cap,
    max_query,
    max_splits,
    min_tokens,
    single_below,
    fixed_tokens,
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
    WORDS: tl.constexpr,
    ASM: tl.constexpr,
    SPLIT: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    PEEL: tl.constexpr,
    HOIST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Stage 1: one split of a sequence, or the items of one part of a plan."""
    kv_head = tl.program_id(0) % KV_HEADS
    row_block = tl.program_id(0) // KV_HEADS
    if parts_ptr is None:
        b = tl.program_id(2)
        seq_len = tl.load(seq_lens_ptr + b)
        _q_start, q_len = query_rows(cu_query_ptr, b, max_query)
        lowest = visible_start(seq_len, q_len, WINDOW, BLOCK_N)
        split = tl.program_id(1)
        count, chunk = split_of(
            seq_len - lowest, max_splits, min_tokens, single_below, fixed_tokens, BLOCK_N
        )
        if split >= count:
            if PDL:
                tl.extra.cuda.gdc_wait()
            return
        start = lowest + split * chunk
        end = tl.minimum(start + chunk, seq_len)
        first = b * max_splits + split
        last = first + 1
    else:
        b, start, end, count, first, last = first_item(parts_ptr, tl.program_id(1))
        if b < 0:
            if PDL:
                tl.extra.cuda.gdc_wait()
            return
    k_ptr += kv_head * stride_k_head
    v_ptr += kv_head * stride_v_head
    if QUANT:
        k_scale_ptr += kv_head * stride_s_head
        v_scale_ptr += kv_head * stride_s_head
    # What is worked out before the loop would sit in registers through every tile.
    for item in tl.range(first, last, disable_licm=not HOIST):
        _q_start, q_len = query_rows(cu_query_ptr, b, max_query)
        if row_block * BLOCK_M < q_len * GROUP:
            first_of = b * max_splits
            if first_ptr is not None:
                first_of = tl.load(first_ptr + b)
            attend_item(
                q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr,
                part_out_ptr, part_lse_ptr, arrived_ptr, table_ptr, indptr_ptr, seq_lens_ptr,
                cu_query_ptr, tree_ptr, sinks_ptr, cos_ptr, sin_ptr, kv_head, row_block, b,
                start, end, count, item, first_of, scale_log2, cap, max_query, stride_table,
                stride_q_token, stride_q_head, stride_out_token, stride_out_head,
                stride_k_page, stride_k_slot, stride_v_page, stride_v_slot,
                stride_s_page, stride_s_slot,
                KV_HEADS, GROUP, HEAD_DIM, VALUE_DIM, PAGE, WINDOW, SINK_TOKENS, ROPE, ROTARY_DIM,
                SOFT_CAP, QUANT, WORDS, ASM, SPLIT, COMPUTE, PRECISION, PDL, PEEL,
                BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_V,
            )  # fmt: skip
        if parts_ptr is not None:
            b, start, end, count = next_item(items_ptr, item, last)
