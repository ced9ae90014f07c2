# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0913, PLR0917, SIM102
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Stage 2 of decode: merge the states of the work items that a sequence was cut into.

Either the program that finishes last of those that share a sequence's rows does it on the way
(`merge_if_last`), which saves a launch where items are few, or a kernel does it afterwards, where
they are many: a program for each row, or for some rows (`decode_merge_rows_kernel`) in steps of
many tokens, most of which have nothing to merge. The order of merging is the items' in all, so the
result does not depend on who comes last.
"""

import triton
import triton.language as tl

from forebay.kernels._common.jit import query_rows, split_of, visible_start

__all__ = ["decode_merge_kernel", "decode_merge_rows_kernel", "merge_if_last"]


@triton.jit
def merge_if_last(
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    arrived_ptr,
    first,
    count,
    max_query,
    q_start,
    row_token,
    row_head,
    row_valid,
    stride_out_token,
    stride_out_head,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Count this program in, and merge items first : first + count if all have come.

    arrived_ptr: a counter of the sequence's rows of this program, zero before and after.
    """
    # Every thread's part of the state must be out before the counter says so.
    tl.debug_barrier()
    if tl.atomic_add(arrived_ptr, 1) == count - 1:
        offs_v = tl.arange(0, BLOCK_V)
        keep = row_valid[:, None] & (offs_v < VALUE_DIM)[None, :]
        m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
        norm = tl.zeros([BLOCK_M], dtype=tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_V], dtype=tl.float32)
        for item in tl.range(
            first, first + count, loop_unroll_factor=64 // BLOCK_M if BLOCK_M < 64 else 1
        ):
            at = (tl.cast(item, tl.int64) * max_query + row_token) * HEADS + row_head
            # Past L1, which other multiprocessors' stores do not reach.
            lse2 = tl.load(
                part_lse_ptr + at, mask=row_valid, other=float("-inf"), cache_modifier=".cg"
            )
            part = tl.load(
                part_out_ptr + at[:, None] * VALUE_DIM + offs_v[None, :],
                mask=keep,
                other=0.0,
                cache_modifier=".cg",
            )  # [BLOCK_M, BLOCK_V]
            m_new = tl.maximum(m, lse2)
            m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
            weight = tl.exp2(lse2 - m_safe)
            rescale = tl.exp2(m - m_safe)
            acc = acc * rescale[:, None] + part * weight[:, None]
            norm = norm * rescale + weight
            m = m_new
        safe_norm = tl.where(norm == 0.0, 1.0, norm)
        row = (q_start + row_token).to(tl.int64)
        out_at = row * stride_out_token + row_head * stride_out_head
        tl.store(
            out_ptr + out_at[:, None] + offs_v[None, :],
            (acc / safe_norm[:, None]).to(out_ptr.dtype.element_ty),
            mask=keep,
        )
        if lse_ptr is not None:
            lse2 = tl.where(norm == 0.0, float("-inf"), m + tl.log2(safe_norm))
            tl.store(lse_ptr + row * HEADS + row_head, lse2 * 0.6931471805599453, mask=row_valid)
        tl.store(arrived_ptr, 0)


