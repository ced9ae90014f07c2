"""The event reader, over real sockets and in its own process."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq

from forebay.adapters.sim_events import EventPublisher
from forebay.gateway.kv_events.feed import Feed
from forebay.gateway.kv_events.messages import Delta, State, Watch, blocks_of
from forebay.gateway.kv_events.source import Source
from forebay.prefixcache.blocks import chain_tokens, root_of_tokens, token_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Run

SIZE = 4


def stored(*tokens: int, parent: int | None = None, **more: Any) -> dict[str, Any]:
    """Write an event; a block is named by its last token."""
    names = list(tokens[SIZE - 1 :: SIZE])
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": SIZE,
        **more,
    }


def removed(*names: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(names)}


def ours(*tokens: int) -> list[int]:
    return list(chain_tokens(root_of_tokens(), token_bytes(tokens), block_tokens=SIZE))


class Told:
    """Keeps what is held, as the gateway does."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.clears = 0
        self.states: list[State] = []
        self.times_away = 0

    def delta(self, delta: Delta) -> None:
        if delta.cleared:
            self.clears += 1
            self.held.clear()
        self.held -= set(blocks_of(delta.removed))
        self.held |= set(blocks_of(delta.stored))

    def state(self, state: State) -> None:
        self.states.append(state)

    def away(self) -> None:
        self.times_away += 1
        self.held.clear()


def two_of_ipv6() -> list[str]:
    """Return addresses with ports that are free now."""
    with socket.socket(socket.AF_INET6) as one, socket.socket(socket.AF_INET6) as other:
        try:
            one.bind(("::1", 0))
            other.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"this machine has no IPv6: {error}")
        return [f"tcp://[::1]:{each.getsockname()[1]}" for each in (one, other)]


class Rig:
    """A publisher over ipc or IPv6, and a source that reads it in this process."""

    def __init__(self, folder: Path, *, replay: bool, ranks: int = 1, ipv6: bool = False) -> None:
        self.context = zmq.Context[zmq.SyncSocket]()
        self.told = Told()
        self.addresses = [f"ipc://{folder}/live{n}" for n in range(ranks)]
        self.replays = [f"ipc://{folder}/replay{n}" for n in range(ranks)]
        if ipv6:
            self.addresses[0], self.replays[0] = two_of_ipv6()
        self._replay = replay
        self.publishers = [self.open(n) for n in range(ranks)]
        self.source = Source(self.watch(1), self.context)
        for publisher in self.publishers:
            self.join(publisher)

    def open(self, rank: int = 0) -> EventPublisher:
        replay = self.replays[rank] if self._replay else None
        return EventPublisher(self.addresses[rank], replay=replay, clock=lambda: 0.0)

    def watch(self, ticket: int) -> Watch:
        replays = tuple(self.replays) if self._replay else ()
        return Watch(ticket, tuple(self.addresses), False, replays, "", SIZE)

    def join(self, publisher: EventPublisher) -> None:
        """Publish until the subscriber has joined: what comes before that is lost."""
        before = self.count()
        for _ in range(1000):
            publisher.publish([])
            self.read(publisher, turns=1)
            if self.count() > before:
                return
        pytest.fail("the subscriber did not join")

    def count(self) -> int:
        return sum(p.batches for p in self.source.publishers)

    def read(self, *publishers: EventPublisher, turns: int = 30) -> None:
        for _ in range(turns):
            for publisher in publishers or self.publishers:
                publisher.answer_replays()
            for publisher in self.source.publishers:
                (publisher.replay or publisher.live).poll(2)
                publisher.live.poll(2)
                publisher.read()
            for delta in self.source.deltas():
                self.told.delta(delta)

    def close(self) -> None:
        self.source.close()
        for publisher in self.publishers:
            publisher.close()
        self.context.destroy(linger=0)


@pytest.fixture
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(tmp_path, **getattr(request, "param", {"replay": True}))
    yield made
    made.close()


both = pytest.mark.parametrize(
    "rig", [{"replay": True}, {"replay": False}], indirect=True, ids=["replay", "no replay"]
)
everywhere = pytest.mark.parametrize(
    "rig",
    [{"replay": True}, {"replay": True, "ipv6": True}],
    indirect=True,
    ids=["ipc", "IPv6"],
)


@both
def test_what_is_published_is_held(rig: Rig):
    (publisher,) = rig.publishers
    publisher.publish([stored(1, 2, 3, 4, 5, 6, 7, 8)])
    publisher.publish([removed(8)])
    rig.read()
    assert rig.told.held == {*ours(1, 2, 3, 4)}
    publisher.publish([{"type": "AllBlocksCleared"}, stored(9, 9, 9, 9)])
    rig.read()
    assert (rig.told.held, rig.told.clears) == ({*ours(9, 9, 9, 9)}, 1)


def lose(rig: Rig, *events: dict[str, Any]) -> None:
    """Publish batches that the subscriber does not get."""
    (publisher,) = rig.publishers
    live, publisher._live = publisher._live, rig.context.socket(zmq.PUB)
    for event in events:
        publisher.publish([event])
    publisher._live.close(linger=0)
    publisher._live = live


@everywhere
def test_what_was_missed_is_replayed(rig: Rig):
    (publisher,) = rig.publishers
    publisher.publish([stored(1, 2, 3, 4)])
    rig.read()
    lose(rig, stored(5, 6, 7, 8, parent=4), removed(4))
    publisher.publish([stored(9, 9, 9, 9)])
    rig.read()
    assert rig.told.held == {ours(1, 2, 3, 4, 5, 6, 7, 8)[1], *ours(9, 9, 9, 9)}
    (one,) = rig.source.publishers
    assert (one.gaps, one.restarts, rig.told.clears) == (1, 0, 0)


