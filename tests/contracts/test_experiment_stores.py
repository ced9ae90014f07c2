"""Whatever keeps experiments: a folder, or Redis."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from redis import Redis

from forebay.gateway.experiments.store import ExperimentsAway, ExperimentsHeld, Kept, Store
from forebay.gateway.experiments.store_file import FileStore
from forebay.gateway.experiments.store_redis import RedisExperiments
from forebay.policies.experiments.answers import ShadowTally
from forebay.policies.experiments.ramp import Decision, State
from forebay.policies.experiments.tallies import Cell, Observation, Tallies

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RedisServer, Run


READS = ("hget", "hgetall", "hmget", "smembers")


def counted(*arms: str) -> dict[str, list[tuple[str, str, int, object]]]:
    tallies = Tallies()
    for arm in arms:
        tallies.add(Observation(arm, Cell("fast", 1), ttft=0.5))
    return {"0.0": tallies.as_rows()}  # type: ignore[dict-item] - rows


def tallies_of(kept: Kept, stage: str) -> Tallies:
    return Tallies.from_rows(kept.stages[stage])


def state(version: int) -> State:
    decision = Decision(at=1.0, what="pause", why="by hand", who="ops")
    return State(phase="paused", since=1.0, log=(decision,), version=version)


@pytest.fixture(params=["file", "redis", "cluster"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Make stores of the same place, as processes one after the other would."""
    if request.param == "file":
        return lambda: FileStore(tmp_path / "kept")
    url: str = request.getfixturevalue(f"{request.param}_url")
    prefix = uuid4().hex
    return lambda: RedisExperiments(url, prefix=prefix, lease_s=1.0)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture
def cluster_url(redis_servers: Callable[..., RedisServer]) -> str:
    """Start a cluster of one node, which refuses keys of several slots at once as any does."""
    server = redis_servers("--cluster-enabled", "yes")
    with Redis.from_url(server.url) as client:  # type: ignore[reportUnknownMemberType] - redis-py's **kwargs
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)  # type: ignore[reportUnknownMemberType] - any reply
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):  # type: ignore[reportUnknownMemberType] - any reply
            time.sleep(0.02)
    return server.url.replace("redis://", "redis+cluster://")


def test_what_was_saved_is_there_for_the_next_process(run: Run, make: Callable[[], Store]):
    async def main() -> None:
        one = make()
        assert await one.load("x") is None
        shadow = {"to-512": ShadowTally(copies=3, exact=2)}
        kept = Kept(state=state(0), stages=counted("a", "a", "b"), shadow=shadow)  # type: ignore[arg-type] - rows
        await one.save("x", kept)
        await one.close()
        two = make()
        found = await two.load("x")
        assert found is not None
        assert (found.state, found.shadow) == (state(0), shadow)
        tallies = tallies_of(found, "0.0")
        assert (tallies.requests("a"), tallies.requests("b")) == (2, 1)
        assert tallies.of("a", Cell("fast", 1)).ttft.count == 2
        await two.close()

    run(main())


def test_names_do_not_mix(run: Run, make: Callable[[], Store]):
    async def main() -> None:
        store = make()
        await store.save("x", Kept(state=state(0)))
        assert await store.load("y") is None
        await store.close()

    run(main())


