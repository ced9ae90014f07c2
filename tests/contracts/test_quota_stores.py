"""What every store of counters promises: one suite over memory and a real Redis."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forebay.gateway.quota.memory import MemoryStore
from forebay.gateway.quota.redis_store import RedisStore
from forebay.gateway.quota.store import (
    NEVER,
    PERIOD,
    Assert,
    Batch,
    Carry,
    Operation,
    Renew,
    Reply,
    Reserve,
    Reserved,
    Settle,
    Store,
    Usage,
    Used,
)
from forebay.policies.quota import (
    CONCURRENT,
    DAY_MONEY,
    MONTH_TOKENS,
    REQUESTS,
    TOKENS,
    Caps,
    Dates,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RedisServer

TODAY, TOMORROW = Dates(20261129, 202611), Dates(20261130, 202611)
DECEMBER = Dates(20261201, 202612)
numbers = itertools.count()


class Bench:
    """A store with a clock of its own, and the loop to ask it on."""

    def __init__(self, make: Callable[[Callable[[], float]], Store]) -> None:
        self.now = 1_000_000.0
        self.caps = Caps()
        self.dates = TODAY
        self.tenant = "acme"
        self._runner = asyncio.Runner()
        self.store = make(lambda: self.now)

    def ask(self, *operations: Operation) -> list[Reply]:
        batch = Batch(self.tenant, self.caps, self.dates, list(operations))
        return self._runner.run(self.store.apply([batch]))[0]

    def apply(self, *batches: Batch) -> list[list[Reply]]:
        return self._runner.run(self.store.apply(batches))

    def reserve(self, lease: str, tokens: int = 0, nano: int = 0) -> Reserved:
        return cast("Reserved", self.ask(Reserve(lease, 1, tokens, nano))[0])

    def granted(self, lease: str, tokens: int = 0, nano: int = 0) -> bool:
        return self.reserve(lease, tokens, nano).granted

    def settle(self, lease: str, tokens: int = 0, nano: int = 0, requests: int = 1) -> Reply:
        return self.ask(Settle(lease, requests, tokens, nano))[0]

    @property
    def used(self) -> Used:
        return cast("Used", self.ask(Usage())[0])

    def close(self) -> None:
        self._runner.run(self.store.close())
        self._runner.close()


def makers(kind: str, request: pytest.FixtureRequest) -> Callable[[], Bench]:
    if kind == "memory":
        return lambda: Bench(MemoryStore)
    server: RedisServer = request.getfixturevalue("redis_server")

    def redis(clock: Callable[[], float]) -> Store:
        prefix = f"contract{next(numbers)}"
        return RedisStore(server.url, prefix=prefix, clock=clock, timeout_s=5.0)

    return lambda: Bench(redis)


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Callable[[], Bench]:
    return makers(request.param, request)


@pytest.fixture
def bench(make: Callable[[], Bench]) -> Iterator[Bench]:
    made = make()
    yield made
    made.close()


def test_a_request_that_fits_takes_its_part_of_every_limit(bench: Bench):
    assert bench.reserve("a", 30, 7) == Reserved(True, 0, 0, 1, 30)
    assert bench.used == Used(1, 30, 1, 30, 30, 7, 7)


def test_a_refused_request_takes_nothing_of_any_limit(bench: Bench):
    bench.caps = Caps(requests=5, tokens=100, concurrent=5, month_tokens=40)
    assert bench.granted("a", 30)
    before = bench.used
    assert bench.reserve("b", 20) == Reserved(False, MONTH_TOKENS, PERIOD, 1, 30)
    assert bench.used == before


def test_requests_of_one_turn_are_let_in_up_to_the_limit(bench: Bench):
    bench.caps = Caps(requests=2)
    replies = bench.ask(*(Reserve(name, 1, 0, 0) for name in "abc"))
    assert [cast("Reserved", reply).granted for reply in replies] == [True, True, False]


def test_tenants_of_one_turn_have_each_their_own_limits(bench: Bench):
    caps = Caps(requests=1)
    replies = bench.apply(
        Batch("acme", caps, TODAY, [Reserve("a", 1, 5, 0), Reserve("b", 1, 5, 0)]),
        Batch("globex", caps, TODAY, [Reserve("c", 1, 5, 0), Usage()]),
    )
    assert [[reply.granted for reply in cast("Any", replies[0])], replies[1]] == [
        [True, False],
        [Reserved(True, 0, 0, 1, 5), Used(1, 5, 1, 5, 5, 0, 0)],
    ]


def test_the_wait_ends_when_the_request_passes(bench: Bench):
    bench.caps = Caps(tokens=100)
    assert bench.granted("a", 40)
    bench.now += 10.25
    assert bench.granted("b", 40)
    bench.now += 5
    refused = bench.reserve("c", 30)
    assert refused == Reserved(False, TOKENS, 61 - 15.25, 2, 80)
    bench.now += refused.wait_s - 0.01
    assert not bench.granted("d", 30)
    bench.now += 0.01
    assert bench.granted("e", 30)


def test_a_burst_at_the_edge_of_a_minute_does_not_fit_twice(bench: Bench):
    bench.caps = Caps(requests=10)
    bench.now += 0.99
    assert sum(bench.granted(f"a{i}") for i in range(20)) == 10
    bench.now += 59.5
    assert sum(bench.granted(f"b{i}") for i in range(20)) == 0
    bench.now += 1
    assert sum(bench.granted(f"c{i}") for i in range(20)) == 10


def test_what_can_never_pass_is_told_so(bench: Bench):
    bench.caps = Caps(tokens=10)
    assert bench.reserve("a", 11) == Reserved(False, TOKENS, NEVER, 0, 0)


def test_places_at_once_come_back_when_requests_end(bench: Bench):
    bench.caps = Caps(concurrent=1)
    assert bench.granted("a")
    assert bench.reserve("b") == Reserved(False, CONCURRENT, 1.0, 1, 0)
    assert bench.settle("a") == 1
    assert bench.granted("c")


def test_settling_puts_the_true_usage_in_the_place_of_the_estimate(bench: Bench):
    bench.granted("a", 100, 50)
    bench.now += 5
    bench.settle("a", 30, 20)
    assert bench.used == Used(1, 30, 0, 30, 30, 20, 20)
    bench.granted("b", 10, 5)
    bench.settle("b", 500, 90)
    assert bench.used == Used(2, 530, 0, 530, 530, 110, 110)


def test_settling_twice_counts_once(bench: Bench):
    bench.granted("a", 100)
    assert [bench.settle("a", 30), bench.settle("a", 30), bench.settle("never", 5)] == [1, 0, 0]
    assert bench.used == Used(1, 30, 0, 30, 30, 0, 0)


def test_what_is_released_leaves_no_trace(bench: Bench):
    bench.granted("a", 100, 9)
    bench.settle("a", 0, 0, requests=0)
    assert bench.used == Used(0, 0, 0, 0, 0, 0, 0)


def test_a_late_settlement_counts_what_was_used_beyond_the_estimate(bench: Bench):
    bench.granted("a", 100)
    for _ in range(4):
        bench.now += 30
        assert bench.ask(Renew(["a"])) == [[]]
    bench.settle("a", 160)
    assert bench.used == Used(0, 60, 0, 160, 160, 0, 0)


def test_a_lease_that_nobody_renews_is_given_back(bench: Bench):
    bench.caps = Caps(concurrent=1, day_nano=10)
    bench.granted("a", 5, 10)
    bench.now += 59.9
    assert not bench.granted("b", 5, 10)
    bench.now += 0.1
    assert bench.granted("c", 5, 10)
    assert bench.ask(Renew(["a", "c"])) == [["a"]]


def test_a_lease_that_expired_is_settled_on_what_it_used(bench: Bench):
    bench.granted("a", 100, 10)
    bench.now += 200
    assert bench.used == Used(0, 0, 0, 0, 0, 0, 0)
    assert [bench.settle("a", 70, 7), bench.settle("a", 70, 7)] == [1, 0]
    assert bench.used == Used(0, 0, 0, 70, 70, 7, 7)


def test_an_asserted_lease_is_held_whatever_the_limits_say(bench: Bench):
    bench.caps = Caps(concurrent=1)
    bench.granted("a", 5)
    asserted = Assert("b", 10.0, TODAY.day, 1, 7, 3)
    assert bench.ask(asserted, asserted) == [1, 1]
    assert bench.used == Used(2, 12, 2, 12, 12, 3, 3)
    bench.now += 52
    assert bench.used.requests == 1, "it counts from when it was granted"


def test_asserting_a_lease_that_is_held_renews_it(bench: Bench):
    bench.granted("a", 5)
    bench.now += 50
    assert bench.ask(Assert("a", 50.0, TODAY.day, 1, 5, 0)) == [1]
    bench.now += 50
    assert bench.used == Used(0, 0, 1, 5, 5, 0, 0)


def test_asserting_a_lease_that_expired_revives_it(bench: Bench):
    bench.granted("a", 5, 2)
    bench.now += 70
    assert bench.used.concurrent == 0
    assert bench.ask(Assert("a", 70.0, TODAY.day, 1, 5, 2)) == [1]
    assert bench.used == Used(0, 0, 1, 5, 5, 2, 2)
    assert bench.settle("a", 3, 1) == 1
    assert bench.used == Used(0, 0, 0, 3, 3, 1, 1)


def test_what_is_carried_over_counts_once_and_in_its_own_second(bench: Bench):
    carried = Carry("x1", 30.0, TODAY.day, 4, 40, 9)
    assert bench.ask(carried, carried) == [1, 0]
    assert bench.used == Used(4, 40, 0, 40, 40, 9, 9)
    bench.now += 31
    assert bench.used == Used(0, 0, 0, 40, 40, 9, 9)


def test_days_and_months_begin_anew_and_past_ones_are_left_alone(bench: Bench):
    bench.granted("a", 10, 1)
    bench.now += 20
    bench.dates = TOMORROW
    assert bench.used == Used(1, 10, 1, 0, 10, 0, 1)
    bench.now += 20
    bench.dates = DECEMBER
    bench.granted("b", 5, 1)
    bench.settle("a", 4, 1)
    assert bench.used == Used(2, 9, 1, 5, 5, 1, 1)
    bench.dates = TODAY  # a replica whose clock is slow
    bench.granted("c", 5, 1)
    assert bench.used == Used(3, 14, 2, 10, 10, 2, 2)


def test_money_is_limited_as_tokens_are(bench: Bench):
    bench.caps = Caps(day_nano=3_000_000_000_000_000)
    assert bench.granted("a", 1, 2_999_999_999_999_999)
    assert bench.reserve("b", 1, 2) == Reserved(False, DAY_MONEY, PERIOD, 1, 1)
    assert bench.granted("c", 1, 1)
    assert bench.used.day_nano == 3_000_000_000_000_000


def test_a_reload_takes_effect_at_once_and_forgets_nothing(bench: Bench):
    bench.caps = Caps(requests=5)
    assert all(bench.granted(name) for name in "abc")
    bench.caps = Caps(requests=3)
    assert bench.reserve("d").limit == REQUESTS
    bench.caps = Caps(requests=4)
    assert bench.granted("e")


class Model(RuleBasedStateMachine):
    """Any interleaving against the naive model: lists of what was taken, looked at whole."""

    make: Callable[[], Bench]
    tenants = st.sampled_from(["acme", "globex"])

    def __init__(self) -> None:
        super().__init__()
        self.bench = self.make()
        self.bench.caps = Caps(5, 50, 3, 120, 400, 300, 900)
        self.taken: list[list[Any]] = []
        """[tenant, second, requests, tokens] for the minute."""
        self.live: dict[str, list[Any]] = {}
        """lease -> [tenant, second, tokens, nano, expires, replica], expired ones included."""
        self.period: dict[str, list[int]] = {"acme": [0, 0], "globex": [0, 0]}
        self.names = itertools.count()

    def teardown(self) -> None:
        self.bench.close()

    def _minute(self, tenant: str, kind: int) -> int:
        now = int(self.bench.now)
        return sum(t[kind] for t in self.taken if t[0] == tenant and t[1] >= now - 60)

    def _held(self, tenant: str) -> int:
        now = self.bench.now
        return sum(1 for live in self.live.values() if live[0] == tenant and live[4] > now)

    def _spent(self, tenant: str, kind: int) -> int:
        now = self.bench.now
        held = (x for x in self.live.values() if x[0] == tenant and x[4] > now)
        return self.period[tenant][kind] + sum(live[2 + kind] for live in held)

    @rule(tenant=tenants, tokens=st.integers(0, 30), nano=st.integers(0, 99), who=st.integers(0, 2))
    def reserve(self, tenant: str, tokens: int, nano: int, who: int) -> None:
        caps, now = self.bench.caps, self.bench.now
        fits = (
            self._minute(tenant, 2) + 1 <= caps.requests
            and self._minute(tenant, 3) + tokens <= caps.tokens
            and self._held(tenant) + 1 <= caps.concurrent
            and self._spent(tenant, 0) + tokens <= min(caps.day_tokens, caps.month_tokens)
            and self._spent(tenant, 1) + nano <= min(caps.day_nano, caps.month_nano)
        )
        lease = f"lease{next(self.names)}"
        self.bench.tenant = tenant
        assert self.bench.granted(lease, tokens, nano) == fits
        if fits:
            self.live[lease] = [tenant, int(now), tokens, nano, now + 60, who]
            self.taken.append([tenant, int(now), 1, tokens])

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.integers(0, 60), nano=st.integers(0, 99), again=st.booleans())
    def settle(self, data: st.DataObject, tokens: int, nano: int, *, again: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.live)))
        self._settle(lease, 1, tokens, nano)
        if again:
            assert self.bench.settle(lease, tokens, nano) == 0

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self._settle(data.draw(st.sampled_from(sorted(self.live))), 0, 0, 0)

    def _settle(self, lease: str, requests: int, tokens: int, nano: int) -> None:
        tenant, second, asked, _, _, _ = self.live.pop(lease)
        self.bench.tenant = tenant
        assert self.bench.settle(lease, tokens, nano, requests) == 1
        if requests == 0:
            self.taken.append([tenant, second, -1, 0])
        late = int(self.bench.now) if tokens > asked else second
        self.taken.append([tenant, late, 0, tokens - asked])
        self.period[tenant][0] += tokens
        self.period[tenant][1] += nano

    @rule(seconds=st.floats(0.05, 45))
    def wait(self, seconds: float) -> None:
        self.bench.now = round(self.bench.now + seconds, 2)

    @rule(who=st.integers(0, 2))
    def heartbeat(self, who: int) -> None:
        now = self.bench.now
        for tenant in ("acme", "globex"):
            mine = [k for k, x in self.live.items() if x[0] == tenant and x[5] == who]
            self.bench.tenant = tenant
            assert self.bench.ask(Renew(mine)) == [[k for k in mine if self.live[k][4] <= now]]
        for live in self.live.values():
            if live[5] == who and live[4] > now:
                live[4] = now + 60

    @rule(who=st.integers(0, 2))
    def a_replica_dies(self, who: int) -> None:
        for live in self.live.values():
            if live[5] == who:
                live[5] = -1

    @rule(caps=st.builds(Caps, *(st.integers(2, high) for high in (8, 80, 5, 200, 600, 500, 999))))
    def reload(self, caps: Caps) -> None:
        self.bench.caps = caps

    @invariant()
    def counts_are_what_was_taken(self) -> None:
        for tenant in ("acme", "globex"):
            self.bench.tenant = tenant
            tokens, nano = self._spent(tenant, 0), self._spent(tenant, 1)
            minute = self._minute(tenant, 2), self._minute(tenant, 3)
            held = self._held(tenant)
            assert self.bench.used == Used(*minute, held, tokens, tokens, nano, nano)


@pytest.mark.parametrize(("kind", "runs"), [("memory", 150), ("redis", 25)])
def test_any_interleaving_counts_as_the_naive_model_does(
    kind: str, runs: int, request: pytest.FixtureRequest
):
    machine = type("Machine", (Model,), {"make": staticmethod(makers(kind, request))})
    checks = [HealthCheck.too_slow]
    run_state_machine_as_test(  # type: ignore[reportUnknownMemberType] - hypothesis types it loosely
        machine,
        settings=settings(
            max_examples=runs, stateful_step_count=40, deadline=None, suppress_health_check=checks
        ),
    )
