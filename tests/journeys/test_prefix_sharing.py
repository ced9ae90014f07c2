"""Replicas that share what they know of prefixes through Redis, and one that starts anew."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.quota.redis_store import connect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tests.conftest import Peer, RedisServer
    from tests.journeys.conftest import Gateway, Go, Kit

    from forebay.gateway.prefix_sharing import Sharing

LONG = "the same long instructions " * 100


@asynccontextmanager
async def settings(kit: Kit, server: RedisServer, *, pool: str = "") -> AsyncGenerator[Any]:
    """A configuration of two engines that outlive gateways, in a pool of its own."""

    async def answer(peer: Peer, _request: bytes, _number: int) -> None:
        usage = {"prompt_tokens": 700, "completion_tokens": 1, "total_tokens": 701}
        peer.send(kit.whole({"id": "c", "choices": [], "usage": usage}))

    async with kit.engine(answer, kind="vllm") as one, kit.engine(answer, kind="vllm") as other:
        endpoints = [one.section(), {**other.section(), "name": "other"}]
        name = pool or f"p{secrets.token_hex(4)}"
        section = {"name": name, "prefix": {"mode": "learned"}}
        yield kit.config(endpoints, pool=section, state={"url": server.url})


async def command(server: RedisServer, *words: str) -> None:
    client: Any = connect(server.url, 5.0)
    await client.execute_command(*(word.encode("latin-1") for word in words))
    await client.aclose()


async def predicted(kit: Kit, gateway: Gateway, text: str = "x") -> tuple[str, int]:
    answer = await gateway.ask(kit.post(kit.chat(LONG + text, max_tokens=2)))
    assert answer.status == 200
    return answer.headers["x-forebay-endpoint"], int(answer.headers["x-forebay-prefix-hit-tokens"])


def sharing(gateway: Gateway) -> Sharing:
    found = gateway.process._assembly.sharing
    assert found is not None
    return found


async def heard(gateway: Gateway) -> None:
    prefix = gateway.pool.prefix
    assert prefix is not None
    async with asyncio.timeout(10):
        while not len(prefix.index):  # noqa: ASYNC110 - set by no event
            await asyncio.sleep(0.01)


def test_what_one_replica_learns_the_other_knows(go: Go, kit: Kit, redis_server: RedisServer):
    async def run() -> None:
        async with (
            settings(kit, redis_server) as config,
            kit.running(config) as one,
            kit.running(config) as other,
        ):
            home, hit = await predicted(kit, one)
            assert hit == 0
            await heard(other)
            assert await predicted(kit, other, "y") == (home, 640)

    go(run())


def test_a_new_replica_knows_what_the_one_before_it_did(
    go: Go, kit: Kit, redis_server: RedisServer
):
    async def run() -> None:
        async with settings(kit, redis_server) as config:
            async with kit.running(config) as one:
                home, _ = await predicted(kit, one)
                await one.quiet()
            async with kit.running(config) as again:
                await heard(again)
                assert await predicted(kit, again, "y") == (home, 640)

    go(run())


def test_a_frozen_store_holds_up_nobody_and_is_caught_up_with(
    go: Go, kit: Kit, redis_servers: Callable[..., RedisServer]
):
    async def run() -> None:
        server = redis_servers()
        async with (
            settings(kit, server) as config,
            kit.running(config) as one,
            kit.running(config) as other,
        ):
            server.freeze()
            home, _ = await predicted(kit, one)  # frozen until this is answered, and after
            async with asyncio.timeout(10):
                while not sharing(one).away:  # noqa: ASYNC110 - likewise
                    await asyncio.sleep(0.01)
            assert (await predicted(kit, one, "z"))[1] == 640
            server.thaw()
            await heard(other)
            assert await predicted(kit, other, "y") == (home, 640)

    go(run())


POISON: dict[str, tuple[str, ...]] = {
    "a snapshot that is none": ("SET", "forebay:{prefix}:snapshot", "junk"),
    "a snapshot of another stream": ("SET", "forebay:{prefix}:snapshot", "1-x\n\x90"),
    "no deltas": ("XADD", "forebay:{prefix}:stream", "*", "r", "x", "d", "junk"),
    "no fields of ours": ("XADD", "forebay:{prefix}:stream", "*", "a", "b"),
    "blocks cut short": (
        *("XADD", "forebay:{prefix}:stream", "*", "r", "x"),
        *("d", "\x91\x94\xa1p\xa2e0\xa0\xc4\x03abc"),
    ),
}


@pytest.mark.parametrize("poison", POISON.values(), ids=POISON.keys())
def test_what_cannot_be_read_keeps_nobody_from_hearing_what_can(
    go: Go, kit: Kit, redis_servers: Callable[..., RedisServer], poison: tuple[str, ...]
):
    async def run() -> None:
        server = redis_servers()
        async with settings(kit, server, pool="p") as config:
            await command(server, *poison)
            async with kit.running(config) as one, kit.running(config) as other:
                home, _ = await predicted(kit, one)
                await heard(other)
                assert await predicted(kit, other, "y") == (home, 640)
                assert (sharing(other).away, sharing(other).times_away) == (False, 0)

    go(run())


def test_a_store_that_comes_back_empty_with_its_clock_behind_is_heard(
    go: Go, kit: Kit, redis_servers: Callable[..., RedisServer]
):
    async def run() -> None:
        server = redis_servers()
        async with settings(kit, server) as config:
            ahead = f"{10**14}-5"
            await command(server, "XADD", "forebay:{prefix}:stream", ahead, "r", "x", "d", "")
            async with kit.running(config) as one, kit.running(config) as other:
                both = sharing(one), sharing(other)
                await kit.until(lambda: {each._last for each in both} == {ahead.encode()})
                server.stop()
                await kit.until(lambda: all(each.away for each in both))
                server.start()
                home, _ = await predicted(kit, one)
                await heard(other)
                assert await predicted(kit, other, "y") == (home, 640)

    go(run())
