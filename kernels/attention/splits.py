# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""How a decode step is cut into splits, so that few sequences still fill the GPU.

Four policies. `mission`, `occupancy` and `fixed` are *static*: the grid has max_splits columns for
each sequence, and each program works out on the device how many of them its sequence uses.
`balanced` is *planned*: one tiny kernel per step lays out the list of work items for all layers,
which evens out a ragged batch. Neither reads a length on the host, so both replay in CUDA graphs.

- `mission` is FlashDecoding's `min(64, max(SMs, ceil(n / 256)))`, one split under 512 tokens. On a
  GPU with 64 SMs or more the maximum is never below 64, so it always says 64: kept for comparison.
- `occupancy` (default) asks for enough splits to fill the programs that are resident at a time, no
  split under 256 tokens, and among near-equal choices the fewest.
- `fixed` cuts every `tokens` tokens, whatever else is in the batch: batch-invariant results.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl

from forebay.kernels._common.jit import visible_start

__all__ = [
    "Plan",
    "Policy",
    "StaticSplits",
    "make_plan",
    "mission_splits",
    "occupancy_splits",
    "split_of",
    "static_splits",
]

Policy = Literal["mission", "occupancy", "balanced", "fixed"]
MIN_TOKENS = 256
MAX_SPLITS = 128
NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class StaticSplits:
    """Arguments of the per-sequence sum that the decode kernels do on the device."""

    max_splits: int
    min_tokens: int = MIN_TOKENS
    single_below: int = 0
    fixed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Work items of one decode step, on the device, shared by all layers.

    items: `[capacity, 4]` int32: sequence (or -1), first token, end token, splits of the sequence.
    first: `[sequences + 1]` int32, index of each sequence's first item.
    """

    items: torch.Tensor
    first: torch.Tensor

    @property
    def capacity(self) -> int:
        """Grid columns a launch needs: an upper bound that does not depend on the lengths."""
        return self.items.shape[0]


def mission_splits(length: int, sms: int) -> int:
    """Return the formula of FlashDecoding, literally."""
    return 1 if length < 512 else min(64, max(sms, -(-length // 256)))


def occupancy_splits(
    *, programs: int, slots: int, max_len: int, min_tokens: int = MIN_TOKENS
) -> int:
    """Choose splits for `programs` (sequence, head) pairs on `slots` resident programs.

    Among the counts up to the cap take the smallest whose last wave is filled to within 85 % of
    the best; no split at all where the pairs alone fill the machine.
    """
    if programs >= 0.8 * slots:
        return 1
    cap = max(1, min(MAX_SPLITS, -(-max_len // min_tokens), 2 * -(-slots // programs)))

    def filled(splits: int) -> float:
        waves = programs * splits / slots
        return waves / math.ceil(waves)

    best = max(filled(s) for s in range(1, cap + 1))
    return next(s for s in range(1, cap + 1) if filled(s) >= 0.85 * best)


def static_splits(
    policy: Policy, *, programs: int, slots: int, sms: int, max_len: int, fixed_tokens: int = 512
) -> StaticSplits:
    """Turn a static policy into launch arguments."""
    if policy == "mission":
        return StaticSplits(mission_splits(max(max_len, 512), sms), 1, 512)
    if policy == "fixed":
        return StaticSplits(max(1, -(-max_len // fixed_tokens)), 1, 0, fixed_tokens)
    if policy == "occupancy":
        return StaticSplits(occupancy_splits(programs=programs, slots=slots, max_len=max_len))
    raise ValueError(f"policy {policy!r} is not static, make a plan for it")


def split_of(length: int, splits: StaticSplits, block_n: int) -> tuple[int, int]:
    """Return splits and tokens per split for one sequence: each program's own sum, in Python."""
    want = min(splits.max_splits, max(1, -(-length // splits.min_tokens)))
    if length < splits.single_below:
        want = 1
    chunk = splits.fixed_tokens or -(-length // (want * block_n)) * block_n
    chunk = max(chunk, block_n)
    return max(1, -(-length // chunk)), chunk


@triton.jit(do_not_specialize=["sequences", "capacity", "max_query", "programs_per_item", "slots"])
def plan_items_kernel(
    items_ptr,
    first_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    sequences,
    capacity,
    max_query,
    programs_per_item,
    slots,
    MIN_TOKENS: tl.constexpr,
    OVERHEAD: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Program b writes the items of sequence b; the last one, b == sequences, marks the rest -1.

    Each program repeats the same small search, so that no program waits for another: for no cut and
    for 1 to 8 waves of equal parts, estimate the time as waves times part, and take the least.
    """
    b = tl.program_id(0)
    offs_b = tl.arange(0, BLOCK_B)
    mine = offs_b < sequences
    lens = tl.load(seq_lens_ptr + offs_b, mask=mine, other=0)
    if cu_query_ptr is None:
        q_lens = max_query
    else:
        q_lens = tl.load(cu_query_ptr + offs_b + 1, mask=mine, other=0) - tl.load(
            cu_query_ptr + offs_b, mask=mine, other=0
        )
    starts = visible_start(lens, q_lens, WINDOW, BLOCK_N)
    seen = tl.maximum(lens - starts, 0)
    total = tl.sum(seen.to(tl.int64), 0)
    longest = tl.max(seen, 0)
    part = tl.maximum(longest, BLOCK_N)
    # Whole sequences are the plan to beat, by a tenth: each cut costs a state to write and merge.
    best = tl.cdiv(sequences * programs_per_item, slots).to(tl.int64) * (longest + OVERHEAD)
    best = best * 9 // 10
    for waves in range(1, 9):
        size = tl.cdiv(total * programs_per_item, slots * waves).to(tl.int32)
        size = tl.maximum(tl.cdiv(size, BLOCK_N) * BLOCK_N, MIN_TOKENS)
        count = tl.sum(tl.where(mine, tl.maximum(tl.cdiv(seen, size), 1), 0), 0)
        rounds = tl.cdiv(count * programs_per_item, slots).to(tl.int64)
        cost = rounds * (tl.minimum(size, longest) + OVERHEAD)
        better = (cost < best) & (count <= capacity)
        best = tl.where(better, cost, best)
        part = tl.where(better, size, part)
    counts = tl.where(mine, tl.maximum(tl.cdiv(seen, part), 1), 0)
    before = tl.sum(tl.where(offs_b < b, counts, 0), 0)
    count = tl.sum(tl.where(offs_b == b, counts, 0), 0)
    tl.store(first_ptr + b, before)
    offs_w = tl.arange(0, BLOCK_W)
    if b == sequences:
        for w in range(before, capacity, BLOCK_W):
            tl.store(items_ptr + (w + offs_w) * 4, -1, mask=w + offs_w < capacity)
        return
    length = tl.sum(tl.where(offs_b == b, seen, 0), 0)
    start = tl.sum(tl.where(offs_b == b, starts, 0), 0)
    chunk = tl.maximum(tl.cdiv(tl.cdiv(length, count), BLOCK_N) * BLOCK_N, BLOCK_N)
    for w in range(0, count, BLOCK_W):
        split = w + offs_w
        keep = split < count
        begin = tl.minimum(split * chunk, length)
        end = tl.minimum(begin + chunk, length)
        item = items_ptr + (before + split) * 4
        tl.store(item, b, mask=keep)
        tl.store(item + 1, start + begin, mask=keep)
        tl.store(item + 2, start + end, mask=keep)
        tl.store(item + 3, count, mask=keep)


def plan_capacity(sequences: int, *, programs_per_item: int, slots: int) -> int:
    """Upper bound on work items: 8 waves' worth, but no more than a split per 256 tokens needs."""
    return sequences + 2 * -(-slots // programs_per_item)


def make_plan(
    *,
    seq_lens: torch.Tensor,
    programs_per_item: int,
    slots: int,
    block_n: int,
    cu_query: torch.Tensor | None = None,
    max_query_len: int = 1,
    window: int = 0,
    min_tokens: int = MIN_TOKENS,
    out: Plan | None = None,
) -> Plan:
    """Lay out one step's work items on the device; `out` is written in place when given.

    programs_per_item: programs that share an item's tokens (kv heads times row blocks).
    slots: programs resident on the whole GPU at a time.
    """
    sequences = seq_lens.shape[0]
    if out is None:
        rows = plan_capacity(sequences, programs_per_item=programs_per_item, slots=slots)
        out = Plan(
            torch.empty(rows, 4, dtype=torch.int32, device=seq_lens.device),
            torch.empty(sequences + 1, dtype=torch.int32, device=seq_lens.device),
        )
    plan_items_kernel[(sequences + 1,)](
        out.items,
        out.first,
        seq_lens,
        cu_query,
        sequences,
        out.capacity,
        max_query_len,
        programs_per_item,
        slots,
        MIN_TOKENS=min_tokens,
        OVERHEAD=128,
        WINDOW=window,
        BLOCK_N=block_n,
        BLOCK_B=triton.next_power_of_2(max(sequences, 16)),
        BLOCK_W=64,
        num_warps=4,
    )
    return out
