# pyright: basic, reportMissingImports=false
"""Trains `Encoder`'s network: examples in, weights out. PyTorch, on a GPU or not.

A batch is some prompts, and a few answers of each by different models: the prompt is read once. The
loss adds four: Huber on the log length less the model's mean, a pairwise rank loss between answers
of a batch, pinball losses of the .1 and .9 quantiles, and cross entropy over the buckets in which
the longest weighs most. The weights kept are an average over the last steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from .encoder_net import Net, Shape, learning_rates, start_from
from .scores import buckets_of
from .slots import WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

_HEAVY = (1.0, 1.0, 1.0, 2.5)
_TIE = 0.1


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


@dataclass(frozen=True)
class Training:
    """How it is trained."""

    epochs: int = 6
    batch: int = 96
    answers: int = 8
    """At most so many of a prompt in a batch."""
    rate: float = 1e-4
    head_rate: float = 3e-3
    decay: float = 0.1
    rank: float = 0.3
    unknown: float = 0.1
    """Share of answers whose model is hidden, so that unknown models are learnt too."""
    average: float = 0.998
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    """Of PyTorch on a CPU. Only one adds up in the same order each time."""


def train(
    inputs: Inputs,
    shape: Shape,
    how: Training,
    *,
    base: tuple[Mapping[str, Tensor], Mapping[str, int], list[str]] | None = None,
    progress: Callable[[int, int, float], None] = lambda _step, _steps, _loss: None,
) -> Net:
    """Return a trained network on the CPU; `base` is what `start_from` takes."""
    torch.manual_seed(how.seed)
    if how.threads:
        torch.set_num_threads(how.threads)
    rng = np.random.default_rng(how.seed)
    net = Net(shape)
    if base is not None:
        start_from(net, *base)
    net.kin.copy_(torch.from_numpy(inputs.kin))
    net.to(how.device).train()
    kept = {name: value.detach().clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.AdamW(_groups(net, how), betas=(0.9, 0.98))
    batches = [batch for _ in range(how.epochs) for batch in _epoch(inputs, how, rng)]
    for step, prompts in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rates(step, len(batches), group["peak"])
        loss = _loss(net, _batch(inputs, prompts, how, rng), how)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        _average(kept, net, min(how.average, (1 + step) / (10 + step)))
        if step % 20 == 0:
            progress(step, len(batches), float(loss.detach()))
    net.load_state_dict(kept)
    return net.cpu().eval()


def _groups(net: Net, how: Training) -> list[dict[str, object]]:
    heads = ("prompt.", "model.", "answer.")
    own = [p for name, p in net.named_parameters() if name.startswith(heads)]
    rest = [p for name, p in net.named_parameters() if not name.startswith(heads)]
    return [
        {"params": rest, "peak": how.rate, "weight_decay": how.decay},
        {"params": own, "peak": how.head_rate, "weight_decay": how.decay},
    ]


def _average(kept: dict[str, Tensor], net: Net, share: float) -> None:
    state = net.state_dict()
    names = [name for name in kept if kept[name].is_floating_point()]
    torch._foreach_lerp_([kept[n] for n in names], [state[n] for n in names], 1 - share)


def _epoch(inputs: Inputs, how: Training, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield the prompts of each batch: of like length, in random order."""
    often = np.floor(inputs.repeats + rng.random(len(inputs.repeats))).astype(int)
    prompts = rng.permutation(np.repeat(np.arange(len(often)), often))
    sizes = np.array([len(positions) for _, positions in inputs.slots])
    wide = how.batch * 32
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(prompts), wide):
        some = prompts[start : start + wide]
        some = some[np.argsort(sizes[some], kind="stable")]
        batches += [some[at : at + how.batch] for at in range(0, len(some), how.batch)]
    for number in rng.permutation(len(batches)):
        if len(batches[number]) > 1:
            yield batches[number]


class _Batch(NamedTuple):
    ids: Tensor
    positions: Tensor
    opinions: Tensor
    counts: Tensor
    of: Tensor
    models: Tensor
    rows: Tensor
    base: Tensor
    logs: Tensor
    buckets: Tensor
    weights: Tensor


