# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# (triton is not installed where types are checked, and its language is not Python's)
# ruff: noqa: ANN001, ANN201, ANN202, C901, N803, PLR0912, PLR0913, PLR0915, PLR0917, SIM108
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""One tile of attention over a paged cache, shared by decode and prefill.

`scale_log2` and `cap` hold log2(e), so that weights are powers of two. With QUANT the payload is
8-bit and its scales, one a token and head, multiply columns of the scores and of the weights:
nothing is expanded over the head's dim. MASKED tiles check the end of the range, causal order,
tree and window. The query is a tuple: one tensor, or with ROPE the parts that rope.py makes of it;
keys are rotated there, and `base` is the token at index 0. The accumulator is a tuple: one
`[BLOCK_M, BLOCK_V]`, or with WORDS (8-bit values read as int32) four `[BLOCK_M, BLOCK_V / 4]`,
number i of which holds columns i, 4 + i, 8 + i, ...
"""

import triton
import triton.language as tl

from forebay.kernels._common.jit import (
    load_pages,
    online_softmax,
    page_rows,
    soft_cap,
    to_half,
    words_to_halves,
)

from .rope import rotated_scores

__all__ = ["WEIGHT_SHIFT", "attend_range", "new_acc", "store_acc"]

# With 8-bit values the weights carry the values' scale, a small number; this keeps them inside
# fp16's normal range. Scales of 200 and more, that is values beyond 25,000, would overflow.
WEIGHT_SHIFT = tl.constexpr(256.0)


@triton.jit
def new_acc(BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, WORDS: tl.constexpr):
    """Return a zero accumulator."""
    if WORDS:
        zero = tl.zeros([BLOCK_M, BLOCK_V // 4], dtype=tl.float32)
        return (zero, zero, zero, zero)
    else:  # noqa: RET505 - a compile-time branch
        return (tl.zeros([BLOCK_M, BLOCK_V], dtype=tl.float32),)


@triton.jit
def store_acc(
    acc,
    factor,
    ptr,
    rows,
    row_valid,
    VALUE_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Store the accumulator times factor `[BLOCK_M]` at row offsets `[BLOCK_M]` from ptr."""
    if WORDS:
        offs = tl.arange(0, BLOCK_V // 4) * 4
        keep = row_valid[:, None] & (offs < VALUE_DIM)[None, :]
        at = ptr + rows[:, None] + offs[None, :]
        tl.store(at, (acc[0] * factor[:, None]).to(ptr.dtype.element_ty), mask=keep)
        tl.store(at + 1, (acc[1] * factor[:, None]).to(ptr.dtype.element_ty), mask=keep)
        tl.store(at + 2, (acc[2] * factor[:, None]).to(ptr.dtype.element_ty), mask=keep)
        tl.store(at + 3, (acc[3] * factor[:, None]).to(ptr.dtype.element_ty), mask=keep)
    else:
        offs = tl.arange(0, BLOCK_V)
        keep = row_valid[:, None] & (offs < VALUE_DIM)[None, :]
        at = ptr + rows[:, None] + offs[None, :]
        tl.store(at, (acc[0] * factor[:, None]).to(ptr.dtype.element_ty), mask=keep)


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
    cos_ptr,
    sin_ptr,
    base,
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
    WORDS: tl.constexpr,
    ASM: tl.constexpr,
    ROPE: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
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
    inside = offs_n < end
    dtype: tl.constexpr = q[0].dtype
    offs_d = tl.arange(0, BLOCK_D)
    k_rows = page_rows(pages, n, stride_k_page, stride_k_slot, PAGE, BLOCK_N)
    v_rows = page_rows(pages, n, stride_v_page, stride_v_slot, PAGE, BLOCK_N)
    k_at = k_ptr + k_rows[:, None] + offs_d[None, :]  # [BLOCK_N, BLOCK_D]
    if WORDS:
        width: tl.constexpr = BLOCK_V // 4
        v_dim: tl.constexpr = VALUE_DIM // 4
        v_from = v_ptr.to(tl.pointer_type(tl.int32))
        v_rows = v_rows // 4
    else:
        width: tl.constexpr = BLOCK_V
        v_dim: tl.constexpr = VALUE_DIM
        v_from = v_ptr
    offs_v = tl.arange(0, width)
    v_at = v_from + v_rows[:, None] + offs_v[None, :]  # [BLOCK_N, width]
    if MASKED:
        if not ROPE:
            k = tl.load(k_at, mask=inside[:, None] & (offs_d < HEAD_DIM)[None, :], other=0.0)
        keep_v = inside[:, None] & (offs_v < v_dim)[None, :]
        if WORDS:
            v = tl.load(v_at, mask=keep_v, other=0)
        else:
            v = tl.load(v_at, mask=keep_v, other=0.0)
    else:
        if HEAD_DIM == BLOCK_D:
            k = tl.load(k_at)
        else:
            k = tl.load(k_at, mask=(offs_d < HEAD_DIM)[None, :], other=0.0)
        if v_dim == width:
            v = tl.load(v_at)
        elif WORDS:
            v = tl.load(v_at, mask=(offs_v < v_dim)[None, :], other=0)
        else:
            v = tl.load(v_at, mask=(offs_v < v_dim)[None, :], other=0.0)
    if ROPE:
        index = tl.maximum(offs_n - base, 0)  # what lies before base is seen by no row
        scores = rotated_scores(
            q, k_ptr, k_rows, inside, index, cos_ptr, sin_ptr, ROPE, ROTARY_DIM, HEAD_DIM, QUANT,
            ASM, PRECISION,
        )  # fmt: skip
    else:
        if QUANT and dtype == tl.float16:
            k = to_half(k, ASM)
        else:
            k = k.to(dtype)
        scores = tl.dot(q[0], tl.trans(k), input_precision=PRECISION)
    if QUANT:
        s_rows = page_rows(pages, n, stride_s_page, stride_s_slot, PAGE, BLOCK_N)
        if MASKED:
            k_scale = tl.load(k_scale_ptr + s_rows, mask=inside, other=0.0)
            v_scale = tl.load(v_scale_ptr + s_rows, mask=inside, other=0.0)
        else:
            k_scale = tl.load(k_scale_ptr + s_rows)
            v_scale = tl.load(v_scale_ptr + s_rows)
        scores = scores * k_scale[None, :]
    if SOFT_CAP:
        scores = soft_cap(scores * scale_log2, cap)
    if MASKED:
        if TREE:
            node = tl.minimum(tl.maximum(offs_n - prefix, 0), 63).to(tl.int64)
            bit = (row_bits[:, None] >> node[None, :]) & 1
            visible = (offs_n < prefix)[None, :] | (bit == 1)
        else:
            visible = offs_n[None, :] <= row_pos[:, None]
        if WINDOW > 0:
            near = offs_n[None, :] > (row_pos - WINDOW)[:, None]
            if ROPE:
                near = near & (offs_n >= SINK_TOKENS)[None, :]
            elif SINK_TOKENS > 0:
                near = near | (offs_n < SINK_TOKENS)[None, :]
            visible = visible & near
        scores = tl.where(visible & inside[None, :], scores, float("-inf"))
    if SOFT_CAP:
        weights, rescale, m, norm = online_softmax(scores, 1.0, m, norm, MASKED)
    else:
        weights, rescale, m, norm = online_softmax(scores, scale_log2, m, norm, MASKED)
    if QUANT:
        weights = weights * (v_scale * WEIGHT_SHIFT)[None, :]
    weights = weights.to(dtype)
    if WORDS:
        v0, v1, v2, v3 = words_to_halves(v, k_ptr.dtype.element_ty != tl.int8, ASM)
        acc = (
            tl.dot(weights, v0, acc[0] * rescale[:, None]),
            tl.dot(weights, v1, acc[1] * rescale[:, None]),
            tl.dot(weights, v2, acc[2] * rescale[:, None]),
            tl.dot(weights, v3, acc[3] * rescale[:, None]),
        )
    else:
        if QUANT and dtype == tl.float16:
            v = to_half(v, ASM)
        else:
            v = v.to(dtype)
        acc = (tl.dot(weights, v, acc[0] * rescale[:, None], input_precision=PRECISION),)
    return acc, m, norm


@triton.jit
def attend_range(
    acc,
    m,
    norm,
    q,
    q_sinks,
    row_ptr,
    pages,
    sinks_end,
    start,
    whole,
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
    cos_ptr,
    sin_ptr,
    base,
    stride_k_page,
    stride_k_slot,
    stride_v_page,
    stride_v_slot,
    stride_s_page,
    stride_s_slot,
    PEEL: tl.constexpr,
    TREE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINK_TOKENS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    QUANT: tl.constexpr,
    WORDS: tl.constexpr,
    ASM: tl.constexpr,
    ROPE: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Take tokens 0 : sinks_end and start : end; with PEEL those before whole need no mask.

    pages: of the tile at start. Page ids for the next tile are read one iteration ahead and carried
    by the loop: the cache rows then are first-level loads, which the compiler's pipeliner keeps
    several tiles in flight.

    With ROPE sinks are looked at by queries of their own, q_sinks, and there alone.
    """
    if SINK_TOKENS > 0:
        sinks_limit = sinks_end if ROPE else start
        for n in range(0, sinks_end, BLOCK_N):
            sink_pages = load_pages(row_ptr, n, sinks_limit, PAGE, BLOCK_N)
            acc, m, norm = attend_tile(
                acc, m, norm, q_sinks, sink_pages, n, sinks_limit, row_pos, row_bits,
                k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, scale_log2, cap, prefix,
                cos_ptr, sin_ptr, 0, stride_k_page, stride_k_slot, stride_v_page, stride_v_slot,
                stride_s_page, stride_s_slot,
                True, TREE, 0 if ROPE else WINDOW, SINK_TOKENS, SOFT_CAP, QUANT, WORDS, ASM,
                ROPE, ROTARY_DIM, HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, PAGE, BLOCK_N, PRECISION,
            )  # fmt: skip
    if PEEL:
        # Read here for the loop after this one: carried through, they would be loaded twice a tile.
        tail_pages = load_pages(row_ptr, whole, end, PAGE, BLOCK_N)
        for n in tl.range(start, whole, BLOCK_N):
            ahead = load_pages(row_ptr, n + BLOCK_N, end, PAGE, BLOCK_N)
            acc, m, norm = attend_tile(
                acc, m, norm, q, pages, n, end, row_pos, row_bits,
                k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, scale_log2, cap, prefix,
                cos_ptr, sin_ptr, base, stride_k_page, stride_k_slot, stride_v_page, stride_v_slot,
                stride_s_page, stride_s_slot,
                False, TREE, WINDOW, SINK_TOKENS, SOFT_CAP, QUANT, WORDS, ASM,
                ROPE, ROTARY_DIM, HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, PAGE, BLOCK_N, PRECISION,
            )  # fmt: skip
            pages = ahead
        start = whole
        pages = tail_pages
    for n in tl.range(start, end, BLOCK_N):
        ahead = load_pages(row_ptr, n + BLOCK_N, end, PAGE, BLOCK_N)
        acc, m, norm = attend_tile(
            acc, m, norm, q, pages, n, end, row_pos, row_bits,
            k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, scale_log2, cap, prefix,
            cos_ptr, sin_ptr, base, stride_k_page, stride_k_slot, stride_v_page, stride_v_slot,
            stride_s_page, stride_s_slot,
            True, TREE, WINDOW, SINK_TOKENS, SOFT_CAP, QUANT, WORDS, ASM,
            ROPE, ROTARY_DIM, HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, PAGE, BLOCK_N, PRECISION,
        )  # fmt: skip
        pages = ahead
    return acc, m, norm
