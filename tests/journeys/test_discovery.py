"""Engines come and go behind a name while requests run."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from tests.conftest import Upstream, until
from tests.journeys.conftest import Engine, says

if TYPE_CHECKING:
    from tests.journeys.conftest import Gateway, Go, Kit

ANSWER: dict[str, Any] = {"id": "c", "object": "chat.completion", "choices": []}


class Everywhere(Upstream):
    """Listens on all of loopback's addresses, each of which stands for an engine."""

    host = "0.0.0.0"


def asked(engine: Engine) -> set[bytes]:
    """Return the addresses that requests went to."""
    return {
        found[1] for each in engine.requests if (found := re.search(rb"\r\nhost: ([^:\r]+)", each))
    }


async def ask(gateway: Gateway, kit: Kit, times: int) -> list[int]:
    return [(await gateway.ask(kit.post(kit.chat()))).status for _ in range(times)]


async def failing(gateway: Gateway, kit: Kit) -> str:
    """Return how many hosts cannot be looked up, as the metrics have it."""
    metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
    (found,) = re.findall(r"^forebay_discover_failing_hosts (\S+)$", metrics, re.MULTILINE)
    return found


def test_engines_that_come_are_used_and_those_that_go_are_left(go: Go, kit: Kit):
    async def run() -> None:
        there = ["127.0.0.1"]

        async def resolve(host: str) -> list[str]:
            assert host == "engines.example"
            return list(there)

        async with Engine(Everywhere, says(kit.whole(ANSWER)), "openai") as engine:
            port = engine.section()["url"].rpartition(":")[2]
            url = f"http://engines.example:{port}"
            section = {**engine.section(), "url": url, "discover": 0.1}
            async with kit.running(kit.config([section]), resolve=resolve) as gateway:
                assert list(gateway.pool.endpoints) == ["e0-127.0.0.1"]
                stays = gateway.pool.endpoints["e0-127.0.0.1"]
                assert await ask(gateway, kit, 3) == [200] * 3
                assert asked(engine) == {b"127.0.0.1"}

                there.append("127.0.0.2")
                await until(lambda: len(gateway.pool.endpoints) == 2)
                assert gateway.pool.endpoints["e0-127.0.0.1"] is stays
                await until(lambda: all(e.view.usable for e in gateway.pool.endpoints.values()))
                assert set(await ask(gateway, kit, 20)) == {200}
                assert asked(engine) == {b"127.0.0.1", b"127.0.0.2"}

                there.remove("127.0.0.1")
                await until(lambda: list(gateway.pool.endpoints) == ["e0-127.0.0.2"])
                engine.requests.clear()
                assert set(await ask(gateway, kit, 5)) == {200}
                assert asked(engine) == {b"127.0.0.2"}
                metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
                assert 'endpoint="e0-127.0.0.2"' in metrics

    go(run())


def test_an_answer_under_way_goes_on_when_its_engine_has_left_the_name(go: Go, kit: Kit):
    async def run() -> None:
        there, begun, ended = ["127.0.0.1", "127.0.0.2"], asyncio.Event(), asyncio.Event()

        async def resolve(_host: str) -> list[str]:
            return list(there)

        async def script(peer: object, _request: bytes, _number: int) -> None:
            begun.set()
            await ended.wait()
            peer.send(kit.whole(ANSWER))  # type: ignore[attr-defined] - a Peer

        async with Engine(Everywhere, script, "openai") as engine:
            port = engine.section()["url"].rpartition(":")[2]
            section = {**engine.section(), "url": f"http://engines.example:{port}", "discover": 0.1}
            async with kit.running(kit.config([section]), resolve=resolve) as gateway:
                asking = asyncio.create_task(gateway.ask(kit.post(kit.chat())))
                await begun.wait()
                (address,) = asked(engine)
                there.remove(address.decode())
                await until(lambda: len(gateway.pool.endpoints) == 1)
                ended.set()
                assert (await asking).status == 200

    go(run())


def test_without_an_address_callers_are_told_and_the_gateway_runs(go: Go, kit: Kit):
    async def run() -> None:
        there: list[str] = []

        async def resolve(_host: str) -> list[str]:
            if not there:
                raise OSError("Name or service not known")
            return there

        async with Engine(Everywhere, says(kit.whole(ANSWER)), "openai") as engine:
            port = engine.section()["url"].rpartition(":")[2]
            section = {**engine.section(), "url": f"http://engines.example:{port}", "discover": 0.1}
            async with kit.running(kit.config([section]), resolve=resolve) as gateway:
                refused = await gateway.ask(kit.post(kit.chat()))
                assert (refused.status, refused.json["error"]["code"]) == (
                    503,
                    "no_healthy_endpoint",
                )
                assert (await gateway.ask(kit.get("/readyz"))).status == 200
                assert (await gateway.ask(kit.get("/readyz?pool=p"))).status == 503
                assert await failing(gateway, kit) == "1.0"
                there.append("127.0.0.3")
                await until(lambda: len(gateway.pool.endpoints) == 1)
                assert await failing(gateway, kit) == "0.0"
                assert (await gateway.ask(kit.post(kit.chat()))).status == 200

    go(run())
