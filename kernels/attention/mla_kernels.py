# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0913, PLR0917, SIM102
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Stage 1 of MLA decode in Triton; on Hopper mla_narrow and mla_hopper have their own.

A tile of cached rows is loaded once and serves both products. With PARTS 2 two programs share a
row's output: each works out all scores and multiplies them with its own columns.
"""

import triton
import triton.language as tl

from forebay.kernels._common.jit import (
    first_item,
    load_pages,
    next_item,
    online_softmax,
    page_rows,
    split_of,
)

__all__ = ["mla_split_kernel"]


@triton.jit
def _mla_tile(
    acc,
    m,
    norm,
    q,
    q_other,
    q_rope,
    pages,
    n,
    end,
    row_pos,
    cache_ptr,
    scale_log2,
    stride_page,
    stride_slot,
    mine,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    PARTS: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    width: tl.constexpr = LATENT // PARTS
    offs_n = n + tl.arange(0, BLOCK_N)
    rows = page_rows(pages, n, stride_page, stride_slot, PAGE, BLOCK_N)
    at = cache_ptr + rows[:, None]
    inside = offs_n < end
    # The columns this program returns come first in c, whichever they are; the rest in other.
    c = tl.load(at + mine + tl.arange(0, width)[None, :], mask=inside[:, None], other=0.0)
    c = c.to(q.dtype)  # [BLOCK_N, width]
    r = tl.load(at + LATENT + tl.arange(0, ROPE)[None, :], mask=inside[:, None], other=0.0)
    scores = tl.dot(q, tl.trans(c), input_precision=PRECISION)
    if PARTS == 2:
        other = tl.load(
            at + (width - mine) + tl.arange(0, width)[None, :], mask=inside[:, None], other=0.0
        )
        scores = tl.dot(q_other, tl.trans(other.to(q.dtype)), scores, input_precision=PRECISION)
    scores = tl.dot(q_rope, tl.trans(r.to(q.dtype)), scores, input_precision=PRECISION)
    visible = (offs_n[None, :] <= row_pos[:, None]) & inside[None, :]
    scores = tl.where(visible, scores, float("-inf"))
    weights, rescale, m, norm = online_softmax(scores, scale_log2, m, norm, True)
    acc = acc * rescale[:, None]
    acc = tl.dot(weights.to(q.dtype), c, acc, input_precision=PRECISION)
    return acc, m, norm


@triton.jit
def attend_latent(
    q_ptr,
    cache_ptr,
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    table_ptr,
    seq_lens_ptr,
    row_block,
    mine,
    b,
    start,
    end,
    count,
    item,
    scale_log2,
    latent_scale,
    max_query,
    stride_table,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_page,
    stride_slot,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    PARTS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attend to tokens start : end of sequence b, and store columns mine : mine + width."""
    width: tl.constexpr = LATENT // PARTS
    seq_len = tl.load(seq_lens_ptr + b)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    row_token = rows // HEADS
    row_head = rows % HEADS
    row_valid = row_token < max_query
    row_pos = seq_len - max_query + row_token
    q_at = (b * max_query + row_token).to(tl.int64) * stride_q_token + row_head * stride_q_head
    q_from = q_ptr + q_at[:, None]
    keep = row_valid[:, None]
    offs_v = tl.arange(0, width)
    q = tl.load(q_from + mine + offs_v[None, :], mask=keep, other=0.0).to(COMPUTE)
    q_rope = tl.load(q_from + LATENT + tl.arange(0, ROPE)[None, :], mask=keep, other=0.0)
    q_rope = q_rope.to(COMPUTE)  # [BLOCK_M, ROPE]
    q_other = q  # [BLOCK_M, width]
    if PARTS == 2:
        q_other = tl.load(q_from + (width - mine) + offs_v[None, :], mask=keep, other=0.0)
        q_other = q_other.to(COMPUTE)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, width], dtype=tl.float32)
    row_ptr = table_ptr + tl.cast(b, tl.int64) * stride_table
    pages = load_pages(row_ptr, start, end, PAGE, BLOCK_N)
    # One loop, always masked: a second copy of the tile's code costs registers that are not there.
    for n in tl.range(start, end, BLOCK_N):
        ahead = load_pages(row_ptr, n + BLOCK_N, end, PAGE, BLOCK_N)
        acc, m, norm = _mla_tile(
            acc, m, norm, q, q_other, q_rope, pages, n, end, row_pos, cache_ptr, scale_log2,
            stride_page, stride_slot, mine, LATENT, ROPE, PARTS, PAGE, BLOCK_N, PRECISION,
        )  # fmt: skip
        pages = ahead

    safe_norm = tl.where(norm == 0.0, 1.0, norm)
    acc = acc * (latent_scale / safe_norm)[:, None]
    lse2 = tl.where(norm == 0.0, float("-inf"), m + tl.log2(safe_norm))
    if not SPLIT or count == 1:
        out_at = (b * max_query + row_token).to(tl.int64) * stride_out_token
        out_at += row_head * stride_out_head + mine
        tl.store(
            out_ptr + out_at[:, None] + offs_v[None, :], acc.to(out_ptr.dtype.element_ty), mask=keep
        )
        if lse_ptr is not None:
            if mine == 0:
                lse_at = (b * max_query + row_token).to(tl.int64) * HEADS + row_head
                tl.store(lse_ptr + lse_at, lse2 * 0.6931471805599453, mask=row_valid)
    else:
        part_at = (tl.cast(item, tl.int64) * max_query + row_token) * HEADS + row_head
        at = part_at * LATENT + mine
        tl.store(part_out_ptr + at[:, None] + offs_v[None, :], acc, mask=keep)
        if mine == 0:
            tl.store(part_lse_ptr + part_at, lse2, mask=row_valid)


@triton.jit(do_not_specialize=["max_splits", "min_tokens", "max_query", "stride_table"])
def mla_split_kernel(
    q_ptr,
    cache_ptr,
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    table_ptr,
    seq_lens_ptr,
    items_ptr,
    parts_ptr,
    scale_log2,
    latent_scale,
    max_query,
    max_splits,
    min_tokens,
    stride_table,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_page: tl.constexpr,
    stride_slot: tl.constexpr,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    PARTS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Stage 1: one split of a sequence, or the items of one part of a plan."""
    row_block = tl.program_id(0) // PARTS
    mine = tl.program_id(0) % PARTS * (LATENT // PARTS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if parts_ptr is None:
        split = tl.program_id(1)
        b = tl.program_id(2)
        seq_len = tl.load(seq_lens_ptr + b)
        count, chunk = split_of(seq_len, max_splits, min_tokens, 0, 0, BLOCK_N)
        if split >= count:
            return
        start = split * chunk
        end = tl.minimum(start + chunk, seq_len)
        first = b * max_splits + split
        last = first + 1
    else:
        b, start, end, count, first, last = first_item(parts_ptr, tl.program_id(1))
        if b < 0:
            return
    # What is worked out before the loop would sit in registers through every tile.
    for item in tl.range(first, last, disable_licm=True):
        attend_latent(
            q_ptr, cache_ptr, out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, table_ptr,
            seq_lens_ptr, row_block, mine, b, start, end, count, item, scale_log2, latent_scale,
            max_query, stride_table, stride_q_token, stride_q_head, stride_out_token,
            stride_out_head, stride_page, stride_slot,
            HEADS, LATENT, ROPE, PARTS, PAGE, SPLIT, COMPUTE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        if parts_ptr is not None:
            b, start, end, count = next_item(items_ptr, item, last)
