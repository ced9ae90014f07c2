# pyright: basic, reportMissingImports=false
"""What a network is trained on, as tensors that stay on its device, and what a step draws of it.

Prompts are drawn in batches of like length, and a few answers of each. A draw is always as large
as the largest, padded with answers of no weight, so that a GPU may repeat a recorded step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .scores import buckets_of
from .slots import WIDTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

_ROUND = 8
"""Widths of batches are multiples of it: few, so few steps are recorded."""


class Inputs(NamedTuple):
    """All that is trained on, in arrays."""

    slots: list[tuple[NDArray[np.int64], NDArray[np.int64]]]
    """Of each prompt: ids [S, 8], positions [S]."""
    opinions: NDArray[np.float32]
    kin: NDArray[np.float32]
    """The kin of each model [M, K], by its number."""
    counts: NDArray[np.float32]
    starts: NDArray[np.int64]
    """Where each prompt's answers begin in the arrays below, which stand prompt by prompt."""
    models: NDArray[np.int64]
    rows: NDArray[np.float32]
    base: NDArray[np.float32]
    """The model's mean log length; the first of `rows` is how far that is from the mean of all."""
    tokens: NDArray[np.float32]
    repeats: NDArray[np.float64]
    """How often each prompt is seen in an epoch."""

    @property
    def of(self) -> NDArray[np.int64]:
        """The prompt of each answer."""
        return np.repeat(np.arange(len(self.slots)), np.diff(self.starts))


class Tables(NamedTuple):
    """`Inputs` as tensors."""

    ids: Tensor
    positions: Tensor
    opinions: Tensor
    counts: Tensor
    models: Tensor
    rows: Tensor
    base: Tensor
    logs: Tensor
    buckets: Tensor
    taught: Tensor
    """Of each answer what teachers say: the residual, the buckets' shares [A, 5]; or none [0, 5]"""


def tables_of(inputs: Inputs, device: str, taught: NDArray[np.float32] | None = None) -> Tables:
    """Put all on a device."""
    ids, positions = padded(inputs.slots)
    arrays = (
        ids,
        positions,
        inputs.opinions,
        inputs.counts,
        inputs.models,
        inputs.rows,
        inputs.base,
        np.log1p(inputs.tokens),
        buckets_of(inputs.tokens),
        np.zeros((0, 5), dtype=np.float32) if taught is None else taught,
    )
    return Tables(*(torch.from_numpy(each).to(device) for each in arrays))


def padded(
    slots: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return ids [P, S, 8] and positions [P, S] of prompts, all as long as the longest."""
    width = max(len(positions) for _, positions in slots)
    ids = np.zeros((len(slots), width, WIDTH), dtype=np.int32)
    positions = np.zeros((len(slots), width), dtype=np.int32)
    for number, (own, where) in enumerate(slots):
        ids[number, : len(own)], positions[number, : len(own)] = own, where
    return ids, positions


class Draw(NamedTuple):
    """A step's prompts and answers, by number; padded, see the module."""

    width: int
    """Slots of the longest prompt."""
    prompts: NDArray[np.int64]
    of: NDArray[np.int64]
    """The place in `prompts` of each answer's."""
    answers: NDArray[np.int64]
    hidden: NDArray[np.int64]
    """1 where the answer's model is hidden."""
    weights: NDArray[np.float32]
    """Of each answer; their sum is 1, those of the padding are 0."""


class Drawing(NamedTuple):
    """How much is drawn."""

    batch: int
    answers: int
    unknown: float
    """Share of answers whose model is hidden."""


def draws(
    inputs: Inputs, how: Drawing, prompts: NDArray[np.int64], rng: np.random.Generator
) -> Iterator[Draw]:
    """Yield an epoch over these prompts."""
    for some in _batches(inputs, how, prompts, rng):
        yield _draw(inputs, how, some, rng)


def _batches(
    inputs: Inputs, how: Drawing, prompts: NDArray[np.int64], rng: np.random.Generator
) -> Iterator[NDArray[np.int64]]:
    """Yield the prompts of each batch: of like length, in random order."""
    often = np.floor(inputs.repeats[prompts] + rng.random(len(prompts))).astype(int)
    prompts = rng.permutation(np.repeat(prompts, often))
    sizes = np.array([len(inputs.slots[prompt][1]) for prompt in prompts])
    wide = how.batch * 32
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(prompts), wide):
        order = start + np.argsort(sizes[start : start + wide], kind="stable")
        batches += [prompts[order[at : at + how.batch]] for at in range(0, len(order), how.batch)]
    for number in rng.permutation(len(batches)):
        if len(batches[number]) > 1:
            yield batches[number]


def _draw(
    inputs: Inputs, how: Drawing, prompts: NDArray[np.int64], rng: np.random.Generator
) -> Draw:
    of, answers = _answers(inputs.starts, prompts, how.answers, rng)
    weights = (1 / np.sqrt(np.bincount(of, minlength=len(prompts))))[of]
    room = how.batch * how.answers - len(of)
    widest = max(len(inputs.slots[prompt][1]) for prompt in prompts)
    return Draw(
        width=-(-widest // _ROUND) * _ROUND,
        prompts=np.pad(prompts, (0, how.batch - len(prompts)), mode="edge"),
        of=np.pad(of, (0, room)),
        answers=np.pad(answers, (0, room), mode="edge"),
        hidden=np.pad((rng.random(len(of)) < how.unknown).astype(np.int64), (0, room)),
        weights=np.pad(weights / weights.sum(), (0, room)).astype(np.float32),
    )


def _answers(
    starts: NDArray[np.int64], prompts: NDArray[np.int64], most: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return answers, at most so many of a prompt, and the place in `prompts` of each's."""
    counts = starts[prompts + 1] - starts[prompts]
    of = np.repeat(np.arange(len(prompts)), counts)
    before = np.cumsum(counts) - counts
    order = np.lexsort((rng.random(len(of)), of))
    chosen = order[np.arange(len(of)) - before[of] < most]
    return of[chosen], starts[prompts][of[chosen]] + chosen - before[of[chosen]]
