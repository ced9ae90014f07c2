# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, PLR0913, PLR0915, PLR0917, RUF059
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Stage 1 of decode for more than 32 rows on Hopper, written in Gluon, Triton's lower level.

For trees, and for verify steps of many tokens times query heads: the same items, rows and states as
`decode_split_kernel`, two warps that copy and one or two groups of four that compute 64 rows each
(hopper.py). Each walks the items of its part by itself; buffers and their phases go on from
one item to the next.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from forebay.kernels._common.jit import first_item, next_item, query_rows, split_of, table_row

from .hopper import again, arrays, attend, fetch, head_place, pass_turn, take_turn

__all__ = ["decode_hopper_kernel"]


@gluon.jit
def last_tile(start, end, BLOCK_N: gl.constexpr):
    """Return the last tile of tokens start : end; an empty range has one, which nobody sees."""
    return gl.maximum((end - start + BLOCK_N - 1) // BLOCK_N, 1) - 1


@gluon.jit
def produce(
    ptr, pages, tiles, ready, free, table_ptr, indptr_ptr, cu_query_ptr, items_ptr, row_block, b,
    start, end, count, first, last, max_query, at, column, stride_table,
    stride_page: gl.constexpr, stride_slot: gl.constexpr, PLANNED: gl.constexpr,
    GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the keys, or the values, of each item."""
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    for item in tl.range(first, last, disable_licm=True):
        _q_start, q_len = query_rows(cu_query_ptr, b, max_query)
        if row_block * BLOCK_M < q_len * GROUP:
            row_ptr = table_row(table_ptr, indptr_ptr, b, stride_table)
            slot, phase = fetch(
                ptr, pages, row_ptr, tiles, ready, free, start, end,
                last_tile(start, end, BLOCK_N), slot, phase, at, column, stride_page, stride_slot,
                DIM, PAGE, BLOCK_N, STAGES,
            )  # fmt: skip
        if PLANNED:
            b, start, end, count = next_item(items_ptr, item, last)
    async_copy.wait_group(0)


@gluon.jit
def consume(
    q_ptr, q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, out_ptr, lse_ptr,
    part_out_ptr, part_lse_ptr, seq_lens_ptr, cu_query_ptr, tree_ptr, items_ptr, kv_head,
    row_block, b, start, end, count, first, last, max_query, scale_log2, stride_q_token,
    stride_q_head, stride_out_token, stride_out_head, PLANNED: gl.constexpr,
    GROUPS: gl.constexpr, BULK: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr,
    DIM: gl.constexpr, SPLIT: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    DTYPE: gl.constexpr, PART: gl.constexpr,
):  # fmt: skip
    """Attend with a group's rows to each item, and store its result or its state."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    TREE: gl.constexpr = tree_ptr is not None
    HEADS: gl.constexpr = KV_HEADS * GROUP
    q_tile = q_tiles.index(PART)
    slot = gl.to_tensor(STAGES - 1)
    phase = gl.to_tensor(1)
    if GROUPS == 2 and PART == 1:
        pass_turn(PART)
    for item in tl.range(first, last, disable_licm=True):
        q_start, q_len = query_rows(cu_query_ptr, b, max_query)
        if row_block * 64 * GROUPS < q_len * GROUP:
            from_row = (row_block * GROUPS + PART) * 64
            copied = from_row + gl.arange(0, 64, layout=gl.SliceLayout(1, COPY))
            columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, COPY))
            # Rows past the last repeat it and are not stored.
            q_token = (q_start + gl.minimum(copied // GROUP, q_len - 1)).to(gl.int64)
            q_head = kv_head * GROUP + copied % GROUP
            q_at = q_ptr + gl.expand_dims(q_token * stride_q_token + q_head * stride_q_head, 1)
            gl.thread_barrier()
            q_tile.store(gl.load(q_at + gl.expand_dims(columns, 0)))
            fence_async_shared()
            gl.thread_barrier()
            rows = from_row + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORES))
            row_token = gl.minimum(rows // GROUP, q_len - 1)
            prefix = gl.load(seq_lens_ptr + b) - q_len
            row_pos = prefix + row_token
            low = row_pos
            high = row_pos
            seen = prefix + 1
            if TREE:
                bits = gl.load(tree_ptr + q_start + row_token)
                low = bits.to(gl.int32)
                high = (bits >> 32).to(gl.int32)
                seen = prefix
            final = last_tile(start, end, BLOCK_N)
            whole = gl.maximum(gl.minimum(end, seen) - start, 0) // BLOCK_N
            acc, m, norm, slot, phase = attend(
                q_tile, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, slot, phase, start,
                end, final, gl.minimum(whole, final), prefix, row_pos, low, high, scale_log2, TREE,
                PART, GROUPS, BULK, DIM, BLOCK_N, STAGES, DTYPE, SCORES, OUT,
            )  # fmt: skip
            nobody = norm == 0.0
            lse2 = gl.where(nobody, float("-inf"), m + gl.log2(gl.where(nobody, 1.0, norm)))
            norm = gl.convert_layout(norm, gl.SliceLayout(1, OUT))
            # What nobody sees may hold anything, and nothing times that is not nothing.
            empty = gl.expand_dims(norm == 0.0, 1)
            acc = gl.where(empty, 0.0, acc / gl.expand_dims(gl.where(norm == 0.0, 1.0, norm), 1))
            from_row = again(from_row)
            rows = from_row + gl.arange(0, 64, layout=gl.SliceLayout(1, SCORES))
            out_rows = from_row + gl.arange(0, 64, layout=gl.SliceLayout(1, OUT))
            if not SPLIT or count == 1:
                gl.thread_barrier()
                q_tile.store(acc.to(DTYPE))
                gl.thread_barrier()
                copied = from_row + gl.arange(0, 64, layout=gl.SliceLayout(1, COPY))
                to = (q_start + copied // GROUP).to(gl.int64) * stride_out_token
                to += (kv_head * GROUP + copied % GROUP) * stride_out_head
                to = out_ptr + gl.expand_dims(to, 1)
                keep = gl.expand_dims(copied // GROUP < q_len, 1)
                gl.store(to + gl.expand_dims(columns, 0), q_tile.load(COPY), mask=keep)
                if lse_ptr is not None:
                    at = (q_start + rows // GROUP).to(gl.int64) * HEADS
                    at += kv_head * GROUP + rows % GROUP
                    kept = rows // GROUP < q_len
                    gl.store(lse_ptr + at, lse2 * 0.6931471805599453, mask=kept)
            else:
                part = gl.cast(item, gl.int64) * max_query + out_rows // GROUP
                part = (part * HEADS + kv_head * GROUP + out_rows % GROUP) * DIM
                out_cols = gl.arange(0, DIM, layout=gl.SliceLayout(0, OUT))
                part_at = part_out_ptr + gl.expand_dims(part, 1) + gl.expand_dims(out_cols, 0)
                gl.store(part_at, acc, mask=gl.expand_dims(out_rows // GROUP < q_len, 1))
                at = gl.cast(item, gl.int64) * max_query + rows // GROUP
                at = at * HEADS + kv_head * GROUP + rows % GROUP
                gl.store(part_lse_ptr + at, lse2, mask=rows // GROUP < q_len)
        if PLANNED:
            b, start, end, count = next_item(items_ptr, item, last)
    if GROUPS == 2 and PART == 0:
        take_turn(PART)


@gluon.jit(
    do_not_specialize=[
        "max_query",
        "max_splits",
        "min_tokens",
        "single_below",
        "fixed_tokens",
        "stride_table",
    ]
)
def decode_hopper_kernel(
    q_ptr, k_ptr, v_ptr, k_pages, v_pages, out_ptr, lse_ptr, part_out_ptr, part_lse_ptr,
    table_ptr, indptr_ptr, seq_lens_ptr, cu_query_ptr, items_ptr, parts_ptr, tree_ptr, scale_log2,
    max_query, max_splits, min_tokens, single_below, fixed_tokens, stride_table, stride_q_token,
    stride_q_head,
    stride_out_token, stride_out_head, stride_k_page: gl.constexpr, stride_k_slot: gl.constexpr,
    stride_k_head, stride_v_page: gl.constexpr, stride_v_slot: gl.constexpr, stride_v_head,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    SPLIT: gl.constexpr, PDL: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """As `decode_split_kernel`, for 16-bit caches and no rule but a tree; 4 warps and 4 a group."""
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    GROUPS: gl.constexpr = BLOCK_M // 64
    PLANNED: gl.constexpr = parts_ptr is not None
    BULK: gl.constexpr = k_pages is not None
    kv_head = gl.program_id(0) % KV_HEADS
    row_block = gl.program_id(0) // KV_HEADS
    if parts_ptr is None:
        split = gl.program_id(1)
        b = gl.program_id(2)
        seq_len = gl.load(seq_lens_ptr + b)
        count, chunk = split_of(
            seq_len, max_splits, min_tokens, single_below, fixed_tokens, BLOCK_N
        )
        start = split * chunk
        end = gl.minimum(start + chunk, seq_len)
        first = b * max_splits + split
        last = gl.where(split < count, first + 1, first)
    else:
        b, start, end, count, first, last = first_item(parts_ptr, gl.program_id(1))
        last = gl.where(b < 0, first, last)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if first >= last:
        return
    k_at, k_column = head_place(kv_head, stride_k_head, stride_k_slot)
    v_at, v_column = head_place(kv_head, stride_v_head, stride_v_slot)
    k_ptr += kv_head * stride_k_head
    v_ptr += kv_head * stride_v_head
    q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free = arrays(
        DTYPE, GROUPS, DIM, BLOCK_N, STAGES
    )
    # Roles 0 and 1 compute, 2 copies keys, 3 values.
    gl.warp_specialize(
        [
            (consume, (
                q_ptr, q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, out_ptr,
                lse_ptr, part_out_ptr, part_lse_ptr, seq_lens_ptr, cu_query_ptr, tree_ptr,
                items_ptr, kv_head, row_block, b, start, end, count, first, last, max_query,
                scale_log2, stride_q_token, stride_q_head, stride_out_token, stride_out_head,
                PLANNED, GROUPS, BULK, KV_HEADS, GROUP, DIM, SPLIT, BLOCK_N, STAGES, DTYPE, role,
            ))
            if role < 2
            else (produce, (
                k_ptr, k_pages, k_tiles, k_ready, k_free, table_ptr, indptr_ptr, cu_query_ptr,
                items_ptr, row_block, b, start, end, count, first, last, max_query, k_at, k_column,
                stride_table, stride_k_page, stride_k_slot, PLANNED, GROUP, DIM, PAGE, BLOCK_M,
                BLOCK_N, STAGES,
            ))
            if role < 3
            else (produce, (
                v_ptr, v_pages, v_tiles, v_ready, v_free, table_ptr, indptr_ptr, cu_query_ptr,
                items_ptr, row_block, b, start, end, count, first, last, max_query, v_at, v_column,
                stride_table, stride_v_page, stride_v_slot, PLANNED, GROUP, DIM, PAGE, BLOCK_M,
                BLOCK_N, STAGES,
            ))
            for role in ((0, 2, 3) if GROUPS == 1 else (0, 1, 2, 3))
        ],
        [1, 1] if GROUPS == 1 else [4, 1, 1],
        [72, 72] if GROUPS == 1 else [208, 88, 88],
    )  # fmt: skip
