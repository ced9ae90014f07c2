"""Pools that take what another cannot serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.keys import digest_of

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Engine, Go, Kit

FINE = {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}
EMPTY = {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}
NAN = {"choices": [{"message": {"content": "!" * 64}, "finish_reason": "length"}]}
TOO_LONG = {"error": {"message": "This model's maximum context length is 4096 tokens", "code": 400}}


def settings(kit: Kit, one: Engine, two: Engine, on: list[str], **rest: Any) -> Any:
    pools = [
        {
            "name": "p",
            "models": {"m": "m"},
            "endpoints": [one.section("a")],
            "fallback": [{"pool": "q", "on": on}],
        },
        {"name": "q", "models": {"big": "m"}, "endpoints": [two.section("b")]},
    ]
    return kit.config(pools=pools, **rest)


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [(EMPTY, 200, "bad_answer"), (NAN, 200, "bad_answer"), (TOO_LONG, 400, "too_long")],
    ids=["empty", "one token", "too long"],
)
def test_what_a_pool_cannot_serve_another_does(
    go: Go, kit: Kit, answer: object, status: int, reason: str
):
    async def main() -> None:
        one = kit.engine(kit.whole(answer, status=status))
        two = kit.engine(kit.whole(FINE))
        async with one, two, kit.running(settings(kit, one, two, [reason])) as gateway:
            got = await gateway.ask(kit.post(kit.chat()))
            assert (got.status, got.json) == (200, FINE)
            assert got.headers["x-forebay-moved"] == reason
            assert got.headers["x-forebay-pool"] == "q"
            (outcome,) = gateway.outcomes
            assert (outcome.pool, outcome.endpoint, outcome.model) == ("q", "b", "m")

    go(main())


def test_a_pool_without_healthy_endpoints_is_stood_in_for(go: Go, kit: Kit):
    async def main() -> None:
        one, two = kit.engine(kit.whole({}, status=500)), kit.engine(kit.whole(FINE))
        async with one, two, kit.running(settings(kit, one, two, ["unhealthy"])) as gateway:
            for _ in range(8):  # the breaker opens after five
                got = await gateway.ask(kit.post(kit.chat()))
                assert (got.status, got.headers["x-forebay-moved"]) == (200, "unhealthy")
            assert len(one.requests) == 5

    go(main())


def test_a_stream_without_a_token_is_answered_elsewhere(go: Go, kit: Kit):
    async def empty(peer: Peer, _request: bytes, _number: int) -> None:
        peer.send(kit.events_head() + kit.chunk(kit.delta("")) + kit.chunk(kit.done + b""))
        peer.send(kit.chunk(b""))

    async def full(peer: Peer, _request: bytes, _number: int) -> None:
        peer.send(kit.events_head() + kit.chunk(kit.delta("")) + kit.chunk(kit.delta("x")))
        peer.send(kit.chunk(kit.done) + kit.chunk(b""))

    async def main() -> None:
        one, two = kit.engine(empty), kit.engine(full)
        async with one, two, kit.running(settings(kit, one, two, ["bad_answer"])) as gateway:
            got = await gateway.ask(kit.post(kit.chat(stream=True)))
            assert got.body == kit.delta("") + kit.delta("x") + kit.done
            assert got.headers["x-forebay-moved"] == "bad_answer"

    go(main())


def test_where_all_answers_are_bad_the_last_one_is_given(go: Go, kit: Kit):
    async def main() -> None:
        one, two = kit.engine(kit.whole(EMPTY)), kit.engine(kit.whole(EMPTY))
        async with one, two, kit.running(settings(kit, one, two, ["bad_answer"])) as gateway:
            got = await gateway.ask(kit.post(kit.chat()))
            assert (got.status, got.json) == (200, EMPTY)
            assert (len(one.requests), len(two.requests)) == (1, 1)

    go(main())


def test_two_pools_that_fall_back_on_each_other_make_no_loop(go: Go, kit: Kit):
    async def main() -> None:
        one, two = kit.engine(kit.whole({}, status=500)), kit.engine(kit.whole({}, status=500))
        async with one, two:
            config = settings(kit, one, two, ["unhealthy"])
            back = config.pools[0].fallback[0].model_copy(update={"pool": "p"})
            second = config.pools[1].model_copy(update={"fallback": (back,)})
            config = config.model_copy(update={"pools": (config.pools[0], second)})
            async with kit.running(config) as gateway:
                got = await gateway.ask(kit.post(kit.chat()))
                assert got.status == 502
                assert (len(one.requests), len(two.requests)) == (1, 1)

    go(main())


def test_only_a_tenant_that_consents_is_answered_by_another_pool(go: Go, kit: Kit):
    async def main() -> None:
        one, two = kit.engine(kit.whole({}, status=500)), kit.engine(kit.whole(FINE))
        tenants = [
            {"name": name, "keys": [digest_of(f"{name} key")], "fallback": consents}
            for name, consents in (("yes", True), ("no", False))
        ]
        async with one, two:
            config = settings(kit, one, two, ["unhealthy"], tenants=tenants)
            async with kit.running(config) as gateway:
                told = {
                    name: await gateway.ask(
                        kit.post(kit.chat(), headers=f"authorization: Bearer {name} key\r\n")
                    )
                    for name in ("yes", "no")
                }
                assert {name: a.status for name, a in told.items()} == {"yes": 200, "no": 502}

    go(main())
