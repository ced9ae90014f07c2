"""Endpoints whose answers become bad, in whole requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Gateway, Go, Kit

FINE = {"choices": [{"message": {"content": "a fine answer"}, "finish_reason": "stop"}]}
NAN = {"choices": [{"message": {"content": "!" * 64}, "finish_reason": "length"}]}
PROSE = {"choices": [{"message": {"content": "no JSON"}, "finish_reason": "stop"}]}


async def served_by(gateway: Gateway, kit: Kit, **members: Any) -> str:
    """Ask once, and wait until the answer has been looked at."""
    answer = await gateway.ask(kit.post(kit.chat(**members)))
    quality = gateway.process.experiments.quality
    assert quality is not None
    await kit.until(lambda: not quality.waiting)
    return answer.headers["x-forebay-endpoint"]


def test_an_endpoint_that_repeats_one_token_gets_nothing_more_for_a_while(go: Go, kit: Kit):
    async def main() -> None:
        one, two = kit.engine(kit.whole(NAN)), kit.engine(kit.whole(FINE))
        quality = {"share": 1.0, "out": 1.0}
        async with one, two:
            endpoints = [one.section("a"), two.section("b")]
            settings = kit.config(endpoints, pool={"quality": quality})
            async with kit.running(settings) as gateway:
                bad = gateway.pool.endpoints["a"]
                while bad.view.usable:
                    await served_by(gateway, kit)
                before = len(one.requests)
                assert before < 40
                after = [await gateway.ask(kit.post(kit.chat())) for _ in range(5)]
                assert {a.headers["x-forebay-endpoint"] for a in after} == {"b"}
                told = [e.why_out for e in gateway.process.snapshot().pools[0].endpoints]
                assert told == [f"bad answers: {before} of {before} answers are repeated", ""]
                await kit.until(lambda: bad.view.usable)
                assert gateway.process.snapshot().pools[0].endpoints[0].why_out == ""
                assert len(one.requests) == before
            told = [line for line in gateway.records.lines if "become bad" in line]
            assert len(told) == 1

    go(main())


def test_json_that_was_asked_for_is_looked_at(go: Go, kit: Kit):
    async def main() -> None:
        one, two = kit.engine(kit.whole(PROSE)), kit.engine(kit.whole(PROSE))
        async with one, two:
            endpoints = [one.section("a"), two.section("b")]
            settings = kit.config(endpoints, pool={"quality": {"share": 1.0}})
            async with kit.running(settings) as gateway:
                views = [e.view for e in gateway.pool.endpoints.values()]
                for _ in range(20):
                    await served_by(gateway, kit)
                assert all(view.usable for view in views)
                asked = {"response_format": {"type": "json_object"}}
                while all(view.usable for view in views):
                    await served_by(gateway, kit, **asked)
                # The other one is as bad, but somebody has to answer.
                for _ in range(30):
                    await served_by(gateway, kit, **asked)
                assert any(view.usable for view in views)

    go(main())


def test_streams_are_looked_at_too(go: Go, kit: Kit):
    async def repeats(peer: Peer, _request: bytes, _number: int) -> None:
        peer.send(kit.events_head() + kit.chunk(kit.delta(" the") * 40 + kit.done) + kit.chunk(b""))

    async def main() -> None:
        one, two = kit.engine(repeats), kit.engine(kit.whole(FINE))
        async with one, two:
            endpoints = [one.section("a"), two.section("b")]
            settings = kit.config(endpoints, pool={"quality": {"share": 1.0}})
            async with kit.running(settings) as gateway:
                while gateway.pool.endpoints["a"].view.usable:
                    await served_by(gateway, kit, stream=True)

    go(main())
