"""Fits an engine profile to what was measured at a real endpoint.

A decoding step of n sequences that read c tokens from the KV cache takes

    step_s + n * decode_sequence_s + c * context_token_s

and a prompt of p tokens, alone, has its first token after

    overhead_s + steps * step_s + p * prefill_token_s + p * p / 2 * prefill_pair_s

Both are fitted by least squares of the relative errors, with no term below 0: what cannot be told
from the measurements is 0, and the others take its part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import ceil, inf
from typing import TYPE_CHECKING, NamedTuple

from .engine_profiles import Profile

if TYPE_CHECKING:
    from collections.abc import Sequence


class Prefill(NamedTuple):
    """One prompt alone on an idle engine."""

    prompt_tokens: int
    ttft_s: float


class Decode(NamedTuple):
    """Sequences that decode together."""

    sequences: int
    context_tokens: float
    """Of all together, on average over the time measured."""
    step_s: float
    """Seconds from a token to the next."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine says of its size."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    block_tokens: int = 16
    num_blocks: int = 16384
    max_model_len: int = 32768


def fit(
    name: str, prefills: Sequence[Prefill], decodes: Sequence[Decode], limits: Limits
) -> Profile:
    """Return the profile that fits best; raises ValueError for too few measurements."""
    if len({p.prompt_tokens for p in prefills}) < 2 or len({d.sequences for d in decodes}) < 2:
        raise ValueError("two prompt lengths and two concurrencies are the least to fit to")
    step, sequence, context = least_squares(
        [((1.0, d.sequences, d.context_tokens), d.step_s) for d in decodes]
    )
    rows: list[tuple[tuple[float, ...], float]] = []
    for prompt, ttft in prefills:
        steps = ceil(prompt / limits.max_num_batched_tokens) * step
        # What is quicker than its steps says nothing of the rest.
        rows.append(((1.0, prompt, prompt * prompt / 2), max(ttft - steps, 1e-9)))
    overhead, token, pair = least_squares(rows)
    return Profile(
        name=name,
        step_s=step,
        prefill_token_s=token,
        prefill_pair_s=pair,
        decode_sequence_s=sequence,
        context_token_s=context,
        overhead_s=overhead,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=max(limits.max_num_batched_tokens, limits.max_num_seqs),
        block_tokens=limits.block_tokens,
        num_blocks=limits.num_blocks,
        max_model_len=limits.max_model_len,
    )


def least_squares(rows: Sequence[tuple[Sequence[float], float]]) -> tuple[float, ...]:
    """Return the terms, none below 0, with the least squares of relative errors.

    Goes through the sets of terms that may differ from 0: meant for a few of them.
    """
    scaled = [([x / y for x in xs], 1.0) for xs, y in rows]
    count = len(rows[0][0])
    best, least = (0.0,) * count, inf
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            terms = _solve(scaled, chosen)
            if terms is None or min(terms) < 0:
                continue
            whole = [0.0] * count
            for index, term in zip(chosen, terms, strict=True):
                whole[index] = term
            error = sum(
                (sum(x * t for x, t in zip(xs, whole, strict=True)) - y) ** 2 for xs, y in scaled
            )
            if error < least * (1 - 1e-9):
                best, least = tuple(whole), error
    return best


def _solve(
    rows: Sequence[tuple[Sequence[float], float]], chosen: Sequence[int]
) -> list[float] | None:
    """Solve the normal equations for the chosen terms; None when they cannot be told apart."""
    scale = [sum(xs[i] ** 2 for xs, _ in rows) ** 0.5 for i in chosen]
    if not all(scale):
        return None
    unit = [[xs[i] / s for i, s in zip(chosen, scale, strict=True)] for xs, _ in rows]
    ys = [y for _, y in rows]
    size = len(chosen)
    matrix: list[list[float]] = []
    for a in range(size):
        row = [sum((u[a] * u[b] for u in unit), 0.0) for b in range(size)]
        matrix.append([*row, sum((u[a] * y for u, y in zip(unit, ys, strict=True)), 0.0)])
    for pivot in range(size):
        best = max(range(pivot, size), key=lambda row: abs(matrix[row][pivot]))
        matrix[pivot], matrix[best] = matrix[best], matrix[pivot]
        if abs(matrix[pivot][pivot]) < 1e-9:
            return None
        for row in range(size):
            if row != pivot:
                factor = matrix[row][pivot] / matrix[pivot][pivot]
                matrix[row] = [
                    a - factor * b for a, b in zip(matrix[row], matrix[pivot], strict=True)
                ]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]
