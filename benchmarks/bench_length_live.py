"""Correction and drift on real answers: `python bench_length_live.py FOLDER --weights DIR`.

FOLDER has alpaca_eval as `forebay predictor` reads it, DIR the encoder trained on its train part.
Correction: each dev answer is predicted before it is learnt, with the prompt's source as template;
running mean, encoder, and the encoder corrected. Drift: after 2,000 outcomes of a model's plain
answers come those of its verbose or concise variant, under the plain one's name; told is after how
many outcomes trust was lost. Stationary: how often it was lost in 20,000 outcomes without a change,
of those models four times and of every eighth of the others.
"""

from __future__ import annotations

import argparse
import gzip
import json
from math import expm1, log1p
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from forebay.gateway.commands.predictor_data import read_folder
from forebay.gateway.commands.predictor_runs import Table
from forebay.gateway.weights import load_encoder
from forebay.scheduler.length import Example, MeanLength, Prediction
from forebay.scheduler.length.correction import Correction
from forebay.scheduler.length.gate import Gate
from forebay.scheduler.length.scores import buckets_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STEADY, CHANGED, STATIONARY = 2_000, 3_000, 20_000
SEEDS = range(8)


class Answer(NamedTuple):
    """One answer: log lengths predicted and true."""

    raw: float
    true: float


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    arguments = parser.parse_args()
    found = read_folder(arguments.folder, part="dev", sets=["alpaca_eval"]).examples
    examples = sorted(found, key=lambda each: each.key)
    said = load_encoder(arguments.weights).predict([each.features for each in examples])
    sources = read_sources(arguments.folder)
    told = {"correction": corrected(examples, said, sources), **drifts(examples, said)}
    print(json.dumps(told))


def read_sources(folder: Path) -> dict[str, str]:
    """Return the source of each prompt, by its hash."""
    with gzip.open(folder / "alpaca_eval_prompts.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {row["pid"]: row["source"] for row in rows}


def corrected(
    examples: Sequence[Example], said: Sequence[Prediction], sources: dict[str, str]
) -> dict[str, Any]:
    """Return each predictor's measures where answers are learnt one after another."""
    order = list(range(len(examples)))
    Random(0).shuffle(order)
    mean, correction = MeanLength(), Correction()
    means, both = list(said), list(said)
    for place in order:
        example, raw = examples[place], said[place]
        features = example.features._replace(template=sources[example.key])
        model, template = features.model, features.template
        means[place] = told(log1p(mean.estimate(features)))
        both[place] = told(raw.rank + correction.shift("", model, template))
        mean.note(features, example.tokens)
        correction.add("", model, template, log1p(example.tokens) - raw.rank)
    rows, plain = np.arange(len(examples)), [told(each.rank) for each in said]
    named = {"mean": means, "encoder": plain, "both": both}
    return {name: Table(examples, each).measures(rows) for name, each in named.items()}


def told(rank: float) -> Prediction:
    """Return a prediction that names a length only: in the bucket of that length."""
    tokens = max(0.0, expm1(rank))
    bucket = int(buckets_of(round(tokens)))
    buckets = tuple(float(number == bucket) for number in range(4))
    return Prediction(tokens, (tokens, tokens, tokens), buckets, rank)  # type: ignore[arg-type] - four of them


def drifts(examples: Sequence[Example], said: Sequence[Prediction]) -> dict[str, Any]:
    """Return after how many outcomes each change was noticed, and false alarms."""
    answers: dict[str, dict[str, Answer]] = {}
    for example, each in zip(examples, said, strict=True):
        own = answers.setdefault(example.features.model, {})
        own[example.key] = Answer(each.rank, log1p(example.tokens))
    plain = [
        name for name in sorted(answers) if {f"{name}_verbose", f"{name}_concise"} <= set(answers)
    ]
    noticed = {
        f"{name}, {kind}, seed {seed}": first_alarm(
            answers[name], answers[f"{name}_{kind}"], Random(seed)
        )
        for name in plain
        for kind in ("verbose", "concise")
        for seed in SEEDS
    }
    steady = plain * 4 + sorted(set(answers) - set(plain))[::8]
    false = {name: {"changed": 0, "below the bar": 0} for name in steady}
    for number, name in enumerate(steady):
        for kind in alarms(answers[name], Random(100 + number)):
            false[name][kind] += 1
    return {"noticed_after": noticed, "steady_series": len(steady), "false_alarms": false}


def first_alarm(
    before: dict[str, Answer], after: dict[str, Answer], rng: Random
) -> dict[str, float | int | None]:
    """Return the outcomes from a change to the loss of trust, and how far lengths moved."""
    both = sorted(set(before) & set(after))
    moved = float(np.mean([after[key].true - before[key].true for key in both]))
    gate, correction = Gate(), Correction()
    for answer in drawn(before, both, STEADY, rng):
        step(gate, correction, answer)
    # What is predicted is still the plain model's: only the truth is another.
    swapped = {key: Answer(before[key].raw, after[key].true) for key in both}
    for number, answer in enumerate(drawn(swapped, both, CHANGED, rng), 1):
        if step(gate, correction, answer):
            return {"outcomes": number, "moved": round(moved, 2)}
    return {"outcomes": None, "moved": round(moved, 2)}


def alarms(answers: dict[str, Answer], rng: Random) -> Iterator[str]:
    """Yield why trust was lost, each time, without a cause."""
    gate, correction = Gate(), Correction()
    for answer in drawn(answers, sorted(answers), STATIONARY, rng):
        if step(gate, correction, answer):
            yield "changed" if gate.reason.startswith("answers of") else "below the bar"


def drawn(
    answers: dict[str, Answer], keys: Sequence[str], count: int, rng: Random
) -> Iterator[Answer]:
    """Yield answers to random prompts."""
    for _ in range(count):
        yield answers[rng.choice(keys)]


def step(gate: Gate, correction: Correction, answer: Answer) -> bool:
    """Take in one outcome as a pool does; True when trust was lost by it."""
    said = answer.raw + correction.shift("", "model", "")
    correction.add("", "model", "", answer.true - answer.raw)
    changed = gate.add("model", said=said, true=answer.true, raw=answer.raw)
    return changed and not gate.open


if __name__ == "__main__":
    main()
