"""Whatever becomes of an engine's events on their way, no block is believed that is not there.

Over sockets that lose, hold up and repeat messages as told: what the reader holds is compared with
the cache itself, a dict, after each flush.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any, cast

import msgspec
import zmq
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.gateway.kv_events.messages import Watch, blocks_of
from forebay.gateway.kv_events.source import Source
from forebay.prefixcache.blocks import chain_tokens, root_of_tokens, token_bytes

SIZE = 2
PROMPTS = [(1, 1, 2, 2, 3, 3), (1, 1, 2, 2, 4, 4), (1, 1, 5, 5), (6, 6, 7, 7)]
KEPT = 3
"""Batches that an engine replays."""


class Wire:
    """A socket that gives what was put into it."""

    def __init__(self) -> None:
        self.coming = deque[list[bytes]]()
        self.asked: Any = None
        self.monitor: Wire | None = None

    def get_monitor_socket(self, events: int) -> Wire:
        del events
        assert self.monitor is not None
        return self.monitor

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        assert flags == zmq.NOBLOCK
        if not self.coming:
            raise zmq.Again
        return self.coming.popleft()

    def poll(self, timeout: int = 0) -> int:
        del timeout
        return len(self.coming)

    def send_multipart(self, frames: list[bytes], flags: int) -> None:
        del flags
        self.asked(int.from_bytes(frames[1], "big"))

    def getsockopt_string(self, option: int) -> str:
        del option
        return "fake"

    def _nothing(self, *_: object, **__: object) -> None: ...

    set_hwm = setsockopt = connect = bind = close = disable_monitor = _nothing


class Engine:
    """One engine's cache, and what became of what it told."""

    def __init__(self, *, replays: bool) -> None:
        self.live, self.monitor = Wire(), Wire()
        self._process = 0
        self.cache = dict[tuple[int, ...], None]()
        self._sent: list[list[bytes]] = []
        self._late: list[bytes] | None = None
        self._replay: Wire | None = None
        self.source = Source(
            Watch(1, ("live",), False, ("replay",) if replays else (), "", SIZE),
            cast("zmq.Context[zmq.SyncSocket]", self),
        )
        for publisher in self.source.publishers:
            publisher.patience_s = -1.0
        self.held = set[int]()

    def socket(self, kind: int) -> Wire:
        """Stand for a context."""
        if kind == zmq.SUB:
            self.live.monitor = self.monitor
            return self.live
        self._replay = Wire()
        self._replay.asked = self._answer
        return self._replay

    def _answer(self, start: int) -> None:
        assert self._replay is not None
        kept = self._sent[max(start, len(self._sent) - KEPT) :]
        self._replay.coming.extend([b"", *frames[1:]] for frames in kept)
        self._replay.coming.append([b"", (-1).to_bytes(8, "big", signed=True), b""])

    def publish(self, events: list[dict[str, Any]], fate: str) -> None:
        at = self._process * 1000.0 + len(self._sent)
        number = len(self._sent).to_bytes(8, "big")
        frames = [b"", number, msgspec.msgpack.encode([at, events, 0])]
        self._sent.append(frames)
        if fate == "lost":
            return
        if fate == "late" and self._late is None:
            self._late = frames
            return
        self.live.coming.extend([frames] * (2 if fate == "twice" else 1))
        if self._late is not None:
            self.live.coming.append(self._late)
            self._late = None

    def store(self, prompt: tuple[int, ...], fate: str) -> None:
        said: list[dict[str, Any]] = []
        for end in range(SIZE, len(prompt) + 1, SIZE):
            if prompt[:end] in self.cache:
                continue
            self.cache[prompt[:end]] = None
            said.append(
                {
                    "type": "BlockStored",
                    "block_hashes": [name(prompt[:end])],
                    "parent_block_hash": name(prompt[: end - SIZE]) if end > SIZE else None,
                    "token_ids": list(prompt[end - SIZE : end]),
                    "block_size": SIZE,
                }
            )
        self.publish(said, fate)

    def remove(self, number: int, fate: str) -> None:
        if self.cache:
            prefix = list(self.cache)[number % len(self.cache)]
            del self.cache[prefix]
            self.publish([{"type": "BlockRemoved", "block_hashes": [name(prefix)]}], fate)

    def clear(self, fate: str) -> None:
        self.cache.clear()
        self.publish([{"type": "AllBlocksCleared"}], fate)

    def restart(self) -> None:
        """Be another process on the same port: what was on its way is gone, the connection, too."""
        self._process += 1
        self.cache.clear()
        self._sent, self._late = [], None
        self.live.coming.clear()
        for event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED):
            self.monitor.coming.append([struct.pack("=hi", event, 0), b"fake"])

    def read(self) -> None:
        for _ in range(8):
            for publisher in self.source.publishers:
                publisher.read()
        for delta in self.source.deltas():
            if delta.cleared:
                self.held.clear()
            self.held -= set(blocks_of(delta.removed))
            self.held |= set(blocks_of(delta.stored))

    def truth(self) -> set[int]:
        return {
            chain_tokens(root_of_tokens(), token_bytes(prefix), block_tokens=SIZE)[-1]
            for prefix in self.cache
        }


def name(prefix: tuple[int, ...]) -> int:
    return int.from_bytes(bytes(prefix), "big")


KINDS = ["store", "store", "store", "remove", "remove", "clear", "restart", "read", "read", "flush"]
FATES = ["there", "there", "there", "lost", "late", "twice"]
STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 20), st.sampled_from(FATES))


def play(engine: Engine, steps: list[tuple[str, int, str]]) -> None:
    for kind, number, fate in steps:
        if kind == "store":
            engine.store(PROMPTS[number % len(PROMPTS)], fate)
        elif kind == "remove":
            engine.remove(number, fate)
        elif kind == "clear":
            engine.clear(fate)
        elif kind == "restart":
            engine.restart()
            engine.read()
            assert engine.held == set()
        elif kind == "read":
            engine.read()
        else:
            engine.publish([], "there")
            engine.read()
            assert engine.held <= engine.truth()
    engine.publish([], "there")
    engine.publish([], "there")
    engine.read()


@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.lists(STEP, max_size=40))
@example(False, [("store", 0, "late"), ("remove", 0, "lost"), ("flush", 0, "there")])
def test_no_ghost_outlives_the_next_batch(replays: bool, steps: list[tuple[str, int, str]]):  # noqa: FBT001 - drawn
    engine = Engine(replays=replays)
    play(engine, steps)
    assert engine.held <= engine.truth()


@settings(max_examples=100, deadline=None)
@given(st.booleans(), st.lists(STEP, max_size=40))
def test_what_comes_in_order_is_all_known(replays: bool, steps: list[tuple[str, int, str]]):  # noqa: FBT001 - drawn
    engine = Engine(replays=replays)
    play(engine, [(kind, number, "there") for kind, number, _ in steps])
    assert engine.held == engine.truth()
