"""Makes a pool's reading predictor from its section: weights, a challenger, a log of outcomes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.adapters.predictor_http import RemoteLength
from forebay.scheduler.length.gate import GateSettings
from forebay.scheduler.length.linear import LinearText
from forebay.scheduler.length.rivals import Rivals

from .lengths import PoolLength, Readers
from .outcomes import OutcomeLog
from .weights import load_encoder

if TYPE_CHECKING:
    from forebay.gateway.config import scheduling, sections
    from forebay.scheduler.length import LengthPredictor
    from forebay.scheduler.length.encoder import Encoder


def reader_of(section: sections.Pool) -> PoolLength:
    """Make the predictor. Raises ConfigError where weights or the log cannot be had."""
    name, own = section.scheduling.predictor, section.scheduling.prediction
    challenger = None if own.challenger is None else _loaded(own.challenger)
    outcomes = None
    if own.outcomes is not None:
        outcomes = OutcomeLog(own.outcomes, limit=own.outcomes_limit, prompts=own.prompts)
    return PoolLength(
        Readers(_champion(name, own), challenger),
        pool=section.name,
        budget=own.budget,
        gate=GateSettings(accuracy=own.gate.accuracy, tau=own.gate.tau),
        rivals=None if challenger is None else Rivals(),
        outcomes=outcomes,
    )


def _champion(name: str, own: scheduling.Prediction) -> LengthPredictor:
    if name not in ("encoder", "linear"):
        return RemoteLength(name)
    encoder = _loaded(own.weights)
    return encoder if name == "encoder" else LinearText.of(encoder.parts_)


def _loaded(folder: str | None) -> Encoder:
    """Load weights once for all pools, until their folder changes."""
    changed = 0 if folder is None else _changed(Path(folder))
    return _load(folder, changed)


def _changed(folder: Path) -> int:
    try:
        return (folder / "meta.json").stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=4)
def _load(folder: str | None, changed: int) -> Encoder:  # noqa: ARG001 - part of what is remembered
    return load_encoder(None if folder is None else Path(folder))
