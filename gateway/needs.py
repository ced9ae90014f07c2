"""What a configuration needs on this machine beside its own text: files, folders and extras.

`forebay check` asks before `forebay serve` stops for it. Nothing is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from forebay.policies.contracts import ConfigError

from .attention import tokenizer_fault
from .extras import is_there, needs
from .writable import find_unwritable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.gateway.config.errors import Place
    from forebay.gateway.config.scheduling import Scheduling
    from forebay.gateway.config.sections import Config

    Found = Iterator[tuple[Place, str]]

_OF_WEIGHTS = ("encoder", "linear")


def find_missing(config: Config, file: Path) -> list[tuple[Place, str]]:
    """Return the place of each key that cannot be had here, and why. Costs up to half a second."""
    found: list[tuple[Place, str]] = []
    for i, pool in enumerate(config.pools):
        fault = None if pool.prefix is None else tokenizer_fault(pool.prefix)
        if fault is not None:
            found.append((("pools", i, "prefix", "tokenizer"), fault))
        found += _lengths(pool.scheduling, ("pools", i, "scheduling"))
    if config.auth.jwt is not None and not is_there("oidc"):
        found.append((("auth", "jwt"), needs("auth.jwt", "oidc")))
    return found + find_unwritable(config, file)


def _lengths(own: Scheduling, place: Place) -> Found:
    said, here = own.prediction, (*place, "prediction")
    if own.predictor in ("mean", "none"):
        return
    if own.predictor in _OF_WEIGHTS:
        where = (*here, "weights") if said.weights is not None else (*place, "predictor")
        yield from _weights(where, said.weights)
    if said.challenger is not None:
        yield from _weights((*here, "challenger"), said.challenger)


def _weights(place: Place, folder: str | None) -> Found:
    from .weights import load_encoder  # noqa: PLC0415 - numpy and ONNX Runtime take 200 ms

    try:
        load_encoder(None if folder is None else Path(folder))
    except ConfigError as error:
        yield place, error.message
