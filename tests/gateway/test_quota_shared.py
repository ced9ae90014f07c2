"""Limits shared by many processes: answers by callback, a store that goes away and comes back."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.quota.breaker import Breaker
from forebay.gateway.quota.ledger import Ledger
from forebay.gateway.quota.memory import MemoryStore
from forebay.gateway.quota.redis_store import RedisStore
from forebay.gateway.quota.shared import SharedMeter
from forebay.gateway.quota.store import StoreAway, Used
from forebay.gateway.quota.tariff import Calendar, Tariff
from forebay.policies.contracts import (
    Finish,
    Outcome,
    Overloaded,
    QuotaExceeded,
    Rejected,
    Request,
    Route,
)
from forebay.policies.quota import Caps

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from tests.conftest import RedisServer, Run

    from forebay.gateway.quota.shared_lease import FreeLease, SharedLease
    from forebay.gateway.quota.store import Batch, Reply

    Until = Callable[[Callable[[], object]], Awaitable[None]]

numbers = itertools.count()
CALENDAR = Calendar(lambda: datetime(2026, 11, 29, 12, tzinfo=UTC))


class Call:
    """Asks for a lease, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str | Rejected] = []
        self.lease: SharedLease | FreeLease | None = None

    def granted(self) -> None:
        self.told.append("granted")

    def refused(self, error: Rejected) -> None:
        self.told.append(error)

    def revoked(self, error: Rejected) -> None:
        self.told.append(error)
        self.end(used=None)

    @property
    def error(self) -> Rejected:
        assert isinstance(self.told[-1], Rejected)
        return self.told[-1]

    def end(self, used: int | None) -> None:
        """End it having used so many tokens; None: it failed."""
        assert self.lease is not None
        finish = Finish.ENGINE_ERROR if used is None else Finish.COMPLETED
        self.lease.settle(
            Outcome(
                "r",
                "main",
                "/",
                "acme",
                finish=finish,
                prompt_tokens=used,
                output_tokens=used and 0,
            )
        )


def ask(meter: SharedMeter, name: str, tokens: int = 10, tenant: str = "acme") -> Call:
    call = Call()
    request = Request(name, "main", Route.CHAT, "m", tenant, 1, 0.0, 60.0, tokens, 0, tokens)
    try:
        call.lease = meter.reserve(request, "m", call)
    except Rejected as error:
        call.told.append(error)
    else:
        if not call.lease.pending:
            call.told.append("granted")
    return call


def meter_of(store: Any, caps: Caps, *, fail_open: bool = True, now: Any = None) -> SharedMeter:
    return SharedMeter(
        {"acme": Tariff("acme", caps, {}, fail_open=fail_open)},
        store,
        ledger=Ledger(),
        now=now or asyncio.get_running_loop().time,
        calendar=CALENDAR,
        probe_s=0.01,
    )


@asynccontextmanager
async def metering(
    store: Any, caps: Caps, *, fail_open: bool = True
) -> AsyncGenerator[SharedMeter]:
    meter = meter_of(store, caps, fail_open=fail_open)
    meter.start()
    yield meter
    await meter.close(5.0)


def redis(server: RedisServer, prefix: str | None = None) -> RedisStore:
    # Longer than it is in life: this is not about how busy the machine of the tests is.
    return RedisStore(server.url, prefix=prefix or f"shared{next(numbers)}", timeout_s=0.5)


def test_calls_are_let_in_by_callback_up_to_the_limit(
    redis_server: RedisServer, run: Run, until: Until
):
    async def scenario() -> None:
        async with metering(redis(redis_server), Caps(requests=2, tokens=100)) as meter:
            calls = [ask(meter, name) for name in "abc"]
            assert [call.told for call in calls] == [[], [], []]
            await until(lambda: all(call.told for call in calls))
            assert [call.told for call in calls[:2]] == [["granted"], ["granted"]]
            error = calls[2].error
            assert isinstance(error, QuotaExceeded)
            assert error.retry_after in (60.0, 61.0)
            lease = calls[2].lease
            assert lease is not None
            assert dict(lease.headers())[b"x-ratelimit-remaining-tokens"] == b"80"
            calls[0].end(used=4)
            calls[1].end(used=None)
            calls[2].end(used=None)
            assert await meter.used("acme") == Used(1, 4, 0, 4, 4, 0, 0)

    run(scenario())


