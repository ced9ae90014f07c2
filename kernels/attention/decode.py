# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: PLR0913
# (an op has many options)
"""Paged decode attention with split-KV: one new token a sequence, or up to 64 to verify.

The launch side: settings, workspace, plan and the op. The two stages are in decode_kernels.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton

from forebay.kernels._common.host import LOG2E, check, sm_count, starts_early

from .decode_kernels import decode_split_kernel
from .decode_settings import DecodeConfig, decode_config, fitted, programs_of, walking
from .launch import constants, gluon_kernel, page_maps, strides
from .layout import PagedCache, Rule
from .rope import rope_constants
from .splits import Plan, Policy, StaticSplits, make_plan, static_splits
from .states import decode_merge_kernel, decode_merge_rows_kernel

__all__ = ["DecodeConfig", "Workspace", "decode_config", "decode_plan", "paged_decode"]

MAX_ROWS_TOKENS = 64
MANY_ROWS, MANY_SEQUENCES = 2048, 8


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

    def check_room(self, rows: int, value_dim: int) -> None:
        """Raise ValueError unless `rows` states of value_dim fit: items x tokens x heads."""
        fits = self.lse.numel() >= rows and self.out.numel() >= rows * value_dim
        check(fits, "workspace is too small for this step")


def _room(  # noqa: PLR0917 - sizes of one step
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
    given.check_room(items * max_q * heads, value_dim)
    # One for each sequence and program would do, which are never more.
    check(given.arrived.numel() >= items * max_q * heads, "workspace has too few counters")
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
    """Make the `balanced` plan for one step; every layer of the step may share it.

    Call a `paged_decode` that follows with no other kernel between with pdl=False: it would read
    the plan while it is being written.
    """
    rule = rule or Rule()
    config = config or decode_config(query=query, cache=cache, max_query_len=max_query_len)
    config = fitted(config, query, cache, rule=rule, max_query_len=max_query_len, policy="balanced")
    return make_plan(
        seq_lens=cache.seq_lens,
        programs_per_item=programs_of(query, cache, config, max_query_len),
        slots=sm_count(query.device) * config.resident,
        block_n=config.block_n,
        cu_query=cu_query,
        max_query_len=max_query_len,
        window=rule.window,
        min_tokens=config.min_tokens,
        out=out,
    )


class _Cut(NamedTuple):
    """How a step's tokens are divided: by a plan, or by what can be known on the host."""

    plan: Plan | None
    static: StaticSplits
    grid: tuple[int, int, int]
    items: int
    states: int
    """Of all sequences, at most: a part of a plan may end one and begin the next."""

    @property
    def split(self) -> bool:
        """Whether a sequence may have several states, to be merged."""
        return self.plan is not None or self.static.max_splits > 1

    @property
    def sums(self) -> tuple[int, int, int, int]:
        """What the kernels cut by where there is no plan."""
        static = self.static
        return static.max_splits, static.min_tokens, static.single_below, static.fixed_tokens


class _Step(NamedTuple):
    """One call's tensors and settings, as both stages take them."""

    query: torch.Tensor
    cache: PagedCache
    out: torch.Tensor
    lse: torch.Tensor | None
    cu_query: torch.Tensor | None
    max_query_len: int
    scale: float
    rule: Rule
    config: DecodeConfig
    cut: _Cut
    workspace: Workspace | None
    pdl: bool
    behind_plan: bool
    """Whether the kernel before stage 1 writes its plan, which is read before that has ended."""

    @property
    def early(self) -> bool:
        """Whether stage 1 may start before the kernel ahead of it has ended."""
        return self.pdl and not self.behind_plan


