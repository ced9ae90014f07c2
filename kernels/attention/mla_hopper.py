# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN201, ANN202, C901, N803, N806, PLR0913, PLR0915, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Stage 1 of MLA decode for more than 32 rows on Hopper, written in Gluon, Triton's lower level.

The same walk as `mla_split_kernel`, with two things that Triton does not let a kernel say. Scores
are divided between the two warpgroups (Triton has both work out all of them, because a dot whose
result feeds another gets its warps along the rows, of which there are only 64). And the next tile's
copies start as soon as the scores' product is under way, into the buffer that the previous tile's
output product has just left: Triton, with two buffers, starts them after the output product.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from forebay.kernels._common.jit import first_item, next_item, split_of

__all__ = ["mla_hopper_kernel"]


@gluon.jit
def copy_tile(
    c_buffer,
    r_buffer,
    cache_ptr,
    pages,
    tokens,
    stride_page,
    stride_slot,
    LATENT: gl.constexpr,
    ROPE: gl.constexpr,
    PAGE: gl.constexpr,
    COPY: gl.constexpr,
):
    """Start the copies of one tile's rows; one commit group."""
    offs_c = gl.arange(0, LATENT, layout=gl.SliceLayout(0, COPY))
    offs_r = gl.arange(0, ROPE, layout=gl.SliceLayout(0, COPY))
    rows = pages.to(gl.int64) * stride_page + (tokens % PAGE) * stride_slot
    at = cache_ptr + gl.expand_dims(rows, 1)
    async_copy.async_copy_global_to_shared(c_buffer, at + gl.expand_dims(offs_c, 0))
    async_copy.async_copy_global_to_shared(r_buffer, at + LATENT + gl.expand_dims(offs_r, 0))
    async_copy.commit_group()


