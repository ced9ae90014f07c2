"""Requests for which drafts pay go to endpoints that speculate, the others to plain ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.scheduler.speculation import Reading

if TYPE_CHECKING:
    from tests.journeys.conftest import Gateway, Go, Kit

    from forebay.gateway.config.sections import Config


def config(kit: Kit, **pool: Any) -> Config:
    fast = {**kit.sim("fast"), "speculative": "eagle3"}
    return kit.config([fast, kit.sim("plain")], pool=pool)


async def where(kit: Kit, gateway: Gateway, **fields: Any) -> str:
    answer = await gateway.ask(kit.post(kit.chat("hello", **fields)))
    assert answer.status == 200
    return answer.headers["x-forebay-endpoint"]


def test_what_gains_by_drafts_is_sent_to_them_and_what_does_not_is_not(go: Go, kit: Kit):
    async def run() -> None:
        async with kit.running(config(kit)) as gateway:
            asked = [
                {"temperature": 0, "max_tokens": 200},
                {"temperature": 0.7, "max_tokens": 60},
                {"temperature": 1.3, "max_tokens": 200},
                {"temperature": 0, "max_tokens": 20},
            ]
            found = [await where(kit, gateway, **fields) for fields in asked]
            assert found == ["fast", "fast", "plain", "plain"]
            await gateway.quiet()
            metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
            assert 'forebay_spec_requests_total{pool="p",speculative="true"} 2.0' in metrics
            assert 'forebay_spec_requests_total{pool="p",speculative="false"} 2.0' in metrics
            assert 'forebay_spec_pays{endpoint="fast",pool="p"} 1.0' in metrics

    go(run())


def test_an_endpoint_whose_drafts_are_refused_is_left_and_returns_by_itself(go: Go, kit: Kit):
    async def run() -> None:
        settings = config(kit, speculation={"min_drafts": 10, "rest": 5})
        async with kit.running(settings) as gateway:
            pool, gain = gateway.pool, {"temperature": 0, "max_tokens": 100}
            fast = pool.endpoints["fast"]
            found = [await where(kit, gateway, **gain)]
            pool.upkeep.speculated(fast, Reading(0, 0, 0), 100.0)
            pool.upkeep.speculated(fast, Reading(100, 400, 100), 101.0)
            found.append(await where(kit, gateway, **gain))
            metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
            assert 'forebay_spec_pays{endpoint="fast",pool="p"} 0.0' in metrics
            pool.upkeep.speculated(fast, Reading(100, 400, 100), 107.0)
            found.append(await where(kit, gateway, **gain))
            pool.upkeep.speculated(fast, Reading(200, 800, 400), 108.0)
            found.append(await where(kit, gateway, **gain))
            assert found == ["fast", "plain", "fast", "fast"]
            metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
            assert 'forebay_spec_accept_rate{endpoint="fast",pool="p"} 0.75' in metrics
            assert 'forebay_spec_avg_accepted_tokens{endpoint="fast",pool="p"} 3.0' in metrics

    go(run())


def test_a_pool_without_speculation_says_nothing_of_it(go: Go, kit: Kit):
    async def run() -> None:
        async with kit.running(kit.config([kit.sim("e0")])) as gateway:
            assert gateway.pool.speculation is None
            metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
            assert "forebay_spec_pays{" not in metrics

    go(run())


def test_the_time_a_token_takes_is_compared_by_kind_of_request(go: Go, kit: Kit):
    async def run() -> None:
        async with kit.running(config(kit)) as gateway:
            speculation = gateway.pool.speculation
            assert speculation is not None
            for temperature, tokens in ((0, 100), (0, 10)):
                body = kit.chat("x", temperature=temperature, max_tokens=tokens, stream=True)
                await gateway.ask(kit.post(body))
            await gateway.quiet()
            assert set(speculation.speed_ups()) == {"completions t=0"}
            assert set(speculation.drifts()) == {"completions t=0"}
            metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
            assert 'forebay_spec_speedup_drift{kind="completions t=0",pool="p"}' in metrics

    go(run())


def test_a_temperature_of_any_size_is_no_fault_of_the_gateway(go: Go, kit: Kit):
    async def run() -> None:
        async with kit.running(config(kit)) as gateway:
            asked: list[Any] = [10**400, -(10**400), 1e300, "hot", None]
            answers = [
                await gateway.ask(kit.post(kit.chat("hello", temperature=each, max_tokens=100)))
                for each in asked
            ]
            found = [(each.headers["x-forebay-endpoint"], each.status) for each in answers]
            assert [name for name, _ in found] == ["plain", "fast", "plain", "fast", "fast"]
            assert {status for _, status in found} <= {200, 400}, "the engine's own verdict"

    go(run())
