"""One endpoint's events in the reader's process: its sockets, its sequence, what it holds.

    LIVE       reading what is published
    REPLAYING  batches are missing: what is published waits in ZMQ's buffer while they come again

A replay begins with the last batch that was applied, to see that it is still the same process. What
cannot be replayed is lost, and then all that is held is doubtful and forgotten. A connection that
was lost is asked as soon as it is back: behind it may be another process that tells nothing yet.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import recv_monitor_message

from forebay.prefixcache.events import Sequence, Verdict, is_end, read_frames

from .holding import MOST_AT_ONCE, Holding, Holdings

if TYPE_CHECKING:
    from forebay.prefixcache.events import Batch

    from .messages import Watch

HIGH_WATER = 100_000
REPLAY_S = 2.0
_LOST = zmq.EVENT_DISCONNECTED
_BACK = zmq.EVENT_HANDSHAKE_SUCCEEDED


class Publisher(Holding):
    """One PUB socket of an endpoint (a data-parallel rank), and its replay."""

    def __init__(self, watch: Watch, number: int, context: zmq.Context[zmq.SyncSocket]) -> None:
        """Open sockets; raises ValueError for an address that cannot be had."""
        super().__init__(watch.block_tokens)
        self.sequence = Sequence()
        self.replaying = False
        self.patience_s = REPLAY_S
        self._until = 0.0
        self._waiting: Batch | None = None
        self._verified = False
        self.live = _socket(context, zmq.SUB, watch.addresses[number])
        self.live.setsockopt(zmq.SUBSCRIBE, watch.topic.encode())
        self.monitor = self.live.get_monitor_socket(_LOST | _BACK)
        self.replay: zmq.SyncSocket | None = None
        self._context = context
        address = watch.addresses[number]
        try:
            (self.live.bind if watch.bind else self.live.connect)(address)
            if watch.replay:
                address = watch.replay[number]
                self.replay = _socket(context, zmq.DEALER, address)
                self.replay.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"events cannot be read at {address}: {error.strerror}") from error

    def close(self) -> None:
        """Close the sockets."""
        with suppress(zmq.ZMQError):
            self.live.disable_monitor()
        self.monitor.close(linger=0)
        self.live.close(linger=0)
        if self.replay is not None:
            self.replay.close(linger=0)

    def begin_anew(self) -> None:
        """Forget, and expect the numbers of another process."""
        self.forget()
        self.sequence.forget()

    # -- reading ---------------------------------------------------------------------------------

    def read(self) -> bool:
        """Read what has come, some of it; return whether there may be more."""
        while self.monitor.poll(0):
            self._connection(recv_monitor_message(self.monitor, zmq.NOBLOCK)["event"])
        if self.replaying:
            return self._read_replay()
        for _ in range(MOST_AT_ONCE):
            try:
                frames = self.live.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            batch = self._batch(frames)
            if batch is not None:
                self._judge(batch)
                if self.replaying or len(self.stored) + len(self.removed) > 8 * MOST_AT_ONCE:
                    break
        return True

    def _connection(self, event: int) -> None:
        """Take in that the connection is lost, or there again."""
        if self.sequence.last < 0:
            return
        if self.replay is None:
            self.begin_anew()
        elif event == _LOST:
            self.sequence.suspect = True
        elif self.sequence.suspect and not self.replaying:
            self._ask(self.sequence.last)

    def _batch(self, frames: list[bytes]) -> Batch | None:
        try:
            batch = read_frames(frames)
        except ValueError:
            self.unread += 1
            return None
        self.unread += batch.unread
        return batch

    def _judge(self, batch: Batch) -> None:
        verdict = self.sequence.judge(batch)
        if verdict is Verdict.STRAY:
            self.begin_anew()
        if verdict is Verdict.RESTARTED:
            self._is_new(batch.number)
            verdict = Verdict.APPLY if batch.number == 0 else Verdict.GAP
        if verdict is Verdict.APPLY:
            self._apply(batch)
        elif verdict is Verdict.GAP:
            self._missing(batch)

    def _is_new(self, number: int) -> None:
        self.restarts += 1
        self.forget()
        self.sequence.forget(live=number)

    def _apply(self, batch: Batch) -> None:
        self.batches += 1
        self.take(batch.events)
        self.sequence.applied(batch)

    def _missing(self, batch: Batch) -> None:
        """Have what is missing replayed; where nobody does that, doubt all that came before."""
        self.gaps += self.sequence.last >= 0
        if self.replay is None:
            if self.sequence.last >= 0:
                self.forget()
            self._apply(batch)
            return
        self._waiting = batch
        self._ask(max(0, self.sequence.last))

    def _ask(self, start: int) -> None:
        assert self.replay is not None
        self.replaying, self._verified = True, self.sequence.last < 0
        self._until = time.monotonic() + self.patience_s
        with suppress(zmq.Again):
            self.replay.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)

    def _read_replay(self) -> bool:
        assert self.replay is not None
        for _ in range(MOST_AT_ONCE):
            try:
                frames = self.replay.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                if time.monotonic() > self._until:
                    self._lost()
                return False
            if is_end(frames):
                self._replayed()
                break
            batch = self._batch(frames)
            if batch is not None and not self._take(batch):
                break
        return True

    def _take(self, batch: Batch) -> bool:
        """Apply a replayed batch; False when it shows that another process answers."""
        last = self.sequence.last
        if batch.number == last:
            if not self.sequence.is_same(batch):
                self._drain_replay()
                self._is_new(self._waiting.number if self._waiting else -1)
                self._ask(0)
                return False
            self._verified = True
        elif batch.number > last:
            if batch.number > last + 1 and last >= 0:
                self.forget()  # the publisher has forgotten some, too
            self._verified = True
            self._apply(batch)
        return True

    def _replayed(self) -> None:
        """Go on with what waits; it may have been replayed."""
        batch, self._waiting, self.replaying = self._waiting, None, False
        if batch is None and not self._verified:
            self._is_new(-1)
        if batch is None or batch.number <= self.sequence.last:
            self.sequence.suspect = False
            return
        if not self._verified or (
            batch.number > self.sequence.last + 1 and self.sequence.last >= 0
        ):
            self.forget()
        self._apply(batch)

    def _lost(self) -> None:
        """Nobody answers: what was missed stays unknown."""
        self._drain_replay()
        batch, self._waiting, self.replaying = self._waiting, None, False
        if self.sequence.last >= 0:
            self.forget()
        if batch is not None:
            self._apply(batch)
        else:
            self.sequence.forget()

    def _drain_replay(self) -> None:
        """Let an answer that is not waited for any more be dropped: ask on a socket of its own."""
        assert self.replay is not None
        address = self.replay.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay.close(linger=0)
        self.replay = _socket(self._context, zmq.DEALER, address)
        self.replay.connect(address)


def _socket(context: zmq.Context[zmq.SyncSocket], kind: int, address: str) -> zmq.SyncSocket:
    socket = context.socket(kind)
    socket.set_hwm(HIGH_WATER)
    if "[" in address:  # ZMQ has IPv6 switched off, and then waits for ever
        socket.setsockopt(zmq.IPV6, 1)
    return socket


class Source(Holdings):
    """All publishers of one endpoint, as one."""

    def __init__(self, watch: Watch, context: zmq.Context[zmq.SyncSocket]) -> None:
        """Open sockets; raises ValueError for an address that cannot be had."""
        super().__init__(watch.ticket)
        self.publishers: list[Publisher] = []
        self.unites = len(watch.addresses) > 1
        try:
            for number in range(len(watch.addresses)):
                self.publishers.append(Publisher(watch, number, context))
        except ValueError:
            self.close()
            raise

    def each(self) -> list[Publisher]:
        """See Holdings."""
        return self.publishers

    def close(self) -> None:
        """Close all sockets."""
        for publisher in self.publishers:
            publisher.close()
