"""Warming by hand: through the admin API, and by `forebay prefix warm`."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from forebay.gateway.cli import main

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Gateway, Go, Kit

LONG = "the same long instructions " * 100
WARM = {"prefix": {"mode": "learned", "warm": {"rate": 4.0}}}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def config(kit: Kit, port: int, pool: dict[str, Any] | None = None) -> Any:
    admin = {"host": "127.0.0.1", "port": port}
    return kit.config([kit.sim("e0")], pool=pool or WARM, server={"admin": admin})


async def up(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(20):
        while True:
            try:
                if (await client.get(f"{url}/healthz")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.05)


async def make_hot(kit: Kit, gateway: Gateway) -> None:
    for text in ("one", "two", "three", "four"):
        await gateway.ask(kit.post(kit.chat(LONG + text, max_tokens=1)))
    gateway.pool.upkeep.restarted(gateway.pool.endpoints["e0"])


async def call(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


def test_the_command_warms_a_pool_and_says_what_was_sent(
    go: Go, kit: Kit, capfd: pytest.CaptureFixture[str]
):
    async def run() -> None:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        async with kit.running(config(kit, port)) as gateway:
            await up(url)
            await make_hot(kit, gateway)
            assert await call("prefix", "warm", "p", "--admin", url, "--json") == 0
            said = capfd.readouterr()
            assert json.loads(said.out) == {
                "pool": "p",
                "endpoints": [{"endpoint": "e0", "prompts": 1}],
            }
            assert "1 prompt left" in said.err
            answer = await gateway.ask(kit.post(kit.chat(LONG + "five")))
            assert int(answer.headers["x-forebay-prefix-hit-tokens"]) > 500
            assert await call("prefix", "warm", "p", "e0", "--admin", url) == 0
            assert capfd.readouterr().out == (
                "e0: nothing to send: it holds every hot prefix, or none is hot yet\n"
            )
            metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
            for line in (
                'forebay_prefix_warm_prompts_total{pool="p",result="warmed"} 1.0',
                'forebay_prefix_hot_prefixes{pool="p"} 1.0',
            ):
                assert line in metrics
            audit = [line for line in gateway.records.lines if "forebay.audit" in line]
            assert json.loads(audit[0])["prompts"] == 1

    go(run())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("none",), "there is no pool 'none'"),
        (("p", "none"), "there is no endpoint 'none'; there are: e0"),
    ],
)
def test_what_cannot_be_warmed_is_said(
    go: Go,
    kit: Kit,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    reason: str,
):
    async def run() -> None:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        async with kit.running(config(kit, port)):
            await up(url)
            assert await call("prefix", "warm", *arguments, "--admin", url) == 1
            assert reason in capfd.readouterr().err

    go(run())


def test_a_pool_that_keeps_nothing_says_which_key_is_missing(
    go: Go, kit: Kit, capfd: pytest.CaptureFixture[str]
):
    async def run() -> None:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        async with kit.running(config(kit, port, {"prefix": {"mode": "learned"}})):
            await up(url)
            assert await call("prefix", "warm", "p", "e0", "--admin", url) == 1
            assert "set 'prefix.warm'" in capfd.readouterr().err

    go(run())


# -- callers go first ------------------------------------------------------------------------------


class Held:
    """An engine that answers what callers ask at once, and prefills nothing until it is let."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self.prefills = 0
        self.slow = asyncio.Event()
        """Answers to callers wait for it, once `busy`."""
        self.busy = False

    async def __call__(self, peer: Peer, request: bytes, _number: int) -> None:
        body = json.loads(request.partition(b"\r\n\r\n")[2])
        if body.get("temperature") == 0:  # nobody else asks so here
            self.prefills += 1
            await peer.gone()
            raise ConnectionResetError
        if self.busy:
            await self.slow.wait()
        peer.send(self._kit.whole({"id": "c", "choices": [{"index": 0}]}))


def test_a_prefill_under_way_is_stopped_as_soon_as_a_caller_has_to_wait(go: Go, kit: Kit):
    async def run() -> None:
        held = Held(kit)
        async with kit.engine(held, kind="vllm") as engine:
            section = engine.section(max_in_flight=1)
            async with kit.running(kit.config([section], pool=WARM)) as gateway:
                for text in ("one", "two", "three", "four"):
                    await gateway.ask(kit.post(kit.chat(LONG + text)))
                pool, endpoint = gateway.pool, gateway.pool.endpoints["e0"]
                pool.upkeep.restarted(endpoint)
                pool.upkeep.warm(endpoint, gateway.app.now())
                await kit.until(lambda: held.prefills)
                held.busy = True
                asked = [
                    asyncio.create_task(gateway.ask(kit.post(kit.chat(LONG + str(n)))))
                    for n in range(2)
                ]
                await kit.until(lambda: engine.left == 1)
                assert pool.prefix is not None
                assert pool.prefix.warmer is not None
                assert pool.prefix.warmer.results["gave_way"] == 1
                held.slow.set()
                assert [answer.status for answer in await asyncio.gather(*asked)] == [200, 200]

    go(run())


def test_an_endpoint_that_a_reload_takes_away_is_warmed_no_more(go: Go, kit: Kit):
    async def run() -> None:
        held = Held(kit)
        async with kit.engine(held, kind="vllm") as engine:
            both = [engine.section("e0"), kit.sim("e1")]
            async with kit.running(kit.config(both, pool=WARM)) as gateway:
                for text in ("one", "two", "three", "four"):
                    await gateway.ask(kit.post(kit.chat(LONG + text)))
                pool = gateway.pool
                for endpoint in pool.endpoints.values():
                    pool.upkeep.restarted(endpoint)
                assert pool.upkeep.warm(pool.endpoints["e0"], gateway.app.now()) == 1
                await kit.until(lambda: held.prefills)
                gateway.process.apply(kit.config([kit.sim("e1")], pool=WARM))
                await kit.until(lambda: engine.left == 1)
                assert pool.prefix is not None
                assert pool.prefix.warmer is not None
                assert pool.prefix.warmer.left == {}

    go(run())


def test_the_prefill_rate_is_measured_on_streams(go: Go, kit: Kit):
    async def run() -> None:
        async with kit.running(kit.config([kit.sim("e0")], pool=WARM)) as gateway:
            for number in range(20):
                text = f"{number} " * 50 * (1 + number % 5)
                await gateway.ask(kit.post(kit.chat(text, stream=True)))
            assert gateway.pool.prefix is not None
            assert gateway.pool.prefix.placements.prefill.rate("e0") is not None

    go(run())
