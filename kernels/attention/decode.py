# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, N806, PLR0913, PLR0915, PLR0917, SIM102
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Paged decode attention with split-KV: one new token a sequence, or up to 64 to verify.

Stage 1 runs one program per (kv head, row block, grid column). Its rows are the (new token, query
head of the group) pairs, so that a verify step of q tokens reads the cache once like a plain
decode. A column is one split of one sequence, or, with a plan, a run of work items that may cross
from one sequence to the next. Stage 2 merges the states of sequences that were cut.

Both are launched while the kernel before them still runs (programmatic dependent launch). Until it
has ended they read only what tells them where to look: lengths, plan and page ids. Those must not
come from a kernel that lets its successor start early; ours that do so write caches and outputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import LOG2E, check, config_for, next_power_of_2, sm_count
from forebay.kernels._common.jit import load_pages, query_rows, split_of, visible_start

from .layout import PagedCache, Rule
from .splits import MIN_TOKENS, Plan, Policy, StaticSplits, make_plan, static_splits
from .tile import WEIGHT_SHIFT, attend_range, new_acc, store_acc

__all__ = ["DecodeConfig", "Workspace", "decode_config", "decode_plan", "paged_decode"]

MAX_ROWS_TOKENS = 64


@triton.jit
def attend_item(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    table_ptr,
    indptr_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    tree_ptr,
    sinks_ptr,
    kv_head,
    row_block,
    b,
    start,
    end,
    count,
    item,
    scale_log2,
    cap,
    max_query,
    stride_table,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_k_page,
    stride_k_slot,
    stride_v_page,
    stride_v_slot,
    stride_s_page,
    stride_s_slot,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINK_TOKENS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    QUANT: tl.constexpr,
    WORDS: tl.constexpr,
    ASM: tl.constexpr,
    SPLIT: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    PEEL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Attend to tokens start : end of sequence b, and store the result or the item's state."""
    TREE: tl.constexpr = tree_ptr is not None
    q_start, q_len = query_rows(cu_query_ptr, b, max_query)
    rows = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    row_token = rows // GROUP
    row_head = kv_head * GROUP + rows % GROUP
    row_valid = row_token < q_len
    seq_len = tl.load(seq_lens_ptr + b)
    if indptr_ptr is None:
        row_ptr = table_ptr + tl.cast(b, tl.int64) * stride_table
    else:
        row_ptr = table_ptr + tl.load(indptr_ptr + b)
    pages = load_pages(row_ptr, start, end, PAGE, BLOCK_N)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    offs_d = tl.arange(0, BLOCK_D)
    q_at = (q_start + row_token).to(tl.int64) * stride_q_token + row_head * stride_q_head
    q = tl.load(
        q_ptr + q_at[:, None] + offs_d[None, :],
        mask=row_valid[:, None] & (offs_d < HEAD_DIM)[None, :],
        other=0.0,
    ).to(COMPUTE)  # [BLOCK_M, BLOCK_D]
    lowest = visible_start(seq_len, q_len, WINDOW, BLOCK_N)
    prefix = seq_len - q_len
    row_pos = prefix + row_token
    row_bits = tl.zeros([BLOCK_M], dtype=tl.int64)
    if TREE:
        row_bits = tl.load(tree_ptr + q_start + row_token, mask=row_valid, other=0)

    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([BLOCK_M], dtype=tl.float32)
    if sinks_ptr is not None:
        if start == lowest:
            m = tl.load(sinks_ptr + row_head).to(tl.float32) * 1.4426950408889634
            norm = norm + 1.0
    sinks_end = 0
    if SINK_TOKENS > 0:
        sinks_end = tl.where(start == lowest, tl.minimum(SINK_TOKENS, lowest), 0)
    # Tokens that every row sees: all but the queries' own, and with one token that one too.
    seen_by_all = prefix if TREE else prefix + 1
    whole = start + tl.maximum(tl.minimum(end, seen_by_all) - start, 0) // BLOCK_N * BLOCK_N
    acc, m, norm = attend_range(
        new_acc(BLOCK_M, BLOCK_V, WORDS), m, norm, q, row_ptr, pages, sinks_end, start,
        whole, end, row_pos, row_bits,
        k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, scale_log2, cap, prefix,
        stride_k_page, stride_k_slot, stride_v_page, stride_v_slot, stride_s_page, stride_s_slot,
        PEEL and WINDOW == 0, TREE, WINDOW, SINK_TOKENS, SOFT_CAP, QUANT, WORDS, ASM,
        HEAD_DIM, VALUE_DIM, BLOCK_D, BLOCK_V, PAGE, BLOCK_N, PRECISION,
    )  # fmt: skip

    safe_norm = tl.where(norm == 0.0, 1.0, norm)
    lse2 = tl.where(norm == 0.0, float("-inf"), m + tl.log2(safe_norm))
    factor = 1.0 / safe_norm
    if QUANT:
        factor = factor / WEIGHT_SHIFT
    heads: tl.constexpr = KV_HEADS * GROUP
    if not SPLIT or count == 1:
        out_at = (q_start + row_token).to(tl.int64) * stride_out_token + row_head * stride_out_head
        store_acc(acc, factor, out_ptr, out_at, row_valid, VALUE_DIM, BLOCK_V, WORDS)
        if lse_ptr is not None:
            lse_at = (q_start + row_token).to(tl.int64) * heads + row_head
            tl.store(lse_ptr + lse_at, lse2 * 0.6931471805599453, mask=row_valid)
    else:
        part_at = (tl.cast(item, tl.int64) * max_query + row_token) * heads + row_head
        store_acc(
            acc, factor, part_out_ptr, part_at * VALUE_DIM, row_valid, VALUE_DIM, BLOCK_V, WORDS
        )
        tl.store(part_lse_ptr + part_at, lse2, mask=row_valid)


@triton.jit(
    do_not_specialize=[
        "max_splits",
        "min_tokens",
        "single_below",
        "fixed_tokens",
        "max_query",
        "stride_table",
    ]
)
def decode_split_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    table_ptr,
    indptr_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    items_ptr,
    parts_ptr,
    tree_ptr,
    sinks_ptr,
    scale_log2,
    cap,
    max_query,
    max_splits,
    min_tokens,
    single_below,
    fixed_tokens,
    stride_table,
    stride_q_token,
    stride_q_head,
    stride_out_token,
    stride_out_head,
    stride_k_page: tl.constexpr,
    stride_k_slot: tl.constexpr,
    stride_k_head,
    stride_v_page: tl.constexpr,
    stride_v_slot: tl.constexpr,
    stride_v_head,
    stride_s_page: tl.constexpr,
    stride_s_slot: tl.constexpr,
    stride_s_head,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINK_TOKENS: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    QUANT: tl.constexpr,
    WORDS: tl.constexpr,
    ASM: tl.constexpr,
    SPLIT: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
    PEEL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    kv_head = tl.program_id(0) % KV_HEADS
    row_block = tl.program_id(0) // KV_HEADS
    if parts_ptr is None:
        b = tl.program_id(2)
        seq_len = tl.load(seq_lens_ptr + b)
        _q_start, q_len = query_rows(cu_query_ptr, b, max_query)
        lowest = visible_start(seq_len, q_len, WINDOW, BLOCK_N)
        split = tl.program_id(1)
        count, chunk = split_of(
            seq_len - lowest, max_splits, min_tokens, single_below, fixed_tokens, BLOCK_N
        )
        if split >= count:
            if PDL:
                tl.extra.cuda.gdc_wait()
            return
        start = lowest + split * chunk
        end = tl.minimum(start + chunk, seq_len)
        first = b * max_splits + split
        last = first + 1
    else:
        record = parts_ptr + tl.program_id(1) * 8
        b = tl.load(record)
        if b < 0:
            if PDL:
                tl.extra.cuda.gdc_wait()
            return
        start = tl.load(record + 1)
        end = tl.load(record + 2)
        count = tl.load(record + 3)
        first = tl.load(record + 4)
        last = tl.load(record + 5)
    k_ptr += kv_head * stride_k_head
    v_ptr += kv_head * stride_v_head
    if QUANT:
        k_scale_ptr += kv_head * stride_s_head
        v_scale_ptr += kv_head * stride_s_head
    # What is worked out before the loop would sit in registers through every tile.
    for item in tl.range(first, last, disable_licm=True):
        _q_start, q_len = query_rows(cu_query_ptr, b, max_query)
        if row_block * BLOCK_M < q_len * GROUP:
            attend_item(
                q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr,
                part_out_ptr, part_lse_ptr, table_ptr, indptr_ptr, seq_lens_ptr, cu_query_ptr,
                tree_ptr, sinks_ptr, kv_head, row_block, b, start, end, count, item,
                scale_log2, cap, max_query, stride_table,
                stride_q_token, stride_q_head, stride_out_token, stride_out_head,
                stride_k_page, stride_k_slot, stride_v_page, stride_v_slot,
                stride_s_page, stride_s_slot,
                KV_HEADS, GROUP, HEAD_DIM, VALUE_DIM, PAGE, WINDOW, SINK_TOKENS, SOFT_CAP,
                QUANT, WORDS, ASM, SPLIT, COMPUTE, PRECISION, PDL, PEEL,
                BLOCK_M, BLOCK_N, BLOCK_D, BLOCK_V,
            )  # fmt: skip
        if parts_ptr is not None:
            more = item + 1 < last
            b = tl.load(items_ptr + (item + 1) * 4, mask=more, other=0)
            start = tl.load(items_ptr + (item + 1) * 4 + 1, mask=more, other=0)
            end = tl.load(items_ptr + (item + 1) * 4 + 2, mask=more, other=0)
            count = tl.load(items_ptr + (item + 1) * 4 + 3, mask=more, other=0)


@triton.jit(
    do_not_specialize=["max_splits", "min_tokens", "single_below", "fixed_tokens", "max_query"]
)
def decode_merge_kernel(
    out_ptr,
    lse_ptr,
    part_out_ptr,
    part_lse_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    first_ptr,
    max_query,
    max_splits,
    min_tokens,
    single_below,
    fixed_tokens,
    stride_out_token,
    stride_out_head,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    PDL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    head = tl.program_id(0)
    token = tl.program_id(1)
    b = tl.program_id(2)
    q_start, q_len = query_rows(cu_query_ptr, b, max_query)
    if first_ptr is None:
        seq_len = tl.load(seq_lens_ptr + b)
        length = seq_len - visible_start(seq_len, q_len, WINDOW, BLOCK_N)
        count, _chunk = split_of(
            length, max_splits, min_tokens, single_below, fixed_tokens, BLOCK_N
        )
        first = b * max_splits
    else:
        first = tl.load(first_ptr + b)
        count = tl.load(first_ptr + b + 1) - first
    # Wait even where there is nothing to do: what follows in the stream waits for this kernel
    # alone, so it must not end before stage 1 has.
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if (token >= q_len) | (count == 1):
        return
    offs_s = tl.arange(0, BLOCK_S)
    offs_v = tl.arange(0, BLOCK_V)
    m = tl.full([1], float("-inf"), dtype=tl.float32)
    norm = tl.zeros([1], dtype=tl.float32)
    acc = tl.zeros([BLOCK_V], dtype=tl.float32)
    for s in range(0, count, BLOCK_S):
        split = s + offs_s
        keep = split < count
        at = ((first + split).to(tl.int64) * max_query + token) * HEADS + head
        lse2 = tl.load(part_lse_ptr + at, mask=keep, other=float("-inf"))
        part = tl.load(
            part_out_ptr + at[:, None] * VALUE_DIM + offs_v[None, :],
            mask=keep[:, None] & (offs_v < VALUE_DIM)[None, :],
            other=0.0,
        )  # [BLOCK_S, BLOCK_V]
        m_new = tl.maximum(m, tl.max(lse2, 0))
        m_safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        weights = tl.exp2(lse2 - m_safe)
        rescale = tl.exp2(m - m_safe)
        acc = acc * rescale + tl.sum(part * weights[:, None], 0)
        norm = norm * rescale + tl.sum(weights, 0)
        m = m_new
    safe_norm = tl.where(norm == 0.0, 1.0, norm)
    acc = acc / safe_norm
    row = (q_start + token).to(tl.int64)
    tl.store(
        out_ptr + row * stride_out_token + head * stride_out_head + offs_v,
        acc.to(out_ptr.dtype.element_ty),
        mask=offs_v < VALUE_DIM,
    )
    if lse_ptr is not None:
        lse = tl.where(norm == 0.0, float("-inf"), (m + tl.log2(safe_norm)) * 0.6931471805599453)
        tl.store(lse_ptr + row * HEADS + head + tl.arange(0, 1), lse)


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Launch settings of stage 1.

    resident: programs expected on an SM at a time. min_tokens: of a split, as far as it goes.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    resident: int
    peel: bool = True
    min_tokens: int = MIN_TOKENS


@dataclass(frozen=True, slots=True)
class Workspace:
    """Room for the splits' states; allocate the largest once and pass it to every call."""

    out: torch.Tensor
    lse: torch.Tensor

    @classmethod
    def allocate(
        cls, items: int, max_query_len: int, heads: int, value_dim: int, device: torch.device
    ) -> "Workspace":
        """Return room for `items` work items."""
        rows = items * max_query_len * heads
        return cls(
            torch.empty(rows * value_dim, dtype=torch.float32, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
        )


def compute_dtype(query: torch.Tensor, cache: PagedCache) -> tuple[tl.dtype, str]:
    """Type the dots run in and their fp32 precision.

    An 8-bit cache computes in fp16, to which both int8 and e4m3 convert in few instructions; a bf16
    query must then lie inside fp16's range, which rotated and normalised queries do.
    """
    if query.dtype == torch.float32:
        return tl.float32, "ieee"
    if cache.is_quantised:
        return tl.float16, "tf32"
    return (tl.bfloat16 if query.dtype == torch.bfloat16 else tl.float16), "tf32"


def decode_config(
    *, query: torch.Tensor, cache: PagedCache, max_query_len: int = 1
) -> DecodeConfig:
    """Look the launch settings up by element sizes, dim and rows."""
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
    found = config_for("decode", key, query.device, built_in)
    return DecodeConfig(**found)


def _programs(query: torch.Tensor, cache: PagedCache, config: DecodeConfig, max_q: int) -> int:
    group = query.shape[1] // cache.kv_heads
    return cache.kv_heads * -(-group * max_q // config.block_m)


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
    config = config or decode_config(query=query, cache=cache, max_query_len=max_query_len)
    return make_plan(
        seq_lens=cache.seq_lens,
        programs_per_item=_programs(query, cache, config, max_query_len),
        slots=sm_count(query.device) * config.resident,
        block_n=config.block_n,
        cu_query=cu_query,
        max_query_len=max_query_len,
        window=(rule or Rule()).window,
        min_tokens=config.min_tokens,
        out=out,
    )


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
        rule.validate()
    check(1 <= max_query_len <= MAX_ROWS_TOKENS, "max_query_len must be 1 to 64")
    config = config or decode_config(query=query, cache=cache, max_query_len=max_query_len)
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
    if split and workspace is None:
        workspace = Workspace.allocate(items, max_query_len, heads, value_dim, query.device)
    if split:
        check(
            workspace.lse.numel() >= items * max_query_len * heads,
            "workspace is too small for this step",
        )
    use_pdl = query.device.type != "cpu" and (pdl is None or pdl)
    compute, precision = compute_dtype(query, cache)
    table, indptr, stride_table = cache.index()
    key_scale, value_scale = cache.key_scale, cache.value_scale
    scale = dim**-0.5 if scale is None else scale
    # A soft cap needs the plain score, so there log2(e) is taken in after it, through the cap.
    capped = rule.soft_cap > 0.0
    block_v = next_power_of_2(value_dim)
    # Four narrow products pay where the rows are few; from 64 rows wgmma wants one wide one.
    words = cache.is_quantised and config.block_m < 64 and compute is tl.float16
    words = words and value_dim % 4 == 0
    sums = (static.max_splits, static.min_tokens, static.single_below, static.fixed_tokens)
    decode_split_kernel[grid](
        query, cache.key, cache.value, key_scale, value_scale, out, lse,
        workspace.out if workspace else None, workspace.lse if workspace else None,
        table, indptr, cache.seq_lens, cu_query,
        plan.items if plan else None, plan.parts if plan else None, rule.tree, rule.sinks,
        scale * LOG2E, rule.soft_cap * LOG2E, max_query_len, *sums, stride_table,
        query.stride(0), query.stride(1), out.stride(0), out.stride(1),
        *cache.key.stride()[:3], *cache.value.stride()[:3],
        *(key_scale.stride() if key_scale is not None else (0, 0, 0)),
        KV_HEADS=cache.kv_heads, GROUP=heads // cache.kv_heads, HEAD_DIM=dim, VALUE_DIM=value_dim,
        PAGE=cache.page, WINDOW=rule.window, SINK_TOKENS=rule.sink_tokens, SOFT_CAP=capped,
        QUANT=cache.is_quantised, WORDS=words, ASM=query.device.type != "cpu",
        SPLIT=split, COMPUTE=compute, PRECISION=precision, PDL=use_pdl,
        PEEL=config.peel, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        BLOCK_D=next_power_of_2(dim),
        BLOCK_V=block_v, num_warps=config.num_warps, num_stages=config.num_stages,
        launch_pdl=use_pdl,
    )  # fmt: skip
    if split:
        decode_merge_kernel[(heads, max_query_len, sequences)](
            out, lse, workspace.out, workspace.lse, cache.seq_lens, cu_query,
            plan.first if plan else None, max_query_len, *sums, out.stride(0), out.stride(1),
            HEADS=heads, VALUE_DIM=value_dim, WINDOW=rule.window, PDL=use_pdl,
            BLOCK_N=config.block_n, BLOCK_S=16 if items // sequences > 4 else 4, BLOCK_V=block_v,
            num_warps=2 if block_v <= 128 else 4, launch_pdl=use_pdl,
        )  # fmt: skip
    return out
