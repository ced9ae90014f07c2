"""Where a length predictor's weights are kept: a folder of files, or those shipped with forebay."""

from __future__ import annotations

import json
import os
import zlib
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

from forebay.policies.contracts import ConfigError, Route
from forebay.scheduler.length import LengthFeatures
from forebay.scheduler.length.encoder import FILES, Encoder

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT = "weights"
"""Folder of the package that has the default weights."""


def default_folder() -> Path:
    """Return where the default weights are."""
    return Path(str(files("forebay.scheduler.length") / DEFAULT))


def load_encoder(folder: Path | None = None) -> Encoder:
    """Load an encoder, the default one without a folder, and try it. Raises ConfigError."""
    where = folder or default_folder()
    try:
        contents = _read(where)
    except OSError as error:
        raise ConfigError(f"no weights in {str(where)!r}: {_why(error)}") from error
    try:
        encoder = Encoder.from_files(contents)
        _try(encoder)
    except Exception as error:  # numpy's, zip's and ONNX Runtime's have no base in common
        text = f"the weights in {str(where)!r} cannot be read: {_damage(error)}"
        raise ConfigError(text) from error
    return encoder


def _read(folder: Path) -> dict[str, bytes]:
    """Read the files of one folder: a new one that takes its place meanwhile is not mixed in."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def within(name: str, flags: int) -> int:
        return os.open(name, flags, dir_fd=at)

    contents: dict[str, bytes] = {}
    try:
        for name in FILES:
            with open(name, "rb", opener=within) as file:
                contents[name] = file.read()
    finally:
        os.close(at)
    return contents


def _try(encoder: Encoder) -> None:
    """Have one prompt read, by the last model and of the last words; raises where none can be."""
    parts = encoder.parts_
    model = parts.models[-1] if parts.models else ""
    text = " ".join(parts.vocabulary[-8:])
    # Before calibration, where poor weights may say of an odd prompt more than a float can hold.
    (said,) = encoder.say([LengthFeatures(Route.CHAT, model, "", 1, text=text)])
    found = said.residual + said.ridge
    if not isfinite(found):
        raise ValueError(f"they predict {found} for a prompt, so they are damaged")


def _why(error: OSError) -> str:
    """Say which of the files is not to be had, and why."""
    why = (error.strerror or str(error)).lower()
    return f"{error.filename}: {why}" if error.filename in FILES else why


def _damage(error: Exception) -> str:
    """Say what is wrong, and with which of the files where its reader does not."""
    if isinstance(error, json.JSONDecodeError):
        return f"meta.json: {error}"
    if isinstance(error, BadZipFile | zlib.error | EOFError):
        return f"text.npz: {error}"
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def save(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write weights so that a reader finds the old ones or the new ones, never a mixture.

    A new folder beside takes the old one's place; the last three stay as NAME.1 to NAME.3.
    """
    beside = folder.with_name(folder.name + ".new")
    beside.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (beside / name).write_bytes(content)
    if folder.exists():
        _keep(folder)
    beside.rename(folder)


def _keep(folder: Path, last: int = 3) -> None:
    """Move what was there to NAME.1, and what was there to NAME.2: the last few stay."""
    import shutil  # noqa: PLC0415 - only after a training

    shutil.rmtree(folder.with_name(f"{folder.name}.{last}"), ignore_errors=True)
    for number in range(last - 1, 0, -1):
        older = folder.with_name(f"{folder.name}.{number}")
        if older.exists():
            older.rename(folder.with_name(f"{folder.name}.{number + 1}"))
    folder.rename(folder.with_name(f"{folder.name}.1"))
