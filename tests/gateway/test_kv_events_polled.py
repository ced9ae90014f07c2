"""Answers of an engine that has to be asked: what they say is held, who asks, and how often."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.kv_events import feed as feeds
from forebay.gateway.kv_events.messages import Delta, Watch, blocks_of
from forebay.gateway.kv_events.polled import PolledSource
from forebay.gateway.kv_events.polling import Alone, Poller
from forebay.gateway.prefix_sharing import Sharing
from forebay.policies.contracts import EngineUnreachable
from forebay.prefixcache.blocks import chain_tokens, root_of_tokens, token_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.conftest import RedisServer, Run

    from forebay.gateway.prefix_turns import SharedTurn

SIZE = 2


class Engine:
    """Writes what an engine would, one event an answer."""

    def __init__(self, *, rank: int | None = None, window: int = 4096) -> None:
        self.number = 0
        self._more: dict[str, Any] = {"window_size": window}
        if rank is not None:
            self._more["attention_dp_rank"] = rank

    def answer(self, kind: str, **data: Any) -> bytes:
        event = {"event_id": self.number, "data": {"type": kind, **data}, **self._more}
        self.number += 1
        return json.dumps([event]).encode()

    def stored(self, *tokens: int, level: int = 0) -> bytes:
        """A block is named by its last token."""
        blocks = [
            {
                "block_hash": tokens[end - 1],
                "tokens": [{"token_id": token} for token in tokens[end - SIZE : end]],
                "cache_level": level,
            }
            for end in range(SIZE, len(tokens) + 1, SIZE)
        ]
        return self.answer("stored", parent_hash=None, blocks=blocks)

    def removed(self, *names: int) -> bytes:
        return self.answer("removed", block_hashes=list(names))

    def moved(self, name: int, before: int, after: int) -> bytes:
        levels = {"type": "event_diff", "old_value": before, "new_value": after}
        return self.answer("updated", block_hash=name, cache_level=levels)


class Rig:
    def __init__(self) -> None:
        self.source = PolledSource(Watch(1, (), False, (), "", SIZE))
        self.held: dict[int, int] = {}
        self.clears = 0

    def take(self, *answers: bytes) -> dict[int, int]:
        for answer in answers:
            self.source.answered(answer)
            for delta in self.source.deltas():
                self._delta(delta)
        return self.held

    def _delta(self, delta: Delta) -> None:
        if delta.cleared:
            self.clears += 1
            self.held.clear()
        for block in blocks_of(delta.removed):
            del self.held[block]
        for tier, blocks in enumerate((delta.stored, delta.host, delta.disk)):
            self.held |= dict.fromkeys(blocks_of(blocks), tier)

    @property
    def counts(self) -> tuple[int, int, int]:
        state = self.source.state()
        assert state is not None
        return state.gaps, state.restarts, state.unread


def ours(*tokens: int) -> list[int]:
    return list(chain_tokens(root_of_tokens(), token_bytes(tokens), block_tokens=SIZE))


def test_what_is_told_is_held_where_it_lies():
    rig, engine = Rig(), Engine()
    one, two = ours(1, 2, 3, 4)
    assert rig.take(engine.answer("created"), engine.stored(1, 2, 3, 4)) == {one: 0, two: 0}
    assert rig.take(engine.moved(4, 0, 1)) == {one: 0, two: 1}
    assert rig.take(engine.moved(4, 1, 0)) == {one: 0, two: 0}
    assert rig.take(engine.removed(4)) == {one: 0}
    assert rig.counts == (0, 0, 0)


def test_a_missing_number_makes_all_doubtful():
    rig, engine = Rig(), Engine()
    rig.take(engine.stored(1, 2))
    engine.removed(2)
    assert rig.take(engine.stored(5, 6)) == {ours(5, 6)[0]: 0}
    assert (rig.counts, rig.clears) == ((1, 0, 0), 1)


def test_a_new_process_holds_nothing():
    rig = Rig()
    rig.take(Engine().stored(1, 2))
    again = Engine()
    assert rig.take(again.answer("created")) == {}
    assert rig.take(again.stored(5, 6)) == {ours(5, 6)[0]: 0}
    assert rig.counts == (0, 1, 0)


def test_a_restart_that_a_probe_found_is_forgotten_once():
    rig, engine = Rig(), Engine()
    rig.take(engine.stored(1, 2))
    rig.source.restarted(0.0)
    assert rig.take(b"[]")
    rig.source.restarted(1e12)
    assert rig.take(b"[]") == {}
    again = Engine()
    assert rig.take(again.answer("created"), again.stored(5, 6))
    assert rig.counts == (0, 1, 0)


def test_only_the_greatest_window_keeps_prefixes():
    rig, near, whole = Rig(), Engine(window=16), Engine(window=4096)
    rig.take(near.stored(1, 2))
    whole.number = 1
    assert rig.take(whole.stored(5, 6)) == {ours(5, 6)[0]: 0}
    near.number = 2
    assert rig.take(near.removed(6)) == {ours(5, 6)[0]: 0}
    assert rig.counts == (0, 0, 0)


def test_a_block_is_held_while_any_rank_holds_it():
    rig, ranks = Rig(), [Engine(rank=n) for n in range(2)]
    (block,) = ours(1, 2)
    rig.take(ranks[0].stored(1, 2, level=1))
    assert rig.take(ranks[1].stored(1, 2)) == {block: 0}
    assert rig.take(ranks[1].removed(2)) == {block: 1}
    assert rig.take(ranks[0].answer("created")) == {}
    assert rig.counts == (0, 0, 0)


STEP = st.tuples(
    st.integers(0, 2), st.sampled_from(["store", "remove", "clear"]), st.integers(0, 5)
)


@settings(max_examples=200)
@given(st.lists(STEP, max_size=30), st.randoms(use_true_random=False))
def test_ranks_together_hold_what_each_holds(steps: list[tuple[int, str, int]], rng: random.Random):
    rig, ranks = Rig(), [Engine(rank=n) for n in range(3)]
    held: list[dict[int, int]] = [{} for _ in ranks]
    for number, kind, name in steps:
        rank, own = ranks[number], held[number]
        if kind == "store" and name not in own:
            own[name] = rng.randrange(3)
            rig.take(rank.stored(9, name, level=own[name]))
        elif kind == "remove" and name in own:
            del own[name]
            rig.take(rank.removed(name))
        elif kind == "clear":
            own.clear()
            rig.take(rank.answer("created"))
        wanted: dict[int, int] = {}
        for each in held:
            for block, tier in each.items():
                wanted[block] = min(tier, wanted.get(block, tier))
        assert rig.held == {ours(9, block)[0]: tier for block, tier in wanted.items()}


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(-3, 200))
def test_any_answer_is_taken_or_counted(answers: list[bytes], rank: int):
    rig, engine = Rig(), Engine(rank=rank)
    rig.take(*answers, engine.answer("created"))
    assert not rig.held


def test_the_reader_places_answers(run: Run):
    async def play() -> None:
        told, feed = Told(), feeds.Feed()
        ticket = feed.watch(lambda t: Watch(t, (), False, (), "", SIZE), told)
        async with asyncio.timeout(20):
            while feed.is_behind():  # noqa: ASYNC110 - the reader's start sets no event
                await asyncio.sleep(0.01)
            feed.answered(ticket, Engine().stored(1, 2))
            await told.came.wait()
        assert told.held == set(ours(1, 2))
        await feed.close()

    run(play())


class Told:
    """Listens to the reader."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.came = asyncio.Event()

    def delta(self, delta: Delta) -> None:
        self.held |= set(blocks_of(delta.stored))
        self.came.set()

    def state(self, state: object) -> None:
        pass

    def away(self) -> None:
        pass


