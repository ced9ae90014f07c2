"""Puts an encoder right after training, on prompts that it has not seen: `Calibration`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .encoder import Calibration, Encoder, Said, Shifts, blend, middle_of
from .scores import buckets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .contracts import Example

_PRIOR = 40.0
"""Prompts that a kin's own calibration is drawn to the common one by."""
_LONGEST = 3
_SOFTMAX = (0.25, 0.5, 0.75)
_MORE = (1.0, 1.25, 1.5, 1.75, 2.0, 2.2, 2.5, 2.9, 3.4, 4.0)
_MORE_USUAL = 2.2
"""What tells the longest as often as it comes: 3.0 on a fifth of the training part, 1.7 on the
prompts that three trainings kept; each is drawn from some forty long answers."""
_MORE_SPREAD = 0.4
"""How far either is off, in doublings."""


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
    errors = np.log1p(tokens) - np.array([middle_of(each, first) for each in said])
    # A set that outnumbers the others has kin of its own; what is common is for the rest.
    common = _shifts(said, errors, _alike([example.group for example in some]))
    kin = {
        name: _drawn(_shifts(*_of_kin(said, errors, name)), common, _prompts(some, said, name))
        for name in sorted({each.kin for each in said} - {""})
    }
    return _weigh(said, buckets_of(tokens), replace(first, shifts=common, kin=kin))


def _alike(groups: Sequence[str]) -> NDArray[np.float64]:
    """Return a weight for each of some members, so that all groups weigh the same."""
    counts = Counter(groups)
    return np.array([1 / counts[group] for group in groups])


def _shifts(
    said: Sequence[Said], errors: NDArray[np.float64], weights: NDArray[np.float64]
) -> Shifts:
    """Return what makes .1, .5 and .9 of the errors lie below the quantiles."""
    low = _quantile(errors - np.array([each.low for each in said]), 0.1, weights)
    high = _quantile(errors - np.array([each.high for each in said]), 0.9, weights)
    return Shifts(low, _quantile(errors, 0.5, weights), high)


def _quantile(values: NDArray[np.float64], share: float, weights: NDArray[np.float64]) -> float:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order]) - weights[order] / 2
    at = share * float(weights.sum())
    return float(np.interp(at, below, values[order]))


def _of_kin(
    said: Sequence[Said], errors: NDArray[np.float64], name: str
) -> tuple[list[Said], NDArray[np.float64], NDArray[np.float64]]:
    rows = [number for number, each in enumerate(said) if each.kin == name]
    return [said[row] for row in rows], errors[rows], np.ones(len(rows))


def _prompts(examples: Sequence[Example], said: Sequence[Said], name: str) -> int:
    return len({e.features.text for e, s in zip(examples, said, strict=True) if s.kin == name})


def _drawn(own: Shifts, common: Shifts, prompts: int) -> Shifts:
    """Draw a kin's shifts to the common ones, the more the fewer prompts they are from."""
    share = prompts / (prompts + _PRIOR)
    return Shifts(*(share * a + (1 - share) * b for a, b in zip(own, common, strict=True)))


def _thinned(examples: Sequence[Example], rng: np.random.Generator) -> list[Example]:
    by_text: dict[str, list[Example]] = {}
    for example in examples:
        by_text.setdefault(example.features.text, []).append(example)
    return [
        own[number] for own in by_text.values() for number in sorted(rng.permutation(len(own))[:6])
    ]


def _weigh(said: Sequence[Said], wanted: NDArray[np.int64], shaped: Calibration) -> Calibration:
    """Choose the buckets' weights: right often, and the longest told as often as it comes.

    Few long answers are among those kept, a dozen of which say little, so what is usual is left
    only as far as chance does not explain the difference.
    """
    long = int((wanted == _LONGEST).sum())
    if not long:
        return shaped
    best, found = -1.0, shaped
    for softmax in _SOFTMAX:
        tried = [replace(shaped, softmax=softmax, more=more) for more in _MORE]
        told = [np.array([np.argmax(blend(s, each).buckets) for s in said]) for each in tried]
        off = [
            _beyond_chance(each == _LONGEST, wanted == _LONGEST)
            + (np.log2(more / _MORE_USUAL) / _MORE_SPREAD) ** 2
            for each, more in zip(told, _MORE, strict=True)
        ]
        number = int(np.argmin(off))
        right = float((told[number] == wanted).mean()) - 0.004 * (softmax != shaped.softmax)
        if right > best:
            best, found = right, tried[number]
    return found


def _beyond_chance(told: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    """Return how far what is told too often outweighs what is missed, in variances."""
    amiss, missed = int((told & ~true).sum()), int((true & ~told).sum())
    return (amiss - missed) ** 2 / max(1, amiss + missed)
