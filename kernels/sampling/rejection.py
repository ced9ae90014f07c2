# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Accept drafts against the target's logits, without changing what is sampled.

Three launches, each begun while the one before still runs, and nothing else. `stats`: one pass over
all logits, split over chunks of the vocabulary, for each row's maximum, argmax and sum of
exponentials in base 2. `walk`: one program a sequence accepts from the first guess on and stops at
the first that fails. `residual`: only the row at which a sequence stopped is read again, in chunks,
for an exponential race: the greatest (p - q)+ / e with e ~ Exp(1) is a draw from the residual, so
no sum over it and no second pass are needed; the chunk that ends last takes the winner. One row a
sequence, not K.

Random numbers are Philox by (seed, place in the answer, use), so a sequence's tokens do not depend
on its batch, nor on how many guesses were refused. Filters (top-k, top-p, penalties, masks) belong
into the logits before, as -inf: what is accepted against must be what is sampled from.
"""

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import check, next_power_of_2, starts_early

__all__ = ["rejection_sample"]

_CHUNK = 4096
_USES = tl.constexpr(2)  # of a place's random numbers: keep, and race


@triton.jit
def base2_scale(temperature_ptr, b):
    """log2(e) / temperature of a sequence; 0 stands for greedy, of which only argmaxes matter."""
    temperature = tl.load(temperature_ptr + b)
    return tl.where(temperature > 0.0, 1.4426950408889634 / tl.maximum(temperature, 1e-6), 0.0)


@triton.jit
def rejection_stats_kernel(
    logits_ptr,
    cu_draft_ptr,
    temperature_ptr,
    part_max_ptr,
    part_arg_ptr,
    part_sum_ptr,
    vocab,
    stride_logits,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Maximum, argmax and sum of `2 ** (logit * scale - max)` of one chunk of one row."""
    chunk = tl.program_id(0)
    b = tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    start = tl.load(cu_draft_ptr + b)
    if tl.program_id(1) > tl.load(cu_draft_ptr + b + 1) - start:
        return
    row = (start + b + tl.program_id(1)).to(tl.int64)
    offs = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = offs < vocab
    x = tl.load(logits_ptr + row * stride_logits + offs, mask=inside, other=float("-inf"))
    x = x.to(tl.float32)
    scale = base2_scale(temperature_ptr, b)
    top = tl.max(x, 0)
    first = tl.min(tl.where((x == top) & inside, offs, 2147483647), 0)
    shifted = tl.where(x > float("-inf"), (x - top) * scale, float("-inf"))
    at = row * CHUNKS + chunk
    tl.store(part_max_ptr + at, top)
    tl.store(part_arg_ptr + at, first)
    tl.store(part_sum_ptr + at, tl.sum(tl.exp2(shifted), 0))


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
    temperature_ptr,
    seed_ptr,
    place_ptr,
    part_max_ptr,
    part_arg_ptr,
    part_sum_ptr,
    out_ptr,
    accepted_ptr,
    arrived_ptr,
    most,
    stride_logits,
    stride_probs,
    CHUNKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """Accept one sequence's guesses up to the first that fails; greedy ones are done then."""
    b = tl.program_id(0).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    start = tl.load(cu_draft_ptr + b)
    count = tl.load(cu_draft_ptr + b + 1) - start
    scale = base2_scale(temperature_ptr, b)
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
            kept += 1
    last = -1
    if scale == 0.0:
        row = (start + b + kept).to(tl.int64)
        top, last, total = row_state(
            part_max_ptr, part_arg_ptr, part_sum_ptr, row, scale, CHUNKS, BLOCK_C
        )
    offs = tl.arange(0, BLOCK_K)
    tokens = tl.load(draft_ptr + start + offs, mask=offs < kept, other=-1)
    tokens = tl.where(offs == kept, last, tokens.to(tl.int32))
    tl.store(out_ptr + b * (most + 1) + offs, tokens, mask=offs <= most)
    tl.store(accepted_ptr + b, kept)
    tl.store(arrived_ptr + b, 0)


