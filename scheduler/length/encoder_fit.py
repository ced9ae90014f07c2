# pyright: basic, reportMissingImports=false
"""Makes an encoder's parts from examples: vocabulary, ridge, network, export, calibration.

Needs PyTorch, onnx and scikit-learn (extra `predictor-train`). One seed gives the same weights,
byte for byte, on a CPU with one thread; with more, or on a GPU, sums differ in their last digits.
"""

from __future__ import annotations

import io
import tempfile
import warnings
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic

from .encoder import Calibration, Encoder, Parts, Said, blend
from .encoder_net import OPINIONS, Exported, Shape
from .encoder_train import Inputs, Training, train
from .fields import ROW, row_of
from .linear import (
    Ridge,
    by_prompt,
    error_quantiles,
    matrix_of,
    out_of_fold,
    prompt_targets,
    prompt_weights,
)
from .means import ModelMeans
from .scores import buckets_of
from .slots import slots_of
from .text import COUNTED
from .wordpiece import WordPiece, prune

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from .contracts import Example
    from .encoder_net import Net

_FULL = 4000
"""Prompts of a set from which on it needs no repeating."""
_MOST_REPEATS = 5.0
_FEW = 200
"""Examples under which nothing is kept for calibration."""
_UNIT = 1e-6


@dataclass(frozen=True)
class Fit:
    """How an encoder is made."""

    layers: int = 3
    inner: int = 1536
    vocabulary: int = 16_000
    kept: float = 0.05
    """Share of prompts that is kept for calibration."""
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
    progress("text", 0, 1)
    prompts = by_prompt(examples)
    order = np.argsort(prompts.of, kind="stable")
    examples = [examples[number] for number in order]
    prompts = prompts._replace(of=prompts.of[order])
    models = [example.features.model for example in examples]
    tokens = np.array([example.tokens for example in examples], dtype=float)
    means = ModelMeans().fit(models, tokens)
    base = means.of_all(models)
    targets = prompt_targets(prompts, np.log1p(tokens) - base, tokens.astype(np.int64))
    weights, matrix = prompt_weights(prompts), matrix_of(prompts.texts)
    progress("ridge", 0, 1)
    opinions = out_of_fold(Ridge(), matrix, targets, weights, how.training.seed)
    ridge = Ridge().fit_matrix(*matrix, targets, weights)
    progress("ridge", 1, 1)
    counts = matrix[1]
    shift, scale = counts.mean(0), counts.std(0) + _UNIT
    pieces = [] if how.base is None else list(how.base[1])
    vocabulary = prune(pieces, prompts.texts, most=how.vocabulary)
    wordpiece, names = WordPiece(vocabulary), sorted(means.models_)
    ids = {name: number for number, name in enumerate(names, 1)}
    rows = [row_of(e.features, b - means.mean_) for e, b in zip(examples, base, strict=True)]
    inputs = Inputs(
        slots=[slots_of(text, wordpiece) for text in prompts.texts],
        opinions=opinions,
        counts=((counts - shift) / scale).astype(np.float32),
        starts=np.concatenate(([0], np.cumsum(prompts.counts))),
        models=np.array([ids[model] for model in models]),
        rows=np.array(rows, dtype=np.float32),
        base=base.astype(np.float32),
        tokens=tokens.astype(np.float32),
        repeats=_repeats(examples, prompts.of, len(prompts.texts)),
    )
    net = train(
        inputs,
        Shape(len(vocabulary), len(names) + 1, layers=how.layers, inner=how.inner),
        how.training,
        base=_start(how, vocabulary),
        progress=lambda step, steps, _loss: progress("train", step, steps),
    )
    progress("export", 0, 1)
    return Parts(
        onnx=export(net),
        vocabulary=tuple(vocabulary),
        models=tuple(names),
        means=means,
        ridge=ridge,
        shift=shift.astype(np.float32),
        scale=scale.astype(np.float32),
        errors=error_quantiles(np.log1p(tokens) - base - opinions[prompts.of, 0]),
        card={
            "examples": len(examples),
            "prompts": len(prompts.texts),
            "sets": _sets(examples),
            "layers": how.layers,
            "inner": how.inner,
            "training": asdict(how.training),
            "from_scratch": how.base is None,
        },
    )


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
    how: Fit, vocabulary: list[str]
) -> tuple[Mapping[str, Tensor], Mapping[str, int], list[str]] | None:
    if how.base is None:
        return None
    weights, pieces = how.base
    return weights, {piece: number for number, piece in enumerate(pieces)}, vocabulary


