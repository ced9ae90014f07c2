"""Limits in one process: what is reserved, what is charged, what the caller is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.asking import a_request

from forebay.gateway.quota.ledger import Ledger
from forebay.gateway.quota.local import LocalMeter
from forebay.gateway.quota.store import Used
from forebay.gateway.quota.tariff import Calendar, Tariff
from forebay.policies.contracts import Finish, Outcome, QuotaExceeded, Rejected, Request
from forebay.policies.quota import Caps, Dates, Price

if TYPE_CHECKING:
    from collections.abc import Mapping

TODAY = Dates(20261129, 202611, 3600.0, 90000.0)
PRICES = {"small": Price(prompt=1.0, cached=0.5, output=2.0)}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.date = datetime(2026, 11, 29, 23, 0, tzinfo=UTC)

    def __call__(self) -> float:
        return self.now


class Nobody:
    """Asks for leases, and is never told anything: answers come at once."""

    def granted(self) -> None:
        raise AssertionError

    def refused(self, error: Rejected) -> None:
        raise AssertionError(error)

    def revoked(self, error: Rejected) -> None:
        raise AssertionError(error)


def request(name: str, *, prompt: int = 10, output: int = 20, tenant: str = "acme") -> Request:
    return a_request(
        id=name,
        model="engine-small",
        tenant=tenant,
        prompt_tokens_estimate=prompt,
        output_tokens_estimate=output,
    )


def outcome(
    finish: Finish = Finish.COMPLETED,
    *,
    told: tuple[int, int, int] | None = None,
    events: int = 0,
    placed: bool = True,
    begun: bool = False,
    tenant: str = "acme",
) -> Outcome:
    prompt, cached, output = told or (None, None, None)
    return Outcome(
        request_id="r",
        pool="main",
        route="/v1/chat/completions",
        tenant=tenant,
        model="small",
        finish=finish,
        placed=1.0 if placed else None,
        first_token=2.0 if begun else None,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        events=events,
    )


class Bench:
    def __init__(self, caps: Caps, prices: Mapping[str, Price] = PRICES) -> None:
        self.clock = Clock()
        self.ledger = Ledger()
        self.meter = LocalMeter(
            {"acme": Tariff("acme", caps, prices), "globex": Tariff("globex", caps, prices)},
            ledger=self.ledger,
            now=self.clock,
            calendar=Calendar(lambda: self.clock.date),
        )

    def reserve(self, name: str, *, prompt: int = 10, output: int = 20, tenant: str = "acme"):
        asked = request(name, prompt=prompt, output=output, tenant=tenant)
        return self.meter.reserve(asked, "small", Nobody())

    def refusal(self, name: str, *, prompt: int = 10, output: int = 20) -> QuotaExceeded:
        with pytest.raises(QuotaExceeded) as refused:
            self.reserve(name, prompt=prompt, output=output)
        return refused.value

    @property
    def used(self) -> Used:
        return self.meter.used("acme")


def test_a_call_takes_its_estimate_and_is_charged_what_it_used():
    bench = Bench(Caps(tokens=1000, day_nano=10**9))
    lease = bench.reserve("a")
    assert bench.used == Used(1, 30, 1, 30, 30, 50_000, 50_000)
    lease.settle(outcome(told=(12, 4, 7)))
    nano = 8 * 1000 + 4 * 500 + 7 * 2000
    assert bench.used == Used(1, 19, 0, 19, 19, nano, nano)


def test_settling_again_changes_nothing():
    bench = Bench(Caps(tokens=1000))
    lease = bench.reserve("a")
    lease.settle(outcome(Finish.ENGINE_ERROR))
    assert bench.used == Used(0, 0, 0, 0, 0, 0, 0)
    other = bench.reserve("b")
    lease.settle(outcome(Finish.ENGINE_ERROR))
    assert bench.used.concurrent == 1
    other.settle(outcome(Finish.ENGINE_ERROR))


@pytest.mark.parametrize(
    ("ended", "tokens"),
    [
        (outcome(Finish.REJECTED), None),
        (outcome(Finish.ENGINE_ERROR), None),
        (outcome(Finish.TIMEOUT), None),
        (outcome(Finish.DRAINED), None),
        (outcome(Finish.LEFT, placed=False), None),
        (outcome(Finish.LEFT), 10),
        (outcome(Finish.LEFT, begun=True, events=5), 15),
        (outcome(Finish.TRUNCATED, begun=True, events=3), 13),
        (outcome(Finish.TRUNCATED, begun=True, events=3, told=(9, 0, 2)), 11),
        (outcome(), 10),
    ],
    ids=lambda value: None if isinstance(value, Outcome) else str(value),
)
def test_each_way_to_end_has_its_charge(ended: Outcome, tokens: int | None):
    bench = Bench(Caps(tokens=1000), {})
    bench.reserve("a").settle(ended)
    charged = 0 if tokens is None else 1
    assert (bench.used.requests, bench.used.tokens) == (charged, tokens or 0)


def test_a_refusal_says_which_limit_and_when_this_very_request_would_pass():
    bench = Bench(Caps(requests=1, tokens=500))
    bench.reserve("a").settle(outcome(told=(10, 0, 20)))
    bench.clock.now += 15.5
    error = bench.refusal("b")
    assert (error.status, error.code, error.retry_after) == (429, "rate_limit_exceeded", 46.0)
    assert error.message == "the limit requests_per_minute of 1 is reached; try again in 46 s"
    assert dict(error.headers) == {
        b"x-ratelimit-limit-requests": b"1",
        b"x-ratelimit-remaining-requests": b"0",
        b"x-ratelimit-reset-requests": b"61s",
        b"x-ratelimit-limit-tokens": b"500",
        b"x-ratelimit-remaining-tokens": b"470",
        b"x-ratelimit-reset-tokens": b"61s",
    }
    bench.clock.now += 46
    bench.reserve("b")
    assert bench.meter.refused == {("acme", "requests_per_minute"): 1}


def test_a_days_limit_ends_at_midnight():
    bench = Bench(Caps(day_tokens=40))
    bench.reserve("a").settle(outcome(told=(10, 0, 20)))
    assert bench.refusal("b").retry_after == 3600.0
    bench.clock.now += 3600
    bench.clock.date = datetime(2026, 11, 30, 0, 0, tzinfo=UTC)
    bench.reserve("b")


def test_a_call_larger_than_its_limit_is_told_that_waiting_does_not_help():
    error = Bench(Caps(tokens=20)).refusal("a")
    assert (error.code, error.retry_after) == ("request_too_large", None)
    assert "estimated at 30" in error.message


def test_an_answer_tells_what_is_left():
    bench = Bench(Caps(requests=10, tokens=100))
    lease = bench.reserve("a")
    assert dict(lease.headers())[b"x-ratelimit-remaining-tokens"] == b"70"
    assert Bench(Caps(concurrent=3)).reserve("a").headers() == ()


def test_one_tenant_does_not_use_up_anothers_limits():
    bench = Bench(Caps(requests=1))
    bench.reserve("a")
    bench.reserve("b", tenant="globex")
    bench.refusal("c")


def test_splitting_a_call_into_many_gains_nothing():
    bench = Bench(Caps(tokens=300), {})
    for part in range(10):
        bench.reserve(f"part{part}").settle(outcome(told=(10, 0, 20)))
    bench.refusal("one more", prompt=1, output=0)


def test_a_reload_keeps_what_was_counted():
    bench = Bench(Caps(requests=5))
    lease = bench.reserve("a")
    bench.meter.configure({"acme": Tariff("acme", Caps(requests=1), {})})
    bench.refusal("b")
    lease.settle(outcome(Finish.ENGINE_ERROR))
    bench.reserve("c")


def test_a_long_call_keeps_its_place():
    bench = Bench(Caps(concurrent=1))
    lease = bench.reserve("a")
    for _ in range(10):
        bench.clock.now += 21
    bench.refusal("b")
    lease.settle(outcome(told=(1, 0, 1)))
    bench.reserve("c")


def test_a_start_takes_over_what_the_ledger_has():
    bench = Bench(Caps(day_tokens=100, month_tokens=1000))
    bench.meter.seed("acme", TODAY, (80, 5, 900, 50))
    assert bench.used == Used(0, 0, 0, 80, 900, 5, 50)
    bench.refusal("a")


endings = st.builds(
    outcome,
    st.sampled_from(Finish),
    told=st.none() | st.tuples(*(st.integers(0, 40),) * 3),
    events=st.integers(0, 30),
    placed=st.booleans(),
    begun=st.booleans(),
)


@given(st.lists(st.tuples(endings, st.floats(0, 3), st.integers(0, 4)), max_size=40))
def test_a_replay_of_the_log_finds_what_the_counters_say(
    calls: list[tuple[Outcome, float, int]],
):
    """Calls that end in any order and any way, some refused: the log alone says what is counted."""
    bench, running, log = Bench(Caps(requests=20, concurrent=3), {}), list[tuple[str, Outcome]](), 0
    leases = dict[str, object]()
    settled = list[Outcome]()
    for number, (ended, pause, place) in enumerate(calls):
        bench.clock.now += pause
        try:
            lease = bench.reserve(f"r{number}")
        except QuotaExceeded:
            log += 1
        else:
            leases[f"r{number}"] = lease
            running.append((f"r{number}", ended))
        if running and place < 3:
            name, end = running.pop(place % len(running))
            leases.pop(name).settle(end)  # type: ignore[attr-defined] - a lease
            settled.append(end)
    charged = [o for o in settled if _naive(o) is not None]
    assert bench.used.day_tokens == sum(_naive(o) or 0 for o in charged) + 30 * len(running)
    assert bench.used.concurrent == len(running)
    assert sum(bench.meter.refused.values()) == log


def _naive(o: Outcome) -> int | None:
    if o.prompt_tokens is not None:
        return o.prompt_tokens + (o.output_tokens or 0)
    if o.first_token is not None or o.finish is Finish.COMPLETED:
        return 10 + o.events
    return 10 + o.events if o.finish is Finish.LEFT and o.placed is not None else None


def test_a_tenants_day_is_that_of_its_time_zone():
    bench = Bench(Caps(day_tokens=100))
    tokyo = Tariff("acme", Caps(day_tokens=100), PRICES, zone="Asia/Tokyo")
    bench.meter.configure({"acme": tokyo, "globex": Tariff("globex", Caps(day_tokens=100), PRICES)})
    bench.clock.date = datetime(2026, 11, 29, 14, 59, 50, tzinfo=UTC)
    for tenant in ("acme", "globex"):
        bench.reserve(tenant, prompt=90, tenant=tenant, output=0).settle(outcome(told=(90, 0, 0)))
    assert bench.refusal("b").retry_after == 10.0

    bench.clock.now += 11.0
    bench.clock.date = datetime(2026, 11, 29, 15, 0, 1, tzinfo=UTC)
    bench.reserve("c")
    with pytest.raises(QuotaExceeded):
        bench.reserve("d", tenant="globex")
    assert bench.meter.zones == {"UTC", "Asia/Tokyo"}
