# pyright: basic, reportMissingImports=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false
# (torch and triton are not installed where types are checked, so a kernel looks like a function)
# ruff: noqa: ANN001, ANN202, N803, PLR0913, PLR0917
# (device functions take pointers and UPPER_CASE compile-time constants, many at a time)
"""Accept drafts against the target's logits, without changing what is sampled.

Two launches, the second begun while the first still runs. `stats`: one pass over all logits, in
chunks of the vocabulary, for each row's maximum and its argmax (greedy) or its sum of exponentials
in base 2. `walk`: one program a sequence judges all its guesses side by side, keeps those before
the first that fails, and draws the token after them: a chunk by the chunks' sums, a token of that
chunk by an exponential race (the greatest p / e with e ~ Exp(1) is a draw from p). So only the
first pass reads the vocabulary.

Where guesses were drawn from a distribution q, the row at which a sequence stopped goes to a third
launch, `residual`: (p - q)+ has no sums yet, so all its chunks race, and the one that ends last
takes the winner. One row a sequence, not K.

Random numbers are Philox by (seed, place in the answer, use), so a sequence's tokens do not depend
on its batch, nor on how many guesses were refused. Filters (top-k, top-p, penalties, masks) belong
into the logits before, as -inf: what is accepted against must be what is sampled from.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from forebay.kernels._common.host import (
    check,
    config_for,
    next_power_of_2,
    sm_count,
    starts_early,
)

__all__ = ["RejectionConfig", "rejection_config", "rejection_sample"]

_USES = tl.constexpr(2)  # of a place's random numbers: keep, and draw
_NEVER = tl.constexpr(2147483647)


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
    """Maximum, and argmax or sum of `2 ** ((logit - max) * scale)`, of a chunk of one row."""
    b = tl.program_id(2)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    start = tl.load(cu_draft_ptr + b)
    if tl.program_id(1) > tl.load(cu_draft_ptr + b + 1) - start:
        return
    row = (start + b + tl.program_id(1)).to(tl.int64)
    scale = base2_scale(temperature_ptr, b)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offs < vocab
    x = tl.load(logits_ptr + row * stride_logits + offs, mask=inside, other=float("-inf"))
    x = x.to(tl.float32)
    top = tl.max(x, 0)
    at = row * CHUNKS + tl.program_id(0)
    tl.store(part_max_ptr + at, top)
    if scale == 0.0:
        found = tl.min(tl.where((x == top) & inside, offs, _NEVER), 0)
        tl.store(part_arg_ptr + at, found)
    else:
        shifted = tl.where(x > float("-inf"), (x - top) * scale, float("-inf"))
        tl.store(part_sum_ptr + at, tl.sum(tl.exp2(shifted), 0))


@triton.jit
def weights_of(logits_ptr, chunk, vocab, top, scale, refused, BLOCK: tl.constexpr):
    """Read a chunk of one row as `2 ** ((logit - top) * scale)`, 0 for the refused token."""
    offs = chunk * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + offs, mask=offs < vocab, other=float("-inf")).to(tl.float32)
    kept = (x > float("-inf")) & (offs != refused)
    return tl.where(kept, tl.exp2((x - top) * scale), 0.0)


@triton.jit
def race(chunk, weight, seed, place, BLOCK: tl.constexpr):
    """Run one chunk's race: the greatest key, and its token, the lower one on a tie.

    A stream of its own for each place: the keep coins count places, this one tokens.
    """
    stream = seed ^ ((place * _USES + 1) * 0x1E3779B1)
    # Four tokens a counter: token i takes number i % 4 of counter i // 4.
    a, b, c, d = tl.rand4x(stream, chunk * (BLOCK // 4) + tl.arange(0, BLOCK // 4))
    numbers = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (BLOCK,))
    waiting = -tl.log(tl.maximum(numbers, 1e-10))
    key = tl.where(weight > 0.0, weight / tl.maximum(waiting, 1e-30), -1.0)
    most = tl.max(key, 0)
    offs = chunk * BLOCK + tl.arange(0, BLOCK)
    return most, tl.min(tl.where(key == most, offs, _NEVER), 0)


@triton.jit
def draw(
    row_ptr,
    masses,
    vocab,
    top,
    scale,
    refused,
    its_weight,
    seed,
    place,
    BLOCK_C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Draw a token of one row, never the refused one (-1: none), by its chunks' masses."""
    chunk = tl.arange(0, BLOCK_C)
    if refused >= 0:
        its = refused // BLOCK
        whole = tl.sum(tl.where(chunk == its, masses, 0.0), 0)
        left = whole - its_weight
        if left < 0.5 * whole:
            # Added up anew: so little of the chunk is left that it could be rounding alone.
            left = tl.sum(weights_of(row_ptr, its, vocab, top, scale, refused, BLOCK), 0)
        masses = tl.where(chunk == its, left, masses)
    reached = tl.cumsum(masses, 0)
    point = tl.rand(seed, place * _USES + 1) * tl.max(reached, 0)
    found = tl.min(tl.where((reached > point) & (masses > 0.0), chunk, _NEVER), 0)
    found = tl.minimum(found, tl.max(tl.where(masses > 0.0, chunk, 0), 0))
    weight = weights_of(row_ptr, found, vocab, top, scale, refused, BLOCK)
    _key, token = race(found, weight, seed, place, BLOCK)
    return token


