# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What `forebay predictor train` and `eval` carry out."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.gateway.weights import load_encoder, save
from forebay.scheduler.length import Example, LengthPredictor, MeanLength
from forebay.scheduler.length.encoder import Encoder
from forebay.scheduler.length.linear import LinearText
from forebay.scheduler.length.scores import buckets_of, tau_b, tau_by_model

from .predictor_bases import read_base
from .predictor_data import read_folder

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from forebay.scheduler.length import Prediction

_POOLED = 1500
"""At most so many rows of a set are in the pool, so that none outweighs the others."""
_TIMED = 300
_MEASURES = ("tau_per_model", "tau_mixed", "bucket_accuracy")


def train(arguments: Namespace) -> str:
    """Train an encoder, write its weights, and return what to print."""
    from forebay.scheduler.length.encoder_fit import Fit
    from forebay.scheduler.length.encoder_train import Training

    device = _device(arguments.device)
    found = read_folder(arguments.data, part=arguments.part, sets=arguments.sets)
    for name, why in found.left_out.items():
        print(f"left out {name}: {why}", file=sys.stderr)
    whole = [example for example in found.examples if not example.cut]
    begun = time.perf_counter()
    how = Fit(
        layers=arguments.layers,
        vocabulary=arguments.vocabulary,
        teachers=arguments.teachers,
        training=Training(
            epochs=arguments.epochs,
            seed=arguments.seed,
            device=device,
            threads=arguments.threads,
        ),
        base=read_base(arguments.base),
    )
    options = {name: getattr(how, name) for name in how.__dataclass_fields__}
    encoder = Encoder(**options).fit(whole, Progress())
    contents = encoder.to_files()
    save(arguments.out, contents)
    told = {
        "out": str(arguments.out),
        "examples": len(whole),
        "bytes": sum(map(len, contents.values())),
        "wall_s": round(time.perf_counter() - begun, 1),
        "calibration": json.loads(contents["meta.json"])["calibration"],
    }
    if arguments.json:
        return json.dumps(told)
    return "\n".join(f"{name}: {value}" for name, value in told.items())


