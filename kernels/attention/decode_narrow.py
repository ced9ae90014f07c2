# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, FURB136, N803, N806, PLR0913, PLR0917, RUF059
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Stage 1 of decode for up to 32 rows on Hopper, written in Gluon, Triton's lower level.

One warp brings keys and one values, whole pages by the bulk copy engine (TMA), as deep as the
buffers go; four warps compute. Their products are turned round, scores as `[tokens, rows]` and
outputs as `[dims, rows]`: the tensor cores' 64 are tokens or dims then, and as few as 8 rows
cost no padding. The same items, rows and states as `decode_split_kernel`.

Until the kernel before has ended only what says where to look is read: lengths, plan, page ids.
Three buffers of each kind take less than half of an SM, so that the next launch is already there.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)

from forebay.kernels._common.jit import next_item, query_rows

from .hopper import barriers, following, give_back, head_place
from .narrow import LANES, finish, load_ids, load_query, own_items, seen_of, sums_layout

__all__ = ["decode_narrow_kernel"]


@gluon.jit
def produce(
    pages, tiles, ready, free, table_ptr, indptr_ptr, cu_query_ptr, items_ptr, b,
    start, end, count, first, last, max_query, at, column, stride_table, PAGE_ROWS: gl.constexpr,
    PLANNED: gl.constexpr, PDL: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the keys, or the values, of each item, the last tile first; one warp."""
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    ROWS: gl.constexpr = BLOCK_N if PAGE > BLOCK_N else PAGE
    COUNT: gl.constexpr = BLOCK_N // ROWS
    TURN: gl.constexpr = 32 // COUNT
    PIECES: gl.constexpr = DIM // 64 * COUNT
    pieces = tiles._reinterpret(tiles.dtype, [STAGES * PIECES, ROWS, 64], SHARED)  # noqa: SLF001 - Gluon's only way
    lanes = gl.arange(0, 32, layout=LANES)
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    ids = load_ids(table_ptr, indptr_ptr, b, start, end, 0, stride_table, PAGE, ROWS, BLOCK_N)
    if PDL:
        tl.extra.cuda.gdc_wait()
    for item in tl.range(first, last, disable_licm=True):
        _q_start, q_len = query_rows(cu_query_ptr, b, max_query)
        next_b = b
        next_start = start
        next_end = end
        next_ids = ids
        if PLANNED:
            next_b, next_start, next_end, count = next_item(items_ptr, item, last)
            next_ids = load_ids(
                table_ptr, indptr_ptr, next_b, next_start, next_end, 0, stride_table, PAGE, ROWS,
                BLOCK_N,
            )  # fmt: skip
        todo = gl.where(q_len > 0, (end - start + BLOCK_N - 1) // BLOCK_N, 0)
        for turn in range((todo + TURN - 1) // TURN):
            ahead = load_ids(
                table_ptr, indptr_ptr, b, start, end, turn + 1, stride_table, PAGE, ROWS, BLOCK_N
            )
            for i in range(gl.minimum(todo - turn * TURN, TURN)):
                base = start + (todo - 1 - turn * TURN - i) * BLOCK_N
                inside = base % PAGE if PAGE > BLOCK_N else 0
                full = ready.index(slot)
                mbarrier.wait(free.index(slot), phase)
                mbarrier.expect(full, BLOCK_N * DIM * 2)
                for p in gl.static_range(COUNT):
                    page = gl.sum(gl.where(lanes == i * COUNT + COUNT - 1 - p, ids, 0), 0)
                    row = page * PAGE_ROWS + at + inside
                    for half in gl.static_range(DIM // 64):
                        piece = pieces.index(slot * PIECES + half * COUNT + p)
                        tma.async_copy_global_to_shared(
                            pages, [row, column + half * 64], full, piece
                        )
                slot, phase = following(slot, phase, STAGES)
            ids = ahead
        b = next_b
        start = next_start
        end = next_end
        ids = next_ids


@gluon.jit
def attend(
    q_tile, p_tile, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, slot, phase, start, end,
    prefix, row_pos, low, high, scale_log2, TREE: gl.constexpr, DIM: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, DTYPE: gl.constexpr, ROWS: gl.constexpr,
    TURNED: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Attend to tokens start : end; returns acc `[DIM, ROWS]`, m, norm, slot and phase."""
    ZERO: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, TURNED))
    m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(0, TURNED))
    norm = gl.full([32, ROWS], 0.0, gl.float32, SUMS)
    acc = gl.full([DIM, ROWS], 0.0, gl.float32, TURNED)
    nothing = gl.full([BLOCK_N, ROWS], 0.0, gl.float32, TURNED)
    seen_by_all = prefix if TREE else prefix + 1
    todo = (end - start + BLOCK_N - 1) // BLOCK_N
    for i in range(todo):
        base = start + (todo - 1 - i) * BLOCK_N
        v_tile = v_tiles.index(slot)
        mbarrier.wait(k_ready.index(slot), phase)
        scores = warpgroup_mma(k_tiles.index(slot), q_tile.permute((1, 0)), nothing, use_acc=False)
        give_back(k_free.index(slot))
        if base + BLOCK_N > gl.minimum(seen_by_all, end):
            seen = seen_of(base + columns, row_pos, low, high, prefix, end, TREE)
            scores = gl.where(seen, scores, float("-inf"))
        if base + BLOCK_N > end:
            # The slots past the end may hold anything, and nothing times NaN is not nothing.
            mbarrier.wait(v_ready.index(slot), phase)
            tokens = base + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, ZERO))
            values = v_tile.load(ZERO)
            v_tile.store(gl.where(gl.expand_dims(tokens < end, 1), values, 0.0))
        m_new = gl.maximum(m, gl.max(scores, 0) * scale_log2)
        m_safe = gl.where(m_new == float("-inf"), 0.0, m_new)
        weights = gl.exp2(scores * scale_log2 - gl.expand_dims(m_safe, 0))
        rescale = gl.exp2(m - m_safe)
        m = m_new
        own = gl.sum(weights.reshape([BLOCK_N // 64, 4, 2, 8, ROWS]), 2)
        own = gl.sum(own, 0).reshape([32, ROWS])
        factor = gl.convert_layout(rescale, gl.SliceLayout(0, SUMS))
        norm = norm * gl.expand_dims(factor, 0) + gl.convert_layout(own, SUMS)
        p_tile.store(weights.to(DTYPE))
        fence_async_shared()
        acc = acc * gl.expand_dims(rescale, 0)
        mbarrier.wait(v_ready.index(slot), phase)
        gl.thread_barrier()
        acc = warpgroup_mma(v_tile.permute((1, 0)), p_tile, acc)
        give_back(v_free.index(slot))
        slot, phase = following(slot, phase, STAGES)
    norm = gl.convert_layout(gl.sum(norm, 0), gl.SliceLayout(0, TURNED))
    return acc, m, norm, slot, phase


@gluon.jit
def consume(
    q_ptr, q_tile, p_tile, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, out_ptr, lse_ptr,
    part_out_ptr, part_lse_ptr, arrived_ptr, seq_lens_ptr, cu_query_ptr, tree_ptr, items_ptr,
    first_ptr, kv_head, b, start, end, count, first, last, max_query, max_splits, scale_log2,
    stride_q_token, stride_q_head, stride_out_token, stride_out_head, PLANNED: gl.constexpr,
    PDL: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
    SPLIT: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, DTYPE: gl.constexpr,
    ROWS: gl.constexpr,
):  # fmt: skip
    """Attend with all rows to each item, and store its result or its state."""
    TURNED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    SUMS: gl.constexpr = sums_layout(ROWS)
    TREE: gl.constexpr = tree_ptr is not None
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for item in tl.range(first, last, disable_licm=True):
        q_start, q_len = query_rows(cu_query_ptr, b, max_query)
        if q_len > 0:
            query = load_query(
                q_ptr, kv_head, q_start, q_len, stride_q_token, stride_q_head, GROUP, DIM, ROWS
            )
            gl.thread_barrier()
            q_tile.store(query)
            fence_async_shared()
            gl.thread_barrier()
            rows = gl.arange(0, ROWS, layout=gl.SliceLayout(0, TURNED))
            token = gl.minimum(rows // GROUP, q_len - 1)
            prefix = gl.load(seq_lens_ptr + b) - q_len
            low = token
            high = token
            if TREE:
                bits = gl.load(tree_ptr + q_start + token)
                low = bits.to(gl.int32)
                high = (bits >> 32).to(gl.int32)
            acc, m, norm, slot, phase = attend(
                q_tile, p_tile, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, slot, phase,
                start, end, prefix, prefix + token, low, high, scale_log2, TREE, DIM, BLOCK_N,
                STAGES, DTYPE, ROWS, TURNED, SUMS,
            )  # fmt: skip
            finish(
                acc, m, norm, out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, arrived_ptr, first_ptr,
                kv_head, b, item, count, q_start, q_len, max_query, max_splits, stride_out_token,
                stride_out_head, PLANNED, KV_HEADS, GROUP, DIM, SPLIT, DTYPE, ROWS, TURNED,
            )  # fmt: skip
        if PLANNED:
            b, start, end, count = next_item(items_ptr, item, last)


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
def decode_narrow_kernel(
    q_ptr, k_pages, v_pages, out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, arrived_ptr, table_ptr,
    indptr_ptr, seq_lens_ptr, cu_query_ptr, items_ptr, first_ptr, parts_ptr, tree_ptr, scale_log2,
    max_query, max_splits, min_tokens, single_below, fixed_tokens, stride_table, stride_q_token,
    stride_q_head, stride_out_token, stride_out_head, stride_k_page: gl.constexpr,
    stride_k_slot: gl.constexpr, stride_k_head, stride_v_page: gl.constexpr,
    stride_v_slot: gl.constexpr, stride_v_head, KV_HEADS: gl.constexpr, GROUP: gl.constexpr,
    DIM: gl.constexpr, PAGE: gl.constexpr, SPLIT: gl.constexpr, PDL: gl.constexpr,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As `decode_split_kernel`, for 16-bit pages of 16 slots or more, and no rule but a tree."""
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    PLANNED: gl.constexpr = parts_ptr is not None
    kv_head = gl.program_id(0)
    b, start, end, count, first, last = own_items(
        parts_ptr, seq_lens_ptr, max_splits, min_tokens, single_below, fixed_tokens, BLOCK_N
    )
    if first >= last:
        if PDL:
            tl.extra.cuda.gdc_wait()
        return
    k_at, k_column = head_place(kv_head, stride_k_head, stride_k_slot)
    v_at, v_column = head_place(kv_head, stride_v_head, stride_v_slot)
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout(2 * ROWS if ROWS > 8 else 0, 16, rank=2)
    q_tile = gl.allocate_shared_memory(DTYPE, [ROWS, DIM], SHARED)
    p_tile = gl.allocate_shared_memory(DTYPE, [BLOCK_N, ROWS], WEIGHTS)
    k_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, DIM], SHARED)
    v_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, DIM], SHARED)
    k_ready = barriers(STAGES, 1)
    v_ready = barriers(STAGES, 1)
    k_free = barriers(STAGES, 128)
    v_free = barriers(STAGES, 128)
    fence_async_shared()  # so that the copy engine finds them made
    gl.thread_barrier()
    gl.warp_specialize(
        [
            (consume, (
                q_ptr, q_tile, p_tile, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, out_ptr,
                lse_ptr, part_out_ptr, part_lse_ptr, arrived_ptr, seq_lens_ptr, cu_query_ptr,
                tree_ptr, items_ptr, first_ptr, kv_head, b, start, end, count, first, last,
                max_query, max_splits, scale_log2, stride_q_token, stride_q_head,
                stride_out_token, stride_out_head, PLANNED, PDL, KV_HEADS, GROUP, DIM, SPLIT,
                BLOCK_N, STAGES, DTYPE, ROWS,
            )),
            (produce, (
                k_pages, k_tiles, k_ready, k_free, table_ptr, indptr_ptr, cu_query_ptr, items_ptr,
                b, start, end, count, first, last, max_query, k_at, k_column, stride_table,
                stride_k_page // stride_k_slot, PLANNED, PDL, DIM, PAGE, BLOCK_N, STAGES,
            )),
            (produce, (
                v_pages, v_tiles, v_ready, v_free, table_ptr, indptr_ptr, cu_query_ptr, items_ptr,
                b, start, end, count, first, last, max_query, v_at, v_column, stride_table,
                stride_v_page // stride_v_slot, PLANNED, PDL, DIM, PAGE, BLOCK_N, STAGES,
            )),
        ],
        [1, 1],
        [72, 72],
    )  # fmt: skip
