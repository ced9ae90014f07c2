# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# (triton is not installed where types are checked, and its language is not Python's)
# ruff: noqa: ANN001, ANN202, C901, N803, PLR0912, PLR0913
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""One tile of attention over a paged cache, shared by decode and prefill.

Scores are in base 2: `scale_log2` holds log2(e), and so does `cap`. With QUANT the payload is 8-bit
and its scales, one a token and head, multiply columns of the scores and of the weights: nothing is
expanded over the head's dim. MASKED tiles check the end of the range, causal order, tree and window.
"""

import triton
import triton.language as tl

from forebay.kernels._common.jit import online_softmax, page_rows, soft_cap

__all__ = ["attend_tile"]


@triton.jit
def attend_tile(
    acc,
    m,
    norm,
    q,
    pages,
    n,
    end,
    row_pos,
    row_bits,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    scale_log2,
    cap,
    prefix,
    stride_k_page,
    stride_k_slot,
    stride_v_page,
    stride_v_slot,
    stride_s_page,
    stride_s_slot,
    MASKED: tl.constexpr,
    TREE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINK_TOKENS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    QUANT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Take the tile at token n into (acc, m, norm); see the callers for the words."""
    offs_n = n + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    offs_v = tl.arange(0, BLOCK_V)
    k_rows = page_rows(pages, n, stride_k_page, stride_k_slot, PAGE, BLOCK_N)
    v_rows = page_rows(pages, n, stride_v_page, stride_v_slot, PAGE, BLOCK_N)
    k_at = k_ptr + k_rows[:, None] + offs_d[None, :]  # [BLOCK_N, BLOCK_D]
    v_at = v_ptr + v_rows[:, None] + offs_v[None, :]  # [BLOCK_N, BLOCK_V]
    if MASKED:
        inside = offs_n < end
        k = tl.load(k_at, mask=inside[:, None] & (offs_d < HEAD_DIM)[None, :], other=0.0)
        v = tl.load(v_at, mask=inside[:, None] & (offs_v < VALUE_DIM)[None, :], other=0.0)
    else:
        if HEAD_DIM == BLOCK_D:
            k = tl.load(k_at)
        else:
            k = tl.load(k_at, mask=(offs_d < HEAD_DIM)[None, :], other=0.0)
        if VALUE_DIM == BLOCK_V:
            v = tl.load(v_at)
        else:
            v = tl.load(v_at, mask=(offs_v < VALUE_DIM)[None, :], other=0.0)
    scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)
    if QUANT:
        s_rows = page_rows(pages, n, stride_s_page, stride_s_slot, PAGE, BLOCK_N)
        if MASKED:
            k_scale = tl.load(k_scale_ptr + s_rows, mask=inside, other=0.0)
            v_scale = tl.load(v_scale_ptr + s_rows, mask=inside, other=0.0)
        else:
            k_scale = tl.load(k_scale_ptr + s_rows)
            v_scale = tl.load(v_scale_ptr + s_rows)
        scores = scores * (k_scale * scale_log2)[None, :]
    else:
        scores = scores * scale_log2
    if SOFT_CAP:
        scores = soft_cap(scores, cap)
    if MASKED:
        if TREE:
            node = tl.minimum(tl.maximum(offs_n - prefix, 0), 63).to(tl.int64)
            bit = (row_bits[:, None] >> node[None, :]) & 1
            visible = (offs_n < prefix)[None, :] | (bit == 1)
        else:
            visible = offs_n[None, :] <= row_pos[:, None]
        if WINDOW > 0:
            near = offs_n[None, :] > (row_pos - WINDOW)[:, None]
            if SINK_TOKENS > 0:
                near = near | (offs_n < SINK_TOKENS)[None, :]
            visible = visible & near
        scores = tl.where(visible & inside[None, :], scores, float("-inf"))
    weights, rescale, m, norm = online_softmax(scores, m, norm, MASKED)
    if QUANT:
        weights = weights * v_scale[None, :]
    acc = acc * rescale[:, None]
    acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc, input_precision=PRECISION)
    return acc, m, norm
