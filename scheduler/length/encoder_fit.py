# pyright: basic, reportMissingImports=false
"""Makes an encoder's parts from examples: vocabulary, ridge, network, export, calibration.

Needs PyTorch, onnx and scikit-learn (extra `predictor-train`). One seed gives the same weights,
byte for byte, on a CPU with one thread; with more, or on a GPU, sums differ in their last digits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .encoder import OPINIONS, Encoder, Parts
from .encoder_calibrate import calibrate
from .encoder_export import export, reach
from .encoder_net import Shape
from .encoder_tables import Inputs
from .encoder_teach import teach
from .encoder_train import Task, Training, train
from .fields import row_of
from .kin import kin_of
from .linear import (
    Ridge,
    by_prompt,
    error_quantiles,
    kin_targets,
    matrix_of,
    out_of_fold,
    prompt_targets,
    prompt_weights,
    scale_of,
)
from .means import ModelMeans
from .slots import WHOLE, slots_of
from .wordpiece import WordPiece, prune

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from .contracts import Example
    from .kin import Kin
    from .linear import Prompts

_FULL = 4000
"""Prompts of a set from which on it needs no repeating."""
_MOST_REPEATS = 5.0
_FEW = 200
"""Examples under which nothing is kept for calibration."""
_WHOLE_INNER = 1536


@dataclass(frozen=True)
class Fit:
    """How an encoder is made."""

    layers: int = 6
    inner: int = 1152
    vocabulary: int = 10_000
    kept: float = 0.06
    """Share of prompts that is kept for calibration."""
    teachers: int = 0
    """Rounds of teachers, see `encoder_teach`."""
    training: Training = field(default_factory=Training)
    base: tuple[Mapping[str, Any], Sequence[str]] | None = None
    """Weights of a BERT to start from, and its vocabulary in order; None: from scratch."""


def fit(examples: Sequence[Example], how: Fit, progress: Callable[[str, int, int], None]) -> Parts:
    """Train on examples. Raises ValueError when there are none."""
    if not examples:
        raise ValueError("no examples to learn from")
    rng = np.random.default_rng(how.training.seed)
    kept = _kept(examples, how.kept, rng)
    learnt = [example for example, keep in zip(examples, kept, strict=True) if not keep]
    parts = _train(learnt, how, progress)
    rest = [example for example, keep in zip(examples, kept, strict=True) if keep]
    progress("calibrate", 0, 1)
    parts = replace(parts, calibration=calibrate(Encoder(parts), rest, rng))
    progress("calibrate", 1, 1)
    return parts


def _kept(examples: Sequence[Example], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    keys = sorted({example.key or example.features.text for example in examples})
    if len(keys) < _FEW:
        return np.zeros(len(examples), dtype=bool)
    chosen = {keys[n] for n in rng.permutation(len(keys))[: int(len(keys) * share)]}
    return np.array([(e.key or e.features.text) in chosen for e in examples])


def _train(
    examples: Sequence[Example], how: Fit, progress: Callable[[str, int, int], None]
) -> Parts:
    made = prepare(examples, how, progress)
    task = Task(made.inputs, made.shape, _start(how, made.parts.vocabulary))
    if how.teachers:
        taught = teach(
            _teachers(task, made, how),
            how.training,
            how.teachers,
            lambda step, steps: progress("teachers", step, steps),
        )
        task = task._replace(taught=taught)
    net = train(task, how.training, progress=lambda step, steps: progress("train", step, steps))
    progress("export", 0, 1)
    net = net.cpu()
    return replace(made.parts, onnx=export(net, reach(net, made.inputs)))


def _teachers(task: Task, made: Prepared, how: Fit) -> Task:
    """Return what teachers learn: the same, with all layers, and more of long prompts."""
    wordpiece, layers = WordPiece(made.parts.vocabulary), how.layers
    while how.base is not None and f"encoder.layer.{layers}.output.dense.weight" in how.base[0]:
        layers += 1
    shape = replace(made.shape, layers=layers, inner=_WHOLE_INNER)
    slots = [slots_of(text, wordpiece, WHOLE) for text in made.texts]
    return task._replace(inputs=made.inputs._replace(slots=slots), shape=shape)


class Prepared(NamedTuple):
    """All that comes before the network."""

    inputs: Inputs
    shape: Shape
    parts: Parts
    """Without the network."""
    texts: list[str]
    """Of the prompts, in the order of `inputs`."""


def prepare(
    examples: Sequence[Example], how: Fit, progress: Callable[[str, int, int], None]
) -> Prepared:
    """Read the texts, fit the ridges, choose the vocabulary."""
    progress("text", 0, 1)
    prompts = by_prompt(examples)
    order = np.argsort(prompts.of, kind="stable")
    examples = [examples[number] for number in order]
    prompts = prompts._replace(of=prompts.of[order])
    answers, kin = _answers(examples), kin_of(examples, prompts.of)
    matrix = matrix_of(prompts.texts)
    targets, weights = _targets(prompts, answers, kin)
    progress("ridge", 0, 1)
    opinions = out_of_fold(Ridge(), matrix, targets, weights, how.training.seed)
    ridge = Ridge().fit_matrix(*matrix, targets, weights)
    progress("ridge", 1, 1)
    pieces = [] if how.base is None else how.base[1]
    counts = matrix[1]
    parts = Parts(
        onnx=b"",
        vocabulary=tuple(prune(pieces, prompts.texts, most=how.vocabulary)),
        models=tuple(sorted(answers.means.models_)),
        kin=kin,
        means=answers.means,
        ridge=ridge,
        shift=counts.mean(0).astype(np.float32),
        scale=scale_of(counts).astype(np.float32),
        errors=error_quantiles(answers.residuals - opinions[prompts.of, 0]),
        card=_card(examples, len(prompts.texts), how),
    )
    sizes = (len(parts.vocabulary), len(parts.models) + 1, len(kin.names))
    shape = Shape(*sizes, how.layers, inner=how.inner)
    inputs = _inputs(examples, prompts, answers, parts, (opinions, counts))
    return Prepared(inputs, shape, parts, prompts.texts)


def _inputs(
    examples: Sequence[Example],
    prompts: Prompts,
    answers: _Answers,
    parts: Parts,
    said: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> Inputs:
    """Return what the network is trained on; `said` are opinions and counts of each prompt."""
    opinions, counts = said
    wordpiece, mean = WordPiece(parts.vocabulary), parts.means.mean_
    ids = {name: number for number, name in enumerate(parts.models, 1)}
    rows = [row_of(e.features, b - mean) for e, b in zip(examples, answers.base, strict=True)]
    return Inputs(
        slots=[slots_of(text, wordpiece) for text in prompts.texts],
        opinions=opinions,
        kin=parts.kin.table(parts.models),
        counts=((counts - parts.shift) / parts.scale).astype(np.float32),
        starts=np.concatenate(([0], np.cumsum(prompts.counts))),
        models=np.array([ids[model] for model in answers.models]),
        rows=np.array(rows, dtype=np.float32),
        base=answers.base.astype(np.float32),
        tokens=answers.tokens.astype(np.float32),
        repeats=_repeats(examples, prompts.of, len(prompts.texts)),
    )


class _Answers(NamedTuple):
    models: list[str]
    tokens: NDArray[np.float64]
    means: ModelMeans
    base: NDArray[np.float64]
    """The mean log length of each answer's model."""

    @property
    def residuals(self) -> NDArray[np.float64]:
        return np.log1p(self.tokens) - self.base


