"""Where a length predictor's weights are kept: a folder of files, or those shipped with forebay."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.policies.contracts import ConfigError
from forebay.scheduler.length.encoder import FILES, Encoder

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT = "weights"
"""Folder of the package that has the default weights."""


def default_folder() -> Path:
    """Return where the default weights are."""
    return Path(str(files("forebay.scheduler.length") / DEFAULT))


def load_encoder(folder: Path | None = None) -> Encoder:
    """Load an encoder, the default one without a folder. Raises ConfigError."""
    where = folder or default_folder()
    try:
        return Encoder.from_files({name: (where / name).read_bytes() for name in FILES})
    except OSError as error:
        raise ConfigError(f"no weights in {str(where)!r}: {_why(error)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the weights in {str(where)!r} cannot be read: {error}") from error


def _why(error: OSError) -> str:
    """Say which of the files is not to be had, and why."""
    name = Path(error.filename).name if error.filename else "the folder"
    return f"{name}: {(error.strerror or str(error)).lower()}"


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