def test_a_caller_that_leaves_before_the_answer_gives_all_back(redis_server: RedisServer, run: Run):
    async def scenario() -> None:
        async with metering(redis(redis_server), Caps(requests=2)) as meter:
            call = ask(meter, "a")
            call.end(used=None)
            assert await meter.used("acme") == Used(1, 10, 1, 10, 10, 0, 0)
            assert await meter.used("acme") == Used(0, 0, 0, 0, 0, 0, 0)
            assert (call.told, meter.live) == ([], {})

    run(scenario())


def test_replicas_share_one_limit(redis_server: RedisServer, run: Run, until: Until):
    async def scenario() -> None:
        prefix, caps = f"shared{next(numbers)}", Caps(requests=5)
        async with (
            metering(redis(redis_server, prefix), caps) as one,
            metering(redis(redis_server, prefix), caps) as other,
        ):
            calls = [ask(meter, f"{i}{meter.replica}") for i in range(5) for meter in (one, other)]
            await until(lambda: all(call.told for call in calls))
            assert sum(call.told == ["granted"] for call in calls) == 5
            await one.beat()
            await other.beat()
            assert other.breaker.replicas == 2

    run(scenario())


def test_a_frozen_store_leaves_a_share_to_those_who_fail_open(
    redis_servers: Callable[..., RedisServer],
    run: Run,
    until: Until,
    caplog: pytest.LogCaptureFixture,
):
    server = redis_servers()
    caplog.set_level("INFO", "forebay")

    async def scenario() -> None:
        async with metering(redis(server), Caps(requests=6, concurrent=6)) as meter:
            before = ask(meter, "before")
            await until(lambda: before.told)
            meter.breaker.replicas = 3
            server.freeze()
            calls = [ask(meter, f"during{i}") for i in range(3)]
            await until(lambda: all(call.told for call in calls))
            assert [call.told == ["granted"] for call in calls] == [True, True, False]
            assert isinstance(calls[2].error, QuotaExceeded)
            assert isinstance(ask(meter, "more").error, QuotaExceeded), "answered at once"
            before.end(used=3)
            calls[0].end(used=7)
            server.thaw()
            await until(lambda: not meter.breaker.away)
            assert await meter.used("acme") == Used(3, 20, 1, 20, 20, 0, 0)
            calls[1].end(used=1)
            assert await meter.used("acme") == Used(3, 11, 0, 11, 11, 0, 0)
            assert meter.here.admitted == {"acme": 2}

    run(scenario())
    lines = [record.message for record in caplog.records if "counters" in record.message]
    assert lines == [
        "shared counters are away; each tenant goes on as its 'fail' says",
        "shared counters are back",
    ]


def test_a_frozen_store_refuses_those_who_fail_closed(
    redis_servers: Callable[..., RedisServer], run: Run, until: Until
):
    server = redis_servers()

    async def scenario() -> None:
        async with metering(redis(server), Caps(requests=6), fail_open=False) as meter:
            server.freeze()
            call = ask(meter, "a")
            await until(lambda: call.told)
            for refused in (call, ask(meter, "b")):
                assert isinstance(refused.error, Overloaded)
                assert (refused.error.status, refused.error.code) == (503, "quota_unavailable")
            server.thaw()
            await until(lambda: not meter.breaker.away)
            assert await meter.used("acme") == Used(0, 0, 0, 0, 0, 0, 0)

    run(scenario())


class Clock:
    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


