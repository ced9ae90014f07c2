"""The process that reads engines' events: commands come on standard input, deltas go to output.

Ends when its input does, so it never outlives the gateway. Writing blocks while the gateway is
busy; meanwhile ZMQ buffers, and what that drops is found missing by its numbers.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from typing import TYPE_CHECKING

import zmq

from .messages import (
    LONGEST,
    Answered,
    Drop,
    FromReader,
    Restarted,
    State,
    ToReader,
    Watch,
    read_to_reader,
    write,
)
from .polled import PolledSource
from .source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN_MS = 20
"""How long changes are gathered before they are told."""
STATE_S = 0.5


class Commands:
    """Cuts what comes on a descriptor into messages."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.ended = False
        self._buffer = bytearray()

    def read(self) -> Iterator[ToReader]:
        """Read what there is."""
        data = os.read(self.descriptor, 1 << 16)
        if not data:
            self.ended = True
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "little")
            if size > LONGEST:
                self.ended = True
                return
            if len(self._buffer) < 4 + size:
                return
            message = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            yield read_to_reader(message)


class Reader:
    """Reads all sources by turns."""

    def __init__(self, commands: Commands, output: int) -> None:
        self._commands = commands
        self._output = output
        self._context = zmq.Context[zmq.SyncSocket]()
        self._sources: dict[int, Source | PolledSource] = {}
        self._stated = 0.0

    def run(self) -> None:
        """Read until there are no more commands."""
        while not self._commands.ended:
            self._turn()
        for source in self._sources.values():
            source.close()
        self._context.destroy(linger=0)

    def _turn(self) -> None:
        poller = zmq.Poller()
        poller.register(self._commands.descriptor, zmq.POLLIN)
        publishers = [p for source in self._sources.values() for p in source.publishers]
        for publisher in publishers:
            waited = publisher.replay if publisher.replaying else publisher.live
            if waited is not None:
                poller.register(waited, zmq.POLLIN)
        ready = dict(poller.poll(100))
        if self._commands.descriptor in ready:
            for command in self._commands.read():
                self._obey(command)
        end, more = time.monotonic() + TURN_MS / 1000, False
        for source in self._sources.values():
            for publisher in source.publishers:
                more |= publisher.read()
            for delta in source.deltas():
                self._tell(delta)
        now = time.monotonic()
        if now - self._stated > STATE_S:
            self._stated = now
            self._tell_states()
        if ready and not more and now < end:
            # Not a reading for each message: what comes within a turn is told together.
            select.select([self._commands.descriptor], [], [], end - now)

    def _tell_states(self) -> None:
        for source in self._sources.values():
            state = source.state()
            if state is not None:
                self._tell(state)

    def _obey(self, command: ToReader) -> None:
        if isinstance(command, Watch):
            try:
                self._sources[command.ticket] = self._open(command)
            except ValueError as error:
                self._tell(State(command.ticket, 0, 0, 0, 0, 0, 0, 0, str(error)))
            return
        source = self._sources.get(command.ticket)
        if source is None:
            return
        if isinstance(command, Drop):
            del self._sources[command.ticket]
            source.close()
        elif isinstance(command, Restarted):
            source.restarted(command.started)
        elif isinstance(source, PolledSource):
            assert isinstance(command, Answered)
            source.answered(command.body)

    def _open(self, watch: Watch) -> Source | PolledSource:
        return Source(watch, self._context) if watch.addresses else PolledSource(watch)

    def _tell(self, message: FromReader) -> None:
        data = memoryview(write(message))
        while data:
            data = data[os.write(self._output, data) :]


def main() -> None:
    """Run until standard input ends."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # the gateway's to hear: it closes our input
    gc.disable()  # nothing here is a cycle, and there are millions of nodes
    try:
        Reader(Commands(0), 1).run()
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
