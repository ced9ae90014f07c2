# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: PLR0913
# (an op has many options)
"""Paged decode attention with split-KV: one new token a sequence, or up to 64 to verify.

The launch side: settings, workspace, plan and the op. The two stages are in decode_kernels.
"""

from dataclasses import asdict, dataclass, replace

import torch
import triton

from forebay.kernels._common.host import (
    LOG2E,
    check,
    config_for,
    next_power_of_2,
    sm_count,
    starts_early,
)

from .decode_kernels import decode_split_kernel
from .launch import constants, gluon_fits, gluon_kernel, page_maps, strides
from .layout import PagedCache, Rule
from .splits import MIN_TOKENS, Plan, Policy, StaticSplits, make_plan, static_splits
from .states import decode_merge_kernel

__all__ = ["DecodeConfig", "Workspace", "decode_config", "decode_plan", "paged_decode"]

MAX_ROWS_TOKENS = 64


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Launch settings of stage 1.

    resident: programs expected on an SM at a time. min_tokens: of a split, as far as it goes.
    fused: states of a sequence, on average, up to which the last program merges them; 0: never.
    hopper: tokens of a tile in the Gluon kernel of decode_hopper, which runs where it applies;
    hopper_stages: its buffers of keys, and of values.
    hoist: let the compiler work out before the loop over items what does not change in it.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    resident: int
    peel: bool = True
    min_tokens: int = MIN_TOKENS
    fused: int = 4
    hoist: bool = False
    hopper: int = 0
    hopper_stages: int = 2


