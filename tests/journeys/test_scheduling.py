"""Who goes next, in whole requests: classes, guards, watermarks, windows, journals, reloads."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from forebay.policies.contracts import Finish
from forebay.scheduler.build import check_journal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Peer
    from tests.journeys.conftest import Answer, Caller, Gateway, Go, Kit

SLA = {"slow": {"weight": 1}, "fast": {"weight": 8}}
STALL = {"fault": "stall"}


def in_class(kit: Kit, name: str, **members: Any) -> bytes:
    return kit.post(kit.chat(**members), headers=f"x-forebay-sla: {name}\r\n")


async def occupied(gateway: Gateway, kit: Kit, data: bytes) -> Caller:
    """Send a request and let it take its place."""
    caller = await gateway.caller()
    before = gateway.pool.dispatcher.in_flight
    caller.send(data)
    await kit.until(lambda: gateway.pool.dispatcher.in_flight > before)
    return caller


async def queued(gateway: Gateway, kit: Kit, data: bytes) -> Caller:
    """Send a request and let it wait."""
    caller = await gateway.caller()
    before = gateway.pool.dispatcher.queued
    caller.send(data)
    await kit.until(lambda: gateway.pool.dispatcher.queued > before)
    return caller


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["code"]


def test_a_higher_class_takes_the_place_of_a_stream_without_a_byte(go: Go, kit: Kit):
    async def script(peer: Peer, request: bytes, number: int) -> bool:
        if number == 0:  # the lower class's first try: nothing ever comes of it
            await peer.gone()
            return False
        if b'"stream": true' in request:
            events = kit.chunk(kit.delta("late")) + kit.chunk(kit.done) + kit.chunk(b"")
            peer.send(kit.events_head() + events)
        else:
            peer.send(kit.whole({"id": "fast"}))
        return True

    async def main() -> None:
        async with kit.engine(script) as engine:
            settings = kit.config([engine.section(max_in_flight=1)], sla=SLA)
            async with kit.running(settings) as gateway:
                low = await occupied(gateway, kit, in_class(kit, "slow", stream=True))
                await kit.until(lambda: len(engine.requests) == 1)
                fast = await gateway.ask(in_class(kit, "fast"))
                slow = await low.answer()
                low.leave()
                assert (fast.json, slow.status) == ({"id": "fast"}, 200)
                assert b"late" in slow.body
                assert gateway.pool.dispatcher.recalls == 1
            told = [(o.sla, o.finish, o.attempts) for o in gateway.outcomes]
            assert told == [("fast", Finish.COMPLETED, 1), ("slow", Finish.COMPLETED, 1)]

    go(main())


def test_a_stream_that_has_begun_is_not_called_back(go: Go, kit: Kit):
    async def script(peer: Peer, _request: bytes, _number: int) -> bool:
        peer.send(kit.events_head() + kit.chunk(kit.delta("begun")))
        await peer.gone()
        return False

    async def main() -> None:
        async with kit.engine(script) as engine:
            settings = kit.config([engine.section(max_in_flight=1)], sla=SLA)
            async with kit.running(settings) as gateway:
                low = await occupied(gateway, kit, in_class(kit, "slow", stream=True))
                await low.head()
                assert b"begun" in await low.chunk()
                fast = await queued(gateway, kit, in_class(kit, "fast"))
                assert gateway.pool.dispatcher.recalls == 0
                fast.leave()
                low.leave()

    go(main())


def test_a_full_queue_gives_a_lower_classs_place_to_a_higher_one(go: Go, kit: Kit):
    async def main() -> None:
        pool = {"queue": {"max_requests": 1}}
        settings = kit.config([kit.sim(max_in_flight=1)], sla=SLA, pool=pool)
        async with kit.running(settings) as gateway:
            first = await occupied(gateway, kit, in_class(kit, "slow", sim=STALL))
            low = await queued(gateway, kit, in_class(kit, "slow"))
            high = await gateway.caller()
            high.send(in_class(kit, "fast"))
            answer = await low.answer()
            assert refused(answer) == (429, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
            first.leave()
            assert (await high.answer()).status == 200
            low.leave()
            high.leave()

    go(main())


def test_what_cannot_start_in_its_longest_wait_is_refused(go: Go, kit: Kit):
    async def main() -> None:
        pool = {"scheduling": {"guards": {"longest_wait": "50ms"}}}
        settings = kit.config([kit.sim(max_in_flight=1)], pool=pool)
        async with kit.running(settings) as gateway:
            first = await occupied(gateway, kit, kit.post(kit.chat(sim=STALL)))
            assert refused(await gateway.ask(kit.post(kit.chat()))) == (429, "longest_wait")
            assert gateway.pool.dispatcher.gave_up == 1
            first.leave()

    go(main())


def test_watermarks_refuse_long_prompts_and_then_everything(go: Go, kit: Kit):
    marks = [{"at": 0.6, "max_prompt": 100}, {"at": 0.9, "admit": False}]
    pool = {"scheduling": {"watermarks": {"marks": marks, "stale_as": 0.7, "stale_after": "1ms"}}}

    async def main() -> None:
        async with kit.running(kit.config(pool=pool)) as gateway:
            long = await gateway.ask(kit.post(kit.chat("x" * 1000)))
            assert refused(long) == (429, "watermark")
            assert (await gateway.ask(kit.post(kit.chat()))).status == 200
            for view in gateway.pool.dispatcher.endpoints.values():
                view.kv_use, view.load_at = 0.95, 1e12
            gateway.pool.wake(0.0)
            assert refused(await gateway.ask(kit.post(kit.chat()))) == (429, "watermark")

    go(main())


def test_an_automatic_limit_grows_while_its_requests_are_quick(go: Go, kit: Kit):
    async def ask(gateway: Gateway, kit: Kit) -> None:
        for _ in range(3):
            answer = await gateway.ask(kit.post(kit.chat(stream=True, max_tokens=2)))
            assert answer.status == 200

    async def main() -> None:
        pool = {"scheduling": {"window": {"ttft": "30s", "tpot": "30s", "most": 32}}}
        endpoint = {**kit.sim(profile="demo"), "max_in_flight": "auto"}
        async with kit.running(kit.config([endpoint], pool=pool)) as gateway:
            view = gateway.pool.dispatcher.endpoints["e0"]
            assert view.limit == 8
            await asyncio.gather(*(ask(gateway, kit) for _ in range(40)))
            found = view.limit
            assert 8 < found <= 32
            gateway.process.apply(kit.config([endpoint], pool=pool))
            assert gateway.pool.dispatcher.endpoints["e0"].limit == found

    go(main())


def test_engines_are_told_the_rank_of_a_class_in_their_own_sign(go: Go, kit: Kit):
    async def priorities(kind: str, *, told: bool) -> list[object]:
        async with kit.engine(kit.whole({"id": "x"}), kind=kind) as engine:
            pool = {"scheduling": {"engine_priority": told}}
            async with kit.running(kit.config([engine.section()], sla=SLA, pool=pool)) as gateway:
                for name in ("slow", "fast"):
                    assert (await gateway.ask(in_class(kit, name))).status == 200
            return [json.loads(body).get("priority") for body in engine.bodies]

    async def main() -> None:
        assert await priorities("vllm", told=True) == [-1, -2]
        assert await priorities("sglang", told=True) == [1, 2]
        assert await priorities("vllm", told=False) == [None, None]

    go(main())


def test_the_journal_of_a_live_run_decides_the_same_again(go: Go, kit: Kit, tmp_path: Path):
    async def ask(gateway: Gateway, kit: Kit, number: int) -> None:
        name = "fast" if number % 3 else "slow"
        answer = await gateway.ask(in_class(kit, name, stream=bool(number % 2), max_tokens=2))
        assert answer.status == 200

    async def main() -> None:
        scheduling = {"journal": str(tmp_path / "journal"), "predictor": "mean"}
        pool = {"scheduling": scheduling, "order": "ml"}
        endpoints = [
            kit.sim("e0", max_in_flight=4, profile="demo"),
            kit.sim("e1", max_in_flight=8, profile="demo"),
        ]
        async with kit.running(kit.config(endpoints, sla=SLA, pool=pool)) as gateway:
            await asyncio.gather(*(ask(gateway, kit, number) for number in range(200)))
            gateway.pool.tick(1e9)

    go(main())
    lines = (tmp_path / "journal").read_bytes().splitlines(keepends=True)
    placed = [line for line in lines if line.startswith(b'["out","submitted",["')]
    assert list(check_journal(lines)) == []
    assert len([line for line in lines if b'"submit"' in line]) == 200 > len(placed)


def test_a_reload_takes_what_waits_into_the_new_order(go: Go, kit: Kit):
    async def main() -> None:
        endpoints = [kit.sim(max_in_flight=1)]
        async with kit.running(kit.config(endpoints, pool={"order": "fcfs"})) as gateway:
            first = await occupied(gateway, kit, kit.post(kit.chat(sim=STALL)))
            long = await queued(gateway, kit, kit.post(kit.chat("x" * 4000)))
            short = await queued(gateway, kit, kit.post(kit.chat()))
            gateway.process.apply(kit.config(endpoints, pool={"order": "sjf"}))
            assert (gateway.pool.dispatcher.queued, gateway.pool.dispatcher.in_flight) == (2, 1)
            first.leave()
            for caller in (short, long):
                assert (await caller.answer()).status == 200
                caller.leave()
            sizes = [o.bytes_in for o in gateway.outcomes[1:]]
            assert sizes == sorted(sizes)

    go(main())


def test_long_requests_go_to_a_slower_pool_while_it_can_take_them(go: Go, kit: Kit):
    long = {"scheduling": {"long_pool": {"pool": "slow", "tokens": 2000}}}
    fast = {"name": "fast", "models": {"m": "m"}, "endpoints": [kit.sim("f")], **long}
    slow = {"name": "slow", "models": {"s": "m"}, "endpoints": [kit.sim("s")]}

    async def main() -> None:
        async with kit.running(kit.config(pools=[fast, slow])) as gateway:
            for size in (10, 10_000):
                answer = await gateway.ask(kit.post(kit.chat("x" * size)))
                assert answer.status == 200
            gateway.process.app.pools["slow"].endpoints["s"].view.usable = False
            await gateway.ask(kit.post(kit.chat("x" * 10_000)))
            told = [(o.pool, o.endpoint, o.model) for o in gateway.outcomes]
            assert told == [("fast", "f", "m"), ("slow", "s", "m"), ("fast", "f", "m")]

    go(main())


def test_a_long_request_that_waits_elsewhere_outlives_a_reload_unless_its_model_goes(
    go: Go, kit: Kit
):
    def config(models: dict[str, str], *, sends: bool = True, serves: str = "m") -> Any:
        long = {"scheduling": {"long_pool": {"pool": "slow", "tokens": 2000}}} if sends else {}
        fast = {"name": "fast", "models": models, "endpoints": [kit.sim("f")], **long}
        endpoints = [kit.sim("s", max_in_flight=1)]
        slow = {"name": "slow", "models": {"s": serves}, "endpoints": endpoints}
        return kit.config(pools=[fast, slow])

    async def main() -> None:
        async with kit.running(config({"m": "m"})) as gateway:
            core = gateway.process.app.pools["slow"].dispatcher
            stalled, waiting = await gateway.caller(), await gateway.caller()
            for number, caller in enumerate((stalled, waiting)):
                caller.send(kit.post(kit.chat("x" * 10_000, sim=STALL)))
                await kit.until(lambda n=number: core.in_flight + core.queued == n + 1)
            gateway.process.apply(config({"m": "m", "n": "n"}))
            assert core.queued == 1
            gateway.process.apply(config({"m": "m"}, sends=False))
            assert core.queued == 1
            gateway.process.apply(config({"m": "m"}, serves="other"))
            assert refused(await waiting.answer()) == (404, "model_not_found")
            stalled.leave()
            waiting.leave()

    go(main())


def test_a_journal_on_a_full_disk_ends_and_stops_nobody(go: Go, kit: Kit):
    async def run() -> None:
        pool = {"order": "ml", "scheduling": {"journal": "/dev/full"}}
        async with kit.running(kit.config([kit.sim()], pool=pool)) as gateway:
            for _ in range(2):
                assert (await gateway.ask(kit.post(kit.chat()))).status == 200
                gateway.pool.arrangement.flush()
            told = [json.loads(line)["event"] for line in gateway.records.lines]
            assert told.count("the journal is no longer written") == 1

    go(run())