class Flaky:
    """A store in memory that is away at times: before doing what is asked, or after."""

    def __init__(self, clock: Clock, seed: int = 0, *, away: float = 0.0) -> None:
        self.inner = MemoryStore(clock)
        self.random = random.Random(seed)
        self.away = away
        self.seen_calls = 0

    async def apply(self, batches: Sequence[Batch]) -> list[list[Reply]]:
        await asyncio.sleep(0)
        if self.random.random() < self.away / 2:
            raise StoreAway("before")
        replies = await self.inner.apply(batches)
        await asyncio.sleep(0)
        if self.random.random() < self.away / 2:
            raise StoreAway("after")
        return replies

    async def seen(self, replica: str) -> int:
        self.seen_calls += 1
        if self.random.random() < self.away:
            raise StoreAway(replica)
        return 2

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(12))
def test_however_often_the_store_goes_away_it_counts_all_and_once(seed: int, until: Until):
    """Calls begin and end at any moment; in the end the store holds what a replay finds."""
    clock = Clock()
    store = Flaky(clock, seed, away=0.3)
    rng = random.Random(seed)

    async def scenario() -> tuple[Used, Used]:
        meter = meter_of(store, Caps(day_tokens=10**9), now=clock)
        meter.start()
        running, tokens, ended = list[Call](), 0, 0
        for i in range(300):
            running.append(ask(meter, f"call{i}"))
            clock.now += rng.choice((0.0, 0.0, 0.01, 0.2))
            for _ in range(rng.choice((0, 1, 3))):
                await asyncio.sleep(0)
            if rng.random() < 0.02:
                await asyncio.sleep(0.012)
            if rng.random() < 0.05:
                await meter.beat()
            if rng.random() < 0.8:
                call = running.pop(rng.randrange(len(running)))
                used = rng.choice((None, 3, 10, 25))
                known = bool(call.told)
                call.end(used)
                if known and used is not None:
                    ended, tokens = ended + 1, tokens + used
        store.away = 0.0
        await until(lambda: not meter.breaker.away and not meter.waiting)
        await until(lambda: all(call.told for call in running))
        expected = Used(
            ended + len(running),
            tokens + 10 * len(running),
            len(running),
            tokens + 10 * len(running),
            tokens + 10 * len(running),
            0,
            0,
        )
        found = await meter.used("acme")
        assert await meter.close()
        return found, expected

    found, expected = asyncio.run(scenario())
    assert found.concurrent == expected.concurrent
    assert found.day_tokens == expected.day_tokens
    assert (found.requests, found.tokens) == (expected.requests, expected.tokens)


def test_a_process_held_up_for_longer_than_its_leases_ends_calls_with_limited_places(until: Until):
    clock = Clock()
    store = Flaky(clock)

    async def scenario() -> None:
        meter = meter_of(store, Caps(concurrent=1), now=clock)
        meter.start()
        paused = ask(meter, "a")
        await until(lambda: paused.told)
        clock.now += 61
        await meter.beat()
        assert paused.told[0] == "granted"
        assert (paused.error.status, paused.error.code) == (503, "lease_lost")
        assert meter.live == {}
        await meter.close()

    asyncio.run(scenario())


def test_a_lease_that_was_lost_is_held_anew_where_places_are_not_limited(until: Until):
    clock = Clock()
    store = Flaky(clock)

    async def scenario() -> Used:
        meter = meter_of(store, Caps(tokens=1000), now=clock)
        meter.start()
        call = ask(meter, "a")
        await until(lambda: call.told)
        clock.now += 61
        await meter.beat()
        await until(lambda: not meter.waiting)
        used = await meter.used("acme")
        await meter.close()
        assert call.told == ["granted"]
        return used

    assert asyncio.run(scenario()) == Used(0, 0, 1, 10, 10, 0, 0)


