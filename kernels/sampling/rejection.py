# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Accept drafts against the target's logits, without changing what is sampled.

Three launches. `stats`: one pass over all logits, split over chunks of the vocabulary, for each
row's maximum, argmax and sum of exponentials in base 2. `walk`: one program a sequence accepts from
the first guess on and stops at the first that fails. `residual`: only the row at which a sequence
stopped is read again, in chunks, for an exponential race: the greatest (p - q)+ / e with e ~ Exp(1)
is a draw from the residual, so no sum over it and no second pass are needed. One row a sequence,
not K.

Random numbers are Philox by (seed, place in the answer, use), so a sequence's tokens do not depend
on its batch, nor on how many guesses were refused. Filters (top-k, top-p, penalties, masks) belong
into the logits before, as -inf: what is accepted against must be what is sampled from.
"""

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import LOG2E, check, next_power_of_2

__all__ = ["rejection_sample"]

_CHUNK = 4096
_USES = tl.constexpr(2)  # of a place's random numbers: keep, and race


@triton.jit
def rejection_stats_kernel(
    logits_ptr,
    scale_ptr,
    row_sequence_ptr,
    part_max_ptr,
    part_arg_ptr,
    part_sum_ptr,
    vocab,
    stride_logits,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Maximum, argmax and sum of `2 ** (logit * scale - max)` of one chunk of one row."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    offs = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = offs < vocab
    scale = tl.load(scale_ptr + tl.load(row_sequence_ptr + row))
    x = tl.load(logits_ptr + row * stride_logits + offs, mask=inside, other=float("-inf"))
    x = x.to(tl.float32)
    top = tl.max(x, 0)
    first = tl.min(tl.where((x == top) & inside, offs, 2147483647), 0)
    # scale 0 stands for greedy: only the argmax is wanted of such rows.
    shifted = tl.where(inside & (x > float("-inf")), (x - top) * scale, float("-inf"))
    total = tl.sum(tl.exp2(shifted), 0)
    at = row * CHUNKS + chunk
    tl.store(part_max_ptr + at, top)
    tl.store(part_arg_ptr + at, first)
    tl.store(part_sum_ptr + at, total)


@triton.jit
def row_state(
    part_max_ptr,
    part_arg_ptr,
    part_sum_ptr,
    row,
    scale,
    CHUNKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Merge a row's chunks: maximum, argmax (the lower id on a tie), sum."""
    offs = tl.arange(0, BLOCK_C)
    inside = offs < CHUNKS
    tops = tl.load(part_max_ptr + row * CHUNKS + offs, mask=inside, other=float("-inf"))
    args = tl.load(part_arg_ptr + row * CHUNKS + offs, mask=inside, other=2147483647)
    sums = tl.load(part_sum_ptr + row * CHUNKS + offs, mask=inside, other=0.0)
    top = tl.max(tops, 0)
    best = tl.min(tl.where((tops == top) & inside, args, 2147483647), 0)
    grown = tl.where(tops > float("-inf"), tl.exp2((tops - top) * scale), 0.0)
    return top, best, tl.sum(sums * grown, 0)


