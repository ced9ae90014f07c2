"""Limits in whole requests, with counters in this process and in a real Redis."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.keys import digest_of
from forebay.gateway.process import Process
from forebay.gateway.quota.store import Used

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Peer, RedisServer
    from tests.journeys.conftest import Answer, Engine, Gateway, Go, Kit

KEY = "fb_q_" + "q" * 43
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
TOLD = {
    "id": "c",
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    ],
    "usage": USAGE,
}
tenants = itertools.count()


@pytest.fixture(params=["memory", "redis"])
def state(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "memory":
        return {}
    server: RedisServer = request.getfixturevalue("redis_server")
    return {"url": server.url, "timeout": 5.0}


def tenant(fail: str = "open", **limits: Any) -> dict[str, Any]:
    """Make a tenant of its own for each test: a Redis outlives them."""
    name = f"tenant{next(tenants)}"
    return {"name": name, "keys": [digest_of(KEY)], "limits": limits, "fail": fail}


async def ask(gateway: Gateway, kit: Kit, **members: Any) -> Answer:
    return await gateway.ask(
        kit.post(kit.chat(**members), headers=f"authorization: Bearer {KEY}\r\n")
    )


async def used(gateway: Gateway) -> Used:
    """Return what is counted for the tenant, money in the currency."""
    process = gateway.process
    numbers = await process.metering.used(process.config.tenants[0].name)
    assert numbers is not None
    return Used(*numbers)  # type: ignore[arg-type] - two are money


def test_a_tenant_over_its_limit_is_told_when_to_return(go: Go, kit: Kit, state: dict[str, Any]):
    async def main() -> None:
        limited = tenant(requests_per_minute=2, tokens_per_minute=10_000)
        async with kit.engine(kit.whole(TOLD)) as engine:
            settings = kit.config([engine.section()], tenants=[limited], state=state)
            async with kit.running(settings) as gateway:
                first = await ask(gateway, kit)
                assert first.status == 200
                assert first.headers["x-ratelimit-limit-requests"] == "2"
                assert first.headers["x-ratelimit-remaining-requests"] == "1"
                assert first.headers["x-ratelimit-limit-tokens"] == "10000"
                assert (await ask(gateway, kit)).status == 200
                third = await ask(gateway, kit)
                assert (third.status, third.json["error"]["code"]) == (429, "rate_limit_exceeded")
                assert third.headers["retry-after"] in ("60", "61")
                assert third.headers["x-ratelimit-remaining-requests"] == "0"
                assert len(engine.requests) == 2
                assert await used(gateway) == Used(2, 34, 0, 34, 34, 0, 0)

    go(main())


def with_another(other: str, limited: dict[str, Any], one: Engine, two: Engine) -> dict[str, Any]:
    """Configure a first pool that `one` serves, and `two` where that one cannot."""
    first: dict[str, Any] = {"name": "p", "models": {"m": "m"}, "endpoints": [one.section("a")]}
    second = {"name": "q", "models": {"big": "m"}, "endpoints": [two.section("b")]}
    if other == "a fallback":
        limited["fallback"] = True
        first["fallback"] = [{"pool": "q", "on": ["saturated", "unhealthy"]}]
        return {"pools": [first, second]}
    first["models"], second["models"] = {"small": "m"}, {"m": "m"}
    arms = {"now": {"pool": "q"}, "next": {"pool": "p"}}
    trial = {"name": "t", "pool": "q", "arms": arms, "split": {"now": 0, "next": 1}}
    return {"pools": [first, second], "experiments": [trial]}


@pytest.mark.parametrize("other", ["a fallback", "an arm"])
def test_who_is_over_its_limit_goes_nowhere_else(
    go: Go, kit: Kit, state: dict[str, Any], other: str
):
    """A limit looks like a full pool, 429, for which others would take over."""

    async def main() -> None:
        limited = tenant(requests_per_minute=1)
        one, two = kit.engine(kit.whole(TOLD)), kit.engine(kit.whole(TOLD))
        async with one, two:
            pools = with_another(other, limited, one, two)
            settings = kit.config(**pools, tenants=[limited], state=state)
            async with kit.running(settings) as gateway:
                assert (await ask(gateway, kit)).status == 200
                again = await ask(gateway, kit)
                assert (again.status, again.json["error"]["code"]) == (429, "rate_limit_exceeded")
                assert (len(one.requests), len(two.requests)) == (1, 0)
                assert gateway.outcomes[-1].arm == ""  # nor does it count against an arm

    go(main())


def test_a_stream_is_charged_what_its_usage_says(go: Go, kit: Kit, state: dict[str, Any]):
    async def main() -> None:
        settings = kit.config(tenants=[tenant(tokens_per_minute=10_000)], state=state)
        async with kit.running(settings) as gateway:
            answer = await ask(gateway, kit, stream=True, max_tokens=7)
            assert answer.status == 200
            assert answer.headers["x-ratelimit-limit-tokens"] == "10000"
            outcome = gateway.outcomes[-1]
            assert outcome.prompt_tokens is not None
            assert outcome.output_tokens is not None
            tokens = outcome.prompt_tokens + outcome.output_tokens
            assert await used(gateway) == Used(1, tokens, 0, tokens, tokens, 0, 0)

    go(main())


def test_a_caller_that_leaves_gives_its_place_back(go: Go, kit: Kit, state: dict[str, Any]):
    async def hang(peer: Peer, _request: bytes, number: int) -> None:
        if number == 0:
            peer.send(kit.events_head() + kit.chunk(kit.delta("a") + kit.delta("b")))
            await peer.gone()
        else:
            peer.send(kit.whole(TOLD))

    async def main() -> None:
        async with kit.engine(hang) as engine:
            settings = kit.config([engine.section()], tenants=[tenant(concurrent=1)], state=state)
            async with kit.running(settings) as gateway:
                async with await gateway.caller() as caller:
                    body = kit.chat(stream=True)
                    caller.send(kit.post(body, headers=f"authorization: Bearer {KEY}\r\n"))
                    await caller.reader.readuntil(b"}\n\n")
                    refused = await ask(gateway, kit)
                    assert refused.status == 429
                    assert "concurrent of 1" in refused.json["error"]["message"]
                await gateway.quiet()
                assert (await used(gateway)).concurrent == 0
                left = next(o for o in gateway.outcomes if o.finish == "left")
                assert left.events == 2
                assert (await used(gateway)).tokens == left.bytes_in // 4 + 2
                assert (await ask(gateway, kit)).status == 200

    go(main())


def test_a_retried_request_counts_once(go: Go, kit: Kit, state: dict[str, Any]):
    async def main() -> None:
        broken = kit.whole({"error": {"message": "no"}}, status=500)
        async with kit.engine(broken) as bad, kit.engine(kit.whole(TOLD)) as good:
            settings = kit.config(
                [bad.section("e0"), good.section("e1")],
                tenants=[tenant(requests_per_minute=100)],
                state=state,
                pool={"retry": {"attempts": 2, "budget": 1.0}},
            )
            async with kit.running(settings) as gateway:
                for _ in range(4):
                    assert (await ask(gateway, kit)).status == 200
                assert len(bad.requests) > 0
                assert await used(gateway) == Used(4, 68, 0, 68, 68, 0, 0)

    go(main())


def test_an_engines_failure_costs_the_tenant_nothing(go: Go, kit: Kit, state: dict[str, Any]):
    async def main() -> None:
        broken = kit.whole({"error": {"message": "no"}}, status=500)
        async with kit.engine(broken) as engine:
            settings = kit.config(
                [engine.section()], tenants=[tenant(requests_per_minute=9)], state=state
            )
            async with kit.running(settings) as gateway:
                assert (await ask(gateway, kit)).status == 502
                assert await used(gateway) == Used(0, 0, 0, 0, 0, 0, 0)

    go(main())


def test_every_prompt_and_answer_of_a_request_is_estimated(go: Go, kit: Kit, state: dict[str, Any]):
    async def main() -> None:
        settings = kit.config(tenants=[tenant(tokens_per_minute=1000)], state=state)
        async with kit.running(settings) as gateway:
            answer = await ask(gateway, kit, n=8, max_tokens=200)
            assert (answer.status, answer.json["error"]["code"]) == (429, "request_too_large")
            assert "retry-after" not in answer.headers

    go(main())


def test_usage_and_the_days_limit_outlive_a_restart(go: Go, kit: Kit, tmp_path: Path):
    async def main() -> None:
        limited = tenant(tokens_per_day=300)
        prices = {"m": {"prompt": 1000.0, "output": 2000.0}}
        file = str(tmp_path / "usage.db")
        async with kit.engine(kit.whole(TOLD)) as engine:
            settings = kit.config(
                [engine.section()], tenants=[limited], prices=prices, state={"ledger": file}
            )
            async with kit.running(settings) as gateway:
                assert (await ask(gateway, kit, max_tokens=200)).status == 200
            async with kit.running(settings) as gateway:
                assert (await used(gateway)).day_tokens == 17
                refused = await ask(gateway, kit, n=2, max_tokens=200)
                assert (refused.status, "tokens_per_day" in refused.json["error"]["message"]) == (
                    429,
                    True,
                )
                rows = await gateway.process.metering.usage([limited["name"]], 0)
        assert rows is not None
        assert [(r.model, r.requests, r.prompt_tokens, r.output_tokens, r.cost) for r in rows] == [
            ("m", 1, 12, 5, 12 * 0.001 + 5 * 0.002)
        ]

    go(main())


@pytest.mark.parametrize(("fail", "status"), [("open", 200), ("closed", 503)])
def test_a_frozen_redis_holds_nobody_up(
    fail: str, status: int, redis_servers: Callable[..., RedisServer], go: Go, kit: Kit
):
    server = redis_servers()

    async def main() -> None:
        limited = tenant(fail, requests_per_minute=100)
        settings = kit.config(tenants=[limited], state={"url": server.url, "timeout": 0.5})
        async with kit.running(settings) as gateway:
            assert (await ask(gateway, kit)).status == 200
            server.freeze()
            assert [(await ask(gateway, kit)).status for _ in range(3)] == [status] * 3
            assert gateway.process.snapshot().quota.away
            server.thaw()
            await kit.until(lambda: not gateway.process.snapshot().quota.away)
            assert (await ask(gateway, kit)).status == 200
            quota = gateway.process.snapshot().quota
            assert (quota.times_away, sum(quota.admitted_here.values())) == (
                1,
                3 if fail == "open" else 0,
            )
            assert (await used(gateway)).requests == (5 if fail == "open" else 2)

    go(main())


def test_a_replica_that_lost_its_leases_ends_its_streams(
    go: Go, kit: Kit, redis_server: RedisServer
):
    async def hang(peer: Peer, _request: bytes, _number: int) -> None:
        peer.send(kit.events_head() + kit.chunk(kit.delta("a")))
        await peer.gone()

    async def main() -> None:
        async with kit.engine(hang) as engine:
            settings = kit.config(
                [engine.section()],
                tenants=[tenant(concurrent=1)],
                state={"url": redis_server.url, "timeout": 5.0},
            )
            async with kit.running(settings) as gateway, await gateway.caller() as caller:
                body = kit.chat(stream=True)
                caller.send(kit.post(body, headers=f"authorization: Bearer {KEY}\r\n"))
                await caller.reader.readuntil(b"}\n\n")
                meter: Any = gateway.app.meter
                meter._beat -= 61.0  # as if nothing had run for so long
                await meter.beat()
                rest = await caller.reader.readuntil(b"0\r\n\r\n")
                assert b"lease_lost" in rest
                await gateway.quiet()
                assert gateway.outcomes[-1].error == "lease_lost"
                assert (await used(gateway)).concurrent == 0

    go(main())


def test_a_start_that_fails_lets_go_of_its_counters(go: Go, kit: Kit, redis_server: RedisServer):
    async def main() -> None:
        async with kit.running(kit.config()) as gateway:
            settings = kit.config(
                server={"port": gateway.process.port},
                tenants=[tenant(concurrent=1)],
                state={"url": redis_server.url},
            )
            assert await Process(settings).run() == 1
        assert not [task for task in asyncio.all_tasks() if "SharedMeter" in repr(task)]

    root = logging.getLogger()
    before = root.handlers[:], root.level
    go(main())
    root.handlers[:], root.level = before


def test_the_first_tenants_may_come_by_a_reload(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config()) as gateway:
            assert (await gateway.ask(kit.post(kit.chat()))).status == 200
            gateway.process.apply(
                kit.config(server={"port": 0}, tenants=[tenant(requests_per_minute=1)])
            )
            assert [(await ask(gateway, kit)).status for _ in range(2)] == [200, 429]

    go(main())
