# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false, reportAttributeAccessIssue=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, FURB136, N803, N806, PLR0913, PLR0915, PLR0917, RUF059
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Stage 1 of MLA decode for up to 32 rows on Hopper, written in Gluon, Triton's lower level.

Few rows leave nothing to compute but reading: one warp keeps the copy engine busy, four compute.
Both products have the cached rows on the left, where the tensor cores take 64 at a time, and the
heads on the right, where they take 16: scores and output lie transposed in registers, `[tokens,
heads]` and `[latent, heads]`, and no row is padding beyond those that fill up 16. Of one tile in
shared memory the second product reads the columns.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from forebay.kernels._common.jit import first_item, next_item, split_of

from .hopper import barriers, following, gather, give_back, take_pages

__all__ = ["mla_narrow_kernel"]


@gluon.jit
def whole_ids(row_ptr, base, limit, COUNT: gl.constexpr, ROWS: gl.constexpr, PAGE: gl.constexpr):
    """Load the pages of the tile at base, if it ends before limit."""
    ids = ()
    for p in gl.static_range(COUNT):
        at = row_ptr + (base + p * ROWS) // PAGE
        ids = ids + (gl.load(at, mask=base < limit, other=0),)  # noqa: RUF005 - Gluon unpacks none
    return ids


@gluon.jit
def produce(
    cache_ptr, pages, c_tiles, r_tiles, ready, free, table_ptr, items_ptr, b, start, end, count,
    first, last, stride_table, stride_page: gl.constexpr, stride_slot: gl.constexpr,
    PLANNED: gl.constexpr, LATENT: gl.constexpr, ROPE: gl.constexpr, PAGE: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the rows of each item; one warp.

    Whole tiles come by pages, of which `pages` is the copy engine's map. One that ends inside a
    page, whose other slots may hold anything, NaN too, is gathered row by row.
    """
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    DTYPE: gl.constexpr = cache_ptr.dtype.element_ty
    WIDE: gl.constexpr = LATENT // 64
    SMALL: gl.constexpr = BLOCK_N // 32
    ROWS: gl.constexpr = BLOCK_N if PAGE > BLOCK_N else PAGE
    COUNT: gl.constexpr = BLOCK_N // ROWS
    c_pieces = c_tiles._reinterpret(DTYPE, [STAGES * WIDE * COUNT, ROWS, 64], SHARED)  # noqa: SLF001 - Gluon's only way
    r_pieces = r_tiles._reinterpret(DTYPE, [STAGES * COUNT, ROWS, 64], SHARED)  # noqa: SLF001 - as above
    c_small = c_tiles._reinterpret(DTYPE, [STAGES * WIDE * SMALL, 32, 64], SHARED)  # noqa: SLF001 - as above
    r_small = r_tiles._reinterpret(DTYPE, [STAGES * SMALL, 32, 64], SHARED)  # noqa: SLF001 - as above
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(1)
    for item in tl.range(first, last, disable_licm=True):
        row_ptr = table_ptr + gl.cast(b, gl.int64) * stride_table
        tiles = (end - start + BLOCK_N - 1) // BLOCK_N
        whole = (end - start) // BLOCK_N
        limit = start + whole * BLOCK_N
        ids = whole_ids(row_ptr, start, limit, COUNT, ROWS, PAGE)
        tl.extra.cuda.gdc_wait()
        for i in range(whole):
            base = start + i * BLOCK_N
            inside = base % PAGE if PAGE > BLOCK_N else 0
            take_pages(
                c_pieces, slot * WIDE * COUNT, ready.index(slot), free.index(slot), phase,
                pages, ids, inside, 0, stride_page // stride_slot, COUNT, LATENT, BLOCK_N,
            )  # fmt: skip
            take_pages(
                r_pieces, slot * COUNT, ready.index(slot), free.index(slot), phase,
                pages, ids, inside, LATENT, stride_page // stride_slot, COUNT, ROPE, BLOCK_N,
            )  # fmt: skip
            ids = whole_ids(row_ptr, base + BLOCK_N, limit, COUNT, ROWS, PAGE)
            slot, phase = following(slot, phase, STAGES)
        for i in range(whole, tiles):
            base = start + i * BLOCK_N
            gather(
                c_small, slot * WIDE * SMALL, ready.index(slot), free.index(slot), phase,
                cache_ptr, row_ptr, base, end, stride_page, stride_slot, LATENT, PAGE, BLOCK_N,
            )  # fmt: skip
            gather(
                r_small, slot * SMALL, ready.index(slot), free.index(slot), phase,
                cache_ptr + LATENT, row_ptr, base, end, stride_page, stride_slot, ROPE, PAGE,
                BLOCK_N,
            )  # fmt: skip
            slot, phase = following(slot, phase, STAGES)
        if PLANNED:
            b, start, end, count = next_item(items_ptr, item, last)
    async_copy.wait_group(0)


@gluon.jit
def consume(
    q_ptr, q_tile, q_rope, c_tiles, r_tiles, weights_tile, ready, free, out_ptr, lse_ptr,
    part_out_ptr, part_lse_ptr, seq_lens_ptr, items_ptr, row_block, b, start, end, count, first,
    last, max_query, scale_log2, stride_q_token, stride_q_head, stride_out_token,
    stride_out_head, PLANNED: gl.constexpr, HEADS: gl.constexpr, LATENT: gl.constexpr,
    ROPE: gl.constexpr, SPLIT: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, DTYPE: gl.constexpr,
):  # fmt: skip
    """Attend with the block's rows to each item, and store its result or its state."""
    WIDE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    BY_ROW: gl.constexpr = gl.SliceLayout(0, WIDE)
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    tokens = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(1, WIDE))
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    for item in tl.range(first, last, disable_licm=True):
        copied = row_block * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, COPY))
        # The last rows of an unfilled block repeat a valid one and are not stored.
        copied = gl.minimum(copied, max_query * HEADS - 1)
        q_at = (b * max_query + copied // HEADS).to(gl.int64) * stride_q_token
        q_at = q_ptr + gl.expand_dims(q_at + copied % HEADS * stride_q_head, 1)
        columns = gl.expand_dims(gl.arange(0, LATENT, layout=gl.SliceLayout(0, COPY)), 0)
        rotated = gl.expand_dims(gl.arange(0, ROPE, layout=gl.SliceLayout(0, COPY)), 0)
        held = gl.load(q_at + columns)
        held_rope = gl.load(q_at + LATENT + rotated)
        seq_len = gl.load(seq_lens_ptr + b)
        gl.thread_barrier()
        q_tile.store(held)
        q_rope.store(held_rope)
        fence_async_shared()
        gl.thread_barrier()
        rows = row_block * BLOCK_M + gl.arange(0, BLOCK_M, layout=BY_ROW)
        row_pos = gl.minimum(seq_len - max_query + rows // HEADS, end - 1)
        m = gl.full([BLOCK_M], float("-inf"), gl.float32, BY_ROW)
        norm = gl.full([BLOCK_N, BLOCK_M], 0.0, gl.float32, WIDE)
        nothing = gl.full([BLOCK_N, BLOCK_M], 0.0, gl.float32, WIDE)
        acc = gl.full([LATENT, BLOCK_M], 0.0, gl.float32, WIDE)
        # By a count: of a range that begins at start Triton keeps the first item's start for all.
        for i in range((end - start + BLOCK_N - 1) // BLOCK_N):
            c_tile = c_tiles.index(slot)
            mbarrier.wait(ready.index(slot), phase)
            fence_async_shared()
            scores = warpgroup_mma(
                c_tile, q_tile.permute((1, 0)), nothing, use_acc=False, is_async=True
            )
            scores = warpgroup_mma(
                r_tiles.index(slot), q_rope.permute((1, 0)), scores, is_async=True
            )
            scores = warpgroup_mma_wait(num_outstanding=0, deps=[scores])
            seen = gl.expand_dims(start + i * BLOCK_N + tokens, 1) <= gl.expand_dims(row_pos, 0)
            scores = gl.where(seen, scores, float("-inf"))
            m_new = gl.maximum(m, gl.max(scores, 0) * scale_log2)
            m_safe = gl.where(m_new == float("-inf"), 0.0, m_new)
            weights = gl.exp2(scores * scale_log2 - gl.expand_dims(m_safe, 0))
            rescale = gl.expand_dims(gl.exp2(m - m_safe), 0)
            m = m_new
            weights_tile.permute((1, 0)).store(weights.to(DTYPE))
            # Summed up at the end: each thread has its own tokens' sums until then.
            norm = norm * rescale + weights
            acc = acc * rescale
            fence_async_shared()
            gl.thread_barrier()
            acc = warpgroup_mma(c_tile.permute((1, 0)), weights_tile.permute((1, 0)), acc)
            give_back(free.index(slot))
            slot, phase = following(slot, phase, STAGES)

        total = gl.sum(norm, 0)
        nobody = total == 0.0
        safe = gl.where(nobody, 1.0, total)
        lse2 = gl.where(nobody, float("-inf"), m + gl.log2(safe))
        acc = acc * gl.expand_dims(1.0 / safe, 0)
        rows = row_block * BLOCK_M + gl.arange(0, BLOCK_M, layout=BY_ROW)
        keep = rows // HEADS < max_query
        latent = gl.expand_dims(gl.arange(0, LATENT, layout=gl.SliceLayout(1, WIDE)), 1)
        if not SPLIT or count == 1:
            token = (b * max_query + rows // HEADS).to(gl.int64)
            to = token * stride_out_token + rows % HEADS * stride_out_head
            to = out_ptr + gl.expand_dims(to, 0)
            gl.store(to + latent, acc.to(DTYPE), mask=gl.expand_dims(keep, 0))
            if lse_ptr is not None:
                at = lse_ptr + token * HEADS + rows % HEADS
                gl.store(at, lse2 * 0.6931471805599453, mask=keep)
        else:
            part = gl.cast(item, gl.int64) * max_query * HEADS + rows
            part_to = part_out_ptr + gl.expand_dims(part * LATENT, 0)
            gl.store(part_to + latent, acc, mask=gl.expand_dims(keep, 0))
            gl.store(part_lse_ptr + part, lse2, mask=keep)
        if PLANNED:
            b, start, end, count = next_item(items_ptr, item, last)


@gluon.jit(do_not_specialize=["max_splits", "min_tokens", "max_query", "stride_table"])
def mla_narrow_kernel(
    q_ptr, cache_ptr, pages, out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, table_ptr,
    seq_lens_ptr, items_ptr, parts_ptr, scale_log2, max_query, max_splits, min_tokens,
    stride_table, stride_q_token, stride_q_head, stride_out_token, stride_out_head,
    stride_page: gl.constexpr, stride_slot: gl.constexpr, HEADS: gl.constexpr,
    LATENT: gl.constexpr, ROPE: gl.constexpr, PAGE: gl.constexpr, SPLIT: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As `mla_split_kernel`, for tiles of 16 or 32 rows and 64 tokens and 16-bit caches."""
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    PLANNED: gl.constexpr = parts_ptr is not None
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    row_block = gl.program_id(0)
    if parts_ptr is None:
        split = gl.program_id(1)
        b = gl.program_id(2)
        seq_len = gl.load(seq_lens_ptr + b)
        count, chunk = split_of(seq_len, max_splits, min_tokens, 0, 0, BLOCK_N)
        start = split * chunk
        end = gl.minimum(start + chunk, seq_len)
        first = b * max_splits + split
        last = gl.where(split < count, first + 1, first)
    else:
        b, start, end, count, first, last = first_item(parts_ptr, gl.program_id(1))
        last = gl.where(b < 0, first, last)
    if first >= last:
        tl.extra.cuda.gdc_wait()
        return
    q_tile = gl.allocate_shared_memory(DTYPE, [BLOCK_M, LATENT], SHARED)
    q_rope = gl.allocate_shared_memory(DTYPE, [BLOCK_M, ROPE], SHARED)
    c_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, LATENT], SHARED)
    r_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, BLOCK_N, ROPE], SHARED)
    weights_tile = gl.allocate_shared_memory(DTYPE, [BLOCK_M, BLOCK_N], SHARED)
    # Latent and rotated rows are two copies: each brings an expectation and a warp's arrivals.
    ready = barriers(STAGES, 66)
    free = barriers(STAGES, 128)
    fence_async_shared()  # so that the copy engine finds them made
    gl.thread_barrier()
    gl.warp_specialize(
        [
            (consume, (
                q_ptr, q_tile, q_rope, c_tiles, r_tiles, weights_tile, ready, free, out_ptr,
                lse_ptr, part_out_ptr, part_lse_ptr, seq_lens_ptr, items_ptr, row_block, b, start,
                end, count, first, last, max_query, scale_log2, stride_q_token, stride_q_head,
                stride_out_token, stride_out_head, PLANNED, HEADS, LATENT, ROPE, SPLIT, BLOCK_M,
                BLOCK_N, STAGES, DTYPE,
            )),
            (produce, (
                cache_ptr, pages, c_tiles, r_tiles, ready, free, table_ptr, items_ptr, b, start,
                end, count, first, last, stride_table, stride_page, stride_slot, PLANNED, LATENT,
                ROPE, PAGE, BLOCK_N, STAGES,
            )),
        ],
        [1],
        [128],
    )  # fmt: skip
