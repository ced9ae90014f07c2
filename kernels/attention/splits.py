# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""How a decode step is cut into splits, so that few sequences still fill the GPU.

Four policies. `mission`, `occupancy` and `fixed` are *static*: the grid has max_splits columns for
each sequence, and each program works out on the device how many of them its sequence uses.
`balanced` is *planned*: one tiny kernel per step stands all sequences in a line and cuts it into as
many equal parts as programs are resident, for all layers. Neither reads a length on the host, so
both replay in CUDA graphs.

- `mission` is FlashDecoding's `min(64, max(SMs, ceil(n / 256)))`, one split under 512 tokens. On a
  GPU with 64 SMs or more the maximum is never below 64, so it always says 64: kept for comparison.
- `occupancy` (default) asks for enough splits to fill the programs that are resident at a time, no
  split under 256 tokens, and among near-equal choices the fewest.
- `fixed` cuts every `tokens` tokens, whatever else is in the batch: batch-invariant results.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import check
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

    items: `[items, 4]` int32: sequence, first token, end token, items of the sequence.
    first: `[sequences + 1]` int32, index of each sequence's first item.
    parts: `[columns, 8]` int32, what one grid column walks: the first item's four numbers (sequence
    -1: nothing to do), its index, the index past the last, two unused.
    block_n: tokens of the tile that items start at multiples of; a kernel's must divide it.
    """

    items: torch.Tensor
    first: torch.Tensor
    parts: torch.Tensor
    block_n: int

    @property
    def capacity(self) -> int:
        """Items at most: an upper bound that does not depend on the lengths."""
        return self.items.shape[0]

    @property
    def columns(self) -> int:
        """Grid columns a launch needs."""
        return self.parts.shape[0]


def mission_splits(length: int, sms: int) -> int:
    """Return the formula of FlashDecoding, literally."""
    return 1 if length < 512 else min(64, max(sms, -(-length // 256)))


def occupancy_splits(
    *,
    programs: int,
    slots: int,
    max_len: int,
    min_tokens: int = MIN_TOKENS,
    enough: float = 0.8,
) -> int:
    """Choose splits for `programs` (sequence, head) pairs on `slots` resident programs.

    Among the counts up to the cap take the smallest whose last wave is filled to within 85 % of
    the best; no split at all where the pairs alone fill enough of the machine.
    """
    if programs >= enough * slots:
        return 1
    cap = max(1, min(MAX_SPLITS, -(-max_len // min_tokens), 2 * -(-slots // programs)))

    def filled(splits: int) -> float:
        waves = programs * splits / slots
        return waves / math.ceil(waves)

    best = max(filled(s) for s in range(1, cap + 1))
    return next(s for s in range(1, cap + 1) if filled(s) >= 0.85 * best)


def static_splits(
    policy: Policy,
    *,
    programs: int,
    slots: int,
    sms: int,
    max_len: int,
    fixed_tokens: int = 512,
    min_tokens: int = MIN_TOKENS,
    enough: float = 0.8,
) -> StaticSplits:
    """Turn a static policy into launch arguments."""
    if policy == "mission":
        return StaticSplits(mission_splits(max(max_len, 512), sms), 1, 512)
    if policy == "fixed":
        return StaticSplits(max(1, -(-max_len // fixed_tokens)), 1, 0, fixed_tokens)
    if policy == "occupancy":
        splits = occupancy_splits(
            programs=programs,
            slots=slots,
            max_len=max_len,
            min_tokens=min_tokens,
            enough=enough,
        )
        return StaticSplits(splits, min_tokens)
    raise ValueError(f"policy {policy!r} is not static, make a plan for it")


def split_of(length: int, splits: StaticSplits, block_n: int) -> tuple[int, int]:
    """Return splits and tokens per split for one sequence: each program's own sum, in Python."""
    want = min(splits.max_splits, max(1, -(-length // splits.min_tokens)))
    if length < splits.single_below:
        want = 1
    chunk = splits.fixed_tokens or -(-length // (want * block_n)) * block_n
    chunk = max(chunk, block_n)
    return max(1, -(-length // chunk)), chunk


@triton.jit(
    do_not_specialize=["sequences", "parts", "waves", "max_query", "programs_per_item", "slots"]
)
def plan_kernel(
    items_ptr,
    first_ptr,
    parts_ptr,
    seq_lens_ptr,
    cu_query_ptr,
    sequences,
    parts,
    waves,
    max_query,
    programs_per_item,
    slots,
    MIN_TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """Program p writes part p and the items in it; each repeats the same sums over the batch.

    The sequences' tiles stand in one line, which is cut into equal parts; a sequence that a cut
    runs through has several items.
    """
    p = tl.program_id(0)
    offs = tl.arange(0, BLOCK_B)
    mine = offs < sequences
    lens = tl.load(seq_lens_ptr + offs, mask=mine, other=0)
    if cu_query_ptr is None:
        q_lens = max_query
    else:
        q_lens = tl.load(cu_query_ptr + offs + 1, mask=mine, other=0) - tl.load(
            cu_query_ptr + offs, mask=mine, other=0
        )
    starts = visible_start(lens, q_lens, WINDOW, BLOCK_N)
    seen = tl.maximum(lens - starts, 0)
    # An empty sequence has one empty tile: somebody must write its zeros.
    tiles = tl.where(mine, tl.maximum(tl.cdiv(seen, BLOCK_N), 1), 0)
    longest = tl.max(tiles, 0)
    part = tl.maximum(tl.cdiv(tl.sum(tiles, 0), parts), MIN_TOKENS // BLOCK_N)
    # Whole sequences, one a part, where that takes at most a tenth longer: nothing to merge then.
    rounds = tl.cdiv(tl.sum((seen > 0).to(tl.int32), 0) * programs_per_item, slots)
    whole = rounds * longest * 10 <= waves * part * 11
    part = tl.where(whole, longest, part)
    begin = tl.where(whole, offs * part, tl.cumsum(tiles, 0) - tiles)
    first_part = begin // part
    last_part = (begin + tiles - 1) // part
    counts = tl.where(mine, last_part - first_part + 1, 0)
    before = tl.cumsum(counts, 0) - counts
    if p == 0:
        tl.store(first_ptr + offs, before, mask=mine)
        tl.store(first_ptr + sequences, tl.sum(counts, 0))
    here = mine & (first_part <= p) & (p <= last_part)
    item = before + p - first_part
    start = starts + tl.maximum(p * part - begin, 0) * BLOCK_N
    end = tl.minimum(starts + tl.minimum((p + 1) * part - begin, tiles) * BLOCK_N, lens)
    at = items_ptr + item * 4
    tl.store(at, offs, mask=here)
    tl.store(at + 1, start, mask=here)
    tl.store(at + 2, end, mask=here)
    tl.store(at + 3, counts, mask=here)
    found = tl.sum(here.to(tl.int32), 0)
    lead = tl.min(tl.where(here, item, 1 << 30), 0)
    first = here & (item == lead)
    record = parts_ptr + p * 8
    tl.store(record, tl.where(found > 0, tl.sum(tl.where(first, offs, 0), 0), -1))
    tl.store(record + 1, tl.sum(tl.where(first, start, 0), 0))
    tl.store(record + 2, tl.sum(tl.where(first, end, 0), 0))
    tl.store(record + 3, tl.sum(tl.where(first, counts, 0), 0))
    tl.store(record + 4, lead)
    tl.store(record + 5, lead + found)


def part_count(*, programs_per_item: int, slots: int) -> tuple[int, int]:
    """Return parts, and the waves they run in: the fewest that fill the GPU to 96 % of best."""
    tried = [(max(1, slots * waves // programs_per_item), waves) for waves in (1, 2, 3)]

    def filled(parts: int) -> float:
        used = parts * programs_per_item / slots
        return used / math.ceil(used)

    best = max(filled(parts) for parts, _ in tried)
    parts = next(parts for parts, _ in tried if filled(parts) >= 0.96 * best)
    return parts, math.ceil(parts * programs_per_item / slots)


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

    Raises ValueError for an `out` that was made for another number of sequences, or for settings
    with fewer parts.
    programs_per_item: programs that share an item's tokens (kv heads times row blocks).
    slots: programs resident on the whole GPU at a time.
    """
    sequences = seq_lens.shape[0]
    parts, waves = part_count(programs_per_item=programs_per_item, slots=slots)
    if out is None:

        def room(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=seq_lens.device)

        columns = max(parts, sequences)
        out = Plan(room(parts + sequences, 4), room(sequences + 1), room(columns, 8), block_n)
    fits = out.first.shape[0] == sequences + 1 and out.columns >= max(parts, sequences)
    check(fits and out.capacity >= parts + sequences, "the plan given was made for another step")
    plan_kernel[(out.columns,)](
        out.items, out.first, out.parts, seq_lens, cu_query,
        sequences, parts, waves, max_query_len, programs_per_item, slots,
        MIN_TOKENS=min_tokens, WINDOW=window, BLOCK_N=block_n,
        BLOCK_B=triton.next_power_of_2(max(sequences, 16)), num_warps=4,
    )  # fmt: skip
    return replace(out, block_n=block_n)