class TestShared:
    """Only Redis is shared by replicas."""

    @staticmethod
    def stores(server: RedisServer) -> tuple[RedisExperiments, RedisExperiments]:
        prefix = uuid4().hex
        return (
            RedisExperiments(server.url, prefix=prefix, lease_s=0.2),
            RedisExperiments(server.url, prefix=prefix, lease_s=0.2),
        )

    def test_counts_of_others_add_up_and_ones_own_are_not_read_back(
        self, run: Run, redis_server: RedisServer
    ):
        async def main() -> None:
            one, two = self.stores(redis_server)
            await one.save("x", Kept(stages=counted("a")))  # type: ignore[arg-type] - rows
            await two.save("x", Kept(stages=counted("a", "b")))  # type: ignore[arg-type] - rows
            await two.save("x", Kept(stages=counted("a", "b", "b")))  # type: ignore[arg-type] - rows
            by_one, by_two = await one.load("x"), await two.load("x")
            assert by_one is not None
            assert by_two is not None
            mine, theirs = tallies_of(by_one, "0.0"), tallies_of(by_two, "0.0")
            assert (mine.requests("a"), mine.requests("b")) == (1, 2)
            assert (theirs.requests("a"), theirs.requests("b")) == (1, 0)
            await asyncio.gather(one.close(), two.close())

        run(main())

    def test_only_what_changed_is_read_again(self, run: Run, redis_server: RedisServer):
        async def main() -> None:
            one, two = self.stores(redis_server)
            old, new = counted("a", "b")["0.0"], counted("a")["0.0"]
            shadow = {"to-512": ShadowTally(copies=3)}
            await two.save("x", Kept(stages={"0.0": old, "0.1": new}, shadow=shadow))  # type: ignore[dict-item] - rows
            first = await one.load("x")
            assert first is not None
            reads, again = await self.reads(one), await one.load("x")
            assert again is not None
            assert again == first
            # The state and the stamps, nothing else.
            assert await self.reads(one) - reads == {"hget": 1, "hgetall": 1}
            assert all(again.stages[key] is rows for key, rows in first.stages.items())

            newer = counted("a", "a")["0.0"]
            await two.save("x", Kept(stages={"0.0": old, "0.1": newer}, shadow=shadow))  # type: ignore[dict-item] - rows
            reads, third = await self.reads(one), await one.load("x")
            assert third is not None
            assert await self.reads(one) - reads == {"hget": 2, "hgetall": 1}
            assert third.stages["0.0"] is first.stages["0.0"]
            assert tallies_of(third, "0.1").requests("a") == 2
            assert third.shadow == shadow
            await asyncio.gather(one.close(), two.close())

        run(main())

    @staticmethod
    async def reads(store: RedisExperiments) -> Counter[str]:
        """Return how often the server was asked to read, by command."""
        told: dict[str, dict[str, int]] = await store._client.info("commandstats")
        return Counter({name: told.get(f"cmdstat_{name}", {}).get("calls", 0) for name in READS})

    def test_what_has_not_changed_is_not_written_again(self, run: Run, redis_server: RedisServer):
        async def main() -> None:
            one, two = self.stores(redis_server)
            kept = Kept(stages=counted("a"))  # type: ignore[arg-type] - rows
            for _ in range(3):
                await one.save("x", kept)
            stamps = await one._client.hgetall(one._key("x", "stamps"))
            assert stamps == {f"0.0|{one.replica}".encode(): b"1"}
            await asyncio.gather(one.close(), two.close())

        run(main())

    def test_counts_come_back_to_a_server_that_lost_them(self, run: Run, redis_server: RedisServer):
        async def main() -> None:
            one, two = self.stores(redis_server)
            kept = Kept(stages=counted("a", "b"))  # type: ignore[arg-type] - rows
            await one.save("x", kept)
            assert (await two.load("x")) is not None
            names = [one._key("x", what) for what in ("state", "stamps", "0.0")]
            await one._client.delete(*names)
            assert (await one.load("x"), await two.load("x")) == (None, None)
            await one.save("x", kept)
            found = await two.load("x")
            assert found is not None
            assert tallies_of(found, "0.0").requests("b") == 1
            await asyncio.gather(one.close(), two.close())

        run(main())

    def test_of_two_decisions_on_one_version_one_counts(self, run: Run, redis_server: RedisServer):
        async def main() -> None:
            one, two = self.stores(redis_server)
            await one.save("x", Kept(state=state(0)))
            won = await asyncio.gather(one.decide("x", state(1)), two.decide("x", state(1)))
            assert sorted(won) == [False, True]
            assert await two.decide("x", state(2))
            found = await one.load("x")
            assert found is not None
            assert found.state.version == 2
            await asyncio.gather(one.close(), two.close())

        run(main())

    def test_one_leads_and_the_other_takes_over_when_it_is_gone(
        self, run: Run, redis_server: RedisServer
    ):
        async def main() -> None:
            one, two = self.stores(redis_server)
            assert [await one.leads(), await two.leads(), await one.leads()] == [True, False, True]
            async with asyncio.timeout(5):
                while not await two.leads():  # noqa: ASYNC110 - the server's clock is waited for
                    await asyncio.sleep(0.02)
            assert not await one.leads()
            await asyncio.gather(one.close(), two.close())

        run(main())

    def test_a_server_that_is_gone_is_said_so(self, run: Run):
        async def main() -> None:
            store = RedisExperiments("redis://127.0.0.1:1/0")
            for asked in (store.load("x"), store.leads(), store.decide("x", state(1))):
                with pytest.raises(ExperimentsAway):
                    await asked
            await store.close()

        run(main())


def test_a_file_that_is_no_such_file_is_said_so(run: Run, tmp_path: Path):
    (tmp_path / "x.json").write_text("{")

    async def main() -> None:
        store = FileStore(tmp_path)
        with pytest.raises(ExperimentsAway, match=r"x\.json"):
            await store.load("x")
        with pytest.raises(ExperimentsAway, match="is damaged"):
            await store.save("x", Kept(state=state(0)))
        assert (tmp_path / "x.json").read_text() == "{"
        (tmp_path / "x.json").rename(tmp_path / "x.bad")
        await store.save("x", Kept(state=state(0)))
        assert await store.load("x") == Kept(state=state(0))
        await store.close()

    run(main())


def test_a_folder_is_one_processs_until_it_ends(run: Run, tmp_path: Path):
    async def main() -> None:
        first, second = FileStore(tmp_path / "kept"), FileStore(tmp_path / "kept")
        await first.save("x", Kept(state=state(1)))
        with pytest.raises(ExperimentsHeld, match="another forebay keeps its experiments here"):
            await second.load("x")
        with pytest.raises(ExperimentsHeld):
            await second.save("x", Kept(state=state(0)))
        assert second.read("x") == Kept(state=state(1))  # as `forebay ab` does beside a gateway
        await first.close()
        assert await second.load("x") == Kept(state=state(1))
        await second.close()

    run(main())


def test_what_another_version_kept_in_redis_is_no_traceback(run: Run, redis_server: RedisServer):
    async def main() -> None:
        store = RedisExperiments(redis_server.url, prefix=uuid4().hex, lease_s=1.0)
        await store._client.hset(store._key("x", "state"), "state", b"\xc1")  # type: ignore[misc] - the client's own types
        with pytest.raises(ExperimentsAway, match="cannot be read"):
            await store.load("x")
        await store.close()

    run(main())