def _device(name: str) -> str:
    """Return a device that PyTorch can use, before time is spent. Raises ValueError."""
    import torch

    try:
        torch.empty(1, device=name)
    except (AssertionError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        raise ValueError(f"--device {name} cannot be used here: {said}") from None
    return name


class Progress:
    """Progress on stderr: a line where somebody looks, else one for each tenth."""

    def __init__(self) -> None:
        self._shown: tuple[str, int] = ("", -1)
        self._live = sys.stderr.isatty()

    def __call__(self, what: str, done: int, of: int) -> None:
        """Show how far a part is."""
        percent = 100 * done // max(1, of)
        step = percent if self._live else percent // 10 * 10
        if (what, step) == self._shown:
            return
        self._shown = (what, step)
        if self._live:
            print(f"\r{what:<10} {percent:3d} %", end="", file=sys.stderr, flush=True)
        else:
            print(f"{what} {step} %", file=sys.stderr, flush=True)


# -- eval ----------------------------------------------------------------------------------------


def judge(arguments: Namespace) -> str:
    """Predict, compare, and return what to print."""
    found = read_folder(arguments.data, part=arguments.part, sets=arguments.sets, wide=False)
    examples = sorted(found.examples, key=lambda example: (example.group, example.key))
    predictor = _predictor(arguments)
    said = predictor.predict([example.features for example in examples])
    table = Table(examples, said)
    told: dict[str, Any] = {"sets": {}}
    rng = np.random.default_rng(arguments.seed)
    pool: list[NDArray[np.int64]] = []
    for name in sorted({example.group for example in examples}):
        rows = table.rows_of(name)
        told["sets"][name] = table.scores(rows, arguments.bootstrap, rng)
        drawn = np.random.default_rng(0)
        some = rows if len(rows) <= _POOLED else drawn.choice(rows, _POOLED, replace=False)
        pool.append(some)
    told["pool"] = table.scores(np.concatenate(pool), arguments.bootstrap, rng)
    told["predict_ms"] = timed(predictor, examples, rng)
    told["kind"] = arguments.kind
    return json.dumps(told) if arguments.json else _shown(told)


def _predictor(arguments: Namespace) -> LengthPredictor:
    if arguments.kind == "encoder":
        return load_encoder(arguments.weights)
    folder = arguments.learn or arguments.data
    found = read_folder(folder, part=arguments.learn_part, sets=arguments.learn_sets)
    if arguments.kind == "mean":
        return MeanLength().fit(found.examples)
    return LinearText(random_state=arguments.seed).fit(found.examples)


class Table:
    """Examples and what was said of each, in arrays."""

    def __init__(self, examples: Sequence[Example], said: Sequence[Prediction]) -> None:
        self.tokens = np.array([example.tokens for example in examples], dtype=float)
        self.said = np.array([each.tokens for each in said])
        self.rank = np.array([each.rank for each in said])
        self.quantiles = np.array([each.quantiles for each in said])
        self.told = np.array([int(np.argmax(each.buckets)) for each in said])
        self.wanted = buckets_of(self.tokens)
        self._groups = np.array([example.group for example in examples])
        names = [f"{example.group}\n{example.features.model}" for example in examples]
        self.models = np.unique(names, return_inverse=True)[1].astype(np.int64)
        self.prompts = np.unique([e.key for e in examples], return_inverse=True)[1]

    def rows_of(self, group: str) -> NDArray[np.int64]:
        """Return the rows of one set."""
        return np.flatnonzero(self._groups == group)

    def scores(
        self, rows: NDArray[np.int64], draws: int, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Return every measure of these rows, and intervals of some."""
        tokens, told, wanted = self.tokens[rows], self.told[rows], self.wanted[rows]
        long, called = wanted == 3, told == 3
        found: dict[str, Any] = {
            "rows": len(rows),
            "prompts": len(np.unique(self.prompts[rows])),
            **self.measures(rows),
            "recall_more": _share(called[long]),
            "precision_more": _share(long[called]),
            "mae_tokens": round(float(np.abs(self.said[rows] - tokens).mean()), 2),
            "coverage_10": _share(tokens <= self.quantiles[rows, 0]),
            "coverage_90": _share(tokens <= self.quantiles[rows, 2]),
        }
        if draws:
            found["intervals"] = self._intervals(rows, draws, rng)
        return found

    def measures(self, rows: NDArray[np.int64]) -> dict[str, float | None]:
        """Return the measures that intervals are told of."""
        logs, rank = np.log1p(self.tokens[rows]), self.rank[rows]
        return {
            "tau_per_model": _plain(tau_by_model(logs, rank, self.models[rows])),
            "tau_mixed": _plain(tau_b(logs, rank)),
            "bucket_accuracy": _share(self.told[rows] == self.wanted[rows]),
        }

    def _intervals(
        self, rows: NDArray[np.int64], draws: int, rng: np.random.Generator
    ) -> dict[str, list[float]]:
        """Draw prompts anew, all rows of each together, and return 2.5 and 97.5 %."""
        prompts, of = np.unique(self.prompts[rows], return_inverse=True)
        order = np.argsort(of, kind="stable")
        starts = np.searchsorted(of[order], np.arange(len(prompts) + 1))
        found: dict[str, list[float]] = {name: [] for name in _MEASURES}
        for _ in range(draws):
            drawn = rng.integers(0, len(prompts), len(prompts))
            some = np.concatenate([order[starts[n] : starts[n + 1]] for n in drawn])
            for name, value in self.measures(rows[some]).items():
                if value is not None:
                    found[name].append(value)
        return {
            name: [round(float(q), 4) for q in np.quantile(values, (0.025, 0.975))]
            for name, values in found.items()
            if values
        }


def timed(
    predictor: LengthPredictor, examples: Sequence[Example], rng: np.random.Generator
) -> dict[str, float]:
    """Time single predictions of random prompts, each read anew, one thread."""
    if not examples:
        return {}
    some = [examples[int(n)].features for n in rng.integers(0, len(examples), _TIMED + 20)]
    took: list[float] = []
    for features in some:
        begun = time.perf_counter()
        predictor.predict([features])
        took.append((time.perf_counter() - begun) * 1000)
    half, most = np.quantile(took[20:], (0.5, 0.99))
    return {"p50": round(float(half), 3), "p99": round(float(most), 3)}


def _share(hits: NDArray[np.bool_]) -> float | None:
    return round(float(hits.mean()), 4) if len(hits) else None


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else round(value, 4)


def _shown(told: dict[str, Any]) -> str:
    head = (
        "set",
        "rows",
        "tau by model",
        "tau mixed",
        "buckets",
        "recall >1000",
        "precision",
        "MAE",
        "below .1",
        "below .9",
    )
    names = (
        "rows",
        *_MEASURES,
        "recall_more",
        "precision_more",
        "mae_tokens",
        "coverage_10",
        "coverage_90",
    )
    rows = [
        (name, *("-" if scores[each] is None else f"{scores[each]:g}" for each in names))
        for name, scores in [*told["sets"].items(), ("pool", told["pool"])]
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]
    ms = told["predict_ms"]
    return "\n".join([*lines, "", f"one prediction: p50 {ms['p50']} ms, p99 {ms['p99']} ms"])
