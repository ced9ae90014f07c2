# pyright: basic, reportMissingImports=false
"""Teachers: larger networks that say what a small one is to learn beside the truth.

One answer's length is partly chance; what several networks make of the prompt is less so. A teacher
has all layers of the weights started from and reads more of a prompt. It would only repeat the
truth of what it was trained on, so each speaks of the prompts that were kept from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from .encoder_tables import tables_of
from .encoder_train import answers_of, say_all, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .encoder_train import Task, Training

FOLDS = 4
_RATE = 5e-5
"""At 1e-4, which suits half as many layers, some of the folds' teachers learn next to nothing."""
_SHARE = 0.6
"""Of the epochs of the one that is taught: what teachers say takes longer to learn."""
_SEEDS = 1000
"""Between those of one training's teachers and the next one's."""


def teach(
    task: Task, how: Training, rounds: int, progress: Callable[[int, int], None]
) -> NDArray[np.float32]:
    """Return what teachers say of each answer [A, 5]: the residual, the buckets' shares.

    In each round every prompt is spoken of by one that has not seen it; rounds are averaged.
    """
    inputs, count = task.inputs, len(task.inputs.slots)
    tables = tables_of(inputs, how.device)
    taught = np.zeros((len(inputs.tokens), 5), dtype=np.float32)
    own_way = replace(how, rate=_RATE, epochs=max(1, round(how.epochs * _SHARE)))
    for number in range(rounds * FOLDS):
        turn, fold = divmod(number, FOLDS)
        folds = np.random.default_rng((how.seed, turn)).permutation(count) % FOLDS
        rest, own = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        net = train(
            task,
            replace(own_way, seed=(how.seed + 1) * _SEEDS + number),
            prompts=rest,
            tables=tables,
            progress=lambda step, steps, done=number: progress(
                done * steps + step, rounds * FOLDS * steps
            ),
        )
        said = say_all(net, inputs, tables, own)
        shares = torch.softmax(said[:, 3:], -1)
        spoken = torch.cat((said[:, :1], shares), -1).cpu().numpy()
        taught[answers_of(inputs, own)] += spoken / rounds
    return taught