def test_fewer_replicas_are_believed_a_minute_after_the_store_came_back():
    clock = Clock()
    breaker = Breaker(clock)
    breaker.counted(4)
    breaker.lost("frozen")
    clock.now += 100
    breaker.found()
    breaker.counted(1)
    assert breaker.replicas == 4
    clock.now += 61
    breaker.counted(3)
    assert breaker.replicas == 3


def test_leases_are_renewed_while_calls_run(until: Until):
    clock = Clock()
    store = Flaky(clock)

    async def scenario() -> Used:
        meter = meter_of(store, Caps(concurrent=1), now=clock)
        meter.start()
        call = ask(meter, "a")
        await until(lambda: call.told)
        for _ in range(20):
            clock.now += 16
            await meter.beat()
            await until(lambda: not meter.waiting)
        used = await meter.used("acme")
        await meter.close()
        return used

    assert asyncio.run(scenario()).concurrent == 1


def test_a_tenant_without_limits_does_not_need_the_store():
    async def scenario() -> list[str | Rejected]:
        store = Flaky(Clock(), away=2.0)
        meter = meter_of(store, Caps(), fail_open=False)
        call = ask(meter, "a")
        call.end(used=5)
        rows = meter.ledger.pending
        assert [sums[:2] for sums in rows.values()] == [[1, 5]]
        return call.told

    assert asyncio.run(scenario()) == ["granted"]


def test_a_store_that_misses_nothing_is_back_only_when_it_answers(until: Until):
    clock = Clock()
    store = Flaky(clock, away=2.0)

    async def scenario() -> list[tuple[bool, int]]:
        meter = meter_of(store, Caps(requests=10), now=clock)
        meter.start()
        await meter.beat()
        states = [(meter.breaker.away, meter.breaker.times_away)]
        await until(lambda: store.seen_calls > 3)
        states.append((meter.breaker.away, meter.breaker.times_away))
        store.away = 0.0
        await until(lambda: not meter.breaker.away)
        await meter.beat()
        states.append((meter.breaker.away, meter.breaker.times_away))
        await meter.close()
        return states

    assert asyncio.run(scenario()) == [(True, 1), (True, 1), (False, 1)]


def test_a_store_that_is_away_tells_nothing():
    clock = Clock()
    store = Flaky(clock, away=2.0)

    async def scenario() -> None:
        meter = meter_of(store, Caps(day_tokens=10**9), now=clock)
        meter.start()
        with pytest.raises(StoreAway):
            await meter.used("acme")
        with pytest.raises(StoreAway):
            await meter.used("acme")
        await meter.close(0.0)

    asyncio.run(scenario())


class Strange:
    """A store that fails as none should, some times."""

    def __init__(self, faults: int) -> None:
        self.inner = MemoryStore(asyncio.get_running_loop().time)
        self.faults = faults

    async def apply(self, batches: Sequence[Batch]) -> list[list[Reply]]:
        self.faults -= 1
        if self.faults >= 0:
            raise LookupError("a bug")
        return await self.inner.apply(batches)

    async def seen(self, replica: str) -> int:
        del replica
        return 1

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("fail_open", [True, False])
def test_a_fault_at_the_store_keeps_no_call_waiting(run: Run, until: Until, *, fail_open: bool):
    async def scenario() -> None:
        caps = Caps(requests=9, concurrent=9)
        async with metering(Strange(3), caps, fail_open=fail_open) as meter:
            calls = [ask(meter, f"c{n}") for n in range(3)]
            await until(lambda: all(call.told for call in calls))
            assert [call.told == ["granted"] for call in calls] == [fail_open] * 3
            if not fail_open:
                assert isinstance(calls[0].error, Overloaded)
            await until(lambda: not meter.breaker.away)
            after = ask(meter, "after")
            await until(lambda: after.told)
            assert after.told == ["granted"]
            for call in (*calls, after) if fail_open else (after,):
                call.end(used=1)
            await until(lambda: not meter.waiting)
            used = await meter.used("acme")
            assert used.concurrent == 0

    run(scenario())
