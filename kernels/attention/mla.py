# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: PLR0913
# (an op has many options)
"""MLA decode on the compressed latent cache, with absorbed weights.

All heads share one cached row: a latent (512) that is both key and value, and a rotated key (64).
Splits, plan and the merge of partial states are decode's; a partial state is 2 KB a head, so the
splits are kept long (see MIN_TOKENS). Stage 1 is in mla_kernels; on Hopper in mla_narrow for few
rows (heads times new tokens), in mla_hopper for many.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import (
    LOG2E,
    check,
    config_for,
    is_hopper,
    next_power_of_2,
    sm_count,
    starts_early,
)

from .decode import Workspace
from .launch import gluon_kernel, map_shape, page_map
from .mla_kernels import mla_split_kernel
from .splits import Plan, StaticSplits, make_plan, occupancy_splits
from .states import decode_merge_kernel

__all__ = ["MlaConfig", "mla_config", "mla_decode", "mla_plan"]

MIN_TOKENS = 512
# Registers a thread may have on average in mla_narrow: what lies over it is for those that compute.
NARROW_REGISTERS = {16: 160, 32: 192}


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """Launch settings.

    resident: programs expected on an SM at a time. parts: programs that share a row's output; each
    works out all scores and multiplies them with its own columns. hopper: run the Gluon kernels of
    mla_narrow and mla_hopper where they apply, to 16-bit caches of DeepSeek's dims.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    resident: int
    parts: int = 1
    hopper: bool = False


def mla_config(*, query: torch.Tensor, latent: torch.Tensor, max_query_len: int = 1) -> MlaConfig:
    """Look the launch settings up by element size and rows, and for pages that are gathered."""
    rows = min(max(16, next_power_of_2(query.shape[1] * max_query_len)), 64)
    built_in = {"block_n": 32, "num_warps": 4, "num_stages": 2, "resident": 2}
    if rows == 64:
        built_in |= {"num_warps": 8, "resident": 1}
    key = f"kv{latent.element_size() * 8}-m{rows}"
    if rows < 64 and map_shape(latent.unsqueeze(2)) is None:
        key += "-gather"
    found = config_for("mla", key, query.device, built_in)
    return MlaConfig(block_m=rows, **found)


def merge_shape(rows: int, parts: int, latent_dim: int) -> tuple[int, int, int]:
    """Return columns, parts at a time and warps of a program that merges.

    All parts at a time, since each round waits for memory, of as many columns as registers hold, or
    of fewer where the programs would be few.
    """
    block_s = min(max(next_power_of_2(parts * 9 // 10), 2), 128)
    block_v = min(next_power_of_2(latent_dim), 4096 // block_s if block_s < 64 else 32)
    while block_v > 32 and rows * -(-latent_dim // block_v) < 128:
        block_v //= 2
    return block_v, block_s, 4 if block_s * block_v >= 4096 else 2


def _programs(query: torch.Tensor, config: MlaConfig, max_query_len: int) -> int:
    return -(-query.shape[1] * max_query_len // config.block_m) * config.parts


def _fits(query: torch.Tensor, latent: torch.Tensor, latent_dim: int, config: MlaConfig) -> bool:
    """Whether the Gluon kernels cover these."""
    return (
        config.hopper
        and is_hopper(query.device)
        and query.dtype == latent.dtype
        and query.element_size() == 2
        and (latent_dim, query.shape[2] - latent_dim) == (512, 64)
        and (config.block_n, config.parts) == (64, 1)
        and query.stride(0) % 8 == query.stride(1) % 8 == 0
    )


def hopper_kernel(latent: torch.Tensor, config: MlaConfig, version: str) -> tuple[Any, Any]:
    """Return the Gluon kernel for these rows, and the map of pages that few rows are copied by.

    None for both where there is none, as in another Triton, which may lack what makes a map, too.
    """
    if config.block_m == 64:
        return gluon_kernel("mla_hopper", version), None
    narrow = gluon_kernel("mla_narrow", version) if config.block_m in NARROW_REGISTERS else None
    pages = None if narrow is None else page_map(latent.unsqueeze(2), config.block_n)
    return (None, None) if pages is None else (narrow, pages)


def _workspace(rows: int, latent_dim: int, device: torch.device) -> Workspace:
    """Room for the splits' states; nobody counts arrivals here, so nothing needs to be zero."""
    out = torch.empty(rows * latent_dim, dtype=torch.float32, device=device)
    lse = torch.empty(rows, dtype=torch.float32, device=device)
    return Workspace(out, lse, torch.empty(0, dtype=torch.int32, device=device))


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
    if split:
        rows = items * max_query_len * heads
        workspace = workspace or _workspace(rows, latent_dim, query.device)
        workspace.check_room(rows, latent_dim)
    use_pdl = starts_early(query.device)
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
    strides = (*query.stride()[:2], *out.stride()[:2], *latent.stride()[:2])
    constants = {
        "HEADS": heads, "LATENT": latent_dim, "ROPE": dim - latent_dim, "PAGE": latent.shape[1],
        "SPLIT": split, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n,
    }  # fmt: skip
    fits = latent_scale == 1.0 and block_table.dtype == torch.int32
    fits = fits and _fits(query, latent, latent_dim, config)
    hopper, pages = hopper_kernel(latent, config, triton.__version__) if fits else (None, None)
    if hopper is not None and pages is not None:
        hopper[grid](
            *common[:2], pages, *common[2:], *counts, *strides, **constants, STAGES=2,
            num_warps=4, maxnreg=NARROW_REGISTERS[config.block_m], launch_pdl=True,
        )  # fmt: skip
    elif hopper is not None:
        hopper[grid](*common, *counts, *strides, **constants, num_warps=8, launch_pdl=True)
    else:
        mla_split_kernel[grid](
            *common, latent_scale, *counts, *strides, **constants,
            PARTS=config.parts, COMPUTE=compute, PRECISION=precision, PDL=use_pdl,
            num_warps=config.num_warps, num_stages=config.num_stages, launch_pdl=use_pdl,
        )  # fmt: skip
    if split:
        # A plan has room for an item more of each sequence than its parts give on average.
        block_v, block_s, warps = merge_shape(
            tokens * heads, items // sequences - (plan is not None), latent_dim
        )
        decode_merge_kernel[(heads * -(-latent_dim // block_v), max_query_len, sequences)](
            out, lse, part_out, part_lse, seq_lens, None, plan.first if plan else None,
            max_query_len, static.max_splits, static.min_tokens, 0, 0,
            out.stride(0), out.stride(1),
            HEADS=heads, VALUE_DIM=latent_dim, WINDOW=0, PDL=use_pdl, EARLY=True,
            BLOCK_N=config.block_n, BLOCK_S=block_s, BLOCK_V=block_v, num_warps=warps,
            launch_pdl=use_pdl,
        )  # fmt: skip
    return out
