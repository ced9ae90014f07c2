"""Which models answer alike: those get a ridge of their own.

What makes an answer long is not the same for each model and each use of it: on one set's prompts a
ridge trained on that set alone orders better than one trained on all, and both together better than
either. Kin are a model that has answered many prompts; or all models of a set where many models
answered the same few prompts.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .contracts import Example

_MODELS_OF_A_CROWD = 8
"""Of a set with more models than this the answers are taken together."""
_ENOUGH = 250
_ENOUGH_OF_A_CROWD = 100
_MOST = 24


class Kin(NamedTuple):
    """Names of the kin, and the kin of each model, by index."""

    names: tuple[str, ...]
    of: dict[str, int]

    def table(self, models: Sequence[str]) -> NDArray[np.float32]:
        """Return [1 + N, K]: 1 at the kin of each model; the first row is any other model's."""
        told = np.zeros((1 + len(models), len(self.names)), dtype=np.float32)
        for row, model in enumerate(models, 1):
            if model in self.of:
                told[row, self.of[model]] = 1.0
        return told


def kin_of(examples: Sequence[Example], prompts: NDArray[np.int64]) -> Kin:
    """Return the kin among the models of examples; `prompts` is the prompt of each, by index."""
    by_model: dict[str, set[int]] = defaultdict(set)
    by_set: dict[str, set[str]] = defaultdict(set)
    for example, prompt in zip(examples, prompts.tolist(), strict=True):
        by_model[example.features.model].add(prompt)
        by_set[example.group].add(example.features.model)
    found: dict[str, list[str]] = {}
    for group, models in by_set.items():
        if len(models) > _MODELS_OF_A_CROWD:
            some = set[int]().union(*(by_model[model] for model in models))
            if len(some) >= _ENOUGH_OF_A_CROWD:
                found[group] = sorted(models)
        else:
            found |= {model: [model] for model in models if len(by_model[model]) >= _ENOUGH}
    size = {name: sum(len(by_model[model]) for model in models) for name, models in found.items()}
    names = sorted(sorted(found, key=lambda name: -size[name])[:_MOST])
    # Crowds first, so that a model's own ridge outdoes that of a set it is also in.
    ordered = sorted(enumerate(names), key=lambda each: -len(found[each[1]]))
    of = {model: number for number, name in ordered for model in found[name]}
    return Kin(tuple(names), of)
