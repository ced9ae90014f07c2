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
            gateway.pool.restarted(gateway.pool.endpoints["e0"])
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
