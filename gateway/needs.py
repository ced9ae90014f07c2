"""What a configuration needs on this machine beside its own text: files, folders and extras.

`forebay check` asks before `forebay serve` stops for it. Nothing is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.policies.contracts import ConfigError

from .attention import tokenizer_fault
from .extras import is_there, needs

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
        journal = pool.scheduling.journal
        if journal is not None:
            found += _writable(("pools", i, "scheduling", "journal"), Path(journal))
    if config.auth.jwt is not None and not is_there("oidc"):
        found.append((("auth", "jwt"), needs("auth.jwt", "oidc")))
    ledger = config.state.ledger
    if ledger is not None and config.state.url is None:
        found += _writable(("state", "ledger"), file.parent / ledger)
    return found


def _lengths(own: Scheduling, place: Place) -> Found:
    said, here = own.prediction, (*place, "prediction")
    if own.predictor in ("mean", "none"):
        return
    if own.predictor in _OF_WEIGHTS:
        where = (*here, "weights") if said.weights is not None else (*place, "predictor")
        yield from _weights(where, said.weights)
    if said.challenger is not None:
        yield from _weights((*here, "challenger"), said.challenger)
    if said.outcomes is not None:
        yield from _writable((*here, "outcomes"), Path(said.outcomes))


def _weights(place: Place, folder: str | None) -> Found:
    from .weights import load_encoder  # noqa: PLC0415 - numpy and ONNX Runtime take 200 ms

    try:
        load_encoder(None if folder is None else Path(folder))
    except ConfigError as error:
        yield place, error.message


def _writable(place: Place, file: Path) -> Found:
    """Tell where a file could not be made or gone on with."""
    # Path's own questions raise where a folder may not be looked into.
    folder = file.parent
    if not os.path.isdir(folder):  # noqa: PTH112 - see above
        yield place, f"there is no folder {str(folder)!r} for it"
    elif os.path.isdir(file):  # noqa: PTH112 - likewise
        yield place, f"{str(file)!r} is a folder; name a file"
    elif not _may_write(file):
        yield place, f"{str(file)!r} cannot be written by this user"


def _may_write(file: Path) -> bool:
    if os.path.exists(file):  # noqa: PTH110 - likewise
        return os.access(file, os.W_OK)
    return os.access(file.parent, os.W_OK | os.X_OK)
