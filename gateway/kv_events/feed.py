"""The gateway's side of the event reader: starts it, hands deltas on, starts it again.

One process for all pools, and none where no endpoint's events are read. Deltas come in pieces of
some hundred blocks, and the loop gets its turn between two of them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Protocol

import msgspec

from .messages import Answered, Delta, Drop, Restarted, Watch, read_from_reader, write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .messages import FromReader, State, ToReader

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
_MOST_BEHIND = 1 << 20
_ALIVE_S = 30.0
"""A reader that ran for so long is started again at once."""


class Listener(Protocol):
    """Who is told what one endpoint holds."""

    def delta(self, delta: Delta) -> None:
        """Take in what has changed."""
        ...

    def state(self, state: State) -> None:
        """Take in how the source does."""
        ...

    def away(self) -> None:
        """Nothing is known any more: the reader is gone. It begins anew by itself."""
        ...


async def start_reader() -> asyncio.subprocess.Process:
    """Start the reader's process."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "forebay.gateway.kv_events.reader",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


class Feed:
    """Reads the events of all endpoints that tell some."""

    def __init__(
        self, start: Callable[[], Awaitable[asyncio.subprocess.Process]] = start_reader
    ) -> None:
        self.starts = 0
        """How often the reader was started."""
        self._start = start
        self._tickets = count(1)
        self._watched: dict[int, tuple[Watch, Listener]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, watch: Callable[[int], Watch], listener: Listener) -> int:
        """Begin to read an endpoint's events; return the ticket to speak of them by."""
        ticket = next(self._tickets)
        message = watch(ticket)
        self._watched[ticket] = (message, listener)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        else:
            self._send(message)
        return ticket

    def drop(self, ticket: int) -> None:
        """Read no more of them."""
        if self._watched.pop(ticket, None) is not None:
            self._send(Drop(ticket))

    def restarted(self, ticket: int, started: float) -> None:
        """Tell the reader when an engine's process began."""
        self._send(Restarted(ticket, started))

    def answered(self, ticket: int, body: bytes) -> None:
        """Hand on what an engine said that has to be asked."""
        self._send(Answered(ticket, body))

    def is_behind(self) -> bool:
        """Tell whether the reader has yet to take what was handed on, or is not there."""
        stdin = None if self._process is None else self._process.stdin
        return stdin is None or stdin.transport.get_write_buffer_size() > _MOST_BEHIND

    async def close(self) -> None:
        """Stop the reader."""
        self._watched.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _send(self, message: ToReader) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(write(message))

    async def _run(self) -> None:
        loop, pause = asyncio.get_running_loop(), FIRST_PAUSE_S
        while True:
            began = loop.time()
            try:
                await self._read_once()
            except (OSError, msgspec.MsgspecError, asyncio.IncompleteReadError) as error:
                reason = type(error).__name__
            else:
                reason = "it ended"
            for _, listener in tuple(self._watched.values()):
                listener.away()
            logger.warning("event reader is gone", extra={"reason": reason})
            pause = FIRST_PAUSE_S if loop.time() - began > _ALIVE_S else pause * 2
            await asyncio.sleep(min(LONGEST_PAUSE_S, pause))

    async def _read_once(self) -> None:
        """Start the reader and listen to it until it ends."""
        self.starts += 1
        process = self._process = await self._start()
        try:
            for message, _ in self._watched.values():
                self._send(message)
            assert process.stdout is not None
            while True:
                size = int.from_bytes(await process.stdout.readexactly(4), "little")
                self._hand_on(read_from_reader(await process.stdout.readexactly(size)))
                await asyncio.sleep(0)  # what is buffered would be read without a turn for others
        finally:
            self._process = None
            await _end(process)

    def _hand_on(self, message: FromReader) -> None:
        known = self._watched.get(message.ticket)
        if known is None:
            return
        if isinstance(message, Delta):
            known[1].delta(message)
        else:
            known[1].state(message)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a reader that has not ended by itself: it does when its input does."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(2.0):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
