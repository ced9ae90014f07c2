# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917, SIM102
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""MLA decode on the compressed latent cache, with absorbed weights.

All heads share one cached row: a latent (512) that is both key and value, and a rotated key (64).
A tile of rows is loaded once and serves both products. Splits, plan and the merge of partial states
are decode's; a partial state is 2 KB a head, so the splits are kept long (see MIN_TOKENS).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import LOG2E, check, config_for, next_power_of_2, sm_count
from forebay.kernels._common.jit import load_pages, online_softmax, page_rows, split_of

from .decode import Workspace, decode_merge_kernel
from .splits import Plan, StaticSplits, make_plan, occupancy_splits

__all__ = ["MlaConfig", "mla_config", "mla_decode", "mla_plan"]

MIN_TOKENS = 512


@triton.jit
def _mla_tile(
    acc,
    m,
    norm,
    q,
    q_other,
    q_rope,
    pages,
    n,
    end,
    row_pos,
    cache_ptr,
    scale_log2,
    stride_page,
    stride_slot,
    mine,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    PARTS: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    width: tl.constexpr = LATENT // PARTS
    offs_n = n + tl.arange(0, BLOCK_N)
    rows = page_rows(pages, n, stride_page, stride_slot, PAGE, BLOCK_N)
    at = cache_ptr + rows[:, None]
    inside = offs_n < end
    # The columns this program returns come first in c, whichever they are; the rest in other.
    c = tl.load(at + mine + tl.arange(0, width)[None, :], mask=inside[:, None], other=0.0)
    c = c.to(q.dtype)  # [BLOCK_N, width]
    r = tl.load(at + LATENT + tl.arange(0, ROPE)[None, :], mask=inside[:, None], other=0.0)
    scores = tl.dot(q, tl.trans(c), input_precision=PRECISION)
    if PARTS == 2:
        other = tl.load(
            at + (width - mine) + tl.arange(0, width)[None, :], mask=inside[:, None], other=0.0
        )
        scores = tl.dot(q_other, tl.trans(other.to(q.dtype)), scores, input_precision=PRECISION)
    scores = tl.dot(q_rope, tl.trans(r.to(q.dtype)), scores, input_precision=PRECISION)
    visible = (offs_n[None, :] <= row_pos[:, None]) & inside[None, :]
    scores = tl.where(visible, scores, float("-inf"))
    weights, rescale, m, norm = online_softmax(scores, scale_log2, m, norm, True)
    acc = acc * rescale[:, None]
    acc = tl.dot(weights.to(q.dtype), c, acc, input_precision=PRECISION)
    return acc, m, norm


@triton.jit
def attend_latent(
    q_ptr,
    cache_ptr,
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    table_ptr,
    seq_lens_ptr,
    row_block,
    mine,
    b,
    start,
    end,
    count,
    item,
    scale_log2,
    latent_scale,
    max_query,
    stride_table,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_page,
    stride_slot,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    PARTS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attend to tokens start : end of sequence b, and store columns mine : mine + width."""
    width: tl.constexpr = LATENT // PARTS
    seq_len = tl.load(seq_lens_ptr + b)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    row_token = rows // HEADS
    row_head = rows % HEADS
    row_valid = row_token < max_query
    row_pos = seq_len - max_query + row_token
    q_at = (b * max_query + row_token).to(tl.int64) * stride_q_token + row_head * stride_q_head
    q_from = q_ptr + q_at[:, None]
    keep = row_valid[:, None]
    offs_v = tl.arange(0, width)
    q = tl.load(q_from + mine + offs_v[None, :], mask=keep, other=0.0).to(COMPUTE)
    q_rope = tl.load(q_from + LATENT + tl.arange(0, ROPE)[None, :], mask=keep, other=0.0)
    q_rope = q_rope.to(COMPUTE)  # [BLOCK_M, ROPE]
    q_other = q  # [BLOCK_M, width]
    if PARTS == 2:
        q_other = tl.load(q_from + (width - mine) + offs_v[None, :], mask=keep, other=0.0)
        q_other = q_other.to(COMPUTE)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, width], dtype=tl.float32)
    row_ptr = table_ptr + tl.cast(b, tl.int64) * stride_table
    pages = load_pages(row_ptr, start, end, PAGE, BLOCK_N)
    # One loop, always masked: a second copy of the tile's code costs registers that are not there.
    for n in tl.range(start, end, BLOCK_N):
        ahead = load_pages(row_ptr, n + BLOCK_N, end, PAGE, BLOCK_N)
        acc, m, norm = _mla_tile(
            acc, m, norm, q, q_other, q_rope, pages, n, end, row_pos, cache_ptr, scale_log2,
            stride_page, stride_slot, mine, LATENT, ROPE, PARTS, PAGE, BLOCK_N, PRECISION,
        )  # fmt: skip
        pages = ahead

    safe_norm = tl.where(norm == 0.0, 1.0, norm)
    acc = acc * (latent_scale / safe_norm)[:, None]
    lse2 = tl.where(norm == 0.0, float("-inf"), m + tl.log2(safe_norm))
    if not SPLIT or count == 1:
        out_at = (b * max_query + row_token).to(tl.int64) * stride_out_token
        out_at += row_head * stride_out_head + mine
        tl.store(
            out_ptr + out_at[:, None] + offs_v[None, :], acc.to(out_ptr.dtype.element_ty), mask=keep
        )
        if lse_ptr is not None:
            if mine == 0:
                lse_at = (b * max_query + row_token).to(tl.int64) * HEADS + row_head
                tl.store(lse_ptr + lse_at, lse2 * 0.6931471805599453, mask=row_valid)
    else:
        part_at = (tl.cast(item, tl.int64) * max_query + row_token) * HEADS + row_head
        at = part_at * LATENT + mine
        tl.store(part_out_ptr + at[:, None] + offs_v[None, :], acc, mask=keep)
        if mine == 0:
            tl.store(part_lse_ptr + part_at, lse2, mask=row_valid)


@triton.jit(do_not_specialize=["max_splits", "min_tokens", "max_query", "stride_table"])
def mla_split_kernel(
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
    latent_scale,
    max_query,
    max_splits,
    min_tokens,
    stride_table,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_page: tl.constexpr,
    stride_slot: tl.constexpr,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    PARTS: tl.constexpr,
    PAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row_block = tl.program_id(0) // PARTS
    mine = tl.program_id(0) % PARTS * (LATENT // PARTS)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if parts_ptr is None:
        split = tl.program_id(1)
        b = tl.program_id(2)
        seq_len = tl.load(seq_lens_ptr + b)
        count, chunk = split_of(seq_len, max_splits, min_tokens, 0, 0, BLOCK_N)
        if split >= count:
            return
        start = split * chunk
        end = tl.minimum(start + chunk, seq_len)
        first = b * max_splits + split
        last = first + 1
    else:
        record = parts_ptr + tl.program_id(1) * 8
        b = tl.load(record)
        if b < 0:
            return
        start = tl.load(record + 1)
        end = tl.load(record + 2)
        count = tl.load(record + 3)
        first = tl.load(record + 4)
        last = tl.load(record + 5)
    # What is worked out before the loop would sit in registers through every tile.
    for item in tl.range(first, last, disable_licm=True):
        attend_latent(
            q_ptr, cache_ptr, out_ptr, lse_ptr, part_out_ptr, part_lse_ptr, table_ptr,
            seq_lens_ptr, row_block, mine, b, start, end, count, item, scale_log2, latent_scale,
            max_query, stride_table, stride_q_token, stride_q_head, stride_out_token,
            stride_out_head, stride_page, stride_slot,
            HEADS, LATENT, ROPE, PARTS, PAGE, SPLIT, COMPUTE, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        if parts_ptr is not None:
            more = item + 1 < last
            b = tl.load(items_ptr + (item + 1) * 4, mask=more, other=0)
            start = tl.load(items_ptr + (item + 1) * 4 + 1, mask=more, other=0)
            end = tl.load(items_ptr + (item + 1) * 4 + 2, mask=more, other=0)
            count = tl.load(items_ptr + (item + 1) * 4 + 3, mask=more, other=0)


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """Launch settings.

    resident: programs expected on an SM at a time. parts: programs that share a row's output; each
    works out all scores and multiplies them with its own columns. hopper: run the Gluon kernel of
    mla_hopper where it applies, to 16-bit caches of DeepSeek's dims.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    resident: int
    parts: int = 1
    hopper: bool = False


def mla_config(*, query: torch.Tensor, latent: torch.Tensor, max_query_len: int = 1) -> MlaConfig:
    """Look the launch settings up by element size and rows."""
    rows = min(max(16, next_power_of_2(query.shape[1] * max_query_len)), 64)
    built_in = {"block_n": 32, "num_warps": 4, "num_stages": 2, "resident": 2}
    if rows == 64:
        built_in |= {"num_warps": 8, "resident": 1}
    found = config_for("mla", f"kv{latent.element_size() * 8}-m{rows}", query.device, built_in)
    return MlaConfig(block_m=rows, **found)


def _programs(query: torch.Tensor, config: MlaConfig, max_query_len: int) -> int:
    return -(-query.shape[1] * max_query_len // config.block_m) * config.parts


def _hopper(query: torch.Tensor, latent: torch.Tensor, latent_dim: int, config: MlaConfig) -> bool:
    """Whether mla_hopper's kernel covers these."""
    return (
        config.hopper
        and query.device.type != "cpu"
        and query.dtype == latent.dtype
        and query.element_size() == 2
        and (latent_dim, query.shape[2] - latent_dim) == (512, 64)
        and (config.block_m, config.block_n, config.parts) == (64, 64, 1)
        and query.stride(0) % 8 == query.stride(1) % 8 == 0
    )


def mla_plan(
    *,
    query: torch.Tensor,
    latent: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int = 1,
    config: MlaConfig | None = None,
    out: Plan | None = None,
) -> Plan:
    """Make the `balanced` plan for one step; every layer of the step may share it."""
    config = config or mla_config(query=query, latent=latent, max_query_len=max_query_len)
    return make_plan(
        seq_lens=seq_lens,
        programs_per_item=_programs(query, config, max_query_len),
        slots=sm_count(query.device) * config.resident,
        block_n=config.block_n,
        max_query_len=max_query_len,
        out=out,
    )


def mla_decode(
    *,
    query: torch.Tensor,
    latent: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_seq_len: int,
    scale: float,
    max_query_len: int = 1,
    latent_dim: int = 512,
    latent_scale: float = 1.0,
    plan: Plan | None = None,
    config: MlaConfig | None = None,
    workspace: Workspace | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend to the latent cache with absorbed queries; returns `[tokens, heads, latent_dim]`.

    query: `[tokens, heads, latent_dim + rope]`, max_query_len rows a sequence.
    latent: `[pages, slots, latent_dim + rope]`, 16-bit, or 8-bit with one latent_scale for all.
    block_table `[sequences, columns]`, seq_lens `[sequences]`: int32.
    scale: of the softmax; 1 / sqrt(192) for DeepSeek-V3, times its YaRN factor squared.
    lse: `[tokens, heads]` fp32, written when given.
    """
    check(
        query.stride(2) == 1 and latent.stride(2) == 1, "query and latent need unit stride on dim"
    )
    check(query.shape[2] == latent.shape[2], "query and latent dim differ")
    aligned = latent.stride(0) % 16 == 0 and latent.stride(1) % 16 == 0
    check(aligned, "latent strides must be multiples of 16")
    config = config or mla_config(query=query, latent=latent, max_query_len=max_query_len)
    tokens, heads, dim = query.shape
    sequences = seq_lens.shape[0]
    check(tokens == sequences * max_query_len, "query rows do not match the sequences")
    if out is None:
        out = torch.empty(tokens, heads, latent_dim, dtype=query.dtype, device=query.device)
    if sequences == 0:
        return out
    programs = _programs(query, config, max_query_len)
    if plan is None:
        splits = occupancy_splits(
            programs=programs * sequences,
            slots=sm_count(query.device) * config.resident,
            max_len=max_seq_len,
            min_tokens=MIN_TOKENS if sequences > 8 else 128,
        )
        static = StaticSplits(splits, MIN_TOKENS if sequences > 8 else 128)
        grid, items = (programs, splits, sequences), splits * sequences
    else:
        static = StaticSplits(1)
        grid, items = (programs, plan.columns, 1), plan.capacity
    split = plan is not None or static.max_splits > 1
    if split and workspace is None:
        workspace = Workspace.allocate(items, max_query_len, heads, latent_dim, query.device)
    use_pdl = query.device.type != "cpu"
    if query.dtype == torch.float32:
        compute, precision = tl.float32, "ieee"
    elif latent.dtype == torch.float8_e4m3fn or query.dtype == torch.float16:
        compute, precision = tl.float16, "tf32"
    else:
        compute, precision = tl.bfloat16, "tf32"
    part_out, part_lse = (workspace.out, workspace.lse) if workspace else (None, None)
    common = (
        query, latent, out, lse, part_out, part_lse, block_table, seq_lens,
        plan.items if plan else None, plan.parts if plan else None, scale * latent_scale * LOG2E,
    )  # fmt: skip
    counts = (max_query_len, static.max_splits, static.min_tokens, block_table.stride(0))
    strides = (
        query.stride(0), query.stride(1), out.stride(0), out.stride(1),
        latent.stride(0), latent.stride(1),
    )  # fmt: skip
    shape = {"HEADS": heads, "LATENT": latent_dim, "ROPE": dim - latent_dim, "SPLIT": split}
    tile = {"PAGE": latent.shape[1], "BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
    if _hopper(query, latent, latent_dim, config):
        from .mla_hopper import mla_hopper_kernel  # noqa: PLC0415 - Triton 3.6 has this Gluon

        mla_hopper_kernel[grid](
            *common, *counts, *strides, **shape, **tile, num_warps=8, launch_pdl=use_pdl
        )
    else:
        mla_split_kernel[grid](
            *common, latent_scale, *counts, *strides, **shape, **tile,
            PARTS=config.parts, COMPUTE=compute, PRECISION=precision, PDL=use_pdl,
            num_warps=config.num_warps, num_stages=config.num_stages, launch_pdl=use_pdl,
        )  # fmt: skip
    if split:
        decode_merge_kernel[(heads, max_query_len, sequences)](
            out, lse, part_out, part_lse, seq_lens, None, plan.first if plan else None,
            max_query_len, static.max_splits, static.min_tokens, 0, 0,
            out.stride(0), out.stride(1),
            HEADS=heads, VALUE_DIM=latent_dim, WINDOW=0, PDL=use_pdl,
            BLOCK_N=config.block_n, BLOCK_S=8 if items // sequences > 4 else 4,
            BLOCK_V=next_power_of_2(latent_dim), num_warps=4, launch_pdl=use_pdl,
        )  # fmt: skip
    return out