def export(net: Net) -> bytes:
    """Return the network as ONNX: weights of matrix products and tables in 8 bits."""
    shape = net.shape
    exported = Exported(net).eval()
    example = (
        torch.ones(7, 4, dtype=torch.long),
        torch.arange(7),
        torch.zeros(OPINIONS),
        torch.zeros(COUNTED),
        torch.zeros(2, dtype=torch.long),
        torch.zeros(2, ROW),
    )
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a trace that only ever sees one prompt
        torch.onnx.export(
            exported,
            example,
            buffer,
            input_names=["ids", "positions", "opinions", "counts", "models", "rows"],
            output_names=["said"],
            dynamic_axes={
                "ids": {0: "S"},
                "positions": {0: "S"},
                "models": {0: "N"},
                "rows": {0: "N"},
            },
            dynamo=False,
        )
    plain = onnx.load_model_from_string(buffer.getvalue())
    assert shape.vocabulary
    norms = [node.name for node in plain.graph.node if "norm" in node.name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        quantize_dynamic(
            plain,
            path,
            op_types_to_quantize=["MatMul", "Gather"],
            nodes_to_exclude=norms,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
        return path.read_bytes()


def calibrate(
    encoder: Encoder, examples: Sequence[Example], rng: np.random.Generator
) -> Calibration:
    """Return what makes an encoder's predictions right on examples that it has not seen.

    Of a prompt's many answers only a few count, so that no set outweighs the others.
    """
    if not examples:
        return Calibration()
    some = _thinned(examples, rng)
    said = encoder.say([example.features for example in some])
    tokens = np.array([example.tokens for example in some], dtype=float)
    first = Calibration()
    errors = np.log1p(tokens) - np.array([blend(each, first).rank for each in said])
    low = float(np.quantile(errors - np.array([each.low for each in said]), 0.1))
    high = float(np.quantile(errors - np.array([each.high for each in said]), 0.9))
    shaped = replace(first, low=low, high=high, middle=float(np.quantile(errors, 0.5)))
    return _weigh(said, buckets_of(tokens), shaped)


def _thinned(examples: Sequence[Example], rng: np.random.Generator) -> list[Example]:
    by_text: dict[str, list[Example]] = {}
    for example in examples:
        by_text.setdefault(example.features.text, []).append(example)
    return [
        own[number] for own in by_text.values() for number in sorted(rng.permutation(len(own))[:6])
    ]


def _weigh(said: Sequence[Said], wanted: NDArray[np.int64], shaped: Calibration) -> Calibration:
    """Choose the buckets' weights: right often, and not blind to the longest."""
    best, found = -1.0, shaped
    for softmax, more in product((0.0, 0.25, 0.5), (0.8, 1.0, 1.25, 1.6, 2.0, 2.5, 3.2)):
        tried = replace(shaped, softmax=softmax, more=more)
        told = np.array([np.argmax(blend(each, tried).buckets) for each in said])
        right, long = float((told == wanted).mean()), wanted == 3
        hit = float((long & (told == 3)).sum())
        f1 = 2 * hit / max(1.0, float(long.sum() + (told == 3).sum()))
        if right + 0.3 * f1 > best:
            best, found = right + 0.3 * f1, tried
    return found
