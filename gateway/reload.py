"""Takes a changed configuration into force, or refuses it and changes nothing.

The file's content is read every second: no notification service sees every way a file changes
(editors rename, Kubernetes swaps a link two folders up, network disks say nothing), and reading a
few kilobytes costs less than one request. A change counts once the content has stood still for
300 ms. SIGHUP (`poke`) counts at once.

Reading and judging run in a thread; `apply` runs on the loop, in one call without an await, so no
request ever sees half of a configuration.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING

from forebay.gateway.config import load
from forebay.gateway.config.errors import ConfigErrors
from forebay.policies.contracts import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from forebay.gateway.config.sections import Config

logger = logging.getLogger(__name__)

_UNREADABLE = b""
_FIXED = (
    *("server.host", "server.port", "server.admin", "server.metrics"),
    *("telemetry", "state"),
)


def refuse_fixed(old: Config, new: Config) -> None:
    """Raise ConfigError where something has changed that cannot change while running."""
    for key in _FIXED:
        read = attrgetter(key)
        if read(old) != read(new):
            raise ConfigError(f"{key} cannot change while running; restart for it")


@dataclass(slots=True)
class Settling:
    """Says when a changed content has stood still long enough."""

    quiet_s: float
    judged: bytes | None = None
    """The digest last taken or refused."""
    _moving: bytes | None = None
    _since: float = 0.0

    @property
    def waits(self) -> bool:
        """A change has been seen that has not yet stood still."""
        return self._moving is not None

    def due(self, digest: bytes, now: float) -> bool:
        """Take what the file holds now; True when it is to be judged now."""
        if digest == self.judged:
            self._moving = None
            return False
        if digest != self._moving:
            self._moving, self._since = digest, now
        return now - self._since >= self.quiet_s

    def judge(self, digest: bytes) -> None:
        """Note a digest as judged."""
        self.judged, self._moving = digest, None


class Watcher:
    """Watches one file. `run` is a task for the life of the process; cancelling it ends it.

    `loaded` is the content that is in force; without it, what the file holds when `run` begins.
    `apply` may refuse, too, by raising a ConfigError; it must then have changed nothing. `prepare`
    finds out what it needs to know before.
    """

    def __init__(  # noqa: PLR0913 - each is a seam of its own
        self,
        path: Path,
        *,
        apply: Callable[[Config], None],
        prepare: Callable[[Config], Awaitable[None]] | None = None,
        on_error: Callable[[ConfigError], None] | None = None,
        read: Callable[[bytes], Config] = load.read,
        loaded: bytes | None = None,
        interval_s: float = 1.0,
        quiet_s: float = 0.3,
    ) -> None:
        self._path = path
        self._apply = apply
        self._prepare = prepare
        self._on_error = on_error
        self._read = read
        self._interval_s = interval_s
        self._settling = Settling(quiet_s, None if loaded is None else _digest(loaded))
        self._poked = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        """Held from the reading on: what is prepared slowly must not come over what is newer."""
        self._refused: tuple[bytes, str] | None = None
        self._ok = True
        self._unreadable = ""

    @property
    def ok(self) -> bool:
        """Whether the content last judged is in force."""
        return self._ok

    def poke(self) -> None:
        """Read the file now, changed or not. For SIGHUP; to be called on the loop."""
        self._poked.set()

    async def reload(self) -> ConfigError | None:
        """Read the file now, changed or not; return why it was refused."""
        async with self._one_at_a_time:
            return await self._judge(await asyncio.to_thread(self._content))

    async def run(self) -> None:
        """Watch until cancelled."""
        now = asyncio.get_running_loop().time
        if self._settling.judged is None:
            self._settling.judge(_digest(await asyncio.to_thread(self._content)))
        while True:
            poked = await self._pause()
            async with self._one_at_a_time:
                content = await asyncio.to_thread(self._content)
                if self._settling.due(_digest(content), now()) or poked:
                    await self._judge(content)

    async def _pause(self) -> bool:
        """Wait for the next look; True when it was asked for."""
        pause_s = self._settling.quiet_s if self._settling.waits else self._interval_s
        try:
            async with asyncio.timeout(pause_s):
                await self._poked.wait()
        except TimeoutError:
            return False
        self._poked.clear()
        return True

    def _content(self) -> bytes | None:
        try:
            content = self._path.read_bytes()
        except OSError as error:
            self._unreadable = error.strerror or str(error)
            return None
        return content

    async def _judge(self, content: bytes | None) -> ConfigError | None:
        self._settling.judge(_digest(content))
        try:
            config = await asyncio.to_thread(self._config, content)
            if self._prepare is not None:
                await self._prepare(config)
            self._apply(config)
        except ConfigError as error:
            self._refuse(error, _digest(content))
            return error
        except Exception:
            self._ok = False
            logger.exception("configuration could not be applied", extra={"file": str(self._path)})
            return ConfigError("could not be applied; the log says why")
        else:
            self._ok, self._refused = True, None
            logger.info("configuration applied", extra={"file": str(self._path)})
            return None

    def _config(self, content: bytes | None) -> Config:
        if content is None:
            raise ConfigErrors.single(f"cannot be read any more: {self._unreadable}")
        return self._read(content)

    def _refuse(self, error: ConfigError, digest: bytes) -> None:
        self._ok = False
        if self._refused == (digest, error.message):
            return
        self._refused = digest, error.message
        reasons = error.errors if isinstance(error, ConfigErrors) else (error.message,)
        logger.warning(
            "configuration refused; the former one stays in force",
            extra={"file": str(self._path), "errors": [str(reason) for reason in reasons]},
        )
        if self._on_error is not None:
            self._on_error(error)


def _digest(content: bytes | None) -> bytes:
    return _UNREADABLE if content is None else sha256(content).digest()