# -- asking --------------------------------------------------------------------------------------


class Turns(Alone):
    """Whose turn it is, is set from outside."""

    def __init__(self) -> None:
        self.mine = True
        self.heard: list[bytes] = []
        self.told: list[bytes] = []
        self.given_up = False

    async def is_mine(self) -> bool:
        return self.mine

    async def hear(self) -> Sequence[bytes]:
        heard, self.heard = self.heard, []
        return heard

    async def tell(self, answer: bytes) -> None:
        self.told.append(answer)

    async def give_up(self) -> None:
        self.given_up = True


def test_who_has_the_turn_asks_and_hands_on(run: Run):
    async def play() -> None:
        turn, taken, asked = Turns(), list[bytes](), asyncio.Event()
        turn.heard = [b"[1]"]
        answers = [b"[2]", b"[]", b"[3]"]

        async def ask() -> bytes:
            if not answers:
                asked.set()
            return answers.pop(0) if answers else b"[]"

        poller = Poller(ask, taken.append, endpoint="e", every_s=0, turn=turn)
        await asked.wait()
        turn.mine = False
        await poller.close()
        assert (taken, turn.told) == ([b"[1]", b"[2]", b"[3]"], [b"[2]", b"[3]"])
        assert turn.given_up

    run(play())


def test_who_has_not_the_turn_only_hears(run: Run):
    async def play() -> None:
        turn, taken = Turns(), list[bytes]()
        turn.mine, turn.heard = False, [b"[1]"]

        async def ask() -> bytes:
            raise AssertionError("it is not our turn")

        came = asyncio.Event()

        def take(answer: bytes) -> None:
            taken.append(answer)
            came.set()

        poller = Poller(ask, take, endpoint="e", every_s=0, turn=turn)
        await came.wait()
        await poller.close()
        assert taken == [b"[1]"]

    run(play())