def _batch(
    inputs: Inputs, prompts: NDArray[np.int64], how: Training, rng: np.random.Generator
) -> _Batch:
    ids, positions = _padded([inputs.slots[prompt] for prompt in prompts])
    of, answers = _drawn(inputs.starts, prompts, how.answers, rng)
    hidden = rng.random(len(answers)) < how.unknown
    rows = inputs.rows[answers].copy()
    base = inputs.base[answers] - np.where(hidden, rows[:, 0], 0.0).astype(np.float32)
    rows[hidden, 0] = 0.0
    weights = (1 / np.sqrt(np.bincount(of, minlength=len(prompts))))[of]
    arrays = (
        ids,
        positions,
        inputs.opinions[prompts],
        inputs.counts[prompts],
        of,
        np.where(hidden, 0, inputs.models[answers]),
        rows,
        base,
        np.log1p(inputs.tokens[answers]),
        buckets_of(inputs.tokens[answers]),
        (weights / weights.mean()).astype(np.float32),
    )
    return _Batch(*(torch.from_numpy(each).to(how.device, non_blocking=True) for each in arrays))


def _padded(
    slots: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    width = max(len(positions) for _, positions in slots)
    ids = np.zeros((len(slots), width, WIDTH), dtype=np.int64)
    positions = np.zeros((len(slots), width), dtype=np.int64)
    for number, (own, where) in enumerate(slots):
        ids[number, : len(own)], positions[number, : len(own)] = own, where
    return ids, positions


def _drawn(
    starts: NDArray[np.int64], prompts: NDArray[np.int64], most: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return answers, at most so many of a prompt, and the number in `prompts` of each's."""
    of: list[int] = []
    chosen: list[int] = []
    for number, prompt in enumerate(prompts):
        first, last = int(starts[prompt]), int(starts[prompt + 1])
        some = min(most, last - first)
        picked = (
            rng.choice(last - first, some, replace=False) if some < last - first else range(some)
        )
        chosen += [first + int(each) for each in picked]
        of += [number] * some
    return np.array(of), np.array(chosen)


def _loss(net: Net, batch: _Batch, how: Training) -> Tensor:
    cuda = how.device.startswith("cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
        read = net.read(batch.ids, batch.positions, batch.opinions, batch.counts, exact=False)
        said = net.say(read[batch.of], batch.models, batch.rows)
    said = said.float()
    wanted, weights = batch.logs - batch.base, batch.weights
    middle = said[:, 0]
    fit = (functional.huber_loss(middle, wanted, delta=1.0, reduction="none") * weights).mean()
    edges = sum(
        (_pinball(wanted - middle.detach() - said[:, at], share) * weights).mean()
        for at, share in ((1, 0.1), (2, 0.9))
    )
    heavy = torch.tensor(_HEAVY, device=said.device)
    kinds = functional.cross_entropy(said[:, 3:], batch.buckets, heavy, reduction="none")
    return (
        fit
        + how.rank * _ranked(middle + batch.base, batch)
        + edges
        + 0.5 * (kinds * weights).mean()
    )


def _pinball(over: Tensor, share: float) -> Tensor:
    return torch.maximum(share * over, (share - 1) * over)


def _ranked(said: Tensor, batch: _Batch) -> Tensor:
    """Return the loss over pairs of answers, of one model and of any, ties left out."""
    other = torch.randperm(len(said), device=said.device)
    order = torch.argsort(batch.models + torch.rand(len(said), device=said.device) * 0.9)
    losses = []
    for first, second in (
        (torch.arange(len(said), device=said.device), other),
        (order[:-1], order[1:]),
    ):
        gap = batch.logs[first] - batch.logs[second]
        told = (gap.abs() > _TIE) & (batch.of[first] != batch.of[second])
        loss = functional.softplus(-torch.sign(gap) * (said[first] - said[second]) * 2)
        losses.append((loss * told).sum() / told.sum().clamp(min=1))
    return losses[0] + losses[1]
