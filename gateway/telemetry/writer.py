"""Writes lines from a thread of its own: a blocked pipe must never block the event loop."""

from __future__ import annotations

import os
import select
from threading import Condition, Thread
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_WAITING = 8 << 20
"""Bytes that may wait for a slow reader; what comes past them is dropped and counted."""


class LineWriter:
    """Hands whole lines to a file descriptor, in order, through a bounded queue.

    `put` never waits for the reader, whoever calls it. The descriptor is written to, never closed.
    """

    def __init__(
        self,
        fd: int,
        *,
        max_waiting: int = MAX_WAITING,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self.dropped = 0
        """Lines lost since start."""
        self._fd = fd
        self._write = write
        self._max_waiting = max_waiting
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._under_way = 0
        self._told = 0
        self._closing = False
        self._changed = Condition()
        self._thread = Thread(target=self._run, name="forebay-log", daemon=True)
        self._thread.start()

    def put(self, lines: bytes) -> None:
        """Queue one or more whole lines; drop and count them when the queue is full."""
        with self._changed:
            if self._closing or self._bytes + len(lines) > self._max_waiting:
                self.dropped += lines.count(b"\n")
                return
            self._waiting.append(lines)
            self._bytes += len(lines)
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """Bytes not yet written."""
        return self._bytes

    def close(self, timeout: float = 1.0) -> None:
        """Write what waits, for at most `timeout` seconds, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            self._write_all(batch)
            with self._changed:
                self._bytes -= self._under_way

    def _take(self) -> bytes | None:
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if not self._waiting and self.dropped == self._told:
                return None
            waiting, self._waiting = self._waiting, []
            self._under_way = self._bytes
            lost, self._told = self.dropped - self._told, self.dropped
        notice = _notice(lost) if lost else b""
        return notice + b"".join(waiting)

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._write(self._fd, bytes(view[: 64 << 10])) :]
            except BlockingIOError:
                self._wait()
            except OSError:
                # Nobody reads any more; there is nobody to tell either.
                lost = bytes(view).count(b"\n")
                with self._changed:
                    self.dropped += lost
                    self._told += lost
                return

    def _wait(self) -> None:
        room = select.poll()
        room.register(self._fd, select.POLLOUT)
        room.poll(1000)


def _notice(lost: int) -> bytes:
    event = {"level": "warning", "event": "log lines dropped", "lines": lost}
    return msgspec.json.encode(event) + b"\n"
