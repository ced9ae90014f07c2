"""Whether what a configuration names to be written can be: files and folders. Nothing is written.

Where it names none, a ledger and experiments have places of their own beside it. These are not
looked at: where they cannot be written forebay goes on without, and says so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.gateway.config.errors import Place
    from forebay.gateway.config.sections import Config

    Found = Iterator[tuple[Place, str]]

_WRITES_NOTHING = ("mean", "none")
"""Length predictors that write no outcomes."""


def find_unwritable(config: Config, file: Path) -> list[tuple[Place, str]]:
    """Return the place of each key whose file or folder cannot be written, and why.

    Names of `state` count from the folder of `file`, the others from the working directory.
    """
    found: list[tuple[Place, str]] = []
    for i, pool in enumerate(config.pools):
        own, here = pool.scheduling, ("pools", i, "scheduling")
        outcomes = own.prediction.outcomes
        if outcomes is not None and own.predictor not in _WRITES_NOTHING:
            found += _file((*here, "prediction", "outcomes"), Path(outcomes), more=True)
        if own.journal is not None:
            found += _file((*here, "journal"), Path(own.journal))
    state = config.state
    if state.url is not None:
        return found
    if state.ledger is not None:
        found += _file(("state", "ledger"), file.parent / state.ledger, more=True)
    if state.experiments is not None and config.experiments:
        found += _folder(("state", "experiments"), file.parent / state.experiments)
    return found


# Path's own questions raise where a folder may not be looked into.
def _file(place: Place, file: Path, *, more: bool = False) -> Found:
    """Tell why a file could not be made or gone on with; with `more`, others beside it, too."""
    folder = file.parent
    if not os.path.isdir(folder):  # noqa: PTH112 - see above
        yield place, f"there is no folder {str(folder)!r} for it; make it, or name another file"
    elif os.path.isdir(file):  # noqa: PTH112 - likewise
        yield place, f"{str(file)!r} is a folder; name a file"
    elif os.path.exists(file) and not os.access(file, os.W_OK):  # noqa: PTH110 - likewise
        yield place, _refused(file, "file")
    elif (more or not os.path.exists(file)) and not _takes(folder):  # noqa: PTH110 - likewise
        yield place, _refused(folder, "file")


def _folder(place: Place, folder: Path) -> Found:
    """Tell why a folder could not be made or written to."""
    above = folder
    while not os.path.lexists(above):
        above = above.parent
    if not os.path.isdir(above):  # noqa: PTH112 - see above
        yield place, f"{str(above)!r} is no folder; name a folder"
    elif not _takes(above):
        yield place, _refused(above, "folder")


def _takes(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _refused(path: Path, kind: str) -> str:
    """Word why what is there cannot be written."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"{str(path)!r} is on a file system that is read-only; name a {kind} elsewhere"
    return f"{str(path)!r} cannot be written by this user; allow it, or name another {kind}"
