"""Experiments of one process, kept in a folder: one JSON file each, replaced whole."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import msgspec

from .store import ExperimentsAway, ExperimentsHeld, Kept, decode, encode

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.policies.experiments.ramp import State


LOCK = ".lock"


class FileStore:
    """A folder. Each write is a new file that takes the old one's place, synced before it does.

    One process at a time: the first to use it holds a lock until it closes or dies.
    """

    shared = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._damaged = set[str]()
        """Experiments whose files are there and cannot be read."""
        self._lock: IO[bytes] | None = None

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    async def load(self, name: str) -> Kept | None:
        """See Store."""
        return await asyncio.to_thread(self._load, name)

    def _load(self, name: str) -> Kept | None:
        with suppress(OSError):  # what is there can be read; `save` tells what cannot be written
            self._hold()
        return self.read(name)

    def _hold(self) -> None:
        """Take the folder for this process. Raises ExperimentsHeld where another has it."""
        if self._lock is not None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = (self._folder / LOCK).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ExperimentsHeld(
                f"{self._folder}: another forebay keeps its experiments here; name another folder"
                " in 'state.experiments', or share them through 'state.url'"
            ) from None
        except OSError:
            pass  # a file system without locks
        self._lock = lock

    def read(self, name: str) -> Kept | None:
        """Read at once, for commands that have no loop. Raises ExperimentsAway."""
        path = self._path(name)
        try:
            kept = decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            self._damaged.add(name)
            raise ExperimentsAway(f"{path}: cannot be read: {error}") from error
        self._damaged.discard(name)
        return kept

    async def save(self, name: str, kept: Kept) -> None:
        """See Store."""
        if name in self._damaged and self._path(name).exists():
            # It may say that a candidate was rolled back: that is not to be forgotten unseen.
            raise ExperimentsAway(f"{self._path(name)}: is damaged; mend it or move it away")
        content = encode(kept)
        try:
            await asyncio.to_thread(self._replace, name, content)
        except OSError as error:
            raise ExperimentsAway(f"{self._folder}: {error.strerror or error}") from error

    def _replace(self, name: str, content: bytes) -> None:
        self._hold()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(name)
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    async def decide(self, name: str, state: State) -> bool:  # noqa: ARG002 - the protocol's signature
        """See Store: nobody else decides here; `save` writes the state."""
        return True

    async def leads(self) -> bool:
        """See Store."""
        return True

    async def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
