"""Requests go where their prefix lies, tenants apart, and nowhere by what is forgotten."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Gateway, Go, Kit

LONG = "the same long instructions " * 100
PREFIX = {"prefix": {"mode": "learned"}}


async def where(kit: Kit, gateway: Gateway, text: str, headers: str = "") -> tuple[str, int]:
    """Ask, and say which endpoint answered and what hit was predicted there."""
    answer = await gateway.ask(kit.post(kit.chat(LONG + text, max_tokens=2), headers=headers))
    assert answer.status == 200
    return answer.headers["x-forebay-endpoint"], int(answer.headers["x-forebay-prefix-hit-tokens"])


def test_a_prefix_is_followed(go: Go, kit: Kit):
    async def run() -> None:
        sims = [kit.sim(f"e{n}") for n in range(3)]
        async with kit.running(kit.config(sims, pool=PREFIX)) as gateway:
            first, hit = await where(kit, gateway, "one")
            assert hit == 0
            for text in ("two", "three", "four"):
                endpoint, hit = await where(kit, gateway, text)
                assert endpoint == first
                assert hit > 500
            await gateway.quiet()
            prefix = gateway.pool.prefix
            assert prefix is not None
            assert (prefix.learned.confirmed, prefix.learned.ghosts) == (3, 0)
            metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
            assert 'forebay_prefix_hits_total{outcome="confirmed",pool="p"} 3.0' in metrics

    go(run())


def test_an_endpoint_that_restarted_is_expected_to_hold_nothing(go: Go, kit: Kit):
    async def run() -> None:
        async with kit.running(kit.config([kit.sim("e0")], pool=PREFIX)) as gateway:
            await where(kit, gateway, "one")
            gateway.pool.upkeep.restarted(gateway.pool.endpoints["e0"])
            assert (await where(kit, gateway, "two"))[1] == 0

    go(run())


def test_tenants_have_prefixes_of_their_own_and_engines_are_told(go: Go, kit: Kit):
    async def answer(peer: Peer, _request: bytes, _number: int) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        peer.send(kit.whole({"id": "c", "choices": [], "usage": usage}))

    def tenant(name: str) -> dict[str, Any]:
        digest = "sha256:" + sha256(name.encode()).hexdigest()
        return {"name": name, "keys": [digest], "debug_headers": True}

    async def run() -> None:
        async with kit.engine(answer, kind="vllm") as engine:
            tenants = [tenant("acme"), tenant("other")]
            settings = kit.config([engine.section()], pool=PREFIX, tenants=tenants)
            async with kit.running(settings) as gateway:
                hits = [
                    (await where(kit, gateway, text, f"authorization: Bearer {name}\r\n"))[1]
                    for name, text in (("acme", "1"), ("acme", "2"), ("other", "3"))
                ]
        assert hits[0] == hits[2] == 0
        assert hits[1] > 500
        salts = [json.loads(body)["cache_salt"] for body in engine.bodies]
        assert salts[0] == salts[1] != salts[2]

    go(run())


def test_a_callers_own_salt_goes_no_further(go: Go, kit: Kit):
    async def answer(peer: Peer, _request: bytes, _number: int) -> None:
        peer.send(kit.whole({"id": "c", "choices": []}))

    async def run() -> None:
        async with (
            kit.engine(answer, kind="vllm") as engine,
            kit.running(kit.config([engine.section()], pool=PREFIX)) as gateway,
        ):
            await gateway.ask(kit.post(kit.chat("x", cache_salt="mine")))
        assert [json.loads(body).get("cache_salt") for body in engine.bodies] == [None]

    go(run())


# -- warming ---------------------------------------------------------------------------------------

WARM = {"prefix": {"mode": "learned", "warm": {"rate": 4.0}}}


def names(gateway: Gateway, warmer: str = "results") -> Any:
    assert gateway.pool.prefix is not None
    assert gateway.pool.prefix.warmer is not None
    return getattr(gateway.pool.prefix.warmer, warmer)


def test_an_endpoint_that_restarted_is_warmed_and_holds_the_prefix_then(go: Go, kit: Kit):
    async def run() -> None:
        async with kit.running(kit.config([kit.sim("e0")], pool=WARM)) as gateway:
            for text in ("one", "two", "three", "four"):
                await where(kit, gateway, text)
            pool, endpoint = gateway.pool, gateway.pool.endpoints["e0"]
            assert endpoint.embedded is not None
            pool.upkeep.restarted(endpoint)
            now = gateway.app.now()
            assert pool.upkeep.warm(endpoint, now) == 1
            await kit.until(lambda: names(gateway)["warmed"] == 1)
            assert names(gateway, "tokens") >= 0
            _, hit = await where(kit, gateway, "five")
            assert hit > 500

    go(run())


def test_a_warmed_engine_gets_the_common_beginning_only_and_with_its_salt(go: Go, kit: Kit):
    async def answer(peer: Peer, _request: bytes, _number: int) -> None:
        usage = {"prompt_tokens": 700, "completion_tokens": 1, "total_tokens": 701}
        peer.send(kit.whole({"id": "c", "choices": [], "usage": usage}))

    async def run() -> None:
        async with kit.engine(answer, kind="vllm") as engine:
            digest = "sha256:" + sha256(b"acme").hexdigest()
            tenants = [{"name": "acme", "keys": [digest], "debug_headers": True}]
            settings = kit.config([engine.section()], pool=WARM, tenants=tenants)
            async with kit.running(settings) as gateway:
                for number in range(4):
                    text = f"secret {number}"
                    await where(kit, gateway, text, "authorization: Bearer acme\r\n")
                endpoint = gateway.pool.endpoints["e0"]
                gateway.pool.upkeep.restarted(endpoint)
                gateway.pool.upkeep.warm(endpoint, gateway.app.now())
                await kit.until(lambda: names(gateway)["warmed"] == 1)
                assert names(gateway, "tokens") == 700
                assert not any("secret" in line for line in gateway.records.lines)
        sent, callers = json.loads(engine.bodies[-1]), json.loads(engine.bodies[0])
        assert sent["cache_salt"] == callers["cache_salt"]
        assert (sent["model"], sent["max_tokens"]) == ("m", 1)
        assert "secret" not in str(sent)
        (message,) = sent["messages"]
        assert callers["messages"][0]["content"].startswith(message["content"])

    go(run())


def test_an_endpoint_is_kept_out_until_warm_but_not_from_who_waits(go: Go, kit: Kit):
    pool = {"prefix": {"mode": "learned", "warm": {"rate": 0.01, "hold": 60.0}}}

    async def run() -> None:
        ends = [kit.sim("e0", max_in_flight=1), kit.sim("e1", max_in_flight=1)]
        async with kit.running(kit.config(ends, pool=pool)) as gateway:
            for text in ("one", "two", "three", "four"):
                await where(kit, gateway, text)
            live, app = gateway.pool, gateway.app
            for endpoint in live.endpoints.values():
                live.upkeep.restarted(endpoint)
            cold = live.endpoints["e1"]
            cold.view.in_flight = 1  # so that nothing is sent there
            assert live.upkeep.warm(cold, app.now()) == 1
            live.upkeep.refresh(cold, app.now())
            assert not cold.view.usable
            cold.view.in_flight = 0
            warmer = live.prefix.warmer if live.prefix else None
            assert warmer is not None
            for endpoint in warmer.make_way():
                live.upkeep.refresh(endpoint, app.now())
            assert cold.view.usable

    go(run())


def test_nothing_is_kept_where_warming_is_not_asked_for(go: Go, kit: Kit):
    async def run() -> None:
        async with kit.running(kit.config([kit.sim("e0")], pool=PREFIX)) as gateway:
            for text in ("one", "two", "three", "four"):
                await where(kit, gateway, text)
            assert gateway.pool.prefix is not None
            assert gateway.pool.prefix.warmer is None
            assert gateway.pool.upkeep.warm(gateway.pool.endpoints["e0"], 0.0) == 0

    go(run())
