# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# (triton is not installed where types are checked, and its language is not Python's)
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917, SIM108
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Device functions shared by the attention kernels.

Words: a *tile* is BLOCK_N consecutive tokens of one sequence; a *page* is what the engine calls a
KV block. Tiles start at multiples of BLOCK_N, so that with PAGE a multiple of BLOCK_N a tile never
crosses a page, and with BLOCK_N a multiple of PAGE its slots do not depend on where it starts.
"""

import triton
import triton.language as tl

__all__ = [
    "find_sequence",
    "first_item",
    "load_pages",
    "next_item",
    "online_softmax",
    "page_rows",
    "query_rows",
    "soft_cap",
    "split_of",
    "table_row",
    "to_half",
    "visible_start",
    "words_to_halves",
]


@triton.jit
def find_sequence(cu_query_ptr, block, sequences, BLOCK_Q: tl.constexpr):
    """Last sequence whose first block, `cu_query[b] // BLOCK_Q + b`, is not past `block`."""
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(cu_query_ptr + middle) // BLOCK_Q + middle
        if first <= block:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def table_row(table_ptr, indptr_ptr, b, stride_table):
    """Where the pages of sequence b are listed."""
    if indptr_ptr is None:
        row_ptr = table_ptr + tl.cast(b, tl.int64) * stride_table
    else:
        row_ptr = table_ptr + tl.load(indptr_ptr + b)
    return row_ptr


@triton.jit
def load_pages(row_ptr, start, limit, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Page id of each token of a tile: one scalar where the tile lies inside one page."""
    if PAGE % BLOCK_N == 0:
        return tl.load(row_ptr + start // PAGE, mask=start < limit, other=0)
    else:  # noqa: RET505 - a compile-time branch, the two results have different shapes
        offs = start + tl.arange(0, BLOCK_N)
        return tl.load(row_ptr + offs // PAGE, mask=offs < limit, other=0)


@triton.jit
def page_rows(pages, start, stride_page, stride_slot, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Element offset of each token of a tile, `[BLOCK_N]` int64."""
    offs = tl.arange(0, BLOCK_N)
    if PAGE % BLOCK_N == 0:
        slots = start % PAGE + offs
    elif BLOCK_N % PAGE == 0:
        slots = offs % PAGE
    else:
        slots = (start + offs) % PAGE
    return pages.to(tl.int64) * stride_page + slots * stride_slot


@triton.jit
def soft_cap(scores, cap):
    """`cap * tanh(scores / cap)`, through exp2 alone."""
    grown = tl.exp2(scores * (2.0 * 1.4426950408889634 / cap))
    return cap * (1.0 - 2.0 / (grown + 1.0))


@triton.jit
def online_softmax(scores, scale, m, norm, MASKED: tl.constexpr):
    """Take one tile of scores into the running maximum and norm; `scores * scale` is in base 2.

    Returns the weights `[M, N]`, the factor for what was accumulated before, and the new state.
    The scale stays out of the maximum (it is positive), so that each weight costs one fused
    multiply-add. A row that has seen nothing visible yet keeps m = -inf and must not become NaN.
    """
    m_new = tl.maximum(m, tl.max(scores, 1) * scale)
    if MASKED:
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    else:
        m_safe = m_new
    weights = tl.exp2(scores * scale - m_safe[:, None])
    rescale = tl.exp2(m - m_safe)
    return weights, rescale, m_new, norm * rescale + tl.sum(weights, 1)


@triton.jit
def to_half(x, ASM: tl.constexpr):
    """Convert int8 or e4m3 to fp16; four int8 at a time by byte permutes where ASM.

    A byte u under the exponent byte 0x64 reads 1024 + u, and x is u - 128 with its top bit flipped.
    """
    if ASM and x.dtype == tl.int8:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 t, c, lo, hi;
            xor.b32 t, $2, 0x80808080;
            mov.b32 c, 0x64806480;
            prmt.b32 lo, t, 0x64646464, 0x4140;
            prmt.b32 hi, t, 0x64646464, 0x4342;
            sub.f16x2 $0, lo, c;
            sub.f16x2 $1, hi, c;
            }
            """,
            "=r,=r,r",
            [x],
            dtype=tl.float16,
            is_pure=True,
            pack=4,
        )
    else:  # noqa: RET505 - a compile-time branch
        return x.to(tl.float16)


@triton.jit
def words_to_halves(words, FP8: tl.constexpr, ASM: tl.constexpr):
    """Split int32 words into their four bytes, each converted to fp16: four tensors.

    The tensor cores want two tokens' values side by side, which bytes in shared memory are not:
    loading words and pairing the bytes of two tokens in registers replaces single-byte loads.
    """
    if ASM and FP8:
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 t;
            .reg .b16 a, b;
            prmt.b32 t, $4, $5, 0x0040;
            mov.b32 {a, b}, t;
            cvt.rn.f16x2.e4m3x2 $0, a;
            prmt.b32 t, $4, $5, 0x0051;
            mov.b32 {a, b}, t;
            cvt.rn.f16x2.e4m3x2 $1, a;
            prmt.b32 t, $4, $5, 0x0062;
            mov.b32 {a, b}, t;
            cvt.rn.f16x2.e4m3x2 $2, a;
            prmt.b32 t, $4, $5, 0x0073;
            mov.b32 {a, b}, t;
            cvt.rn.f16x2.e4m3x2 $3, a;
            }
            """,
            "=r,=r,=r,=r,r,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    elif ASM:  # noqa: RET505 - a compile-time branch
        return tl.inline_asm_elementwise(
            """
            {
            .reg .b32 t, c;
            mov.b32 c, 0x64806480;
            prmt.b32 t, $4, $5, 0x4400;
            lop3.b32 t, t, 0x00ff00ff, c, 0x6a;
            sub.f16x2 $0, t, c;
            prmt.b32 t, $4, $5, 0x5511;
            lop3.b32 t, t, 0x00ff00ff, c, 0x6a;
            sub.f16x2 $1, t, c;
            prmt.b32 t, $4, $5, 0x6622;
            lop3.b32 t, t, 0x00ff00ff, c, 0x6a;
            sub.f16x2 $2, t, c;
            prmt.b32 t, $4, $5, 0x7733;
            lop3.b32 t, t, 0x00ff00ff, c, 0x6a;
            sub.f16x2 $3, t, c;
            }
            """,
            "=r,=r,=r,=r,r,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    elif FP8:
        a = (words & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        b = ((words >> 8) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        c = ((words >> 16) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        d = ((words >> 24) & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        return a, b, c, d
    else:
        a = ((words << 24) >> 24).to(tl.float16)
        b = ((words << 16) >> 24).to(tl.float16)
        c = ((words << 8) >> 24).to(tl.float16)
        d = (words >> 24).to(tl.float16)
        return a, b, c, d


@triton.jit
def query_rows(cu_query_ptr, b, max_query):
    """First query row of sequence b, and how many it has."""
    if cu_query_ptr is None:
        return b * max_query, max_query
    else:  # noqa: RET505 - a compile-time branch
        start = tl.load(cu_query_ptr + b)
        return start, tl.load(cu_query_ptr + b + 1) - start


@triton.jit
def visible_start(seq_len, q_len, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """First token, rounded down to a tile, that any query row of the window can see."""
    if WINDOW > 0:
        return tl.maximum(seq_len - q_len - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:  # noqa: RET505 - a compile-time branch
        return seq_len * 0


@triton.jit
def split_of(length, max_splits, min_tokens, single_below, fixed_tokens, BLOCK_N: tl.constexpr):
    """Work out splits, and tokens per split, for one sequence of `length` visible tokens.

    The device side of `splits.StaticSplits`; `splits.split_of` is the same sum in Python.
    """
    want = tl.minimum(max_splits, tl.maximum(tl.cdiv(length, min_tokens), 1))
    want = tl.where(length < single_below, 1, want)
    chunk = tl.where(
        fixed_tokens > 0, fixed_tokens, tl.cdiv(tl.cdiv(length, want), BLOCK_N) * BLOCK_N
    )
    chunk = tl.maximum(chunk, BLOCK_N)
    return tl.maximum(tl.cdiv(length, chunk), 1), chunk


@triton.jit
def first_item(parts_ptr, column):
    """First item of a plan's column: sequence (-1: none), start, end, count; its index; last."""
    record = parts_ptr + column * 8
    b = tl.load(record)
    start = tl.load(record + 1)
    end = tl.load(record + 2)
    count = tl.load(record + 3)
    return b, start, end, count, tl.load(record + 4), tl.load(record + 5)


@triton.jit
def next_item(items_ptr, item, last):
    """Sequence, start, end and count of the item after this one; zeros past the last."""
    at = items_ptr + (item + 1) * 4
    more = item + 1 < last
    b = tl.load(at, mask=more, other=0)
    start = tl.load(at + 1, mask=more, other=0)
    end = tl.load(at + 2, mask=more, other=0)
    return b, start, end, tl.load(at + 3, mask=more, other=0)
