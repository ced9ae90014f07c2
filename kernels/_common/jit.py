# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# (triton is not installed where types are checked, and its language is not Python's)
# ruff: noqa: ANN001, ANN202, N803, PLR0913
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Device functions shared by the attention kernels.

Words: a *tile* is BLOCK_N consecutive tokens of one sequence; a *page* is what the engine calls a
KV block. Tiles start at multiples of BLOCK_N, so that with PAGE a multiple of BLOCK_N a tile never
crosses a page, and with BLOCK_N a multiple of PAGE its slots do not depend on where it starts.
"""

import triton
import triton.language as tl

__all__ = [
    "load_pages",
    "online_softmax",
    "page_rows",
    "soft_cap",
    "split_of",
    "visible_start",
]


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
def online_softmax(scores, m, norm, MASKED: tl.constexpr):
    """Take one tile of base-2 scores into the running maximum and norm.

    Returns the weights `[M, N]`, the factor for what was accumulated before, and the new state.
    A row that has seen nothing visible yet keeps m = -inf and must not turn into NaN.
    """
    m_new = tl.maximum(m, tl.max(scores, 1))
    if MASKED:
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    else:
        m_safe = m_new
    weights = tl.exp2(scores - m_safe[:, None])
    rescale = tl.exp2(m - m_safe)
    return weights, rescale, m_new, norm * rescale + tl.sum(weights, 1)


@triton.jit
def visible_start(seq_len, q_len, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """First token, rounded down to a tile, that any query row of the window can see."""
    if WINDOW > 0:
        return tl.maximum(seq_len - q_len - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:  # noqa: RET505 - a compile-time branch
        return seq_len * 0


@triton.jit
def split_of(length, max_splits, min_tokens, single_below, fixed_tokens, BLOCK_N: tl.constexpr):
    """Splits and tokens per split for one sequence of `length` visible tokens.

    The device side of `splits.StaticSplits`; `splits.split_of` is the same sum in Python.
    """
    want = tl.minimum(max_splits, tl.maximum(tl.cdiv(length, min_tokens), 1))
    want = tl.where(length < single_below, 1, want)
    chunk = tl.where(fixed_tokens > 0, fixed_tokens, tl.cdiv(tl.cdiv(length, want), BLOCK_N) * BLOCK_N)
    chunk = tl.maximum(chunk, BLOCK_N)
    return tl.maximum(tl.cdiv(length, chunk), 1), chunk
