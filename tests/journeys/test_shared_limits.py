"""Two replicas in front of one engine send it no more than it takes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.conftest import until

from forebay.gateway.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Peer, RedisServer
    from tests.journeys.conftest import Gateway, Go, Kit

WHOLE: dict[str, Any] = {"id": "c", "object": "chat.completion", "choices": []}


class Slow:
    """Answers when it is told to; counts how many wait for it."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._go = asyncio.Event()
        self.busy = 0
        self.most = 0
        self.answered = 0

    async def __call__(self, peer: Peer, _request: bytes, _number: int) -> None:
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            await self._go.wait()
        finally:
            self.busy -= 1
        self.answered += 1
        peer.send(self._kit.whole(WHOLE))

    def go(self) -> None:
        self._go.set()


def limit(gateway: Gateway) -> int:
    return gateway.pool.endpoints["e0"].view.limit


def ask(gateway: Gateway, kit: Kit, times: int) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(gateway.ask(kit.post(kit.chat()))) for _ in range(times)]


async def statuses(asking: list[asyncio.Task[Any]]) -> set[int]:
    return {answer.status for answer in await asyncio.gather(*asking)}


def test_replicas_divide_what_an_engine_takes(go: Go, kit: Kit, redis_server: RedisServer):
    async def run() -> None:
        slow = Slow(kit)
        async with kit.engine(slow) as engine:
            section = engine.section(max_in_flight=6)
            settings = kit.config([section], state={"url": redis_server.url, "timeout": 5.0})
            async with kit.running(settings) as one:
                assert limit(one) == 6
                async with kit.running(settings) as other:
                    await until(lambda: (limit(one), limit(other)) == (3, 3))
                    asking = ask(one, kit, 20)
                    await until(lambda: (limit(one), limit(other)) == (5, 1))
                    asking += ask(other, kit, 20)
                    await until(lambda: slow.busy == 6)
                    slow.go()
                    assert await statuses(asking) == {200}
                    assert slow.answered == 40
                    assert slow.most <= 7  # each is sure of one
                await until(lambda: limit(one) == 6)

    go(run())


def test_while_the_store_is_away_each_keeps_its_part(
    go: Go, kit: Kit, redis_servers: Callable[..., RedisServer]
):
    async def run() -> None:
        server = redis_servers()
        async with kit.engine(kit.whole(WHOLE)) as engine:
            section = engine.section(max_in_flight=6)
            settings = kit.config([section], state={"url": server.url, "timeout": 5.0})
            async with kit.running(settings) as one, kit.running(settings) as other:
                await until(lambda: (limit(one), limit(other)) == (3, 3))
                server.freeze()
                limits = one.process._assembly.limits
                assert limits is not None
                await until(lambda: limits.away)
                assert limit(one) == 3
                assert await statuses(ask(one, kit, 5)) == {200}
                metrics = (await one.ask(kit.get("/metrics"))).body.decode()
                assert "forebay_limits_away 1.0" in metrics
                server.thaw()
                await until(lambda: not limits.away)

    go(run())


def test_a_found_limit_is_not_divided(go: Go, kit: Kit, redis_server: RedisServer):
    async def run() -> None:
        async with kit.engine(kit.whole(WHOLE)) as engine:
            section = engine.section(max_in_flight="auto")
            settings = kit.config([section], state={"url": redis_server.url, "timeout": 5.0})
            async with kit.running(settings) as one, kit.running(settings):
                assert not one.pool.endpoints["e0"].is_shared
                assert await statuses(ask(one, kit, 3)) == {200}

    go(run())


def test_what_has_left_is_claimed_no_more(go: Go, kit: Kit, redis_server: RedisServer):
    async def run() -> None:
        async with kit.engine(kit.whole(WHOLE)) as engine:
            sections = [engine.section(name="e0"), engine.section(name="e1")]
            state = {"url": redis_server.url, "timeout": 5.0}
            async with kit.running(kit.config(sections, state=state)) as one:
                limits = one.process._assembly.limits
                assert limits is not None
                await until(lambda: len(limits._claimed) == 2)
                one.process.apply(kit.config(sections[:1], state=state))
                await until(lambda: len(limits._claimed) == 1)

    go(run())


def test_one_that_cannot_listen_keeps_no_places(go: Go, kit: Kit, redis_server: RedisServer):
    async def run() -> None:
        async with kit.engine(kit.whole(WHOLE)) as engine:
            state = {"url": redis_server.url, "timeout": 5.0}
            settings = kit.config([engine.section(max_in_flight=6)], state=state)
            async with kit.running(settings) as one:
                taken = settings.server.model_copy(update={"port": one.port})
                other = Process(settings.model_copy(update={"server": taken}))
                assert await other.run() == 1
                limits = other._assembly.limits
                assert limits is not None
                assert not limits._task.runs
                await until(lambda: limit(one) == 6)

    go(run())