@triton.jit
def rejection_walk_kernel(
    logits_ptr,
    draft_ptr,
    cu_draft_ptr,
    draft_probs_ptr,
    scale_ptr,
    seed_ptr,
    place_ptr,
    part_max_ptr,
    part_arg_ptr,
    part_sum_ptr,
    out_ptr,
    accepted_ptr,
    stride_logits,
    stride_probs,
    stride_out,
    CHUNKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Accept one sequence's guesses up to the first that fails; greedy ones are done then."""
    b = tl.program_id(0).to(tl.int64)
    start = tl.load(cu_draft_ptr + b)
    count = tl.load(cu_draft_ptr + b + 1) - start
    scale = tl.load(scale_ptr + b)
    seed = tl.load(seed_ptr + b)
    place = tl.load(place_ptr + b)
    kept = 0
    going = 1
    while (kept < count) & (going == 1):
        row = (start + b + kept).to(tl.int64)
        token = tl.load(draft_ptr + start + kept)
        top, best, total = row_state(
            part_max_ptr, part_arg_ptr, part_sum_ptr, row, scale, CHUNKS, BLOCK_C
        )
        if scale == 0.0:
            going = tl.where(best == token, 1, 0)
        else:
            x = tl.load(logits_ptr + row * stride_logits + token).to(tl.float32)
            chance = tl.exp2((x - top) * scale) / total
            q = 1.0
            if draft_probs_ptr is not None:
                q = tl.load(draft_probs_ptr + (start + kept) * stride_probs + token).to(tl.float32)
            coin = tl.rand(seed, (place + kept) * _USES)
            going = tl.where((chance > 0.0) & (coin * q < chance), 1, 0)
        if going == 1:
            tl.store(out_ptr + b * stride_out + kept, token.to(tl.int32))
            kept += 1
    tl.store(accepted_ptr + b, kept)
    if scale == 0.0:
        row = (start + b + kept).to(tl.int64)
        top, best, total = row_state(
            part_max_ptr, part_arg_ptr, part_sum_ptr, row, scale, CHUNKS, BLOCK_C
        )
        tl.store(out_ptr + b * stride_out + kept, best)


@triton.jit
def rejection_residual_kernel(
    logits_ptr,
    draft_ptr,
    cu_draft_ptr,
    draft_probs_ptr,
    scale_ptr,
    seed_ptr,
    place_ptr,
    part_max_ptr,
    part_arg_ptr,
    part_sum_ptr,
    accepted_ptr,
    race_key_ptr,
    race_arg_ptr,
    vocab,
    stride_logits,
    stride_probs,
    CHUNKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Run one chunk of the race for the token after the accepted ones."""
    b = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    scale = tl.load(scale_ptr + b)
    if scale == 0.0:
        return
    start = tl.load(cu_draft_ptr + b)
    count = tl.load(cu_draft_ptr + b + 1) - start
    kept = tl.load(accepted_ptr + b)
    row = (start + b + kept).to(tl.int64)
    top, _best, total = row_state(
        part_max_ptr, part_arg_ptr, part_sum_ptr, row, scale, CHUNKS, BLOCK_C
    )
    offs = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = offs < vocab
    x = tl.load(logits_ptr + row * stride_logits + offs, mask=inside, other=float("-inf"))
    x = x.to(tl.float32)
    p = tl.where(inside & (x > float("-inf")), tl.exp2((x - top) * scale) / total, 0.0)
    if kept < count:
        if draft_probs_ptr is not None:
            at = (start + kept).to(tl.int64) * stride_probs
            q = tl.load(draft_probs_ptr + at + offs, mask=inside, other=0.0).to(tl.float32)
            p = tl.maximum(p - q, 0.0)
        else:
            p = tl.where(offs == tl.load(draft_ptr + start + kept), 0.0, p)
    seed = tl.load(seed_ptr + b)
    place = tl.load(place_ptr + b) + kept
    # A stream of its own for each place: the keep coins count places, this one tokens.
    u = tl.rand(seed ^ ((place * _USES + 1) * 0x1E3779B1), offs)
    waiting = -tl.log(tl.maximum(u, 1e-10))
    key = tl.where(p > 0.0, p / tl.maximum(waiting, 1e-30), -1.0)
    best = tl.max(key, 0)
    first = tl.min(tl.where((key == best) & inside, offs, 2147483647), 0)
    tl.store(race_key_ptr + b * CHUNKS + chunk, best)
    tl.store(race_arg_ptr + b * CHUNKS + chunk, first)


@triton.jit
def rejection_finish_kernel(
    scale_ptr,
    accepted_ptr,
    race_key_ptr,
    race_arg_ptr,
    out_ptr,
    stride_out,
    CHUNKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Take the winner over the chunks."""
    b = tl.program_id(0).to(tl.int64)
    if tl.load(scale_ptr + b) == 0.0:
        return
    offs = tl.arange(0, BLOCK_C)
    inside = offs < CHUNKS
    keys = tl.load(race_key_ptr + b * CHUNKS + offs, mask=inside, other=-2.0)
    args = tl.load(race_arg_ptr + b * CHUNKS + offs, mask=inside, other=2147483647)
    best = tl.min(tl.where((keys == tl.max(keys, 0)) & inside, args, 2147483647), 0)
    tl.store(out_ptr + b * stride_out + tl.load(accepted_ptr + b), best)


def rejection_sample(
    *,
    logits: torch.Tensor,
    draft: torch.Tensor,
    cu_draft: torch.Tensor,
    most: int,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    places: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
    chunk: int = _CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept guesses; returns `out [sequences, most + 1]` int32 padded with -1, and `[sequences]`.

    logits `[sum(K) + sequences, vocab]` fp32, fp16 or bf16, filtered, the K + 1 rows of a sequence
    together; draft `[sum(K)]` and cu_draft `[sequences + 1]` int32; most: K at most; temperature
    `[sequences]` fp32, 0 for greedy; seeds, places `[sequences]` int64: of the request, and of the
    first guess in its answer; draft_probs `[sum(K), vocab]`: what guesses were drawn from,
    filtered; without it guesses are taken as not drawn at random.

    Lossless; deterministic by seed and place. No length is read on the host, so it can be captured.
    Raises ValueError for shapes that do not fit.
    """
    rows, vocab = logits.shape
    sequences = cu_draft.numel() - 1
    check(rows == draft.numel() + sequences, "logits needs one row a guess and one a sequence")
    check(logits.stride(1) == 1, "logits must have unit stride over the vocabulary")
    check(
        draft_probs is None or draft_probs.shape == (draft.numel(), vocab),
        "draft_probs must be [guesses, vocab]",
    )
    device = logits.device
    out = torch.full((sequences, most + 1), -1, dtype=torch.int32, device=device)
    accepted = torch.zeros(sequences, dtype=torch.int32, device=device)
    if not sequences:
        return out, accepted
    block = min(chunk, next_power_of_2(vocab))
    chunks = -(-vocab // block)
    block_c = next_power_of_2(chunks)
    scale = torch.where(temperature > 0, LOG2E / temperature.clamp(min=1e-6), 0.0).float()
    # Which sequence a row belongs to, without reading a length: rows at or past each one's start.
    starts = cu_draft[1:].long() + torch.arange(1, sequences + 1, device=device)
    sequence_of = torch.bucketize(torch.arange(rows, device=device), starts, right=True)
    part = torch.empty(2, rows * chunks, dtype=torch.float32, device=device)
    part_arg = torch.empty(rows * chunks, dtype=torch.int32, device=device)
    race = torch.empty(sequences * chunks, dtype=torch.float32, device=device)
    race_arg = torch.empty(sequences * chunks, dtype=torch.int32, device=device)
    parts = (part[0], part_arg, part[1])
    stride_probs = 0 if draft_probs is None else draft_probs.stride(0)
    rejection_stats_kernel[(rows, chunks)](
        logits, scale, sequence_of, *parts, vocab, logits.stride(0),
        CHUNKS=chunks, BLOCK=block, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
    given = (logits, draft, cu_draft, draft_probs, scale, seeds, places)
    rejection_walk_kernel[(sequences,)](
        *given, *parts, out, accepted, logits.stride(0), stride_probs, out.stride(0),
        CHUNKS=chunks, BLOCK_C=block_c, num_warps=1,
    )  # fmt: skip
    rejection_residual_kernel[(sequences, chunks)](
        *given, *parts, accepted, race, race_arg, vocab, logits.stride(0), stride_probs,
        CHUNKS=chunks, BLOCK_C=block_c, BLOCK=block, num_warps=8 if block >= 2048 else 4,
    )  # fmt: skip
    rejection_finish_kernel[(sequences,)](
        scale, accepted, race, race_arg, out, out.stride(0),
        CHUNKS=chunks, BLOCK_C=block_c, num_warps=1,
    )  # fmt: skip
    return out, accepted