@triton.jit
def rejection_walk_kernel(  # noqa: PLR0915 - one program's whole way
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
    vocab,
    most,
    stride_logits,
    stride_probs,
    CHUNKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Keep one sequence's guesses up to the first that fails, and draw the token after them."""
    b = tl.program_id(0).to(tl.int64)
    # What was there before the pass began, which waited for it: all that a guess is judged by but
    # the sums. So this is read while the pass's last programs run.
    start = tl.load(cu_draft_ptr + b)
    count = tl.load(cu_draft_ptr + b + 1) - start
    scale = base2_scale(temperature_ptr, b)
    seed = tl.load(seed_ptr + b)
    place = tl.load(place_ptr + b)
    first_row = (start + b).to(tl.int64)
    each = tl.arange(0, BLOCK_K)
    chunk = tl.arange(0, BLOCK_C)
    token = tl.load(draft_ptr + start + each, mask=each < count, other=0)
    x = tl.load(
        logits_ptr + (first_row + each) * stride_logits + token, mask=each < count, other=0.0
    ).to(tl.float32)
    coin = tl.rand(seed, (place + each) * _USES)
    if draft_probs_ptr is not None:
        at = (start + each).to(tl.int64) * stride_probs + token
        coin *= tl.load(draft_probs_ptr + at, mask=each < count, other=0.0).to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    parts = (first_row + each)[:, None] * CHUNKS + chunk[None, :]  # [BLOCK_K, BLOCK_C]
    there = (each <= count)[:, None] & (chunk < CHUNKS)[None, :]
    tops = tl.load(part_max_ptr + parts, mask=there, other=float("-inf"))
    top = tl.max(tops, 1)
    last = -1
    if scale == 0.0:
        args = tl.load(part_arg_ptr + parts, mask=there, other=_NEVER)
        best = tl.min(tl.where(tops == top[:, None], args, _NEVER), 1)
        fails = best != token
        kept = tl.min(tl.where(fails & (each < count), each, count), 0)
        last = tl.max(tl.where(each == kept, best, -1), 0)
    else:
        sums = tl.load(part_sum_ptr + parts, mask=there, other=0.0)
        grown = tl.exp2((tops - top[:, None]) * scale)
        mass = tl.where(there & (tops > float("-inf")), sums * grown, 0.0)
        weight = tl.exp2((x - top) * scale)
        chance = weight / tl.sum(mass, 1)
        fails = (chance <= 0.0) | (coin >= chance)
        kept = tl.min(tl.where(fails & (each < count), each, count), 0)
        draws = kept == count
        if draft_probs_ptr is None:
            draws = kept <= count
        if draws:
            here = each == kept
            highest = tl.max(tl.where(here, top, float("-inf")), 0)
            masses = tl.sum(tl.where(here[:, None], mass, 0.0), 0)  # [BLOCK_C]
            refused = tl.max(tl.where(here & (each < count), token.to(tl.int32), -1), 0)
            row_ptr = logits_ptr + (first_row + kept) * stride_logits
            its_weight = tl.sum(tl.where(here, weight, 0.0), 0)
            last = draw(
                row_ptr, masses, vocab, highest, scale, refused, its_weight, seed, place + kept,
                BLOCK_C, BLOCK,
            )  # fmt: skip
    tokens = tl.where(each < kept, token.to(tl.int32), -1)
    tokens = tl.where(each == kept, last, tokens)
    tl.store(out_ptr + b * (most + 1) + each, tokens, mask=each <= most)
    tl.store(accepted_ptr + b, kept)
    if draft_probs_ptr is not None:
        tl.store(arrived_ptr + b, 0)


@triton.jit
def rejection_residual_kernel(
    logits_ptr,
    cu_draft_ptr,
    draft_probs_ptr,
    temperature_ptr,
    seed_ptr,
    place_ptr,
    part_max_ptr,
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
    """Run one chunk of the race over (p - q)+ where a drawn guess was refused."""
    chunk = tl.program_id(0)
    b = tl.program_id(1).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    scale = base2_scale(temperature_ptr, b)
    start = tl.load(cu_draft_ptr + b)
    kept = tl.load(accepted_ptr + b)
    if (scale == 0.0) | (kept == tl.load(cu_draft_ptr + b + 1) - start):
        return
    row = (start + b + kept).to(tl.int64)
    each = tl.arange(0, BLOCK_C)
    inside = each < CHUNKS
    tops = tl.load(part_max_ptr + row * CHUNKS + each, mask=inside, other=float("-inf"))
    sums = tl.load(part_sum_ptr + row * CHUNKS + each, mask=inside, other=0.0)
    top = tl.max(tops, 0)
    total = tl.sum(tl.where(tops > float("-inf"), sums * tl.exp2((tops - top) * scale), 0.0), 0)
    weight = weights_of(logits_ptr + row * stride_logits, chunk, vocab, top, scale, -1, BLOCK)
    offs = chunk * BLOCK + tl.arange(0, BLOCK)
    at = (start + kept).to(tl.int64) * stride_probs + offs
    q = tl.load(draft_probs_ptr + at, mask=offs < vocab, other=0.0).to(tl.float32)
    left = tl.maximum(weight / total - q, 0.0)
    best, first = race(chunk, left, tl.load(seed_ptr + b), tl.load(place_ptr + b) + kept, BLOCK)
    tl.store(race_key_ptr + b * CHUNKS + chunk, best)
    tl.store(race_arg_ptr + b * CHUNKS + chunk, first)
    # Both must be out before the counter says so; what others stored is read past L1.
    tl.debug_barrier()
    if tl.atomic_add(arrived_ptr + b, 1) == CHUNKS - 1:
        mine = b * CHUNKS + each
        keys = tl.load(race_key_ptr + mine, mask=inside, other=-2.0, cache_modifier=".cg")
        args = tl.load(race_arg_ptr + mine, mask=inside, other=0, cache_modifier=".cg")
        winner = tl.min(tl.where(keys == tl.max(keys, 0), args, _NEVER), 0)
        tl.store(out_ptr + b * (most + 1) + kept, winner)


@dataclass(frozen=True, slots=True)
class RejectionConfig:
    """Launch settings; chunk: tokens of the vocabulary a program reads, a power of two.

    walk_warps: of the programs that judge and draw; they are few, and each is one long way.
    """

    chunk: int
    num_warps: int
    walk_warps: int = 8


def rejection_config(*, logits: torch.Tensor, rows: int) -> RejectionConfig:
    """Look the settings up: the fewer the programs, the more warps each may have."""
    chunk = min(4096, max(16, next_power_of_2(logits.shape[1])))
    full = rows * -(-logits.shape[1] // chunk) >= 32 * sm_count(logits.device)
    built_in = {"chunk": chunk, "num_warps": 4 if full or chunk < 2048 else 8}
    key = "full" if full else "few"
    return RejectionConfig(**config_for("rejection", key, logits.device, built_in))


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
    config: RejectionConfig | None = None,
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
    config = config or rejection_config(logits=logits, rows=rows)
    chunks = -(-vocab // config.chunk)
    part = torch.empty((2, rows * chunks), dtype=torch.float32, device=device)
    part_arg = torch.empty(rows * chunks, dtype=torch.int32, device=device)
    pdl = starts_early(device)
    block_c = next_power_of_2(chunks)
    fixed = {"CHUNKS": chunks, "BLOCK": config.chunk, "PDL": pdl, "launch_pdl": pdl}
    rejection_stats_kernel[(chunks, most + 1, sequences)](
        logits, cu_draft, temperature, part[0], part_arg, part[1], vocab, logits.stride(0),
        **fixed, num_warps=config.num_warps,
    )  # fmt: skip
    arrived, stride_probs = None, 0
    if draft_probs is not None:
        race_arg = torch.empty((chunks + 1) * sequences, dtype=torch.int32, device=device)
        arrived, stride_probs = race_arg[chunks * sequences :], draft_probs.stride(0)
    rejection_walk_kernel[(sequences,)](
        logits, draft, cu_draft, draft_probs, temperature, seeds, places, part[0], part_arg,
        part[1], out, accepted, arrived, vocab, most, logits.stride(0), stride_probs,
        BLOCK_C=block_c, BLOCK_K=next_power_of_2(most + 1), **fixed,
        num_warps=config.walk_warps,
    )  # fmt: skip
    if draft_probs is not None:
        race_key = torch.empty(sequences * chunks, dtype=torch.float32, device=device)
        rejection_residual_kernel[(chunks, sequences)](
            logits, cu_draft, draft_probs, temperature, seeds, places, part[0], part[1], out,
            accepted, arrived, race_key, race_arg, vocab, most, logits.stride(0), stride_probs,
            BLOCK_C=block_c, **fixed, num_warps=config.num_warps,
        )  # fmt: skip
    return out, accepted
