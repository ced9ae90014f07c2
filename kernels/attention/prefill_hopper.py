# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Prefill on Hopper for 16-bit caches, written in Gluon, Triton's lower level.

The same rows and blocks as `prefill_kernel`: two groups of four warps compute 64 rows each, beside
two warps that copy (hopper.py).
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from forebay.kernels._common.jit import find_sequence, table_row

from .hopper import again, arrays, attend, fetch, head_place, pass_turn, take_turn

__all__ = ["prefill_hopper_kernel"]

# Registers a thread of the second group that computes, and of the two that copy; the first group
# has the same as the second. 168, what 384 threads could have each, would not hold a tile.
REGISTERS = gl.constexpr((208, 88, 88))


@gluon.jit
def block_at(
    turn, program, programs, seq_lens_ptr, cu_query_ptr, sequences, blocks,
    KV_HEADS: gl.constexpr, BLOCK_Q: gl.constexpr,
):  # fmt: skip
    """Return a program's block of a turn: kv head, sequence, its rows, first row and prefix.

    A first row past the rows: nothing to do. Blocks late in a sequence, the heavy ones, come first,
    and every other turn goes through the programs backwards: whoever had more has less then.
    """
    index = turn * programs + gl.where(turn % 2 == 0, program, programs - 1 - program)
    there = index < KV_HEADS * blocks
    kv_head = index % KV_HEADS
    block = gl.maximum(blocks - 1 - index // KV_HEADS, 0)
    b = find_sequence(cu_query_ptr, block, sequences, BLOCK_Q)
    q_start = gl.load(cu_query_ptr + b)
    q_len = gl.load(cu_query_ptr + b + 1) - q_start
    prefix = gl.load(seq_lens_ptr + b) - q_len
    q_first = (block - (q_start // BLOCK_Q + b)) * BLOCK_Q
    q_first = gl.where(there, q_first, q_len)
    return kv_head, b, q_start, q_len, q_first, prefix


@gluon.jit
def produce(
    ptr, pages, tiles, ready, free, table_ptr, indptr_ptr, seq_lens_ptr, cu_query_ptr, program,
    programs, turns, sequences, blocks, stride_table, stride_head, stride_page: gl.constexpr,
    stride_slot: gl.constexpr, KV_HEADS: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    BLOCK_Q: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the keys, or the values, of each block."""
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    for turn in tl.range(0, turns, disable_licm=True):
        kv_head, b, _q_start, q_len, q_first, prefix = block_at(
            turn, program, programs, seq_lens_ptr, cu_query_ptr, sequences, blocks, KV_HEADS,
            BLOCK_Q,
        )  # fmt: skip
        if q_first < q_len:
            end = prefix + gl.minimum(q_first + BLOCK_Q, q_len)
            row_ptr = table_row(table_ptr, indptr_ptr, b, stride_table)
            at, column = head_place(kv_head, stride_head, stride_slot)
            slot, phase = fetch(
                ptr + kv_head * stride_head, pages, row_ptr, tiles, ready, free, 0, end,
                (end - 1) // BLOCK_N, slot, phase, at, column, stride_page, stride_slot, DIM, PAGE,
                BLOCK_N, STAGES,
            )  # fmt: skip
    async_copy.wait_group(0)


@gluon.jit
def consume(
    q_ptr, q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, out_ptr, lse_ptr,
    seq_lens_ptr, cu_query_ptr, program, programs, turns, sequences, blocks, scale_log2,
    stride_q_token, stride_q_head, stride_out_token, stride_out_head, BULK: gl.constexpr,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, DTYPE: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Attend with half of each block's rows, and store what comes out."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    BLOCK_Q: gl.constexpr = 128 // GROUP
    q_tile = q_tiles.index(PART)
    slot = gl.to_tensor(STAGES - 1)
    phase = gl.to_tensor(1)
    if PART == 1:
        pass_turn(PART)
    for turn in tl.range(0, turns, disable_licm=True):
        kv_head, _b, q_start, q_len, q_first, prefix = block_at(
            turn, program, programs, seq_lens_ptr, cu_query_ptr, sequences, blocks, KV_HEADS,
            BLOCK_Q,
        )  # fmt: skip
        if q_first < q_len:
            copied = PART * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, COPY))
            columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, COPY))
            # Rows past the last valid one repeat it.
            held = gl.minimum(copied, BLOCK_Q * GROUP - 1)
            q_token = (q_start + gl.minimum(q_first + held // GROUP, q_len - 1)).to(gl.int64)
            q_at = q_token * stride_q_token + (kv_head * GROUP + held % GROUP) * stride_q_head
            rows = gl.load(q_ptr + gl.expand_dims(q_at, 1) + gl.expand_dims(columns, 0))
            gl.thread_barrier()
            q_tile.store(rows)
            fence_async_shared()
            gl.thread_barrier()
            scored = PART * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORES))
            row_pos = prefix + gl.minimum(q_first + scored // GROUP, q_len - 1)
            end = prefix + gl.minimum(q_first + BLOCK_Q, q_len)
            last = (end - 1) // BLOCK_N
            whole = gl.minimum((prefix + q_first + 1) // BLOCK_N, last)
            acc, m, norm, slot, phase = attend(
                q_tile, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, slot, phase, 0, end,
                last, whole, prefix, row_pos, row_pos, row_pos, scale_log2, False, PART, 2, BULK,
                DIM, BLOCK_N, STAGES, DTYPE, SCORES, OUT,
            )  # fmt: skip
            factor = gl.convert_layout(1.0 / norm, gl.SliceLayout(1, OUT))
            gl.thread_barrier()
            q_tile.store((acc * gl.expand_dims(factor, 1)).to(DTYPE))
            gl.thread_barrier()
            copied = again(PART * 64) + gl.arange(0, 64, layout=gl.SliceLayout(1, COPY))
            out_token = (q_start + q_first + copied // GROUP).to(gl.int64)
            out_at = out_token * stride_out_token
            out_at += (kv_head * GROUP + copied % GROUP) * stride_out_head
            to = out_ptr + gl.expand_dims(out_at, 1)
            to = to + gl.expand_dims(gl.arange(0, DIM, layout=gl.SliceLayout(0, COPY)), 0)
            keep = (copied < BLOCK_Q * GROUP) & (q_first + copied // GROUP < q_len)
            gl.store(to, q_tile.load(COPY), mask=gl.expand_dims(keep, 1))
            if lse_ptr is not None:
                lse = (m + gl.log2(norm)) * 0.6931471805599453
                token = q_first + scored // GROUP
                lse_at = (q_start + token).to(gl.int64) * (KV_HEADS * GROUP)
                lse_at += kv_head * GROUP + scored % GROUP
                kept = (scored < BLOCK_Q * GROUP) & (token < q_len)
                gl.store(lse_ptr + lse_at, lse, mask=kept)
    if PART == 0:
        take_turn(PART)


@gluon.jit(do_not_specialize=["sequences", "blocks", "stride_table"])
def prefill_hopper_kernel(
    q_ptr, k_ptr, v_ptr, k_pages, v_pages, out_ptr, lse_ptr, table_ptr, indptr_ptr, seq_lens_ptr,
    cu_query_ptr, scale_log2, sequences, blocks, stride_table, stride_q_token, stride_q_head,
    stride_out_token, stride_out_head, stride_k_page: gl.constexpr, stride_k_slot: gl.constexpr,
    stride_k_head,
    stride_v_page: gl.constexpr, stride_v_slot: gl.constexpr, stride_v_head,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As `prefill_kernel`, for blocks of 128 rows, causal order and no other rule; 4 warps.

    Each program walks blocks until there are no more, so that one's first tiles are on their way
    while the one before is ending.
    """
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    BLOCK_Q: gl.constexpr = BLOCK_M // GROUP
    BULK: gl.constexpr = k_pages is not None
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    turns = (KV_HEADS * blocks + programs - 1) // programs
    q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free = arrays(
        DTYPE, 2, DIM, BLOCK_N, STAGES
    )
    # Roles 0 and 1 compute, 2 copies keys, 3 values.
    gl.warp_specialize(
        [
            (consume, (
                q_ptr, q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, out_ptr,
                lse_ptr, seq_lens_ptr, cu_query_ptr, program, programs, turns, sequences, blocks,
                scale_log2, stride_q_token, stride_q_head, stride_out_token, stride_out_head, BULK,
                KV_HEADS, GROUP, DIM, BLOCK_N, STAGES, DTYPE, role,
            ))
            if role < 2
            else (produce, (
                k_ptr, k_pages, k_tiles, k_ready, k_free, table_ptr, indptr_ptr, seq_lens_ptr,
                cu_query_ptr, program, programs, turns, sequences, blocks, stride_table,
                stride_k_head, stride_k_page, stride_k_slot, KV_HEADS, DIM, PAGE, BLOCK_Q, BLOCK_N,
                STAGES,
            ))
            if role < 3
            else (produce, (
                v_ptr, v_pages, v_tiles, v_ready, v_free, table_ptr, indptr_ptr, seq_lens_ptr,
                cu_query_ptr, program, programs, turns, sequences, blocks, stride_table,
                stride_v_head, stride_v_page, stride_v_slot, KV_HEADS, DIM, PAGE, BLOCK_Q, BLOCK_N,
                STAGES,
            ))
            for role in (0, 1, 2, 3)
        ],
        [4, 1, 1],
        REGISTERS.value,
    )  # fmt: skip