@gluon.jit(do_not_specialize=["max_splits", "min_tokens", "max_query", "stride_table"])
def mla_hopper_kernel(
    q_ptr,
    cache_ptr,
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    table_ptr,
    seq_lens_ptr,
    items_ptr,
    parts_ptr,
    scale_log2,
    max_query,
    max_splits,
    min_tokens,
    stride_table,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_page: gl.constexpr,
    stride_slot: gl.constexpr,
    HEADS: gl.constexpr,
    LATENT: gl.constexpr,
    ROPE: gl.constexpr,
    PAGE: gl.constexpr,
    SPLIT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
):
    """As `mla_split_kernel`, for tiles of 64 rows and 64 tokens and 16-bit caches; 8 warps."""
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0])
    ROWS: gl.constexpr = gl.SliceLayout(1, COPY)
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, BLOCK_N // 2, 16])
    OUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, LATENT // 2, 16])
    SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128 if BLOCK_N >= 64 else 64, 16, rank=2)

    row_block = gl.program_id(0)
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
    if parts_ptr is None:
        split = gl.program_id(1)
        b = gl.program_id(2)
        seq_len = gl.load(seq_lens_ptr + b)
        count, chunk = split_of(seq_len, max_splits, min_tokens, 0, 0, BLOCK_N)
        if split >= count:
            return
        start = split * chunk
        end = gl.minimum(start + chunk, seq_len)
        first = b * max_splits + split
        last = first + 1
    else:
        b, start, end, count, first, last = first_item(parts_ptr, gl.program_id(1))
        if b < 0:
            return

    q_tile = gl.allocate_shared_memory(DTYPE, [BLOCK_M, LATENT], SHARED)
    q_rope = gl.allocate_shared_memory(DTYPE, [BLOCK_M, ROPE], SHARED)
    c_tiles = gl.allocate_shared_memory(DTYPE, [2, BLOCK_N, LATENT], SHARED)
    r_tiles = gl.allocate_shared_memory(DTYPE, [2, BLOCK_N, ROPE], SHARED)
    weights_tile = gl.allocate_shared_memory(DTYPE, [BLOCK_M, BLOCK_N], SWIZZLED)

    copy_rows = row_block * BLOCK_M + gl.arange(0, BLOCK_M, layout=ROWS)
    offs_c = gl.arange(0, LATENT, layout=gl.SliceLayout(0, COPY))
    offs_r = gl.arange(0, ROPE, layout=gl.SliceLayout(0, COPY))
    tile_rows = gl.arange(0, BLOCK_N, layout=ROWS)
    rows = row_block * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, SCORES))
    out_rows = row_block * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, OUT))
    out_cols = gl.arange(0, LATENT, layout=gl.SliceLayout(0, OUT))
    offs_n = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, SCORES))

    # What is worked out before the loop would sit in registers through every tile.
    for item in tl.range(first, last, disable_licm=True):
        seq_len = gl.load(seq_lens_ptr + b)
        # The last rows of an unfilled block repeat a valid one and are not stored.
        valid = gl.minimum(copy_rows, max_query * HEADS - 1)
        q_at = (b * max_query + valid // HEADS).to(gl.int64) * stride_q_token
        q_from = q_ptr + gl.expand_dims(q_at + (valid % HEADS) * stride_q_head, 1)
        gl.thread_barrier()
        async_copy.async_copy_global_to_shared(q_tile, q_from + gl.expand_dims(offs_c, 0))
        async_copy.async_copy_global_to_shared(q_rope, q_from + LATENT + gl.expand_dims(offs_r, 0))
        async_copy.commit_group()
        row_ptr = table_ptr + gl.cast(b, gl.int64) * stride_table
        # Rows past the end repeat the last one: finite, and of weight zero.
        tokens = gl.minimum(start + tile_rows, end - 1)
        pages = gl.load(row_ptr + tokens // PAGE, mask=tokens >= 0, other=0)
        if start < end:
            copy_tile(
                c_tiles.index(0), r_tiles.index(0), cache_ptr, pages, tokens,
                stride_page, stride_slot, LATENT, ROPE, PAGE, COPY,
            )  # fmt: skip
        tokens = gl.minimum(start + BLOCK_N + tile_rows, end - 1)
        pages = gl.load(row_ptr + tokens // PAGE, mask=tokens >= 0, other=0)
        row_pos = seq_len - max_query + rows // HEADS
        m = gl.full([BLOCK_M], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
        norm = gl.full([BLOCK_M], 0.0, gl.float32, gl.SliceLayout(1, SCORES))
        nothing = gl.full([BLOCK_M, BLOCK_N], 0.0, gl.float32, SCORES)
        acc = gl.full([BLOCK_M, LATENT], 0.0, gl.float32, OUT)
        at = 0
        for n in range(start, end, BLOCK_N):
            c_tile = c_tiles.index(at)
            r_tile = r_tiles.index(at)
            async_copy.wait_group(0)
            gl.thread_barrier()
            fence_async_shared()
            scores = warpgroup_mma(
                q_tile, c_tile.permute((1, 0)), nothing, use_acc=False, is_async=True
            )
            scores = warpgroup_mma(q_rope, r_tile.permute((1, 0)), scores, is_async=True)
            at = 1 - at
            if n + BLOCK_N < end:
                copy_tile(
                    c_tiles.index(at), r_tiles.index(at), cache_ptr, pages, tokens,
                    stride_page, stride_slot, LATENT, ROPE, PAGE, COPY,
                )  # fmt: skip
            tokens = gl.minimum(n + 2 * BLOCK_N + tile_rows, end - 1)
            pages = gl.load(row_ptr + tokens // PAGE)
            scores = warpgroup_mma_wait(num_outstanding=0, deps=[scores])
            token = n + offs_n
            visible = gl.expand_dims(token, 0) <= gl.expand_dims(row_pos, 1)
            visible = visible & gl.expand_dims(token < end, 0)
            scores = gl.where(visible, scores, float("-inf"))
            m_new = gl.maximum(m, gl.max(scores, 1) * scale_log2)
            m_safe = gl.where(m_new == float("-inf"), 0.0, m_new)
            weights = gl.exp2(scores * scale_log2 - gl.expand_dims(m_safe, 1))
            rescale = gl.exp2(m - m_safe)
            m = m_new
            weights_tile.store(weights.to(DTYPE))
            norm = norm * rescale + gl.sum(weights, 1)
            rescale = gl.convert_layout(rescale, gl.SliceLayout(1, OUT))
            acc = acc * gl.expand_dims(rescale, 1)
            fence_async_shared()
            gl.thread_barrier()
            acc = warpgroup_mma(weights_tile, c_tile, acc)
        async_copy.wait_group(0)

        safe_norm = gl.where(norm == 0.0, 1.0, norm)
        lse2 = gl.where(norm == 0.0, float("-inf"), m + gl.log2(safe_norm))
        factor = gl.convert_layout(1.0 / safe_norm, gl.SliceLayout(1, OUT))
        acc = acc * gl.expand_dims(factor, 1)
        out_token = out_rows // HEADS
        out_head = out_rows % HEADS
        keep = gl.expand_dims(out_token < max_query, 1)
        lse_row = (b * max_query + rows // HEADS).to(gl.int64) * HEADS + rows % HEADS
        lse_keep = rows // HEADS < max_query
        if not SPLIT or count == 1:
            to = (b * max_query + out_token).to(gl.int64) * stride_out_token
            to = gl.expand_dims(to + out_head * stride_out_head, 1) + gl.expand_dims(out_cols, 0)
            gl.store(out_ptr + to, acc.to(DTYPE), mask=keep)
            if lse_ptr is not None:
                gl.store(lse_ptr + lse_row, lse2 * 0.6931471805599453, mask=lse_keep)
        else:
            to = (gl.cast(item, gl.int64) * max_query + out_token) * HEADS + out_head
            to = gl.expand_dims(to * LATENT, 1) + gl.expand_dims(out_cols, 0)
            gl.store(part_out_ptr + to, acc, mask=keep)
            lse_row = (gl.cast(item, gl.int64) * max_query + rows // HEADS) * HEADS + rows % HEADS
            gl.store(part_lse_ptr + lse_row, lse2, mask=lse_keep)
        if parts_ptr is not None:
            b, start, end, count = next_item(items_ptr, item, last)
