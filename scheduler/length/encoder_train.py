# pyright: basic, reportMissingImports=false
"""Trains `Encoder`'s network: examples in, weights out. PyTorch, on a GPU or not.

A batch is some prompts, and a few answers of each by different models: the prompt is read once. The
loss adds four: Huber on the log length less the model's mean, a pairwise rank loss between answers
of a batch, pinball losses of the .1 and .9 quantiles, and cross entropy over the buckets in which
the longest weighs most. Where teachers have spoken, what they say is learnt beside the truth. The
weights kept are an average over the last steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from .encoder_net import Net, Shape, learning_rates, start_from
from .encoder_tables import Drawing, draws, tables_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from .encoder_tables import Draw, Inputs, Tables

_HEAVY = (1.0, 1.0, 1.0, 2.5)
_TIE = 0.1
_EAGER = 3
"""Steps on a GPU before one is recorded."""
_READ_AT_ONCE = 512


@dataclass(frozen=True)
class Training:
    """How it is trained."""

    epochs: int = 6
    batch: int = 96
    answers: int = 8
    """At most so many of a prompt in a batch."""
    rate: float = 1.25e-4
    head_rate: float = 3e-3
    decay: float = 0.1
    rank: float = 0.3
    unknown: float = 0.1
    """Share of answers whose model is hidden, so that unknown models are learnt too."""
    taught: float = 0.5
    """Share of what teachers say in what is learnt, where they say something."""
    average: float = 0.998
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    """Of PyTorch on a CPU. Only one adds up in the same order each time."""


class Task(NamedTuple):
    """What to learn from, and what to start from."""

    inputs: Inputs
    shape: Shape
    base: tuple[Mapping[str, Tensor], Mapping[str, int], list[str]] | None = None
    """What `start_from` takes."""
    taught: NDArray[np.float32] | None = None
    """What teachers say of each answer."""


def train(
    task: Task,
    how: Training,
    *,
    prompts: NDArray[np.int64] | None = None,
    tables: Tables | None = None,
    progress: Callable[[int, int], None] = lambda _step, _steps: None,
) -> Net:
    """Return a trained network, on `how.device`.

    `prompts` are those learnt from (all), `tables` the task's where they are there already.
    """
    torch.manual_seed(how.seed)
    if how.threads:
        torch.set_num_threads(how.threads)
    rng = np.random.default_rng(how.seed)
    if tables is None:
        tables = tables_of(task.inputs, how.device, task.taught)
    if prompts is None:
        prompts = np.arange(len(task.inputs.slots))
    net = Net(task.shape)
    if task.base is not None:
        start_from(net, *task.base)
    net.kin.copy_(torch.from_numpy(task.inputs.kin))
    net.to(how.device).train()
    drawing = Drawing(how.batch, how.answers, how.unknown)
    steps = [draw for _ in range(how.epochs) for draw in draws(task.inputs, drawing, prompts, rng)]
    _run(net, tables, how, steps, progress)
    return net.eval()


def _run(
    net: Net,
    tables: Tables,
    how: Training,
    steps: list[Draw],
    progress: Callable[[int, int], None],
) -> None:
    """Carry out all steps; the network ends with the average of its weights."""
    own = [value for value in net.state_dict().values() if value.is_floating_point()]
    kept = [value.clone() for value in own]
    stepper = Stepper(net, tables, how)
    for step, draw in enumerate(steps):
        stepper.step(draw, step, len(steps))
        share = min(how.average, (1 + step) / (10 + step))
        torch._foreach_lerp_(kept, own, 1 - share)
        if step % 20 == 0:
            progress(step, len(steps))
    with torch.no_grad():
        torch._foreach_copy_(own, kept)


class _Held(NamedTuple):
    """A draw, on the device."""

    prompts: Tensor
    of: Tensor
    answers: Tensor
    hidden: Tensor
    weights: Tensor


class Stepper:
    """Carries out steps of training; on a GPU as recorded graphs, one for each width."""

    def __init__(self, net: Net, tables: Tables, how: Training) -> None:
        self.net, self.tables, self.how = net, tables, how
        self._cuda = how.device.startswith("cuda")
        self._optimizer = _optimizer(net, how)
        self._heavy = torch.tensor(_HEAVY, device=how.device)
        size = how.batch * how.answers
        numbers = torch.zeros(how.batch + 3 * size, dtype=torch.long, device=how.device)
        self._numbers = numbers
        prompts, of, answers, hidden = numbers.split([how.batch, size, size, size])
        weights = torch.zeros(size, device=how.device)
        self._held = _Held(prompts, of, answers, hidden, weights)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def step(self, draw: Draw, number: int, steps: int) -> None:
        """Learn from a draw, the step of that number."""
        numbers = (draw.prompts, draw.of, draw.answers, draw.hidden)
        self._numbers.copy_(torch.from_numpy(np.concatenate(numbers)))
        self._held.weights.copy_(torch.from_numpy(draw.weights))
        for group in self._optimizer.param_groups:
            rate = learning_rates(number, steps, group["peak"])
            if self._cuda:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if not self._cuda:
            self._learn(draw.width)
        elif number < _EAGER:
            self._apart(draw.width)
        else:
            self._graph(draw.width).replay()

    def _apart(self, width: int) -> None:
        """Learn beside the main stream, as what is to be recorded must have been run."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._learn(width)
        torch.cuda.current_stream().wait_stream(side)

    def _graph(self, width: int) -> torch.cuda.CUDAGraph:
        if width not in self._graphs:
            pool = next((graph.pool() for graph in self._graphs.values()), None)
            graph = torch.cuda.CUDAGraph()
            self._optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(graph, pool=pool):
                self._learn(width)
            self._graphs[width] = graph
        return self._graphs[width]

    def _learn(self, width: int) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._loss(width).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0, foreach=True)
        self._optimizer.step()

    def _loss(self, width: int) -> Tensor:
        """Return the loss of the draw held."""
        held, tables, net = self._held, self.tables, self.net
        hidden = held.hidden > 0
        rows, models = tables.rows[held.answers], tables.models[held.answers]
        base = tables.base[held.answers] - rows[:, 0] * hidden
        rows = torch.cat((rows[:, :1] * ~hidden[:, None], rows[:, 1:]), -1)
        with torch.autocast("cuda", torch.bfloat16, enabled=self._cuda, cache_enabled=False):
            read = net.read(
                tables.ids[held.prompts, :width],
                tables.positions[held.prompts, :width],
                tables.opinions[held.prompts],
                tables.counts[held.prompts],
            )
            said = net.say(read.index_select(0, held.of), models * ~hidden, rows)
        return self._judge(said.float(), base, models * ~hidden)

    def _judge(self, said: Tensor, base: Tensor, models: Tensor) -> Tensor:
        held, tables, how = self._held, self.tables, self.how
        logs, buckets = tables.logs[held.answers], tables.buckets[held.answers]
        wanted = logs - base
        told = functional.log_softmax(said[:, 3:], -1)
        kinds = -told.gather(1, buckets[:, None])[:, 0] * self._heavy[buckets]
        edges = _pinball(wanted - said[:, 0].detach() - said[:, 1], 0.1)
        edges = edges + _pinball(wanted - said[:, 0].detach() - said[:, 2], 0.9)
        if len(tables.taught):
            taught = tables.taught[held.answers]
            # Teachers say a residual to the model's mean; a hidden model's is another.
            own = taught[:, 0] + tables.base[held.answers] - base
            wanted = wanted + how.taught * (own - wanted)
            soft = -(told * taught[:, 1:]).sum(-1)
            kinds = kinds + how.taught * (soft - kinds)
        fit = functional.huber_loss(said[:, 0], wanted, delta=1.0, reduction="none")
        ranked = self._ranked(said[:, 0] + base, wanted + base, models)
        return ((fit + edges + 0.5 * kinds) * held.weights).sum() + how.rank * ranked

    def _ranked(self, said: Tensor, logs: Tensor, models: Tensor) -> Tensor:
        """Return the loss over pairs of answers, of one model and of any, ties left out."""
        of, there = self._held.of, self._held.weights > 0
        chance = torch.rand(2, len(said), device=said.device)
        other = torch.argsort(chance[0])
        order = torch.argsort(models + chance[1] * 0.9)
        losses = []
        for first, second in (
            (torch.arange(len(said), device=said.device), other),
            (order[:-1], order[1:]),
        ):
            gap = logs[first] - logs[second]
            told = (gap.abs() > _TIE) & (of[first] != of[second]) & there[first] & there[second]
            loss = functional.softplus(-torch.sign(gap) * (said[first] - said[second]) * 2)
            losses.append((loss * told).sum() / told.sum().clamp(min=1))
        return losses[0] + losses[1]


