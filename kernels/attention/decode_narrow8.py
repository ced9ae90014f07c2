# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, FURB136, N803, N806, PLR0913, PLR0917, RUF059, SIM102
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""decode_narrow for 8-bit caches: int8 or e4m3, with a scale for each token and head.

Pages come as they are, scales beside them; the warps that compute read bytes into registers, where
they become fp16, the left operand of both products. Nothing of 16 bits goes through shared memory,
and no byte is moved to another thread, as each takes those that its part of an operand asks for:

- Keys are multiplied in an order of dims of our own, in which a thread's are 32 bytes side by side
  (`keys_layout`); the query is stored in the same order (`in_order_of_keys`).
- Of values a thread takes words, four dims of a token, and pairs the bytes of two tokens. So its
  four rows of the output are dims side by side: rows are dims in another order, and `stored_layout`
  says which.

A key's scale multiplies its row of scores. A value's multiplies its weights: see tile.WEIGHT_SHIFT.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from forebay.kernels._common.jit import next_item, query_rows, to_half, words_to_halves

from .hopper import barriers, following, give_back, head_place
from .narrow import LANES, finish, load_ids, load_query, own_items, seen_of, sums_layout
from .tile import WEIGHT_SHIFT

__all__ = ["decode_narrow8_kernel"]

DIM = gl.constexpr(128)
"""The only one: a token's keys are one row of what the copy engine swizzles, 128 bytes."""


@gluon.constexpr_function
def keys_layout(tokens):
    """Layout of bytes `[tokens, 128]`: of each of two rows a thread has 32 side by side."""
    registers = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [8, 0]]
    registers += [[64, 0]] if tokens > 64 else []
    lanes = [[0, 32], [0, 64], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [tokens, 128])


@gluon.constexpr_function
def words_layout(tokens):
    """Layout of words `[tokens, 32]`: a thread has one of each token of its part of the operand."""
    registers = [[1, 0], [8, 0], *([n, 0] for n in (16, 32, 64) if n < tokens)]
    lanes = [[2, 0], [4, 0], [0, 1], [0, 2], [0, 4]]
    return gl.DistributedLinearLayout(registers, lanes, [[0, 8], [0, 16]], [], [tokens, 32])


@gluon.constexpr_function
def stored_layout(rows):
    """Layout of the output `[128, rows]` in its right order: four dims of a thread side by side."""
    registers = [[1, 0], [2, 0], [0, 1], *([0, n] for n in (8, 16) if n < rows)]
    lanes = [[0, 2], [0, 4], [4, 0], [8, 0], [16, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[32, 0], [64, 0]], [], [128, rows])


@gluon.jit
def in_order_of_keys(x, ROWS: gl.constexpr):
    """Return `[ROWS, 128]` with its columns as keys are multiplied: bits tt kkk h e as kkk h tt e.

    A step of the tensor cores takes 16 columns, of which thread t of four has 2 t + e and 8 more.
    """
    return x.reshape([ROWS, 4, 8, 2, 2]).permute((0, 2, 3, 1, 4)).reshape([ROWS, 128])


@gluon.jit
def bytes_to_halves(x, FP8: gl.constexpr):
    """Convert bytes to fp16, four at a time."""
    if FP8:
        halves = gl.inline_asm_elementwise(
            """
            {
            .reg .b16 a, b;
            mov.b32 {a, b}, $2;
            cvt.rn.f16x2.e4m3x2 $0, a;
            cvt.rn.f16x2.e4m3x2 $1, b;
            }
            """,
            "=r,=r,r",
            [x],
            dtype=gl.float16,
            is_pure=True,
            pack=4,
        )
    else:
        halves = to_half(x, True)
    return halves


@gluon.jit
def values_of(words, FP8: gl.constexpr, BLOCK_N: gl.constexpr):
    """Return values `[128, BLOCK_N]` fp16, rows as the output has them: see `stored_layout`."""
    a, b, c, d = words_to_halves(words, FP8, True)
    fours = gl.join(gl.join(a, b), gl.join(c, d))  # [tokens, words, of 2, of 2]
    fours = fours.reshape([BLOCK_N, 4, 8, 2, 2]).permute((4, 1, 3, 2, 0))
    return fours.reshape([128, BLOCK_N])


