# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, PLR0913, PLR0917, RET505, SIM108
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Prefill on Hopper for 16-bit caches, written in Gluon, Triton's lower level.

The same rows and blocks as `prefill_kernel`, divided among three groups of four warps, which Triton
does not do for gathered pages: one copies, two have 64 rows each and wait for nothing but the tiles
they need, so that one's softmax runs beside the other's products. Within a group the next tile's
scores and this tile's output product are under way together, and weights go to the tensor cores
from registers (FlashAttention 3's order). A block's tiles are taken from the last to the first, so
that the masked ones, on the diagonal, come before the rest.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from forebay.kernels._common.jit import find_sequence

__all__ = ["prefill_hopper_kernel"]

# Registers a thread of the second group that computes and of the one that copies; the first group
# has the same as the second. 168, what 384 threads could have each, would not hold a tile.
REGISTERS = gl.constexpr((200, 104))


@gluon.jit
def copy_rows(buffer, ptr, offsets, DIM: gl.constexpr, COPY: gl.constexpr):
    """Start copying the rows at offsets."""
    columns = gl.arange(0, DIM, layout=gl.SliceLayout(0, COPY))
    at = ptr + gl.expand_dims(offsets, 1) + gl.expand_dims(columns, 0)
    async_copy.async_copy_global_to_shared(buffer, at)


@gluon.jit
def slots_of(tile, rows, PAGE: gl.constexpr, BLOCK_N: gl.constexpr):
    """Slot of each token of a tile in its page."""
    if BLOCK_N % PAGE == 0:
        return rows % PAGE
    else:
        return (tile * BLOCK_N + rows) % PAGE


@gluon.jit
def pages_of(row_ptr, tile, rows, PAGE: gl.constexpr, BLOCK_N: gl.constexpr):
    """Page id of each token of a tile; 0 where there is no such tile."""
    if BLOCK_N % PAGE == 0:
        index = tile * (BLOCK_N // PAGE) + rows // PAGE
    else:
        index = (tile * BLOCK_N + rows) // PAGE
    return gl.load(row_ptr + index, mask=tile >= 0, other=0)


@gluon.jit
def softmax_of(scores, m, norm, scale_log2, tokens, row_pos, MASKED: gl.constexpr):
    """Take a tile of scores in; returns weights, the factor for what was before, m and norm."""
    if MASKED:
        visible = gl.expand_dims(tokens, 0) <= gl.expand_dims(row_pos, 1)
        scores = gl.where(visible, scores, float("-inf"))
    m_new = gl.maximum(m, gl.max(scores, 1) * scale_log2)
    if MASKED:
        m_safe = gl.where(m_new == float("-inf"), 0.0, m_new)
    else:
        m_safe = m_new
    weights = gl.exp2(scores * scale_log2 - gl.expand_dims(m_safe, 1))
    rescale = gl.exp2(m - m_safe)
    return weights, rescale, m_new, norm * rescale + gl.sum(weights, 1)


@gluon.jit
def produce(
    q_ptr, k_ptr, v_ptr, row_ptr, q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free,
    q_start, q_first, q_len, kv_head, last, end, stride_q_token, stride_q_head,
    stride_k_page: gl.constexpr, stride_k_slot: gl.constexpr, stride_v_page: gl.constexpr,
    stride_v_slot: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy queries, then keys and values tile by tile, the last tile first."""
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    ROWS: gl.constexpr = gl.SliceLayout(1, COPY)
    BLOCK_Q: gl.constexpr = BLOCK_M // GROUP
    for part in gl.static_range(2):
        copied = part * (BLOCK_M // 2) + gl.arange(0, BLOCK_M // 2, layout=ROWS)
        held = gl.minimum(copied, BLOCK_Q * GROUP - 1)
        q_token = q_start + gl.minimum(q_first + held // GROUP, q_len - 1)
        q_head = kv_head * GROUP + held % GROUP
        q_at = q_token.to(gl.int64) * stride_q_token + q_head * stride_q_head
        copy_rows(q_tiles.index(part), q_ptr, q_at, DIM, COPY)
    rows = gl.arange(0, BLOCK_N, layout=ROWS)
    # Tokens past the end repeat the last one, as rows of the block past the last valid one do.
    tokens = gl.minimum(last * BLOCK_N + rows, end - 1)
    pages = gl.load(row_ptr + tokens // PAGE)
    slots = tokens % PAGE
    ahead = pages_of(row_ptr, last - 1, rows, PAGE, BLOCK_N)
    slot = 0
    phase = 1
    for i in range(last + 1):
        mbarrier.wait(k_free.index(slot), phase)
        keys_at = pages.to(gl.int64) * stride_k_page + slots * stride_k_slot
        copy_rows(k_tiles.index(slot), k_ptr, keys_at, DIM, COPY)
        async_copy.mbarrier_arrive(k_ready.index(slot), increment_count=False)
        mbarrier.wait(v_free.index(slot), phase)
        values_at = pages.to(gl.int64) * stride_v_page + slots * stride_v_slot
        copy_rows(v_tiles.index(slot), v_ptr, values_at, DIM, COPY)
        async_copy.mbarrier_arrive(v_ready.index(slot), increment_count=False)
        pages = ahead
        slots = slots_of(last - 1 - i, rows, PAGE, BLOCK_N)
        ahead = pages_of(row_ptr, last - 2 - i, rows, PAGE, BLOCK_N)
        phase = gl.where(slot == STAGES - 1, 1 - phase, phase)
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)
    async_copy.wait_group(0)


@gluon.jit
def step(
    acc, weights, m, norm, slot, phase, tile, q_tile, k_tiles, v_tiles, k_ready, v_ready, k_free,
    v_free, columns, row_pos, scale_log2, MASKED: gl.constexpr, ROWS_M: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, DTYPE: gl.constexpr, SCORES: gl.constexpr,
    OUT: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """Score a tile, while what the one after it weighs is added up.

    slot, phase: of the buffer that the values of the one after are in.
    """
    k_slot = gl.where(slot == STAGES - 1, 0, slot + 1)
    k_phase = gl.where(slot == STAGES - 1, 1 - phase, phase)
    nothing = gl.full([ROWS_M, BLOCK_N], 0.0, gl.float32, SCORES)
    mbarrier.wait(k_ready.index(k_slot), k_phase)
    fence_async_shared()
    keys = k_tiles.index(k_slot).permute((1, 0))
    scores = warpgroup_mma(q_tile, keys, nothing, use_acc=False, is_async=True)
    mbarrier.wait(v_ready.index(slot), phase)
    fence_async_shared()
    acc = warpgroup_mma(weights, v_tiles.index(slot), acc, is_async=True)
    scores, acc = warpgroup_mma_wait(num_outstanding=1, deps=[scores, acc])
    mbarrier.arrive(k_free.index(k_slot), count=1)
    weighed, rescale, m, norm = softmax_of(
        scores, m, norm, scale_log2, tile * BLOCK_N + columns, row_pos, MASKED
    )
    weights = gl.convert_layout(weighed.to(DTYPE), LEFT)
    acc, weights = warpgroup_mma_wait(num_outstanding=0, deps=[acc, weights])
    mbarrier.arrive(v_free.index(slot), count=1)
    acc = acc * gl.expand_dims(gl.convert_layout(rescale, gl.SliceLayout(1, OUT)), 1)
    return acc, weights, m, norm, k_slot, k_phase


@gluon.jit
def consume(
    q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, out_ptr, lse_ptr, q_start,
    q_first, q_len, prefix, kv_head, last, whole, scale_log2, stride_out_token, stride_out_head,
    PART: gl.constexpr, KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """Attend with half of the block's rows, and store what comes out."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, OUT, 2)
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DIM, DIM // 8], [4, 1], [1, 0])
    BLOCK_Q: gl.constexpr = BLOCK_M // GROUP
    ROWS_M: gl.constexpr = BLOCK_M // 2
    q_tile = q_tiles.index(PART)
    columns = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, SCORES))
    scored = PART * ROWS_M + gl.arange(0, ROWS_M, layout=gl.SliceLayout(1, SCORES))
    scored_token = gl.minimum(q_first + scored // GROUP, q_len - 1)
    row_pos = prefix + scored_token
    m = gl.full([ROWS_M], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
    norm = gl.full([ROWS_M], 0.0, gl.float32, gl.SliceLayout(1, SCORES))
    acc = gl.full([ROWS_M, DIM], 0.0, gl.float32, OUT)
    nothing = gl.full([ROWS_M, BLOCK_N], 0.0, gl.float32, SCORES)
    mbarrier.wait(k_ready.index(0), 0)
    fence_async_shared()
    scores = warpgroup_mma(q_tile, k_tiles.index(0).permute((1, 0)), nothing, use_acc=False)
    mbarrier.arrive(k_free.index(0), count=1)
    weighed, _rescale, m, norm = softmax_of(
        scores, m, norm, scale_log2, last * BLOCK_N + columns, row_pos, True
    )
    weights = gl.convert_layout(weighed.to(DTYPE), LEFT)
    slot = 0
    phase = 0
    for i in range(last - whole):
        acc, weights, m, norm, slot, phase = step(
            acc, weights, m, norm, slot, phase, last - 1 - i, q_tile, k_tiles, v_tiles,
            k_ready, v_ready, k_free, v_free, columns, row_pos, scale_log2,
            True, ROWS_M, BLOCK_N, STAGES, DTYPE, SCORES, OUT, LEFT,
        )  # fmt: skip
    for i in range(whole):
        acc, weights, m, norm, slot, phase = step(
            acc, weights, m, norm, slot, phase, whole - 1 - i, q_tile, k_tiles, v_tiles,
            k_ready, v_ready, k_free, v_free, columns, row_pos, scale_log2,
            False, ROWS_M, BLOCK_N, STAGES, DTYPE, SCORES, OUT, LEFT,
        )  # fmt: skip
    mbarrier.wait(v_ready.index(slot), phase)
    fence_async_shared()
    acc = warpgroup_mma(weights, v_tiles.index(slot), acc)
    factor = gl.convert_layout(1.0 / norm, gl.SliceLayout(1, OUT))
    q_tile.store((acc * gl.expand_dims(factor, 1)).to(DTYPE))
    gl.thread_barrier()
    result = q_tile.load(COPY)
    copied = PART * ROWS_M + gl.arange(0, ROWS_M, layout=gl.SliceLayout(1, COPY))
    out_token = (q_start + q_first + copied // GROUP).to(gl.int64)
    out_at = out_token * stride_out_token + (kv_head * GROUP + copied % GROUP) * stride_out_head
    to = out_ptr + gl.expand_dims(out_at, 1)
    to = to + gl.expand_dims(gl.arange(0, DIM, layout=gl.SliceLayout(0, COPY)), 0)
    keep = (copied < BLOCK_Q * GROUP) & (q_first + copied // GROUP < q_len)
    gl.store(to, result, mask=gl.expand_dims(keep, 1))
    if lse_ptr is not None:
        lse = (m + gl.log2(norm)) * 0.6931471805599453
        lse_at = (q_start + scored_token).to(gl.int64) * (KV_HEADS * GROUP)
        lse_at += kv_head * GROUP + scored % GROUP
        kept = (scored < BLOCK_Q * GROUP) & (q_first + scored // GROUP < q_len)
        gl.store(lse_ptr + lse_at, lse, mask=kept)


@gluon.jit(do_not_specialize=["sequences", "blocks", "stride_table"])
def prefill_hopper_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, table_ptr, indptr_ptr, seq_lens_ptr, cu_query_ptr,
    scale_log2, sequences, blocks, stride_table, stride_q_token, stride_q_head, stride_out_token,
    stride_out_head, stride_k_page: gl.constexpr, stride_k_slot: gl.constexpr, stride_k_head,
    stride_v_page: gl.constexpr, stride_v_slot: gl.constexpr, stride_v_head,
    KV_HEADS: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, PAGE: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As `prefill_kernel`, for blocks of 128 rows, causal order and no other rule; 4 warps."""
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    BLOCK_Q: gl.constexpr = BLOCK_M // GROUP
    kv_head = gl.program_id(0) % KV_HEADS
    block = blocks - 1 - gl.program_id(0) // KV_HEADS
    b = find_sequence(cu_query_ptr, block, sequences, BLOCK_Q)
    q_start = gl.load(cu_query_ptr + b)
    q_len = gl.load(cu_query_ptr + b + 1) - q_start
    q_first = (block - (q_start // BLOCK_Q + b)) * BLOCK_Q
    if q_first >= q_len:
        return
    prefix = gl.load(seq_lens_ptr + b) - q_len
    if indptr_ptr is None:
        row_ptr = table_ptr + gl.cast(b, gl.int64) * stride_table
    else:
        row_ptr = table_ptr + gl.load(indptr_ptr + b)
    k_ptr += kv_head * stride_k_head
    v_ptr += kv_head * stride_v_head
    end = prefix + gl.minimum(q_first + BLOCK_Q, q_len)
    last = (end - 1) // BLOCK_N
    whole = gl.minimum((prefix + q_first + 1) // BLOCK_N, last)
    q_tiles = gl.allocate_shared_memory(DTYPE, [2, BLOCK_M // 2, DIM], SHARED)
    k_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, DIM], SHARED)
    v_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, DIM], SHARED)
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(stage), count=128)
        mbarrier.init(v_ready.index(stage), count=128)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_free.index(stage), count=2)
    gl.thread_barrier()
    # Queries arrive with the first keys, so that one barrier says that both are there.
    gl.warp_specialize(
        [
            (consume, (
                q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, out_ptr, lse_ptr,
                q_start, q_first, q_len, prefix, kv_head, last, whole, scale_log2,
                stride_out_token, stride_out_head, gl.constexpr(0), KV_HEADS, GROUP, DIM, BLOCK_M,
                BLOCK_N, STAGES, DTYPE,
            )),
            (consume, (
                q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free, v_free, out_ptr, lse_ptr,
                q_start, q_first, q_len, prefix, kv_head, last, whole, scale_log2,
                stride_out_token, stride_out_head, gl.constexpr(1), KV_HEADS, GROUP, DIM, BLOCK_M,
                BLOCK_N, STAGES, DTYPE,
            )),
            (produce, (
                q_ptr, k_ptr, v_ptr, row_ptr, q_tiles, k_tiles, v_tiles, k_ready, v_ready, k_free,
                v_free, q_start, q_first, q_len, kv_head, last, end, stride_q_token,
                stride_q_head, stride_k_page, stride_k_slot, stride_v_page, stride_v_slot, GROUP,
                DIM, PAGE, BLOCK_M, BLOCK_N, STAGES,
            )),
        ],
        [4, 4],
        REGISTERS.value,
    )  # fmt: skip