@triton.jit
def rejection_residual_kernel(
    logits_ptr,
    draft_ptr,
    cu_draft_ptr,
    draft_probs_ptr,
    temperature_ptr,
    seed_ptr,
    place_ptr,
    part_max_ptr,
    part_arg_ptr,
    part_sum_ptr,
    out_ptr,
    accepted_ptr,
    arrived_ptr,
    race_key_ptr,
    race_arg_ptr,
    vocab,
    most,
    stride_logits,
    stride_probs,
    CHUNKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Run one chunk of the race for the token after the accepted ones."""
    chunk = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    scale = base2_scale(temperature_ptr, b)
    if scale == 0.0:
        return
    start = tl.load(cu_draft_ptr + b)
    count = tl.load(cu_draft_ptr + b + 1) - start
    kept = tl.load(accepted_ptr + b)
    row = (start + b + kept).to(tl.int64)
    top, _best, total = row_state(
        part_max_ptr, part_arg_ptr, part_sum_ptr, row, scale, CHUNKS, BLOCK_C
    )
    seed = tl.load(seed_ptr + b)
    place = tl.load(place_ptr + b) + kept
    refused = -1
    if (kept < count) & (draft_probs_ptr is None):
        refused = tl.load(draft_ptr + start + kept).to(tl.int32)
    # A stream of its own for each place: the keep coins count places, this one fours of tokens.
    quarter = tl.arange(0, BLOCK // 4)
    stream = seed ^ ((place * _USES + 1) * 0x1E3779B1)
    numbers = tl.rand4x(stream, chunk * (BLOCK // 4) + quarter)
    best = -2.0
    first = 0
    for part in tl.static_range(4):
        offs = chunk * BLOCK + part * (BLOCK // 4) + quarter
        inside = offs < vocab
        x = tl.load(logits_ptr + row * stride_logits + offs, mask=inside, other=float("-inf"))
        p = tl.exp2((x.to(tl.float32) - top) * scale) / total
        p = tl.where((x > float("-inf")) & (offs != refused), p, 0.0)
        if draft_probs_ptr is not None:
            at = (start + kept).to(tl.int64) * stride_probs
            q = tl.load(draft_probs_ptr + at + offs, mask=inside & (kept < count), other=0.0)
            p = tl.maximum(p - q.to(tl.float32), 0.0)
        waiting = -tl.log(tl.maximum(numbers[part], 1e-10))
        key = tl.where(p > 0.0, p / tl.maximum(waiting, 1e-30), -1.0)
        most_here = tl.max(key, 0)
        here = tl.min(tl.where((key == most_here) & inside, offs, 2147483647), 0)
        first = tl.where(most_here > best, here, first)
        best = tl.maximum(best, most_here)
    tl.store(race_key_ptr + b * CHUNKS + chunk, best)
    tl.store(race_arg_ptr + b * CHUNKS + chunk, first)
    # Both must be out before the counter says so; what others stored is read past L1.
    tl.debug_barrier()
    if tl.atomic_add(arrived_ptr + b, 1) == CHUNKS - 1:
        each = tl.arange(0, BLOCK_C)
        mine = b * CHUNKS + each
        keys = tl.load(race_key_ptr + mine, mask=each < CHUNKS, other=-2.0, cache_modifier=".cg")
        args = tl.load(race_arg_ptr + mine, mask=each < CHUNKS, other=0, cache_modifier=".cg")
        winner = tl.min(tl.where(keys == tl.max(keys, 0), args, 2147483647), 0)
        tl.store(out_ptr + b * (most + 1) + kept, winner)


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
    out = torch.empty((sequences, most + 1), dtype=torch.int32, device=device)
    accepted = torch.empty(sequences, dtype=torch.int32, device=device)
    if not sequences:
        return out, accepted
    block = min(chunk, next_power_of_2(vocab))
    chunks = -(-vocab // block)
    part = torch.empty((2, rows * chunks), dtype=torch.float32, device=device)
    part_arg = torch.empty(rows * chunks, dtype=torch.int32, device=device)
    race = torch.empty(sequences * chunks, dtype=torch.float32, device=device)
    race_arg = torch.empty((chunks + 1) * sequences, dtype=torch.int32, device=device)
    arrived = race_arg[chunks * sequences :]
    parts = (part[0], part_arg, part[1])
    stride_probs = 0 if draft_probs is None else draft_probs.stride(0)
    pdl = starts_early(device)
    common = {"CHUNKS": chunks, "PDL": pdl, "launch_pdl": pdl}
    warps = 8 if block >= 2048 else 4
    rejection_stats_kernel[(chunks, most + 1, sequences)](
        logits, cu_draft, temperature, *parts, vocab, logits.stride(0),
        BLOCK=block, num_warps=warps, **common,
    )  # fmt: skip
    given = (logits, draft, cu_draft, draft_probs, temperature, seeds, places)
    block_c = next_power_of_2(chunks)
    rejection_walk_kernel[(sequences,)](
        *given, *parts, out, accepted, arrived, most, logits.stride(0), stride_probs,
        BLOCK_C=block_c, BLOCK_K=next_power_of_2(most + 1), num_warps=1, **common,
    )  # fmt: skip
    rejection_residual_kernel[(chunks, sequences)](
        *given, *parts, out, accepted, arrived, race, race_arg, vocab, most,
        logits.stride(0), stride_probs,
        BLOCK_C=block_c, BLOCK=block, num_warps=warps, **common,
    )  # fmt: skip
    return out, accepted
