"""Publish the embedded engine's KV events over ZMQ, byte for byte as vLLM does.

A PUB socket sends three frames: topic, sequence number (8 bytes, big-endian, from 0), msgpack batch
`[ts, [event, ...], rank]` with each event a map. A ROUTER socket, where asked for, replays batches
from a sequence number on. As in vLLM an endpoint is bound when it holds `*` or `::` or is ipc or
inproc, and connected to otherwise.

Never holds up the engine: what a slow subscriber does not take in time is dropped by ZMQ.
"""

from __future__ import annotations

from collections import deque
from struct import pack, unpack
from typing import TYPE_CHECKING, Any

import msgspec

from forebay.policies.contracts import ConfigError
from forebay.scheduler.engine_sequence import Stored

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    import zmq

    from forebay.scheduler.engine_sequence import Removed
    from forebay.scheduler.engine_sequence import Sequence as ModelSequence

    from .sim_engine import SimEngine

    TokensOf = Callable[[ModelSequence], tuple[Sequence[int], str]]

Json = dict[str, Any]
_encode = msgspec.msgpack.Encoder().encode
_KEPT = 10_000
_HIGH_WATER = 100_000
_END = b"\xff" * 8


class EventPublisher:
    """Publishes batches until it is closed. Raises OSError for an endpoint that cannot be had.

    `clock` tells Unix time.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay: str | None = None,
        topic: str = "",
        clock: Callable[[], float],
    ) -> None:
        import zmq  # noqa: PLC0415 - only who wants events loads it

        self._topic = topic.encode()
        self._clock = clock
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._sequence = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = zmq.Context()
        self._replay: zmq.SyncSocket | None = None
        self._live = self._context.socket(zmq.PUB)
        try:
            self._live.set_hwm(_HIGH_WATER)
            _attach(self._live, endpoint)
            if replay is not None:
                self._replay = self._context.socket(zmq.ROUTER)
                _attach(self._replay, replay)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"KV events cannot be published at {endpoint}: {error}") from None
        except OSError:
            self.close()
            raise

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer replay requests on this loop."""
        if self._replay is not None and self._loop is None:
            self._loop = loop
            loop.add_reader(self._replay.fileno(), self.answer_replays)
            # The descriptor tells of edges only: what came before it was watched is asked for now.
            loop.call_soon(self.answer_replays)

    def publish(self, events: Sequence[Json]) -> None:
        """Send one batch."""
        payload = _encode([self._clock(), events, 0])
        number = self._sequence
        self._sequence += 1
        self._kept.append((number, payload))
        self._live.send_multipart([self._topic, pack(">Q", number), payload], 1)  # 1 is NOBLOCK

    def restart(self) -> None:
        """Begin anew, as the publisher of a new process does."""
        self._sequence = 0
        self._kept.clear()

    def answer_replays(self) -> None:
        """Answer the replay requests that have come."""
        while self._replay is not None and self._replay.poll(0):
            client, *frames = self._replay.recv_multipart()
            if frames and len(frames[-1]) == 8:
                self._answer(self._replay, client, unpack(">Q", frames[-1])[0])

    def _answer(self, replay: zmq.SyncSocket, client: bytes, start: int) -> None:
        for number, payload in self._kept:
            if number >= start:
                replay.send_multipart([client, b"", self._topic, pack(">Q", number), payload])
        replay.send_multipart([client, b"", b"", _END, b""])

    def close(self) -> None:
        """Close the sockets; what has not been taken is dropped."""
        if self._replay is not None:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._replay.fileno())
            self._replay.close(linger=0)
            self._replay = None
        self._live.close(linger=0)
        self._context.destroy(linger=0)


def open_publisher(engine: SimEngine) -> EventPublisher | None:
    """Open what an engine's settings ask for. Raises ConfigError where it cannot be had."""
    settings = engine.settings
    if settings.events is None:
        return None
    try:
        return EventPublisher(
            settings.events, replay=settings.replay, topic=settings.topic, clock=engine.now
        )
    except OSError as error:
        raise ConfigError(str(error)) from None


def shape_events(
    events: Sequence[Stored | Removed], tokens: TokensOf, block_tokens: int
) -> list[Json]:
    """Turn the model's events into vLLM's; neighbouring removals become one event.

    `tokens` returns a sequence's token ids and its cache salt.
    """
    shaped: list[Json] = []
    for event in events:
        if isinstance(event, Stored):
            ids, salt = tokens(event.sequence)
            shaped.append(_stored(event, ids, salt, block_tokens))
        elif shaped and shaped[-1]["type"] == "BlockRemoved":
            shaped[-1]["block_hashes"].append(event.block_hash)
        else:
            shaped.append(
                {
                    "type": "BlockRemoved",
                    "block_hashes": [event.block_hash],
                    "medium": "GPU",
                    "group_idx": 0,
                }
            )
    return shaped


def _stored(event: Stored, ids: Sequence[int], salt: str, size: int) -> Json:
    hashes, first, end = event.sequence.hashes, event.first, event.end
    extra: list[list[str] | None] = [None] * (end - first)
    if salt and first == 0:
        extra[0] = [salt]
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes[first:end]),
        "parent_block_hash": hashes[first - 1] if first else None,
        "token_ids": list(ids[first * size : end * size]),
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": extra,
        "group_idx": 0,
    }


def _attach(socket: zmq.SyncSocket, endpoint: str) -> None:
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdecimal() and int(port) > 65535:
        # ZMQ would take its lower 16 bits.
        raise OSError(f"KV events cannot be published at {endpoint}: no such port")
    if "[" in endpoint:
        socket.ipv6 = True
    if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
        socket.bind(endpoint)
    else:
        socket.connect(endpoint)
