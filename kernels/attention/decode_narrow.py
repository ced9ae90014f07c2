# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, C901, FURB136, N803, N806, PLR0913, PLR0915, PLR0917, RUF059
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

from forebay.kernels._common.jit import first_item, next_item, query_rows, split_of

from .decode_hopper import table_row
from .hopper import barriers, following, give_back, head_place

__all__ = ["decode_narrow_kernel"]

LANES = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))


@gluon.jit
def load_ids(
    table_ptr, indptr_ptr, b, start, end, chunk, stride_table, PAGE: gl.constexpr,
    ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Load the pages of 32 pieces of ROWS tokens, counted back from the last tile's end."""
    row_ptr = table_row(table_ptr, indptr_ptr, b, stride_table)
    tiles = (end - start + BLOCK_N - 1) // BLOCK_N
    lanes = gl.arange(0, 32, layout=LANES)
    piece = tiles * (BLOCK_N // ROWS) - 1 - chunk * 32 - lanes
    token = start + piece * ROWS
    # What lies past the end is page 0's, and seen by nobody.
    return gl.load(row_ptr + token // PAGE, mask=(piece >= 0) & (token < end), other=0)


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
def seen_of(tokens, row_pos, low, high, prefix, end, TREE: gl.constexpr):
    """Which of the tokens each row sees, `[tokens, rows]`."""
    token = gl.expand_dims(tokens, 1)
    if TREE:
        node = token - prefix
        word = gl.where(node < 32, gl.expand_dims(low, 0), gl.expand_dims(high, 0))
        seen = (node < 0) | (((word >> (node & 31)) & 1) != 0)
    else:
        seen = token <= gl.expand_dims(row_pos, 0)
    return seen & (token < end)


@gluon.constexpr_function
def sums_layout(rows):
    """Layout of `[32, rows]` sums, each of what one thread has of a tile's weights."""
    registers = [[0, 1], *([0, n] for n in (8, 16) if n < rows)]
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[8, 0], [16, 0]], [], [32, rows])


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
def merge(
    out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, first_of, count, max_query, q_start, q_len,
    kv_head, stride_out_token, stride_out_head, HEADS: gl.constexpr, GROUP: gl.constexpr,
    DIM: gl.constexpr, ROWS: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """Merge a sequence's states, in order, four loaded at a time."""
    LINES: gl.constexpr = gl.BlockedLayout([4, 1], [DIM // 4, 128 // DIM], [1, 4], [0, 1])
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(0, LINES))
    row_token = rows // GROUP
    row_head = kv_head * GROUP + rows % GROUP
    keep = row_token < q_len
    dims = gl.expand_dims(gl.arange(0, DIM, layout=gl.SliceLayout(1, LINES)), 1)
    m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(0, LINES))
    norm = gl.full([ROWS], 0.0, gl.float32, gl.SliceLayout(0, LINES))
    acc = gl.full([DIM, ROWS], 0.0, gl.float32, LINES)
    for some in range(0, count, 4):
        lses = ()
        outs = ()
        for j in gl.static_range(4):
            there = keep & (some + j < count)
            item = gl.cast(first_of + some + j, gl.int64)
            at = (item * max_query + row_token) * HEADS + row_head
            # Past L1, which other multiprocessors' stores do not reach.
            lse2 = gl.load(part_lse_ptr + at, mask=there, other=float("-inf"), cache_modifier=".cg")
            part = gl.load(
                part_out_ptr + gl.expand_dims(at * DIM, 0) + dims,
                mask=gl.expand_dims(there, 0), other=0.0, cache_modifier=".cg",
            )  # fmt: skip
            lses = lses + (lse2,)  # noqa: RUF005 - Gluon unpacks none
            outs = outs + (part,)  # noqa: RUF005 - Gluon unpacks none
        for j in gl.static_range(4):
            m_new = gl.maximum(m, lses[j])
            m_safe = gl.where(m_new == float("-inf"), 0.0, m_new)
            weight = gl.exp2(lses[j] - m_safe)
            rescale = gl.exp2(m - m_safe)
            acc = acc * gl.expand_dims(rescale, 0) + outs[j] * gl.expand_dims(weight, 0)
            norm = norm * rescale + weight
            m = m_new
    safe_norm = gl.where(norm == 0.0, 1.0, norm)
    row = (q_start + row_token).to(gl.int64)
    to = out_ptr + gl.expand_dims(row * stride_out_token + row_head * stride_out_head, 0) + dims
    gl.store(to, (acc / gl.expand_dims(safe_norm, 0)).to(DTYPE), mask=gl.expand_dims(keep, 0))
    if lse_ptr is not None:
        lse2 = gl.where(norm == 0.0, float("-inf"), m + gl.log2(safe_norm))
        gl.store(lse_ptr + row * HEADS + row_head, lse2 * 0.6931471805599453, mask=keep)


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
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    SUMS: gl.constexpr = sums_layout(ROWS)
    TREE: gl.constexpr = tree_ptr is not None
    HEADS: gl.constexpr = KV_HEADS * GROUP
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    for item in tl.range(first, last, disable_licm=True):
        q_start, q_len = query_rows(cu_query_ptr, b, max_query)
        if q_len > 0:
            copied = gl.arange(0, ROWS, layout=gl.SliceLayout(1, COPY))
            # Rows past the last repeat it and are not stored.
            q_token = (q_start + gl.minimum(copied // GROUP, q_len - 1)).to(gl.int64)
            q_head = kv_head * GROUP + copied % GROUP
            q_at = q_ptr + gl.expand_dims(q_token * stride_q_token + q_head * stride_q_head, 1)
            q_dims = gl.arange(0, DIM, layout=gl.SliceLayout(0, COPY))
            gl.thread_barrier()
            q_tile.store(gl.load(q_at + gl.expand_dims(q_dims, 0)))
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
            nobody = norm == 0.0
            lse2 = gl.where(nobody, float("-inf"), m + gl.log2(gl.where(nobody, 1.0, norm)))
            factor = gl.expand_dims(1.0 / gl.where(nobody, 1.0, norm), 0)
            acc = gl.where(gl.expand_dims(nobody, 0), 0.0, acc * factor)
            dims = gl.expand_dims(gl.arange(0, DIM, layout=gl.SliceLayout(1, TURNED)), 1)
            row_token = rows // GROUP
            row_head = kv_head * GROUP + rows % GROUP
            keep = row_token < q_len
            if not SPLIT or count == 1:
                row = (q_start + row_token).to(gl.int64)
                to = row * stride_out_token + row_head * stride_out_head
                to = out_ptr + gl.expand_dims(to, 0) + dims
                gl.store(to, acc.to(DTYPE), mask=gl.expand_dims(keep, 0))
                if lse_ptr is not None:
                    gl.store(lse_ptr + row * HEADS + row_head, lse2 * 0.6931471805599453, mask=keep)
            else:
                at = (gl.cast(item, gl.int64) * max_query + row_token) * HEADS + row_head
                state = part_out_ptr + gl.expand_dims(at * DIM, 0) + dims
                gl.store(state, acc, mask=gl.expand_dims(keep, 0))
                gl.store(part_lse_ptr + at, lse2, mask=keep)
                if arrived_ptr is not None:
                    first_of = b * max_splits
                    if PLANNED:
                        first_of = gl.load(first_ptr + b)
                    counter = arrived_ptr + b * KV_HEADS + kv_head
                    # Every thread's part of the state must be out before the counter says so.
                    gl.thread_barrier()
                    if gl.atomic_add(counter, 1) == count - 1:
                        merge(
                            out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, first_of, count,
                            max_query, q_start, q_len, kv_head, stride_out_token,
                            stride_out_head, HEADS, GROUP, DIM, ROWS, DTYPE,
                        )  # fmt: skip
                        gl.store(counter, 0)
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
