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
from forebay.prefixcache.recut import Recut

from .messages import Delta, State, bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.prefixcache.events import Batch

    from .messages import Watch

HIGH_WATER = 100_000
MOST_AT_ONCE = 512
"""Messages read, and blocks told, in one go."""
REPLAY_S = 2.0
_LOST = zmq.EVENT_DISCONNECTED
_BACK = zmq.EVENT_HANDSHAKE_SUCCEEDED


class Publisher:
    """One PUB socket of an endpoint (a data-parallel rank), and its replay."""

    def __init__(self, watch: Watch, number: int, context: zmq.Context[zmq.SyncSocket]) -> None:
        """Open sockets; raises ValueError for an address that cannot be had."""
        self.recut = Recut(watch.block_tokens)
        self.sequence = Sequence()
        self.gaps = self.restarts = self.unread = self.batches = self.events = 0
        self.replaying = False
        self.patience_s = REPLAY_S
        self._until = 0.0
        self._waiting: Batch | None = None
        self._verified = False
        self.since = time.time()
        self.stored: dict[int, None] = {}
        self.removed: dict[int, None] = {}
        self.cleared = False
        self.told = set[int]()
        """What was told of, where there are several ranks."""
        self.live = context.socket(zmq.SUB)
        self.live.set_hwm(HIGH_WATER)
        self.live.setsockopt(zmq.SUBSCRIBE, watch.topic.encode())
        self.monitor = self.live.get_monitor_socket(_LOST | _BACK)
        self.replay: zmq.SyncSocket | None = None
        self._context = context
        address = watch.addresses[number]
        try:
            (self.live.bind if watch.bind else self.live.connect)(address)
            if watch.replay:
                address = watch.replay[number]
                self.replay = context.socket(zmq.DEALER)
                self.replay.set_hwm(HIGH_WATER)
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

    def forget(self) -> None:
        """Hold nothing any more."""
        self.recut.clear()
        self.stored.clear()
        self.removed.clear()
        self.cleared = True
        self.since = time.time()

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
            self.forget()
            self.sequence.forget()
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
        self.events += len(batch.events)
        for event in batch.events:
            if self.recut.apply(event, self.stored, self.removed):
                self.forget()
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
        self.replay = self._context.socket(zmq.DEALER)
        self.replay.set_hwm(HIGH_WATER)
        self.replay.connect(address)


class Source:
    """All publishers of one endpoint, as one."""

    def __init__(self, watch: Watch, context: zmq.Context[zmq.SyncSocket]) -> None:
        """Open sockets; raises ValueError for an address that cannot be had."""
        self.ticket = watch.ticket
        self.publishers: list[Publisher] = []
        self._ranks: dict[int, int] = {}
        """How many ranks hold a block, where there are several."""
        self._told: State | None = None
        try:
            for number in range(len(watch.addresses)):
                self.publishers.append(Publisher(watch, number, context))
        except ValueError:
            self.close()
            raise

    def close(self) -> None:
        """Close all sockets."""
        for publisher in self.publishers:
            publisher.close()

    def restarted(self, started: float) -> None:
        """Forget what was told before the engine's process began."""
        for publisher in self.publishers:
            if publisher.since < started:
                publisher.restarts += 1
                publisher.forget()
                publisher.sequence.forget()

    def deltas(self) -> Iterator[Delta]:
        """Return what has changed, in pieces."""
        for publisher in self.publishers:
            if publisher.cleared or publisher.stored or publisher.removed:
                yield from self._delta(publisher)

    def _delta(self, publisher: Publisher) -> Iterator[Delta]:
        cleared, publisher.cleared = publisher.cleared, False
        removed, stored = list(publisher.removed), list(publisher.stored)
        publisher.removed, publisher.stored = {}, {}
        if len(self.publishers) > 1:
            removed, stored = self._united(publisher, cleared, removed, stored)
            cleared = False
        while cleared or removed or stored:
            gone, removed = removed[:MOST_AT_ONCE], removed[MOST_AT_ONCE:]
            new = [] if removed else stored[:MOST_AT_ONCE]
            stored = stored[len(new) :]
            yield Delta(self.ticket, cleared, bytes_of(gone), bytes_of(new))
            cleared = False

    def _united(
        self,
        publisher: Publisher,
        cleared: bool,  # noqa: FBT001 - a delta's own parts, in their order
        removed: list[int],
        stored: list[int],
    ) -> tuple[list[int], list[int]]:
        """Return what no rank holds any more, and what one holds that none did."""
        ranks, told = self._ranks, publisher.told
        gone, new = list[int](), list[int]()
        for block in tuple(told) if cleared else told.intersection(removed):
            told.discard(block)
            ranks[block] -= 1
            if not ranks[block]:
                del ranks[block]
                gone.append(block)
        for block in set(stored) - told:
            told.add(block)
            ranks[block] = ranks.get(block, 0) + 1
            if ranks[block] == 1:
                new.append(block)
        return gone, new

    def state(self) -> State | None:
        """Return how the source does, where that has changed."""
        all_ = self.publishers
        state = State(
            self.ticket,
            sum(p.batches for p in all_),
            sum(p.events for p in all_),
            sum(p.gaps for p in all_),
            sum(p.restarts for p in all_),
            sum(p.unread for p in all_),
            sum(p.recut.orphans for p in all_),
            sum(len(p.recut) for p in all_),
        )
        if state == self._told:
            return None
        self._told = state
        return state