@pytest.mark.parametrize("fault", ["it lacks the route", "it does not answer"])
def test_an_engine_that_cannot_be_asked_is_told_of_once(
    run: Run, fault: str, caplog: pytest.LogCaptureFixture
):
    async def play() -> None:
        asked = asyncio.Semaphore(0)

        async def ask() -> bytes | None:
            asked.release()
            if fault == "it lacks the route":
                return None
            raise EngineUnreachable("endpoint e did not answer")

        poller = Poller(ask, lambda _: None, endpoint="e", every_s=0, turn=Alone())
        for _ in range(3):
            await asked.acquire()
        await poller.close()

    run(play())
    assert [record.message for record in caplog.records] == ["KV events cannot be asked for"]


# -- taking turns --------------------------------------------------------------------------------


def turns(server: RedisServer, count: int) -> list[tuple[Sharing, SharedTurn]]:
    """Make replicas that share a name of their own."""
    prefix = f"t{secrets.token_hex(4)}"
    made = [Sharing(server.url, list, prefix=prefix) for _ in range(count)]
    return [(sharing, sharing.turn("p", "e")) for sharing in made]


async def end(*replicas: tuple[Sharing, SharedTurn]) -> None:
    for sharing, _ in replicas:
        await sharing._client.aclose()


def test_one_replica_has_the_turn_until_it_gives_up(run: Run, redis_server: RedisServer):
    async def play() -> None:
        (one, other) = made = turns(redis_server, 2)
        assert await one[1].is_mine()
        assert not await other[1].is_mine()
        await one[1].tell(b"[1]")
        await one[1].tell(b"[2]")
        assert await one[1].hear() == []
        assert await other[1].hear() == [b"[1]", b"[2]"]
        await one[1].give_up()
        other[1]._renewed = float("-inf")
        assert await other[1].is_mine()
        await end(*made)

    run(play())


def test_an_answer_that_is_too_long_is_not_handed_on(run: Run, redis_server: RedisServer):
    async def play() -> None:
        (one, other) = made = turns(redis_server, 2)
        noise = random.Random(1).randbytes(600_000)
        await one[1].tell(noise)
        await one[1].tell(b"[2]")
        assert await other[1].hear() == [b"[2]"]
        await end(*made)

    run(play())


def test_while_the_store_is_frozen_the_one_goes_on_and_tells_afterwards(
    run: Run, redis_servers: Callable[..., RedisServer]
):
    async def play() -> None:
        server = redis_servers()
        (one, other) = made = turns(server, 2)
        assert await one[1].is_mine()
        server.freeze()
        for replica in made:
            replica[1]._renewed = float("-inf")
        assert await one[1].is_mine()
        assert not await other[1].is_mine()
        await one[1].tell(b"[1]")
        assert await other[1].hear() == []
        server.thaw()
        for replica in made:
            replica[1]._away_until = float("-inf")
        await one[1].tell(b"[2]")
        assert await other[1].hear() == [b"[1]", b"[2]"]
        await end(*made)

    run(play())


def test_what_is_no_answer_is_passed_over(run: Run, redis_server: RedisServer):
    async def play() -> None:
        ((sharing, turn),) = made = turns(redis_server, 1)
        for odd in (b"", b"no zlib", b"\x78\x01"):
            await sharing._client.execute_command("XADD", turn._stream, "*", "r", "x", "d", odd)
        assert await turn.hear() == []
        await end(*made)

    run(play())