def _optimizer(net: Net, how: Training) -> torch.optim.AdamW:
    heads = ("prompt.", "model.", "answer.")
    own = [p for name, p in net.named_parameters() if name.startswith(heads)]
    rest = [p for name, p in net.named_parameters() if not name.startswith(heads)]
    cuda = how.device.startswith("cuda")
    groups = [
        {
            "params": some,
            "peak": peak,
            "weight_decay": how.decay,
            "lr": torch.tensor(peak, device=how.device) if cuda else peak,
        }
        for some, peak in ((rest, how.rate), (own, how.head_rate))
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=cuda or None, capturable=cuda)


def _pinball(over: Tensor, share: float) -> Tensor:
    return torch.maximum(share * over, (share - 1) * over)


def say_all(net: Net, inputs: Inputs, tables: Tables, prompts: NDArray[np.int64]) -> Tensor:
    """Return what a network says [A, SPOKEN] of every answer to these prompts, in their order."""
    found: list[Tensor] = []
    with torch.no_grad():
        for at in range(0, len(prompts), _READ_AT_ONCE):
            some = prompts[at : at + _READ_AT_ONCE]
            chosen = torch.from_numpy(some).to(tables.ids.device)
            read = net.read(
                tables.ids[chosen],
                tables.positions[chosen],
                tables.opinions[chosen],
                tables.counts[chosen],
            )
            answers = answers_of(inputs, some)
            counts = inputs.starts[some + 1] - inputs.starts[some]
            of = torch.from_numpy(np.repeat(np.arange(len(some)), counts)).to(chosen.device)
            own = torch.from_numpy(answers).to(chosen.device)
            found.append(net.say(read[of], tables.models[own], tables.rows[own]).float())
    return torch.cat(found)


def answers_of(inputs: Inputs, prompts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of every answer to these prompts, in their order."""
    counts = inputs.starts[prompts + 1] - inputs.starts[prompts]
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(inputs.starts[prompts] - before, counts)
