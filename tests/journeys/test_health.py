"""Endpoints leave the rotation and return, by probes and by what requests meet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from forebay.adapters.connections import Connections
from forebay.policies.contracts import ConfigError
from forebay.scheduler.health import State

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Gateway, Go, Kit, Script

QUICK = {
    "interval": 0.02,
    "timeout": 1.0,
    "fails": 2,
    "successes": 2,
    "breaker_open": 0.05,
    "slow_start": 0.0,
    "load_interval": 0.02,
}
OK: dict[str, Any] = {"id": "c", "choices": []}


def state(gateway: Gateway, name: str = "e0") -> State:
    return gateway.pool.endpoints[name].health.state


def changes(gateway: Gateway) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in gateway.records.lines]
    return [(line["from"], line["to"]) for line in lines if "from" in line]


def test_probes_take_an_endpoint_out_and_bring_it_back(go: Go, kit: Kit):
    async def main() -> None:
        well = [True]

        async def models(peer: Peer) -> None:
            while True:
                request = await peer.request()
                if request.startswith(b"POST"):
                    peer.send(kit.whole(OK))
                elif well[0]:
                    peer.send(kit.whole({"data": [{"id": "m"}]}))
                else:
                    peer.send(kit.whole({}, status=500))

        async with kit.upstream(models) as server:
            section = {"name": "e0", "engine": "openai", "url": server.url}
            async with kit.running(kit.config([section], pool={"health": QUICK})) as gateway:
                await kit.until(lambda: state(gateway) is State.UP)
                well[0] = False
                await kit.until(lambda: state(gateway) is State.DOWN)
                answer = await gateway.ask(kit.post(kit.chat()))
                assert (answer.status, answer.json["error"]["code"]) == (503, "no_healthy_endpoint")
                assert answer.headers["retry-after"] == "1"
                well[0] = True
                await kit.until(lambda: state(gateway) is State.UP)
                assert (await gateway.ask(kit.post(kit.chat()))).status == 200
                assert changes(gateway)[-2:] == [("up", "down"), ("down", "up")]
                metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
                assert "forebay_endpoint_transitions_total" in metrics

    go(main())


def test_an_endpoint_with_other_models_is_misconfigured_until_it_has_ours(go: Go, kit: Kit):
    async def main() -> None:
        served = ["other"]

        async def engine(peer: Peer) -> None:
            while True:
                path = (await peer.request()).split(b" ")[1]
                if path == b"/v1/models":
                    peer.send(kit.whole({"data": [{"id": name} for name in served]}))
                elif path == b"/health":
                    peer.send(kit.whole({}))
                else:
                    peer.send(kit.whole({}, status=404))

        async with kit.upstream(engine) as server:
            section = {"name": "e0", "engine": "vllm", "url": server.url}
            async with kit.running(kit.config([section], pool={"health": QUICK})) as gateway:
                await kit.until(lambda: state(gateway) is State.MISCONFIGURED)
                told = "it serves none of the pool's models (m), but other"
                assert told in "".join(gateway.records.lines)
                served[0] = "m"
                await kit.until(lambda: state(gateway) is State.UP)

    go(main())


def ailing(kit: Kit, status: int, well: list[bool]) -> Script:
    """Script an engine that answers with this status until it is well."""

    async def script(peer: Peer, _request: bytes, _number: int) -> None:
        peer.send(kit.whole(OK) if well[0] else kit.whole({}, status=status))

    return script


def test_an_open_breaker_tries_one_request_and_closes(go: Go, kit: Kit):
    async def main() -> None:
        well = [False]
        script = ailing(kit, 500, well)
        health = {**QUICK, "interval": 3600.0, "breaker_fails": 2, "breaker_open": 0.5}
        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], pool={"health": health})
            async with kit.running(settings) as gateway:
                await kit.until(lambda: state(gateway) is State.UP)
                for status in (502, 502, 503):
                    assert (await gateway.ask(kit.post(kit.chat()))).status == status
                assert state(gateway) is State.OPEN
                await kit.until(lambda: state(gateway) is State.TRIAL)
                well[0] = True
                assert (await gateway.ask(kit.post(kit.chat()))).status == 200
                assert state(gateway) is State.UP
                assert len(engine.requests) == 3

    go(main())


def test_an_endpoint_that_only_says_503_is_asked_no_more(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(kit.whole({}, status=503)) as engine:
            health = {**QUICK, "breaker_fails": 3, "breaker_open": 3600.0}
            settings = kit.config([engine.section(), kit.sim("e1")], pool={"health": health})
            async with kit.running(settings) as gateway:
                await kit.until(lambda: state(gateway) is State.UP)
                while state(gateway) is State.UP:
                    answer = await gateway.ask(kit.post(kit.chat(max_tokens=1)))
                    assert answer.status in (200, 429)  # retries have their budget
                assert changes(gateway)[-1] == ("up", "open")
                refused = len(engine.requests)
                answers = [await gateway.ask(kit.post(kit.chat(max_tokens=1))) for _ in range(6)]
                assert [answer.status for answer in answers] == [200] * 6
                assert len(engine.requests) == refused >= 3

    go(main())


def test_an_endpoint_that_said_503_returns_when_it_answers_one_request(go: Go, kit: Kit):
    async def main() -> None:
        well = [False]
        script = ailing(kit, 503, well)
        health = {**QUICK, "breaker_fails": 2}
        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], pool={"health": health})
            async with kit.running(settings) as gateway:
                await kit.until(lambda: state(gateway) is State.UP)
                while state(gateway) is not State.OPEN:
                    await gateway.ask(kit.post(kit.chat()))
                well[0] = True
                await kit.until(lambda: state(gateway) is State.TRIAL)
                assert (await gateway.ask(kit.post(kit.chat()))).status == 200
                assert changes(gateway)[-2:] == [("open", "trial"), ("trial", "up")]

    go(main())


def test_one_503_takes_nobody_out_and_is_answered_elsewhere(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(kit.whole({}, status=503)) as engine:
            health = {**QUICK, "interval": 3600.0, "breaker_fails": 1}
            settings = kit.config([engine.section(), kit.sim("e1")], pool={"health": health})
            async with kit.running(settings) as gateway:
                await kit.until(lambda: state(gateway) is State.UP)
                while not engine.requests:
                    assert (await gateway.ask(kit.post(kit.chat(max_tokens=1)))).status == 200
                assert state(gateway) is State.UP

    go(main())


def test_what_waits_goes_on_when_an_endpoint_returns(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config([kit.sim("e0", max_in_flight=1)])) as gateway:
            endpoint = gateway.pool.endpoints["e0"]
            stuck, waiting = await gateway.caller(), await gateway.caller()
            stuck.send(kit.post(kit.chat(sim={"fault": "stall"})))
            await kit.until(lambda: gateway.pool.dispatcher.in_flight)
            waiting.send(kit.post(kit.chat(max_tokens=1)))
            await kit.until(lambda: gateway.pool.dispatcher.queued)
            endpoint.health.probe_failed(gateway.app.now(), "gone")
            stuck.leave()
            assert (await waiting.answer()).status == 200
            waiting.leave()

    go(main())


def test_an_embedded_engine_that_dies_is_noticed_and_comes_back(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config([kit.sim("e0"), kit.sim("e1")], pool={"health": QUICK})
        async with kit.running(settings) as gateway:
            await kit.until(lambda: state(gateway) is State.UP)
            engine = gateway.pool.endpoints["e0"].embedded
            assert engine is not None
            await gateway.ask(kit.post(kit.chat(max_tokens=1)))
            await gateway.ask(kit.post(kit.chat(max_tokens=1)))
            engine._loop = gateway.task.get_loop()
            engine.die(3600.0)
            await kit.until(lambda: state(gateway) is State.DOWN)
            answers = [await gateway.ask(kit.post(kit.chat(max_tokens=1))) for _ in range(4)]
            assert {answer.headers["x-forebay-endpoint"] for answer in answers} == {"e1"}
            engine._come_back()
            await kit.until(lambda: state(gateway) is State.UP)

    go(main())


def test_loads_are_read_and_shown(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config([kit.sim("e0")], pool={"health": QUICK})) as gateway:
            view = gateway.pool.endpoints["e0"].view
            await kit.until(lambda: view.load_at is not None)
            assert (view.running, view.waiting, view.kv_use) == (0, 0, 0.0)
            caller = await gateway.caller()
            caller.send(kit.post(kit.chat(sim={"fault": "stall"})))
            await kit.until(lambda: view.running == 1)
            status = gateway.process.snapshot().pools[0].endpoints[0]
            assert (status.running, status.in_flight, status.state) == (1, 1, "up")
            caller.leave()
            await kit.until(lambda: view.running == 0)

    go(main())


def test_a_load_that_cannot_be_read_stays_unknown(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(kit.whole(OK), kind="vllm") as engine:
            settings = kit.config([engine.section()], pool={"health": QUICK})
            async with kit.running(settings) as gateway:
                view = gateway.pool.endpoints["e0"].view
                await kit.until(lambda: view.load_at is not None)
                assert (view.running, view.waiting, view.kv_use) == (None, None, None)

    go(main())


# -- reloads, in one process -----------------------------------------------------------------------


def test_a_reload_keeps_what_has_the_same_identity(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK)) as engine,
            kit.engine(kit.whole(OK)) as other,
        ):
            same, moved = engine.section("same"), other.section("moved")
            async with kit.running(kit.config([same, moved])) as gateway:
                for _ in range(4):
                    await gateway.ask(kit.post(kit.chat()))
                before = dict(gateway.pool.endpoints)
                opener: Any = before["same"].opener
                assert opener.open_connections == 1
                before["same"].health.request_failed(gateway.app.now(), "x")
                port = gateway.process.config.server.port
                changed = kit.config(
                    [
                        {**same, "max_in_flight": 3},
                        {**moved, "key": "new"},
                        kit.sim("new"),
                    ],
                    server={"port": port},
                    pool={"models": {"m": "m", "n": "n"}},
                )
                pool = gateway.pool
                gateway.process.apply(changed)
                assert gateway.pool is pool
                assert pool.endpoints["same"] is before["same"]
                assert pool.endpoints["same"].view.limit == 3
                assert pool.endpoints["moved"] is not before["moved"]
                assert list(pool.endpoints) == ["same", "moved", "new"]
                assert opener.open_connections == 1
                gone: Any = before["moved"].opener
                await kit.until(lambda: not gone.open_connections)
                answer = await gateway.ask(kit.get("/v1/models"))
                assert [card["id"] for card in answer.json["data"]] == ["m", "n"]

    go(main())


def test_what_runs_on_a_removed_endpoint_ends_well(go: Go, kit: Kit):
    async def main() -> None:
        sections = [kit.sim("old", profile="demo"), kit.sim("new")]
        async with kit.running(kit.config(sections[:1])) as gateway:
            caller = await gateway.caller()
            caller.send(kit.post(kit.chat(stream=True, sim={"output_tokens": 10})))
            await caller.head()
            gateway.process.apply(kit.config(sections[1:]))
            parts: list[bytes] = []
            while part := await caller.chunk():
                parts.append(part)
            assert b"".join(parts).endswith(kit.done)
            caller.leave()
            answer = await gateway.ask(kit.post(kit.chat(max_tokens=1)))
            assert answer.headers["x-forebay-endpoint"] == "new"

    go(main())


def test_what_waits_in_a_removed_pool_is_refused(go: Go, kit: Kit):
    async def main() -> None:
        section = kit.sim("e0", max_in_flight=1)
        async with kit.running(kit.config([section])) as gateway:
            running, waiting = await gateway.caller(), await gateway.caller()
            running.send(kit.post(kit.chat(sim={"fault": "stall"})))
            await kit.until(lambda: gateway.pool.dispatcher.in_flight)
            waiting.send(kit.post(kit.chat()))
            await kit.until(lambda: gateway.pool.dispatcher.queued)
            pool = gateway.pool
            other = {"name": "q", "models": {"n": "n"}}
            gateway.process.apply(kit.config([kit.sim("e1")], pool=other))
            answer = await waiting.answer()
            assert (answer.status, answer.json["error"]["code"]) == (503, "no_healthy_endpoint")
            assert not pool.waiting
            waiting.leave()
            running.leave()
            await kit.until(lambda: not pool.dispatcher.in_flight)

    go(main())


def test_a_change_that_needs_a_restart_changes_nothing(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config()) as gateway:
            before, pools = gateway.process.config, gateway.app.pools
            for changed in (
                kit.config(server={"port": 1}),
                kit.config(server={"metrics": "admin"}),
                kit.config(telemetry={"log_level": "error"}),
            ):
                with pytest.raises(ConfigError, match="restart"):
                    gateway.process.apply(changed)
                assert gateway.process.config is before
                assert gateway.app.pools is pools

    go(main())


def test_a_reload_reaches_endpoints_that_stay(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(kit.whole(b"{}")) as engine:
            sections = [engine.section()]
            async with kit.running(kit.config(sections)) as gateway:
                endpoint = gateway.pool.endpoints["e0"]
                health = {"interval": 3600.0, "load_interval": 3600.0, "breaker_fails": 1}
                pool = {"health": health, "timeouts": {"connect": 0.5}}
                gateway.process.apply(kit.config(sections, pool=pool))
                assert gateway.pool.endpoints["e0"] is endpoint
                assert isinstance(endpoint.opener, Connections)
                assert endpoint.opener.connect_timeout == 0.5
                change = endpoint.health.request_failed(0.0, "it broke off")
                assert change is not None
                assert change.reason == "1 requests in a row failed: it broke off"

    go(main())
