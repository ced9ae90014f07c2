"""The embedded engine's KV events, read by real ZMQ sockets."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq

from forebay.adapters.sim import Embedded
from forebay.adapters.sim_engine import SimEngine, SimSettings
from forebay.adapters.sim_events import EventPublisher, shape_events
from forebay.adapters.sim_text import encode
from forebay.policies.contracts import ConfigError
from forebay.scheduler.engine_kv import chain_hashes
from forebay.scheduler.engine_sequence import Removed, Sequence, Stored

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

COMPLETIONS = "/v1/completions"
WORDS = "the quiet turbine holds the level gate beside the broad basin " * 4
GOLDEN = bytes.fromhex(
    "93cb3ff0000000000000938aa474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739101b170"
    "6172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920001aa626c6f636b5f73697a6502a76c6f72"
    "615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f7570"
    "5f6964780084a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739101a66d656469756d"
    "a3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400"
)


@contextmanager
def socket(kind: int, endpoint: str) -> Generator[Any]:
    context: Any = zmq.Context()
    try:
        made = context.socket(kind)
        made.setsockopt(zmq.RCVTIMEO, 5000)
        if kind == zmq.SUB:
            made.setsockopt(zmq.SUBSCRIBE, b"")
        made.connect(endpoint)
        yield made
    finally:
        context.destroy(linger=0)


def joined(publisher: EventPublisher, subscriber: Any) -> None:
    """Publish until the subscriber hears: what is sent before it has joined is lost."""
    while not subscriber.poll(20):
        publisher.publish([])
    while subscriber.poll(0):
        subscriber.recv_multipart()


def batches(subscriber: Any, count: int) -> list[tuple[bytes, int, Any]]:
    found: list[tuple[bytes, int, Any]] = []
    while len(found) < count:
        topic, number, payload = subscriber.recv_multipart()
        found.append((topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
    return found


def stored(count: int, *, parent: int = 0) -> Sequence:
    hashes = range(1 + parent, 1 + parent + count)
    return Sequence("s", 2 * count, 0, hashes=[*range(1, 1 + parent), *hashes])


def test_a_batch_is_vllms_byte_for_byte(tmp_path: Path) -> None:
    one = Sequence("s", 2, 0, hashes=[1])
    events = shape_events([Stored(one, 0, 1), Removed(1)], lambda _: ([0, 1], ""), 2)
    endpoint = f"ipc://{tmp_path}/kv"
    publisher = EventPublisher(endpoint, topic="kv", clock=lambda: 1.0)
    with socket(zmq.SUB, endpoint) as subscriber:
        joined(publisher, subscriber)
        publisher.publish([*events, {"type": "AllBlocksCleared"}])
        topic, _, payload = subscriber.recv_multipart()
    publisher.close()

    assert (topic, payload) == (b"kv", GOLDEN)


def test_a_chain_is_told_with_its_parent_and_its_salt() -> None:
    one = Sequence("s", 6, 0, hashes=[7, 8, 9])
    first, later = shape_events(
        [Stored(one, 0, 1), Stored(one, 1, 3)], lambda _: (list(range(6)), "tenant-a"), 2
    )

    assert (first["parent_block_hash"], first["extra_keys"]) == (None, [["tenant-a"]])
    assert (later["parent_block_hash"], later["extra_keys"]) == (7, [None, None])
    assert (later["block_hashes"], later["token_ids"]) == ([8, 9], [2, 3, 4, 5])


def test_neighbouring_removals_are_one_event() -> None:
    one = Sequence("s", 2, 0, hashes=[7])
    shaped = shape_events(
        [Removed(1), Removed(2), Stored(one, 0, 1), Removed(3)], lambda _: ([0, 1], ""), 2
    )
    assert [event["block_hashes"] for event in shaped] == [[1, 2], [7], [3]]


def test_the_engine_tells_what_it_caches(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/kv"
    engine = Embedded(profile="instant", kv_events=endpoint)
    publisher = engine._events  # pyright: ignore[reportPrivateUsage] - to wait for the join
    assert publisher is not None

    async def main(subscriber: Any) -> list[Any]:
        joined(publisher, subscriber)
        body = {"prompt": WORDS, "max_tokens": 40, "ignore_eos": True}
        for _ in range(2):
            answer = await engine.ask(COMPLETIONS, body)
        text = msgspec.json.decode(answer.body)["choices"][0]["text"]  # pyright: ignore[reportPossiblyUnboundVariable] - two times
        return [text, *batches(subscriber, 3)]

    with socket(zmq.SUB, endpoint) as subscriber:
        text, *heard = asyncio.run(main(subscriber))
    engine.close()

    tokens = encode(WORDS) + encode(text)
    hashes = chain_hashes(tokens[:-1], 16)
    events = [event for _, _, batch in heard for event in batch[1]]
    numbers = [number for _, number, _ in heard]
    prompt = len(encode(WORDS)) // 16
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    # The prompt's blocks at once, and then each block of the answer as it fills.
    assert events[0]["block_hashes"] == hashes[:prompt]
    assert events[0]["token_ids"] == tokens[: prompt * 16]
    assert events[1]["parent_block_hash"] == hashes[prompt - 1]
    told = [one for event in events for one in event["block_hashes"]]
    assert told[: len(hashes)] == hashes
    assert all(0 <= one < 2**64 for one in told)


def test_what_was_missed_is_replayed(tmp_path: Path) -> None:
    replay = f"ipc://{tmp_path}/replay"
    settings = SimSettings(profile="instant", events=f"ipc://{tmp_path}/kv", replay=replay)
    engine = Embedded(SimEngine(settings, clock=lambda: 1.0))

    async def replayed(dealer: Any, start: int) -> list[list[bytes]]:
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        heard: list[list[bytes]] = []
        while not heard or heard[-1][2] != b"\xff" * 8:
            if dealer.poll(0):
                heard.append(dealer.recv_multipart())
            else:
                await asyncio.sleep(0.001)
        return heard

    async def main(dealer: Any) -> list[list[list[bytes]]]:
        body = {"prompt": WORDS, "max_tokens": 40, "ignore_eos": True}
        await engine.ask(COMPLETIONS, body)
        return [await replayed(dealer, start) for start in (0, 1, 9)]

    with socket(zmq.DEALER, replay) as dealer:
        everything, rest, nothing = asyncio.run(asyncio.wait_for(main(dealer), 10))
    engine.close()

    end = [b"", b"", b"\xff" * 8, b""]
    assert nothing == [end]
    assert everything[1:] == rest
    assert [frame[:3] for frame in everything[:-1]] == [
        [b"", b"", number.to_bytes(8, "big")] for number in (0, 1)
    ]
    assert msgspec.msgpack.decode(everything[0][3])[1][0]["type"] == "BlockStored"


def test_an_engine_that_came_back_counts_from_nought_again(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/kv"
    engine = Embedded(profile="instant", kv_events=endpoint)
    publisher = engine._events  # pyright: ignore[reportPrivateUsage] - to wait for the join
    assert publisher is not None

    async def main(subscriber: Any) -> list[Any]:
        joined(publisher, subscriber)
        await engine.ask(COMPLETIONS, {"prompt": WORDS})
        engine.die(back_after_s=0.0)
        await asyncio.sleep(0.001)
        await engine.ask(COMPLETIONS, {"prompt": WORDS})
        heard = batches(subscriber, 1)
        while heard[-1][1]:
            heard += batches(subscriber, 1)
        return heard

    with socket(zmq.SUB, endpoint) as subscriber:
        first, *_, last = asyncio.run(main(subscriber))
    engine.close()

    assert first[1] > 0
    # Nothing was cached any more: the same blocks are stored anew.
    assert first[2][1] == last[2][1]


def test_without_an_endpoint_nothing_is_published() -> None:
    engine = Embedded(profile="instant")
    asyncio.run(engine.ask(COMPLETIONS, {"prompt": WORDS}))
    assert engine._events is None  # pyright: ignore[reportPrivateUsage] - there is nothing else to see


def test_an_endpoint_that_names_a_host_is_connected_to() -> None:
    context: Any = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"")
    port = subscriber.bind_to_random_port("tcp://127.0.0.1")
    publisher = EventPublisher(f"tcp://127.0.0.1:{port}", clock=lambda: 1.0)
    joined(publisher, subscriber)
    publisher.close()
    context.destroy(linger=0)


@pytest.mark.parametrize("endpoint", ["nope", "tcp://*:99999", "ipc:///no/such/place/kv"])
def test_an_endpoint_that_cannot_be_had_is_a_configuration_error(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="KV events cannot be published at"):
        Embedded(profile="instant", kv_events=endpoint)
