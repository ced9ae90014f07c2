"""Copies of requests to another arm, in whole requests."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Engine, Gateway, Go, Kit

    from forebay.policies.experiments.answers import ShadowTally

SAID = {"choices": [{"message": {"content": "one two three"}, "finish_reason": "stop"}]}
OTHER = {"choices": [{"message": {"content": "one two four"}, "finish_reason": "stop"}]}


def settings(kit: Kit, one: Engine, two: Engine, **shadow: Any) -> Any:
    section = {
        "name": "t",
        "pool": "p",
        "arms": {"now": ["a"], "next": ["b"]},
        "split": {"now": 1, "next": 0},
        "shadow": {"arm": "next", "share": 1.0, **shadow},
    }
    return kit.config([one.section("a"), two.section("b")], experiments=[section])


def tally(gateway: Gateway) -> ShadowTally:
    shadow = gateway.process.experiments.shadow
    keeper = gateway.process.experiments.keeper
    assert shadow is not None
    assert keeper is not None
    trial = keeper.live["t"].trial
    return shadow.tally(trial, 0)


def test_a_copy_is_sent_after_the_answer_and_compared(go: Go, kit: Kit):
    async def main() -> None:
        one, two = kit.engine(kit.whole(SAID)), kit.engine(kit.whole(OTHER))
        async with one, two, kit.running(settings(kit, one, two)) as gateway:
            answer = await gateway.ask(kit.post(kit.chat(temperature=0)))
            assert (answer.json, answer.headers["x-forebay-endpoint"]) == (SAID, "a")
            await kit.until(lambda: tally(gateway).copies == 1)
            counts = tally(gateway)
            assert (counts.exact, counts.same_finish, counts.first_differences) == (0, 1, {2: 1})
            assert json.loads(two.bodies[0]) == json.loads(one.bodies[0])
            assert len(gateway.outcomes) == 1
            keeper = gateway.process.experiments.keeper
            assert keeper is not None
            assert keeper.live["t"].whole().requests("next") == 0

    go(main())


def test_streams_are_compared_by_what_they_say(go: Go, kit: Kit):
    async def streams(peer: Peer, _request: bytes, _number: int) -> None:
        said = kit.delta("one ") + kit.delta("two three") + kit.done
        peer.send(kit.events_head() + kit.chunk(said) + kit.chunk(b""))

    async def main() -> None:
        one, two = kit.engine(streams), kit.engine(streams)
        async with one, two, kit.running(settings(kit, one, two)) as gateway:
            body = kit.chat(temperature=0, stream=True)
            await asyncio.gather(*(gateway.ask(kit.post(body)) for _ in range(3)))
            await kit.until(lambda: tally(gateway).copies == 3)
            assert tally(gateway).exact == 3

    go(main())


def test_a_copy_that_hangs_or_fails_is_nobody_elses_business(go: Go, kit: Kit):
    async def hangs(peer: Peer, _request: bytes, number: int) -> None:
        if number == 0:
            peer.send(kit.whole({}, status=500))
        else:
            await peer.gone()

    async def main() -> None:
        one, two = kit.engine(kit.whole(SAID)), kit.engine(hangs)
        async with one, two, kit.running(settings(kit, one, two, concurrent=2)) as gateway:
            for number in range(6):
                answer = await gateway.ask(kit.post(kit.chat(str(number), temperature=0)))
                assert answer.json == SAID
                await kit.until(lambda: len(two.requests) + tally(gateway).dropped > number)  # noqa: B023 - of this turn
            await kit.until(lambda: tally(gateway).failed == 1)
            assert (len(two.requests), tally(gateway).dropped) == (3, 3)
            view = gateway.pool.endpoints["b"].view
            assert (view.in_flight, view.usable) == (0, True)

    go(main())


def test_texts_are_compared_at_temperature_0_only(go: Go, kit: Kit):
    async def main() -> None:
        one, two = kit.engine(kit.whole(SAID)), kit.engine(kit.whole(OTHER))
        async with one, two, kit.running(settings(kit, one, two)) as gateway:
            await gateway.ask(kit.post(kit.chat(temperature=0.7)))
            await kit.until(lambda: tally(gateway).sampled == 1)
            assert tally(gateway).copies == 0

    go(main())


def test_a_temperature_that_no_float_holds_is_not_0(go: Go, kit: Kit):
    async def main() -> None:
        one, two = kit.engine(kit.whole(SAID)), kit.engine(kit.whole(OTHER))
        async with one, two, kit.running(settings(kit, one, two)) as gateway:
            body = json.dumps(kit.chat(temperature=0))[:-2].encode() + b"1e999}"
            assert (await gateway.ask(kit.post(body))).status == 200
            await kit.until(lambda: tally(gateway).sampled == 1)
            assert (await gateway.ask(kit.post(kit.chat(temperature=0)))).status == 200
            await kit.until(lambda: tally(gateway).copies == 1)

    go(main())


def test_texts_are_kept_only_where_the_configuration_says_so(go: Go, kit: Kit):
    async def main(*, keep: bool) -> int:
        one, two = kit.engine(kit.whole(SAID)), kit.engine(kit.whole(OTHER))
        async with one, two, kit.running(settings(kit, one, two, keep_bodies=keep)) as gateway:
            await gateway.ask(kit.post(kit.chat(temperature=0)))
            await kit.until(lambda: tally(gateway).copies == 1)
            (report,) = gateway.process.experiments.reports()
            assert report.shadow is not None
            return len(report.shadow["pairs"])  # type: ignore[arg-type] - a list

    assert go(main(keep=False)) == 0
    assert go(main(keep=True)) == 1