@dataclass(frozen=True, slots=True)
class Workspace:
    """Room for the splits' states; allocate the largest once and pass it to every call.

    arrived: for each sequence and program's rows how many items are done; zero between calls.
    """

    out: torch.Tensor
    lse: torch.Tensor
    arrived: torch.Tensor

    @classmethod
    def allocate(
        cls, items: int, max_query_len: int, heads: int, value_dim: int, device: torch.device
    ) -> "Workspace":
        """Return room for `items` work items."""
        rows = items * max_query_len * heads
        return cls(
            torch.empty(rows * value_dim, dtype=torch.float32, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
        )


def decode_config(
    *, query: torch.Tensor, cache: PagedCache, max_query_len: int = 1
) -> DecodeConfig:
    """Look the launch settings up by element sizes, dim and rows.

    A table may have others for a crowded GPU, one and a half times the programs that it has room
    for before anything is cut: a deeper pipeline pays there, and costs a start elsewhere.
    """
    group = query.shape[1] // cache.kv_heads
    rows = min(max(16, next_power_of_2(group * max_query_len)), 128)
    key_bytes = cache.key.element_size()
    dim = next_power_of_2(query.shape[2])
    built_in = {
        "block_m": min(rows, 64),
        "block_n": 64 if key_bytes * dim >= 256 else 128,
        "num_warps": 4,
        "num_stages": 3,
        "resident": 2 if rows > 16 else 3,
    }
    if key_bytes == 4:
        built_in |= {"block_n": 32, "num_stages": 2}
    key = f"kv{key_bytes * 8}-d{dim}-m{rows}"
    config = DecodeConfig(**config_for("decode", key, query.device, built_in))
    programs = _programs(query, cache, config, max_query_len) * cache.seq_lens.shape[0]
    if programs < 1.5 * sm_count(query.device) * config.resident:
        return config
    return DecodeConfig(**config_for("decode", f"{key}-crowded", query.device, asdict(config)))


def _programs(query: torch.Tensor, cache: PagedCache, config: DecodeConfig, max_q: int) -> int:
    group = query.shape[1] // cache.kv_heads
    return cache.kv_heads * -(-group * max_q // config.block_m)


def _fitted(
    config: DecodeConfig, query: torch.Tensor, cache: PagedCache, rule: Rule
) -> DecodeConfig:
    """Return settings with the Gluon kernel's tile where that runs, and without it elsewhere."""
    fits = (
        config.hopper > 0
        and config.block_m in {64, 128}
        and gluon_fits(query, cache, rule)
        and gluon_kernel("decode_hopper", triton.__version__) is not None
    )
    return replace(config, block_n=config.hopper) if fits else replace(config, hopper=0)


def _room(  # noqa: PLR0917
    given: Workspace | None,
    items: int,
    max_q: int,
    heads: int,
    value_dim: int,
    device: torch.device,
) -> Workspace:
    """Return the workspace given, if it is large enough, or a new one."""
    if given is None:
        return Workspace.allocate(items, max_q, heads, value_dim, device)
    check(given.lse.numel() >= items * max_q * heads, "workspace is too small for this step")
    return given


def decode_plan(
    *,
    query: torch.Tensor,
    cache: PagedCache,
    cu_query: torch.Tensor | None = None,
    max_query_len: int = 1,
    rule: Rule | None = None,
    config: DecodeConfig | None = None,
    out: Plan | None = None,
) -> Plan:
    """Make the `balanced` plan for one step; every layer of the step may share it."""
    rule = rule or Rule()
    config = config or decode_config(query=query, cache=cache, max_query_len=max_query_len)
    config = _fitted(config, query, cache, rule)
    return make_plan(
        seq_lens=cache.seq_lens,
        programs_per_item=_programs(query, cache, config, max_query_len),
        slots=sm_count(query.device) * config.resident,
        block_n=config.block_n,
        cu_query=cu_query,
        max_query_len=max_query_len,
        window=rule.window,
        min_tokens=config.min_tokens,
        out=out,
    )


def paged_decode(  # noqa: PLR0915 - checks, cut and launches, one after another
    *,
    query: torch.Tensor,
    cache: PagedCache,
    max_seq_len: int,
    cu_query: torch.Tensor | None = None,
    max_query_len: int = 1,
    scale: float | None = None,
    rule: Rule | None = None,
    policy: Policy = "occupancy",
    fixed_tokens: int = 512,
    plan: Plan | None = None,
    config: DecodeConfig | None = None,
    workspace: Workspace | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    pdl: bool | None = None,
    trusted: bool = False,
) -> torch.Tensor:
    """Attend with the last tokens of each sequence to its paged cache; returns out.

    query: `[tokens, heads, dim]`, max_query_len rows a sequence, or ragged by cu_query
    `[sequences + 1]` with at most max_query_len (64) each. Their keys are in the cache already.
    max_seq_len: a static bound on seq_lens, read on the host; the lengths themselves are not.
    plan: from `decode_plan`; policy `balanced` without one makes it, at the cost of a launch.
    lse: `[tokens, heads]` fp32, written when given (natural logarithm, sinks included).
    out, lse, workspace and plan may be reused; nothing is allocated when all are given.
    trusted: skip the checks of layouts, for callers that made them once.
    Deterministic: the same inputs give the same bits. Raises ValueError for unsupported layouts.
    """
    rule = rule or Rule()
    if not trusted:
        cache.validate(query)
        rule.validate()
    check(1 <= max_query_len <= MAX_ROWS_TOKENS, "max_query_len must be 1 to 64")
    config = config or decode_config(query=query, cache=cache, max_query_len=max_query_len)
    config = _fitted(config, query, cache, rule)
    tokens, heads, dim = query.shape
    value_dim = cache.value.shape[3]
    sequences = cache.seq_lens.shape[0]
    check(
        cu_query is not None or tokens == sequences * max_query_len,
        "query rows do not match the sequences: give cu_query",
    )
    if out is None:
        out = torch.empty(tokens, heads, value_dim, dtype=query.dtype, device=query.device)
    if sequences == 0:
        return out
    programs = _programs(query, cache, config, max_query_len)
    slots = sm_count(query.device) * config.resident
    if policy == "balanced" and plan is None:
        plan = decode_plan(
            query=query,
            cache=cache,
            cu_query=cu_query,
            max_query_len=max_query_len,
            rule=rule,
            config=config,
        )
    if plan is None:
        bound = max_seq_len
        if rule.window:
            bound = min(bound, rule.window + max_query_len + config.block_n)
        static = static_splits(
            policy,
            programs=programs * sequences,
            slots=slots,
            sms=sm_count(query.device),
            max_len=bound,
            fixed_tokens=-(-fixed_tokens // config.block_n) * config.block_n,
            min_tokens=config.min_tokens,
        )
        grid = (programs, static.max_splits, sequences)
        items = static.max_splits * sequences
        split = static.max_splits > 1
    else:
        static = StaticSplits(1)
        grid = (programs, plan.columns, 1)
        items = plan.capacity
        split = True
    if split:
        workspace = _room(workspace, items, max_query_len, heads, value_dim, query.device)
    use_pdl = starts_early(query.device) and (pdl is None or pdl)
    table, indptr, stride_table = cache.index()
    scale = dim**-0.5 if scale is None else scale
    fixed = constants(query, cache, rule)
    # Four narrow products pay where the rows are few; from 64 rows wgmma wants one wide one.
    words = cache.is_quantised and config.block_m < 64 and query.dtype != torch.float32
    words = words and value_dim % 4 == 0
    # A part of a plan may end one sequence and begin the next: two states.
    states = items if plan is None else 2 * plan.columns
    # The two ways of merging round differently, and which it is depends on the batch.
    invariant = policy == "fixed" and plan is None
    fused = split and not invariant and not config.hopper and states <= config.fused * sequences
    many = invariant or items // sequences > 4
    sums = (static.max_splits, static.min_tokens, static.single_below, static.fixed_tokens)
    part_out, part_lse = (workspace.out, workspace.lse) if workspace else (None, None)
    items_of = (plan.items, plan.first, plan.parts) if plan else (None, None, None)
    if config.hopper:
        gluon_kernel("decode_hopper", triton.__version__)[grid](
            query, cache.key, cache.value, *page_maps(cache, config.hopper), out, lse, part_out,
            part_lse, table, indptr, cache.seq_lens, cu_query, items_of[0], items_of[2], rule.tree,
            scale * LOG2E, max_query_len, *sums, stride_table, *strides(query, cache, out)[:10],
            KV_HEADS=cache.kv_heads, GROUP=heads // cache.kv_heads, DIM=dim, PAGE=cache.page,
            SPLIT=split, PDL=use_pdl, BLOCK_M=config.block_m, BLOCK_N=config.hopper,
            STAGES=config.hopper_stages, num_warps=4, launch_pdl=use_pdl,
            maxnreg=168 if config.block_m == 128 else 128,
        )  # fmt: skip
    else:
        decode_split_kernel[grid](
            query, cache.key, cache.value, cache.key_scale, cache.value_scale, out, lse,
            part_out, part_lse, workspace.arrived if fused else None, table, indptr,
            cache.seq_lens, cu_query, *items_of, rule.tree, rule.sinks, scale * LOG2E,
            rule.soft_cap * LOG2E, max_query_len, *sums, stride_table,
            *strides(query, cache, out), **fixed, WORDS=words,
            SPLIT=split, PDL=use_pdl, PEEL=config.peel, HOIST=config.hoist,
            BLOCK_M=config.block_m, BLOCK_N=config.block_n,
            num_warps=config.num_warps, num_stages=config.num_stages, launch_pdl=use_pdl,
        )  # fmt: skip
    if split and not fused:
        block_v = fixed["BLOCK_V"]
        decode_merge_kernel[(heads, max_query_len, sequences)](
            out, lse, workspace.out, workspace.lse, cache.seq_lens, cu_query,
            plan.first if plan else None, max_query_len, *sums, out.stride(0), out.stride(1),
            HEADS=heads, VALUE_DIM=value_dim, WINDOW=rule.window, PDL=use_pdl,
            BLOCK_N=config.block_n, BLOCK_S=16 if many else 4, BLOCK_V=block_v,
            num_warps=2 if block_v <= 128 else 4, launch_pdl=use_pdl,
        )  # fmt: skip
    return out