@gluon.jit
def produce(
    pages, tiles, scale_ptr, scales, ready, free, table_ptr, indptr_ptr, cu_query_ptr, items_ptr,
    b, start, end, count, first, last, max_query, at, column, stride_table,
    stride_s_page: gl.constexpr, stride_s_slot: gl.constexpr, PAGE_ROWS: gl.constexpr,
    PLANNED: gl.constexpr, PDL: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the keys, or the values, and their scales of each item, the last tile first; one warp.

    Scales past the end come as zeros: what lies there may be NaN.
    """
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 8, rank=2)
    ROWS: gl.constexpr = BLOCK_N if PAGE > BLOCK_N else PAGE
    COUNT: gl.constexpr = BLOCK_N // ROWS
    TURN: gl.constexpr = 32 // COUNT
    pieces = tiles._reinterpret(gl.int8, [STAGES * COUNT, ROWS, DIM], SHARED)  # noqa: SLF001 - Gluon's only way
    lanes = gl.arange(0, 32, layout=LANES)
    offs = gl.arange(0, BLOCK_N, layout=LANES)
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
                mbarrier.expect(full, BLOCK_N * DIM)
                page_of = offs * 0
                for p in gl.static_range(COUNT):
                    page = gl.sum(gl.where(lanes == i * COUNT + COUNT - 1 - p, ids, 0), 0)
                    tma.async_copy_global_to_shared(
                        pages, [page * PAGE_ROWS + at + inside, column], full,
                        pieces.index(slot * COUNT + p),
                    )  # fmt: skip
                    page_of = gl.where(offs // ROWS == p, page, page_of)
                scale_at = page_of.to(gl.int64) * stride_s_page
                scale_at += (inside + offs % ROWS) * stride_s_slot
                async_copy.async_copy_global_to_shared(
                    scales.index(slot), scale_ptr + scale_at, mask=base + offs < end
                )
                async_copy.mbarrier_arrive(full, increment_count=False)
                slot, phase = following(slot, phase, STAGES)
            ids = ahead
        b = next_b
        start = next_start
        end = next_end
        ids = next_ids
    async_copy.wait_group(0)


@gluon.jit
def attend(
    q_tile, p_tile, k_tiles, v_tiles, k_scales, v_scales, k_ready, v_ready, k_free, v_free, slot,
    phase, start, end, prefix, row_pos, low, high, scale_log2, TREE: gl.constexpr,
    FP8: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, ROWS: gl.constexpr,
    TURNED: gl.constexpr, SUMS: gl.constexpr,
):  # fmt: skip
    """Attend to tokens start : end; returns acc `[128, ROWS]`, m, norm, slot and phase."""
    KEYS: gl.constexpr = gl.DotOperandLayout(0, TURNED, 2)
    BYTES: gl.constexpr = keys_layout(BLOCK_N)
    WORDS: gl.constexpr = words_layout(BLOCK_N)
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 32, rank=2)
    v_words = v_tiles._reinterpret(gl.int32, [STAGES, BLOCK_N, DIM // 4], SHARED)  # noqa: SLF001 - Gluon's only way
    columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, TURNED))
    tokens = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, WORDS))
    m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(0, TURNED))
    norm = gl.full([32, ROWS], 0.0, gl.float32, SUMS)
    acc = gl.full([DIM, ROWS], 0.0, gl.float32, TURNED)
    nothing = gl.full([BLOCK_N, ROWS], 0.0, gl.float32, TURNED)
    seen_by_all = prefix if TREE else prefix + 1
    todo = (end - start + BLOCK_N - 1) // BLOCK_N
    for i in range(todo):
        base = start + (todo - 1 - i) * BLOCK_N
        mbarrier.wait(k_ready.index(slot), phase)
        keys = bytes_to_halves(k_tiles.index(slot).load(BYTES), FP8)
        keys = gl.convert_layout(in_order_of_keys(keys, BLOCK_N), KEYS)
        k_scale = k_scales.index(slot).load(gl.SliceLayout(1, TURNED)) * scale_log2
        mbarrier.wait(v_ready.index(slot), phase)
        words = v_words.index(slot).load(WORDS)
        v_scale = v_scales.index(slot).load(gl.SliceLayout(1, TURNED)) * WEIGHT_SHIFT
        if FP8:
            if base + BLOCK_N > end:
                # The slots past the end may hold NaN, and nothing times that is not nothing.
                words = gl.where(gl.expand_dims(base + tokens < end, 1), words, 0)
        scores = warpgroup_mma(keys, q_tile.permute((1, 0)), nothing, use_acc=False, is_async=True)
        give_back(k_free.index(slot))
        values = gl.convert_layout(values_of(words, FP8, BLOCK_N), KEYS)
        scores = warpgroup_mma_wait(num_outstanding=0, deps=[scores])
        give_back(v_free.index(slot))
        scores = scores * gl.expand_dims(k_scale, 1)
        if base + BLOCK_N > gl.minimum(seen_by_all, end):
            seen = seen_of(base + columns, row_pos, low, high, prefix, end, TREE)
            scores = gl.where(seen, scores, float("-inf"))
        m_new = gl.maximum(m, gl.max(scores, 0))
        m_safe = gl.where(m_new == float("-inf"), 0.0, m_new)
        weights = gl.exp2(scores - gl.expand_dims(m_safe, 0))
        rescale = gl.exp2(m - m_safe)
        m = m_new
        own = gl.sum(weights.reshape([BLOCK_N // 64, 4, 2, 8, ROWS]), 2)
        own = gl.sum(own, 0).reshape([32, ROWS])
        factor = gl.convert_layout(rescale, gl.SliceLayout(0, SUMS))
        norm = norm * gl.expand_dims(factor, 0) + gl.convert_layout(own, SUMS)
        p_tile.store((weights * gl.expand_dims(v_scale, 1)).to(gl.float16))
        fence_async_shared()
        acc = acc * gl.expand_dims(rescale, 0)
        gl.thread_barrier()
        acc = warpgroup_mma(values, p_tile, acc)
        slot, phase = following(slot, phase, STAGES)
    norm = gl.convert_layout(gl.sum(norm, 0), gl.SliceLayout(0, TURNED))
    return acc, m, norm, slot, phase


@gluon.jit
def consume(
    q_ptr, q_tile, p_tile, k_tiles, v_tiles, k_scales, v_scales, k_ready, v_ready, k_free, v_free,
    out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, arrived_ptr, seq_lens_ptr, cu_query_ptr,
    tree_ptr, items_ptr, first_ptr, kv_head, b, start, end, count, first, last, max_query,
    max_splits, scale_log2, stride_q_token, stride_q_head, stride_out_token, stride_out_head,
    PLANNED: gl.constexpr, PDL: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr,
    SPLIT: gl.constexpr, FP8: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    DTYPE: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """Attend with all rows to each item, and store its result or its state."""
    TURNED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    STORED: gl.constexpr = stored_layout(ROWS)
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
            q_tile.store(in_order_of_keys(query.to(gl.float16), ROWS))
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
                q_tile, p_tile, k_tiles, v_tiles, k_scales, v_scales, k_ready, v_ready, k_free,
                v_free, slot, phase, start, end, prefix, prefix + token, low, high, scale_log2,
                TREE, FP8, BLOCK_N, STAGES, ROWS, TURNED, SUMS=sums_layout(ROWS),
            )  # fmt: skip
            acc = acc.reshape([2, 4, 2, 8, ROWS]).permute((1, 3, 0, 2, 4)).reshape([DIM, ROWS])
            finish(
                gl.convert_layout(acc * (1.0 / WEIGHT_SHIFT), STORED),
                gl.convert_layout(m, gl.SliceLayout(0, STORED)),
                gl.convert_layout(norm, gl.SliceLayout(0, STORED)), out_ptr, lse_ptr, part_out_ptr,
                part_lse_ptr, arrived_ptr, first_ptr, kv_head, b, item, count, q_start, q_len,
                max_query, max_splits, stride_out_token, stride_out_head, PLANNED, KV_HEADS, GROUP,
                DIM, SPLIT, DTYPE, ROWS, STORED,
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
def decode_narrow8_kernel(
    q_ptr, k_pages, v_pages, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr, part_out_ptr,
    part_lse_ptr, arrived_ptr, table_ptr, indptr_ptr, seq_lens_ptr, cu_query_ptr, items_ptr,
    first_ptr, parts_ptr, tree_ptr, scale_log2, max_query, max_splits, min_tokens, single_below,
    fixed_tokens, stride_table, stride_q_token, stride_q_head, stride_out_token, stride_out_head,
    stride_k_page: gl.constexpr, stride_k_slot: gl.constexpr, stride_k_head,
    stride_v_page: gl.constexpr, stride_v_slot: gl.constexpr, stride_v_head,
    stride_s_page: gl.constexpr, stride_s_slot: gl.constexpr, stride_s_head,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, FP8: gl.constexpr, PAGE: gl.constexpr,
    SPLIT: gl.constexpr, PDL: gl.constexpr, ROWS: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """As `decode_split_kernel`, for 8-bit pages of 16 slots or more, and no rule but a tree."""
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
    k_scale_ptr += kv_head * stride_s_head
    v_scale_ptr += kv_head * stride_s_head
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    PAGES: gl.constexpr = gl.NVMMASharedLayout(128, 8, rank=2)
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    WEIGHTS: gl.constexpr = gl.NVMMASharedLayout(2 * ROWS if ROWS > 8 else 0, 16, rank=2)
    q_tile = gl.allocate_shared_memory(gl.float16, [ROWS, DIM], SHARED)
    p_tile = gl.allocate_shared_memory(gl.float16, [BLOCK_N, ROWS], WEIGHTS)
    k_tiles = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_N, DIM], PAGES)
    v_tiles = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_N, DIM], PAGES)
    k_scales = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_N], LINE)
    v_scales = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_N], LINE)
    k_ready = barriers(STAGES, 33)
    v_ready = barriers(STAGES, 33)
    k_free = barriers(STAGES, 128)
    v_free = barriers(STAGES, 128)
    fence_async_shared()  # so that the copy engine finds them made
    gl.thread_barrier()
    gl.warp_specialize(
        [
            (consume, (
                q_ptr, q_tile, p_tile, k_tiles, v_tiles, k_scales, v_scales, k_ready, v_ready,
                k_free, v_free, out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, arrived_ptr,
                seq_lens_ptr, cu_query_ptr, tree_ptr, items_ptr, first_ptr, kv_head, b, start, end,
                count, first, last, max_query, max_splits, scale_log2, stride_q_token,
                stride_q_head, stride_out_token, stride_out_head, PLANNED, PDL, KV_HEADS, GROUP,
                SPLIT, FP8, BLOCK_N, STAGES, out_ptr.dtype.element_ty, ROWS,
            )),
            (produce, (
                k_pages, k_tiles, k_scale_ptr, k_scales, k_ready, k_free, table_ptr, indptr_ptr,
                cu_query_ptr, items_ptr, b, start, end, count, first, last, max_query, k_at,
                k_column, stride_table, stride_s_page, stride_s_slot,
                stride_k_page // stride_k_slot, PLANNED, PDL, PAGE, BLOCK_N, STAGES,
            )),
            (produce, (
                v_pages, v_tiles, v_scale_ptr, v_scales, v_ready, v_free, table_ptr, indptr_ptr,
                cu_query_ptr, items_ptr, b, start, end, count, first, last, max_query, v_at,
                v_column, stride_table, stride_s_page, stride_s_slot,
                stride_v_page // stride_v_slot, PLANNED, PDL, PAGE, BLOCK_N, STAGES,
            )),
        ],
        [1, 1],
        [24, 24],
    )  # fmt: skip