def _static_cut(
    query: torch.Tensor, cache: PagedCache, programs: int, *, max_query_len: int, max_seq_len: int,
    rule: Rule, config: DecodeConfig, policy: Policy, fixed_tokens: int,
) -> _Cut:  # fmt: skip
    bound = max_seq_len
    if rule.window:
        bound = min(bound, rule.window + max_query_len + config.block_n)
    sequences = cache.seq_lens.shape[0]
    sms = sm_count(query.device)
    static = static_splits(
        policy,
        programs=programs * sequences,
        slots=sms * config.resident,
        sms=sms,
        max_len=bound,
        fixed_tokens=-(-fixed_tokens // config.block_n) * config.block_n,
        min_tokens=config.min_tokens,
        # Three in five SMs can ask for all that the memory gives, if each copies as much as it can.
        enough=0.6 if config.hopper and config.block_m < 64 else 0.8,
    )
    items = static.max_splits * sequences
    return _Cut(None, static, (programs, static.max_splits, sequences), items, items)


def _planned_cut(plan: Plan, programs: int) -> _Cut:
    return _Cut(plan, StaticSplits(1), (programs, plan.columns, 1), plan.capacity, 2 * plan.columns)


def _registers8(rows: int, stages: int) -> int:
    """Return a thread's registers: of 64 four programs fit on an SM, of 80 three, of 128 two."""
    return {8: 64 if stages < 4 else 128, 16: 80, 32: 128}[rows]


def _split_by_gluon(step: _Step, *, fused: bool) -> None:
    """Run stage 1 in a Gluon kernel: decode_narrow, its twin for 8 bits, or decode_hopper.

    fused: the last program of a sequence merges its states, which decode_hopper's never do.
    """
    query, cache, config, cut = step.query, step.cache, step.config, step.cut
    _, heads, dim = query.shape
    table, indptr, stride_table = cache.index()
    group = heads // cache.kv_heads
    work, plan = step.workspace, cut.plan
    part_out, part_lse = (work.out, work.lse) if work else (None, None)
    items, parts = (plan.items, plan.parts) if plan else (None, None)
    tensors: tuple[Any, ...] = (
        *page_maps(cache, config.hopper), step.out, step.lse, part_out, part_lse,
    )  # fmt: skip
    index = (table, indptr, cache.seq_lens, step.cu_query)
    numbers = (
        step.rule.tree, step.scale * LOG2E, step.max_query_len, *cut.sums, stride_table,
        *strides(query, cache, step.out)[:10],
    )  # fmt: skip
    fixed: dict[str, Any] = {
        "KV_HEADS": cache.kv_heads, "GROUP": group, "PAGE": cache.page,
        "SPLIT": cut.split, "PDL": step.pdl, "BLOCK_N": config.hopper,
        "STAGES": config.hopper_stages, "num_warps": 4, "launch_pdl": step.early,
    }  # fmt: skip
    if config.block_m < 64:
        # Of 8 rows and tiles of 128 tokens Triton 3.6 makes code that goes wrong.
        rows = 8 if group * step.max_query_len <= 8 and config.hopper == 64 else config.block_m
        tensors += (work.arrived if fused and work else None, *index, items)
        tensors += (plan.first if plan else None, parts)
        if cache.is_quantised:
            gluon_kernel("decode_narrow8", triton.__version__)[cut.grid](
                query, *tensors[:2], cache.key_scale, cache.value_scale, *tensors[2:], *numbers,
                *cache.key_scale.stride(), **fixed, FP8=cache.key.dtype != torch.int8, ROWS=rows,
                maxnreg=_registers8(rows, config.hopper_stages),
            )  # fmt: skip
        else:
            gluon_kernel("decode_narrow", triton.__version__)[cut.grid](
                query, *tensors, *numbers, **fixed, DIM=dim, ROWS=rows, maxnreg=128,
            )  # fmt: skip
    else:
        gluon_kernel("decode_hopper", triton.__version__)[cut.grid](
            query, cache.key, cache.value, *tensors, *index, items, parts, *numbers, **fixed,
            DIM=dim, BLOCK_M=config.block_m, maxnreg=168 if config.block_m == 128 else 128,
        )  # fmt: skip


def _split_by_triton(step: _Step, fixed: dict[str, Any], *, fused: bool) -> None:
    """Run stage 1; fused: the last program of a sequence merges its states."""
    query, cache, rule, config, cut = step.query, step.cache, step.rule, step.config, step.cut
    table, indptr, stride_table = cache.index()
    work = step.workspace
    part_out, part_lse = (work.out, work.lse) if work else (None, None)
    items_of = (cut.plan.items, cut.plan.first, cut.plan.parts) if cut.plan else (None, None, None)
    # Four narrow products pay where the rows are few; from 64 rows wgmma wants one wide one.
    few = config.block_m < (32 if rule.rope else 64)
    words = cache.is_quantised and few and query.dtype != torch.float32
    words = words and cache.value.shape[3] % 4 == 0
    decode_split_kernel[cut.grid](
        query, cache.key, cache.value, cache.key_scale, cache.value_scale, step.out, step.lse,
        part_out, part_lse, work.arrived if fused and work else None, table, indptr,
        cache.seq_lens, step.cu_query, *items_of, rule.tree, rule.sinks, step.scale * LOG2E,
        rule.soft_cap * LOG2E, step.max_query_len, *cut.sums, stride_table,
        *strides(query, cache, step.out), **fixed, WORDS=words,
        SPLIT=cut.split, PDL=step.pdl, PEEL=config.peel, HOIST=config.hoist,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        num_warps=config.num_warps, num_stages=config.num_stages, launch_pdl=step.early,
    )  # fmt: skip


def _merge(step: _Step, block_v: int, *, invariant: bool) -> None:
    """Run stage 2: merge each sequence's states; invariant: alike for every batch."""
    cache, cut, work, out = step.cache, step.cut, step.workspace, step.out
    heads, sequences = step.query.shape[1], step.cache.seq_lens.shape[0]
    rows = step.max_query_len * heads
    tensors = (
        out, step.lse, work.out, work.lse, cache.seq_lens, step.cu_query,
        cut.plan.first if cut.plan else None, step.max_query_len, *cut.sums, *out.stride()[:2],
    )  # fmt: skip
    fixed: dict[str, Any] = {
        "HEADS": heads, "VALUE_DIM": cache.value.shape[3], "WINDOW": step.rule.window,
        "PDL": step.pdl, "BLOCK_N": step.config.block_n, "BLOCK_V": block_v,
        "launch_pdl": step.pdl,
    }  # fmt: skip
    if rows * sequences >= MANY_ROWS and sequences >= MANY_SEQUENCES and not invariant:
        # To start a program that finds nothing to merge costs more than 1 ns. Fewer sequences are
        # cut into more parts each, which a program a row merges sooner.
        block_r = 16 if rows * sequences <= 16 * MANY_ROWS else 64
        decode_merge_rows_kernel[(-(-rows // block_r), sequences)](
            *tensors, **fixed, BLOCK_R=block_r, num_warps=max(1, min(8, block_r * block_v // 512))
        )
        return
    many = invariant or cut.items // sequences > 4
    decode_merge_kernel[(heads, step.max_query_len, sequences)](
        *tensors, **fixed, EARLY=False, BLOCK_S=16 if many else 4,
        num_warps=2 if block_v <= 128 else 4,
    )  # fmt: skip


def _settled(  # noqa: PLR0917 - of one step
    config: DecodeConfig | None,
    query: torch.Tensor,
    cache: PagedCache,
    rule: Rule,
    max_query_len: int,
    policy: Policy,
    plan: Plan | None,
) -> DecodeConfig:
    """Return the settings given, or the table's, as the kernel that runs has them."""
    config = config or decode_config(
        query=query, cache=cache, max_query_len=max_query_len, policy=policy
    )
    config = fitted(config, query, cache, rule=rule, max_query_len=max_query_len, policy=policy)
    return config if plan is None else walking(config, plan.block_n, window=rule.window > 0)


def paged_decode(
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
        rule.validate(query)
    # What a plan was made for, and what its tiles were chosen by.
    policy = policy if plan is None else "balanced"
    check(1 <= max_query_len <= MAX_ROWS_TOKENS, "max_query_len must be 1 to 64")
    config = _settled(config, query, cache, rule, max_query_len, policy, plan)
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
    behind_plan = policy == "balanced" and plan is None
    if behind_plan:
        plan = decode_plan(
            query=query, cache=cache, cu_query=cu_query, max_query_len=max_query_len, rule=rule,
            config=config,
        )  # fmt: skip
    programs = programs_of(query, cache, config, max_query_len)
    if plan is not None:
        cut = _planned_cut(plan, programs)
    else:
        cut = _static_cut(
            query, cache, programs, max_query_len=max_query_len, max_seq_len=max_seq_len,
            rule=rule, config=config, policy=policy, fixed_tokens=fixed_tokens,
        )  # fmt: skip
    if cut.split:
        workspace = _room(workspace, cut.items, max_query_len, heads, value_dim, query.device)
    step = _Step(
        query, cache, out, lse, cu_query, max_query_len, dim**-0.5 if scale is None else scale,
        rule, config, cut, workspace, starts_early(query.device) and (pdl is None or pdl),
        behind_plan,
    )  # fmt: skip
    fixed = constants(query, cache, rule) | rope_constants(rule, max_query_len)
    # The two ways of merging round differently, and which it is depends on the batch.
    invariant = policy == "fixed"
    merges = cut.split and not invariant and not (config.hopper and config.block_m >= 64)
    fused = merges and cut.states <= config.fused * sequences
    if config.hopper:
        _split_by_gluon(step, fused=fused)
    else:
        _split_by_triton(step, fixed, fused=fused)
    if cut.split and not fused:
        _merge(step, fixed["BLOCK_V"], invariant=invariant)
    return out