@pytest.mark.parametrize("rig", [{"replay": False}], indirect=True)
def test_what_was_missed_and_cannot_be_replayed_makes_all_doubtful(rig: Rig):
    (publisher,) = rig.publishers
    publisher.publish([stored(1, 2, 3, 4)])
    rig.read()
    lose(rig, removed(4))
    publisher.publish([stored(9, 9, 9, 9)])
    rig.read()
    assert (rig.told.held, rig.told.clears) == ({*ours(9, 9, 9, 9)}, 1)


@both
def test_a_publisher_that_begins_anew_is_another_process(rig: Rig):
    (publisher,) = rig.publishers
    publisher.publish([stored(1, 2, 3, 4)])
    rig.read()
    publisher.restart()
    publisher.publish([stored(9, 9, 9, 9)])
    rig.read()
    assert (rig.told.held, rig.told.clears) == ({*ours(9, 9, 9, 9)}, 1)


@both
def test_a_new_process_whose_numbers_fit_by_chance_is_found_out(rig: Rig):
    (publisher,) = rig.publishers
    publisher.publish([stored(1, 2, 3, 4)])
    rig.read()
    number = publisher._sequence
    publisher.close()
    again = rig.publishers[0] = rig.open()
    for _ in range(number):  # nobody is there yet
        again.publish([removed(77)])
    for _ in range(200):
        again.publish([stored(9, 9, 9, 9)])
        rig.read(turns=1)
        if ours(9, 9, 9, 9)[0] in rig.told.held:
            break
    assert rig.told.held == {*ours(9, 9, 9, 9)}
    assert rig.told.clears >= 1


def test_a_restart_that_the_probe_found_is_forgotten_once(rig: Rig):
    (publisher,) = rig.publishers
    publisher.publish([stored(1, 2, 3, 4)])
    rig.read()
    rig.source.restarted(rig.source.publishers[0].since - 60)
    rig.read()
    assert rig.told.held
    rig.source.restarted(rig.source.publishers[0].since + 60)
    rig.read()
    assert not rig.told.held


@pytest.mark.parametrize("rig", [{"replay": True, "ranks": 2}], indirect=True)
def test_a_block_is_held_while_any_rank_holds_it(rig: Rig):
    one, other = rig.publishers
    one.publish([stored(1, 2, 3, 4)])
    other.publish([stored(1, 2, 3, 4), stored(9, 9, 9, 9)])
    rig.read()
    assert rig.told.held == {*ours(1, 2, 3, 4), *ours(9, 9, 9, 9)}
    one.publish([removed(4)])
    rig.read()
    assert rig.told.held == {*ours(1, 2, 3, 4), *ours(9, 9, 9, 9)}
    other.publish([{"type": "AllBlocksCleared"}])
    rig.read()
    assert rig.told.held == set()


def test_what_cannot_be_read_is_passed_over(rig: Rig):
    (publisher,) = rig.publishers
    for odd in ([], [b""], [b"", b"1"], [b"", bytes(8), b"\xc1"], [b"x"] * 9):
        publisher._live.send_multipart([b"kv", *odd])
    publisher.publish([{"type": "BlockStored"}, stored(1, 2, 3, 4)])
    rig.read()
    assert rig.told.held == {*ours(1, 2, 3, 4)}
    assert rig.source.publishers[0].unread >= 4


def test_a_replay_that_nobody_answers_ends(rig: Rig):
    rig.source.publishers[0].patience_s = 0.05
    (publisher,) = rig.publishers
    publisher.publish([stored(1, 2, 3, 4)])
    rig.read()
    lose(rig, removed(4))
    publisher.publish([stored(9, 9, 9, 9)])
    publisher.answer_replays = lambda: None
    rig.read()
    assert rig.told.held == {*ours(9, 9, 9, 9)}


# -- the process ---------------------------------------------------------------------------------


def test_the_reader_hands_on_what_is_held_and_begins_anew_when_killed(run: Run, tmp_path: Path):
    async def play() -> None:
        address, replay = f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay"
        publisher = EventPublisher(address, replay=replay, clock=lambda: 0.0)
        publisher.watch(asyncio.get_running_loop())
        told, feed = Told(), Feed()
        ticket = feed.watch(lambda t: Watch(t, (address,), False, (replay,), "", SIZE), told)
        wanted = {*ours(1, 2, 3, 4)}
        publisher.publish([stored(1, 2, 3, 4)])

        async def comes() -> None:
            async with asyncio.timeout(20):
                while told.held != wanted:
                    publisher.publish([])
                    await asyncio.sleep(0.02)

        await comes()
        assert feed._process is not None
        feed._process.send_signal(signal.SIGKILL)
        async with asyncio.timeout(20):
            while not told.times_away:  # noqa: ASYNC110 - a listener sets no event
                await asyncio.sleep(0.01)
        await comes()  # from the replay
        assert feed.starts == 2
        feed.drop(ticket)
        process = feed._process
        await feed.close()
        assert process is not None
        assert process.returncode == 0
        publisher.close()

    run(play())


def test_an_address_that_cannot_be_had_is_told(run: Run, tmp_path: Path):
    async def play() -> None:
        told, feed = Told(), Feed()
        address = f"ipc://{tmp_path}/none/live"
        feed.watch(lambda t: Watch(t, (address,), True, (), "", SIZE), told)
        async with asyncio.timeout(20):
            while not told.states:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0.01)
        assert address in told.states[0].error
        await feed.close()

    run(play())


def test_messages_are_what_they_were():
    delta = Delta(1, True, b"", b"12345678")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(delta), type=Delta | State) == delta
