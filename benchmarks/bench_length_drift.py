"""The gate's cumulative sum over many series: `python bench_length_drift.py FOLDER --weights DIR`.

As `bench_length_live.py`, but of the sum alone and all series side by side: every model of
alpaca_eval's dev part for 20,000 outcomes without a change, those with a verbose and a concise
variant nineteen times, and sixty swaps of each for the verbose one after 2,000 outcomes.
"""

from __future__ import annotations

import argparse
import json
from math import log1p
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forebay.gateway.commands.predictor_data import read_folder
from forebay.gateway.weights import load_encoder
from forebay.scheduler.length import gate

if TYPE_CHECKING:
    from numpy.typing import NDArray

STEADY, CHANGED, STATIONARY = 2_000, 1_500, 20_000
ROUNDS, SWAPS = 18, 60
NEVER = 10**6


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--seed", type=int, nargs="+", default=list(range(8)))
    arguments = parser.parse_args()
    raw, true = lengths(arguments.folder, arguments.weights)
    plain = [name for name in sorted(true) if f"{name}_verbose" in true]
    steady = [*sorted(true), *plain * ROUNDS]
    bar = gate.GateSettings().sum
    false = [
        int((sums(series(raw, true, steady, seed)).max(1) > bar).sum()) for seed in arguments.seed
    ]
    rng = np.random.default_rng(arguments.seed[0])
    swaps = np.array([swapped(raw, true, name, rng) for name in plain for _ in range(SWAPS)])
    over = sums(swaps)[:, STEADY:] > bar
    after = np.where(over.any(1), over.argmax(1) + 1, NEVER)
    told = {"series": len(steady), "passed": false, "swaps": len(after)}
    print(json.dumps({**told, "within_300": int((after <= 300).sum()), "most": int(after.max())}))


Lengths = dict[str, dict[str, float]]
"""Log lengths by model and prompt."""


def lengths(folder: Path, weights: Path) -> tuple[Lengths, Lengths]:
    """Return what is predicted, and what is true."""
    examples = sorted(
        read_folder(folder, part="dev", sets=["alpaca_eval"]).examples, key=lambda each: each.key
    )
    said = load_encoder(weights).predict([each.features for each in examples])
    raw: Lengths = {}
    true: Lengths = {}
    for example, each in zip(examples, said, strict=True):
        raw.setdefault(example.features.model, {})[example.key] = each.rank
        true.setdefault(example.features.model, {})[example.key] = log1p(example.tokens)
    return raw, true


def series(raw: Lengths, true: Lengths, models: list[str], seed: int) -> NDArray[np.float64]:
    """Return residuals of random prompts, a row for each model."""
    rng = np.random.default_rng(seed)
    return np.array(
        [
            rng.choice([true[name][key] - raw[name][key] for key in true[name]], STATIONARY)
            for name in models
        ]
    )


def swapped(
    raw: Lengths, true: Lengths, name: str, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return residuals of a model, then those of its verbose variant's answers."""
    verbose = true[f"{name}_verbose"]
    both = sorted(set(true[name]) & set(verbose))
    parts = ((true[name], STEADY), (verbose, CHANGED))
    return np.concatenate(
        [rng.choice([own[key] - raw[name][key] for key in both], count) for own, count in parts]
    )


def sums(residuals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the larger of both sums after each residual, as the gate reckons them."""
    own, slack, far = gate.GateSettings(), gate.SLACK, gate.FAR
    up = down = mean = middle = np.zeros(len(residuals))
    spread = np.ones(len(residuals))
    found = np.zeros(residuals.shape)
    for at in range(own.reference, residuals.shape[1]):
        size = min(own.most, own.reference + max(0, at - own.reference - own.lag))
        if at == own.reference or (size < own.most and size % own.every == 0):
            before = residuals[:, :size]
            mean, spread = before.mean(1), before.std(1)
            near = np.clip((before - mean[:, None]) / spread[:, None], -far, far)
            middle = near.mean(1)
        off = np.clip((residuals[:, at] - mean) / spread, -far, far) - middle
        up = np.maximum(0.0, up + off - slack)
        down = np.maximum(0.0, down - off - slack)
        found[:, at] = np.maximum(up, down)
    return found


if __name__ == "__main__":
    main()