@triton.jit
def items_of(
    seq_lens_ptr,
    first_ptr,
    b,
    q_len,
    max_splits,
    min_tokens,
    single_below,
    fixed_tokens,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return the first item of sequence b, and how many it has."""
    if first_ptr is None:
        seq_len = tl.load(seq_lens_ptr + b)
        length = seq_len - visible_start(seq_len, q_len, WINDOW, BLOCK_N)
        count, _chunk = split_of(
            length, max_splits, min_tokens, single_below, fixed_tokens, BLOCK_N
        )
        first = b * max_splits
    else:
        first = tl.load(first_ptr + b)
        count = tl.load(first_ptr + b + 1) - first
    return first, count


@triton.jit(
    do_not_specialize=["max_splits", "min_tokens", "single_below", "fixed_tokens", "max_query"]
)
def decode_merge_kernel(
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    first_ptr,
    max_query,
    max_splits,
    min_tokens,
    single_below,
    fixed_tokens,
    stride_out_token,
    stride_out_head,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    PDL: tl.constexpr,
    EARLY: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Stage 2: merge the states of one query row and head, if its sequence was cut.

    Each program merges BLOCK_V of the values' columns.
    """
    head = tl.program_id(0) % HEADS
    offs_v = tl.program_id(0) // HEADS * BLOCK_V + tl.arange(0, BLOCK_V)
    token = tl.program_id(1)
    b = tl.program_id(2)
    q_start, q_len = query_rows(cu_query_ptr, b, max_query)
    first, count = items_of(
        seq_lens_ptr, first_ptr, b, q_len, max_splits, min_tokens, single_below, fixed_tokens,
        WINDOW, BLOCK_N,
    )  # fmt: skip
    # Wait even where there is nothing to do: what follows in the stream waits for this kernel
    # alone, so it must not end before stage 1 has. It may start before that: stage 1, without which
    # this one would not run, has waited for all that came before it.
    if PDL:
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
        if not EARLY:
            tl.extra.cuda.gdc_launch_dependents()
    if (token >= q_len) | (count == 1):
        return
    offs_s = tl.arange(0, BLOCK_S)
    m = tl.full([1], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([1], dtype=tl.float32)
    acc = tl.zeros([BLOCK_V], dtype=tl.float32)
    for s in range(0, count, BLOCK_S):
        split = s + offs_s
        keep = split < count
        at = ((first + split).to(tl.int64) * max_query + token) * HEADS + head
        lse2 = tl.load(part_lse_ptr + at, mask=keep, other=float("-inf"))
        part = tl.load(
            part_out_ptr + at[:, None] * VALUE_DIM + offs_v[None, :],
            mask=keep[:, None] & (offs_v < VALUE_DIM)[None, :],
            other=0.0,
        )  # [BLOCK_S, BLOCK_V]
        m_new = tl.maximum(m, tl.max(lse2, 0))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        weights = tl.exp2(lse2 - m_safe)
        rescale = tl.exp2(m - m_safe)
        acc = acc * rescale + tl.sum(part * weights[:, None], 0)
        norm = norm * rescale + tl.sum(weights, 0)
        m = m_new
    safe_norm = tl.where(norm == 0.0, 1.0, norm)
    acc = acc / safe_norm
    row = (q_start + token).to(tl.int64)
    tl.store(
        out_ptr + row * stride_out_token + head * stride_out_head + offs_v,
        acc.to(out_ptr.dtype.element_ty),
        mask=offs_v < VALUE_DIM,
    )
    if lse_ptr is not None:
        if tl.program_id(0) < HEADS:
            lse = tl.where(
                norm == 0.0, float("-inf"), (m + tl.log2(safe_norm)) * 0.6931471805599453
            )
            tl.store(lse_ptr + row * HEADS + head + tl.arange(0, 1), lse)


@triton.jit(
    do_not_specialize=["max_splits", "min_tokens", "single_below", "fixed_tokens", "max_query"]
)
def decode_merge_rows_kernel(
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    first_ptr,
    max_query,
    max_splits,
    min_tokens,
    single_below,
    fixed_tokens,
    stride_out_token,
    stride_out_head,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    PDL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Stage 2 of BLOCK_R rows, tokens times heads, of one sequence."""
    b = tl.program_id(1)
    q_start, q_len = query_rows(cu_query_ptr, b, max_query)
    first, count = items_of(
        seq_lens_ptr, first_ptr, b, q_len, max_splits, min_tokens, single_below, fixed_tokens,
        WINDOW, BLOCK_N,
    )  # fmt: skip
    if PDL:  # as above
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if (tl.program_id(0) * BLOCK_R >= q_len * HEADS) | (count == 1):
        return
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    offs_v = tl.arange(0, BLOCK_V)
    there = rows < q_len * HEADS
    keep = there[:, None] & (offs_v < VALUE_DIM)[None, :]
    m = tl.full([BLOCK_R], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_R], dtype=tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_V], dtype=tl.float32)
    for item in tl.range(first, first + count, loop_unroll_factor=4 if BLOCK_R <= 16 else 2):
        at = tl.cast(item, tl.int64) * max_query * HEADS + rows
        lse2 = tl.load(part_lse_ptr + at, mask=there, other=float("-inf"))
        part = tl.load(
            part_out_ptr + at[:, None] * VALUE_DIM + offs_v[None, :], mask=keep, other=0.0
        )  # [BLOCK_R, BLOCK_V]
        m_new = tl.maximum(m, lse2)
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        weight = tl.exp2(lse2 - m_safe)
        rescale = tl.exp2(m - m_safe)
        acc = acc * rescale[:, None] + part * weight[:, None]
        norm = norm * rescale + weight
        m = m_new
    safe_norm = tl.where(norm == 0.0, 1.0, norm)
    token = (q_start + rows // HEADS).to(tl.int64)
    to = token * stride_out_token + rows % HEADS * stride_out_head
    tl.store(
        out_ptr + to[:, None] + offs_v[None, :],
        (acc / safe_norm[:, None]).to(out_ptr.dtype.element_ty),
        mask=keep,
    )
    if lse_ptr is not None:
        lse = tl.where(norm == 0.0, float("-inf"), (m + tl.log2(safe_norm)) * 0.6931471805599453)
        tl.store(lse_ptr + token * HEADS + rows % HEADS, lse, mask=there)