def _answers(examples: Sequence[Example]) -> _Answers:
    models = [example.features.model for example in examples]
    tokens = np.array([example.tokens for example in examples], dtype=float)
    means = ModelMeans().fit(models, tokens)
    return _Answers(models, tokens, means, means.of_all(models))


def _card(examples: Sequence[Example], prompts: int, how: Fit) -> dict[str, Any]:
    return {
        "examples": len(examples),
        "prompts": prompts,
        "sets": _sets(examples),
        "layers": how.layers,
        "inner": how.inner,
        "teachers": how.teachers,
        "training": asdict(how.training),
        "from_scratch": how.base is None,
    }


def _targets(
    prompts: Prompts, answers: _Answers, kin: Kin
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what the ridges learn of each prompt [N, OPINIONS + K], and how much each counts."""
    common = prompt_targets(prompts, answers.residuals, answers.tokens.astype(np.int64))
    of = np.array([kin.of.get(model, -1) for model in answers.models])
    own, certain = kin_targets(prompts, answers.residuals, of, len(kin.names))
    weights = prompt_weights(prompts, OPINIONS)
    return np.hstack((common, own)), np.hstack((weights, certain))


def _repeats(
    examples: Sequence[Example], of: NDArray[np.int64], prompts: int
) -> NDArray[np.float64]:
    """Return how often each prompt is seen in an epoch: those of small sets more often."""
    group = [""] * prompts
    for example, prompt in zip(examples, of, strict=True):
        group[prompt] = example.group
    sizes = {name: group.count(name) for name in set(group)}
    return np.array([np.clip((_FULL / sizes[g]) ** 0.5, 1.0, _MOST_REPEATS) for g in group])


def _sets(examples: Sequence[Example]) -> dict[str, int]:
    names = [example.group for example in examples]
    return {name: names.count(name) for name in sorted(set(names))}


def _start(
    how: Fit, vocabulary: Sequence[str]
) -> tuple[Mapping[str, Tensor], Mapping[str, int], list[str]] | None:
    if how.base is None:
        return None
    weights, pieces = how.base
    return weights, {piece: number for number, piece in enumerate(pieces)}, list(vocabulary)
