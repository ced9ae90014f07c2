"""Experiments in whole requests: split, sticky, measured, rolled back, promoted, kept."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from forebay.policies.contracts import Finish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Peer, RedisServer
    from tests.journeys.conftest import Answer, Gateway, Go, Kit

    from forebay.gateway.experiment_live import Live


def trial(**rest: Any) -> list[dict[str, Any]]:
    """Make one experiment between the endpoints `a` and `b`."""
    section = {"name": "t", "pool": "p", "arms": {"one": ["a"], "two": ["b"]}, "warmup": 0.0}
    return [{**section, **rest}]


def live(gateway: Gateway) -> Live:
    keeper = gateway.process.experiments.keeper
    assert keeper is not None
    return keeper.live["t"]


def audits(gateway: Gateway) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in gateway.records.lines]
    return [line for line in lines if line["event"] == "experiment decision"]


async def ask(gateway: Gateway, kit: Kit, number: object = 0, **members: Any) -> Answer:
    return await gateway.ask(kit.post(kit.chat(f"question {number}", **members)))


def arm(answer: Answer) -> tuple[str, str]:
    return answer.headers["x-forebay-arm"], answer.headers["x-forebay-endpoint"]


def test_requests_are_split_and_each_arm_has_its_endpoints(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config([kit.sim("a"), kit.sim("b"), kit.sim("c")], experiments=trial())
        async with kit.running(settings) as gateway:
            answers = await asyncio.gather(*(ask(gateway, kit, n) for n in range(200)))
            assert {a.status for a in answers} == {200}
            found = Counter(arm(a) for a in answers)
            assert set(found) == {("t/one", "a"), ("t/two", "b")}
            assert 60 < found["t/two", "b"] < 140
            assert {(o.experiment, o.arm, o.endpoint) for o in gateway.outcomes} == {
                ("t", "one", "a"),
                ("t", "two", "b"),
            }
            await kit.until(
                lambda: live(gateway).counts("0.0").requests("two") == found["t/two", "b"]
            )

    go(main())


def test_a_session_stays_at_its_arm(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config([kit.sim("a"), kit.sim("b")], experiments=trial(sticky="session"))
        async with kit.running(settings) as gateway:
            found = set[tuple[int, str]]()
            for number in range(60):
                headers = f"x-forebay-session: {number % 6}\r\n"
                answer = await gateway.ask(kit.post(kit.chat(), headers=headers))
                found.add((number % 6, answer.headers["x-forebay-arm"]))
            assert len(found) == 6

    go(main())


def test_who_is_not_eligible_never_meets_a_candidate(go: Go, kit: Kit):
    async def main() -> None:
        only = {"sla": ["fast"]}
        settings = kit.config(
            [kit.sim("a"), kit.sim("b")],
            experiments=trial(eligible=only),
            sla={"fast": {}, "slow": {}},
        )
        async with kit.running(settings) as gateway:
            for number in range(30):
                slow = kit.post(kit.chat(str(number)), headers="x-forebay-sla: slow\r\n")
                answer = await gateway.ask(slow)
                assert answer.headers["x-forebay-endpoint"] == "a"
                assert "x-forebay-arm" not in answer.headers
            fast = [
                await gateway.ask(kit.post(kit.chat(str(n)), headers="x-forebay-sla: fast\r\n"))
                for n in range(30)
            ]
            assert {a.headers["x-forebay-arm"] for a in fast} == {"t/one", "t/two"}
            await kit.until(lambda: live(gateway).whole().whole("one").requests > 0)
            (report,) = gateway.process.experiments.reports()
            assert {row.sla for each in report.arms for row in each.classes} <= {"fast"}

    go(main())


def test_a_candidate_that_fails_is_rolled_back_and_nobody_notices(go: Go, kit: Kit):
    async def main() -> None:
        bad = kit.sim("b", fault="error500")
        pool = {"health": {"interval": 3600.0, "breaker_fails": 1000}}
        settings = kit.config([kit.sim("a"), bad], experiments=trial(), pool=pool)
        async with kit.running(settings) as gateway:
            arms = Counter[str]()
            for number in range(80):
                answer = await ask(gateway, kit, number)
                assert answer.status == 200
                assert answer.headers["x-forebay-endpoint"] == "a"
                arms[answer.headers["x-forebay-arm"]] += 1
            assert arms["t/two"] <= 20
            (told,) = audits(gateway)
            assert (told["action"], told["who"], told["arm"]) == ("roll back", "forebay", "two")
            assert told["reason"].startswith("errors: ")
            assert live(gateway).state.phase == "rolled_back"
            assert {why for _, why in gateway.spy.moves} == {"unhealthy"}

    go(main())


def test_a_slow_candidate_is_rolled_back_by_its_times(go: Go, kit: Kit):
    async def main() -> None:
        slow = {"name": "b", "engine": "sim", "sim": {"profile": "demo"}}
        settings = kit.config([kit.sim("a"), slow], experiments=trial())
        async with kit.running(settings) as gateway:
            for first in range(0, 400, 40):
                turns = (ask(gateway, kit, first + n, stream=True, max_tokens=4) for n in range(40))
                await asyncio.gather(*turns)
                if live(gateway).state.out:
                    break
            await kit.until(lambda: live(gateway).state.phase == "rolled_back")
            (told,) = audits(gateway)
            assert told["reason"].partition(":")[0] in {"ttft", "tpot"}
            after = [await ask(gateway, kit, n) for n in range(20)]
            assert {arm(a) for a in after} == {("t/one", "a")}

    go(main())


def test_what_the_control_cannot_serve_a_candidate_does(go: Go, kit: Kit):
    async def main() -> None:
        endpoints = [kit.sim("a", fault="error500"), kit.sim("b")]
        settings = kit.config(endpoints, experiments=trial(split={"one": 1, "two": 0}))
        async with kit.running(settings) as gateway:
            answer = await ask(gateway, kit)
            told = (answer.status, *arm(answer), answer.headers["x-forebay-moved"])
            assert told == (200, "t/one", "b", "unhealthy")
            await kit.until(lambda: live(gateway).whole().whole("one").errors == 1)

    go(main())


def test_an_arm_may_be_another_pool(go: Go, kit: Kit):
    async def main() -> None:
        pools = [
            {"name": "p", "models": {"m": "m"}, "endpoints": [kit.sim("a")]},
            {"name": "q", "models": {"m8": "m-fp8"}, "endpoints": [kit.sim("b")]},
        ]
        arms = {"full": {"pool": "p"}, "fp8": {"pool": "q"}}
        settings = kit.config(pools=pools, experiments=trial(arms=arms))
        async with kit.running(settings) as gateway:
            answers = [await ask(gateway, kit, n) for n in range(40)]
            found = {(*arm(a), a.headers["x-forebay-pool"], a.json["model"]) for a in answers}
            assert found == {("t/full", "a", "p", "m"), ("t/fp8", "b", "q", "m-fp8")}
            assert {o.model for o in gateway.outcomes} == {"m"}

    go(main())


def test_a_response_stored_in_an_arms_pool_is_found_and_continued_there(go: Go, kit: Kit):
    async def main() -> None:
        pools = [
            {"name": "p", "models": {"m": "m"}, "endpoints": [kit.sim("a")]},
            {"name": "q", "models": {"m8": "m-fp8"}, "endpoints": [kit.sim("b"), kit.sim("c")]},
        ]
        arms = {"full": {"pool": "p"}, "fp8": {"pool": "q"}}
        settings = kit.config(pools=pools, experiments=trial(arms=arms))
        async with kit.running(settings) as gateway:
            asked = {"model": "m", "input": "hi", "max_output_tokens": 4}
            made = [await gateway.ask(kit.post(asked, "/v1/responses")) for _ in range(30)]
            assert {arm(a)[0] for a in made} == {"t/full", "t/fp8"}
            assert {arm(a)[1] for a in made} == {"a", "b", "c"}
            await gateway.process.operations.decide("t", "roll back", arm="", who="ops")
            for answer in made:
                name, endpoint = answer.json["id"], answer.headers["x-forebay-endpoint"]
                found = await gateway.ask(kit.get(f"/v1/responses/{name}"))
                more = await gateway.ask(
                    kit.post({**asked, "previous_response_id": name}, "/v1/responses")
                )
                later = await gateway.ask(kit.get(f"/v1/responses/{more.json['id']}"))
                gone = await gateway.ask(kit.get(f"/v1/responses/{name}", method="DELETE"))
                for each in (found, more, later, gone):
                    assert (each.status, each.headers["x-forebay-endpoint"]) == (200, endpoint)
                    assert "x-forebay-arm" not in each.headers
                assert (found.json["id"], more.json["model"]) == (name, answer.json["model"])

    go(main())


def test_a_stored_response_is_gone_with_its_pool(go: Go, kit: Kit):
    async def main() -> None:
        home = {"name": "p", "models": {"m": "m"}, "endpoints": [kit.sim("a")]}
        other = {"name": "q", "models": {"m8": "m-fp8"}, "endpoints": [kit.sim("b")]}
        arms = {"full": {"pool": "p"}, "fp8": {"pool": "q"}}
        experiments = trial(arms=arms, split={"full": 0, "fp8": 1})
        settings = kit.config(pools=[home, other], experiments=experiments)
        async with kit.running(settings) as gateway:
            asked = {"model": "m", "input": "hi", "max_output_tokens": 4}
            name = (await gateway.ask(kit.post(asked, "/v1/responses"))).json["id"]
            gateway.process.apply(kit.config(pools=[home]))
            more = kit.post({**asked, "previous_response_id": name}, "/v1/responses")
            for request in (kit.get(f"/v1/responses/{name}"), more):
                answer = await gateway.ask(request)
                told = (answer.status, answer.json["error"]["code"])
                assert told == (404, "response_not_found")

    go(main())


def test_what_waits_in_an_arm_that_is_rolled_back_goes_to_the_control(go: Go, kit: Kit):
    async def hangs(peer: Peer, _request: bytes, _number: int) -> None:
        await peer.gone()

    async def main() -> None:
        async with kit.engine(hangs) as engine:
            endpoints = [kit.sim("a"), engine.section("b", max_in_flight=2)]
            split = {"one": 0, "two": 1}
            settings = kit.config(endpoints, experiments=trial(split=split))
            async with kit.running(settings) as gateway:
                asked = [
                    asyncio.create_task(ask(gateway, kit, n, stream=bool(n % 2))) for n in range(8)
                ]
                await kit.until(lambda: gateway.pool.dispatcher.queued == 6)
                for _ in range(5):
                    endpoint = gateway.pool.endpoints["b"]
                    change = endpoint.health.request_failed(gateway.app.now(), "it hangs")
                    if change is not None:
                        gateway.pool.upkeep.moved(endpoint, change, gateway.app.now())
                answers = await asyncio.gather(*asked)
                assert {(a.status, a.headers["x-forebay-moved"]) for a in answers} == {
                    (200, "rolled_back")
                }
                assert live(gateway).state.phase == "rolled_back"

    go(main())


def test_a_stream_without_a_byte_for_too_long_counts_as_failed_and_moves(go: Go, kit: Kit):
    async def hangs(peer: Peer, _request: bytes, _number: int) -> None:
        await peer.gone()

    async def main() -> None:
        async with kit.engine(hangs) as engine:
            endpoints = [kit.sim("a"), engine.section("b")]
            experiments = trial(split={"one": 0, "two": 1}, stall=0.2)
            settings = kit.config(endpoints, experiments=experiments)
            async with kit.running(settings) as gateway:
                answer = await ask(gateway, kit, stream=True)
                assert (answer.status, answer.headers["x-forebay-moved"]) == (200, "stalled")
                assert answer.body.endswith(b"data: [DONE]\n\n")
                whole = live(gateway).whole()
                assert (whole.requests("two"), whole.whole("two").errors) == (1, 1)

    go(main())


def test_a_ramp_goes_on_and_is_kept_over_a_restart(go: Go, kit: Kit, tmp_path: Path):
    ramp = {"stages": [0.2, 0.5], "dwell": 0.0, "min_requests": 5}

    async def main() -> None:
        settings = kit.config(
            [kit.sim("a"), kit.sim("b")],
            experiments=trial(ramp=ramp),
            state={"experiments": str(tmp_path / "kept")},
        )
        async with kit.running(settings) as gateway:
            for first in range(0, 400, 50):
                await asyncio.gather(*(ask(gateway, kit, first + n) for n in range(50)))
                if live(gateway).state.stage:
                    break
            await kit.until(lambda: live(gateway).state.stage == 1)
            before = live(gateway).whole().requests("one")
        async with kit.running(settings) as gateway:
            state = live(gateway).state
            assert (state.stage, state.phase, state.log[0].what) == (1, "running", "advance")
            assert live(gateway).whole().requests("one") >= before

    go(main())


def test_callers_that_leave_and_engines_that_cut_are_told_apart(go: Go, kit: Kit):
    async def cut(peer: Peer, _request: bytes, _number: int) -> bool:
        peer.send(kit.events_head() + kit.chunk(kit.delta("x")))
        await peer.drain()
        return False

    async def main() -> None:
        async with kit.engine(cut) as engine:
            endpoints = [kit.sim("a"), engine.section("b")]
            settings = kit.config(endpoints, experiments=trial(split={"one": 0, "two": 1}))
            async with kit.running(settings) as gateway:
                await ask(gateway, kit, stream=True)
                assert [o.finish for o in gateway.outcomes] == [Finish.TRUNCATED]
                await kit.until(lambda: live(gateway).whole().whole("two").errors == 1)

    go(main())


def shared(kit: Kit, server: RedisServer, **rest: Any) -> Any:
    """Make the configuration of a replica; the experiment's name keeps tests apart."""
    bad = kit.sim("b", fault="error500")
    pool = {"health": {"interval": 3600.0, "breaker_fails": 1000}}
    name = f"t{uuid4().hex[:8]}"
    return kit.config(
        [kit.sim("a"), bad],
        experiments=trial(name=name, **rest),
        pool=pool,
        state={"url": server.url, "timeout": 1.0},
    )


def only(gateway: Gateway) -> Live:
    keeper = gateway.process.experiments.keeper
    assert keeper is not None
    (found,) = keeper.live.values()
    return found


def test_replicas_count_together_and_one_decides_for_all(
    go: Go, kit: Kit, redis_server: RedisServer
):
    async def main() -> None:
        settings = shared(kit, redis_server)
        async with kit.running(settings) as one, kit.running(settings) as two:
            while not (only(one).state.out and only(two).state.out):
                answers = await asyncio.gather(*(ask(g, kit, n) for g in (one, two) for n in "12"))
                assert {a.status for a in answers} == {200}
            assert only(one).state == only(two).state
            state = only(one).state
            assert (state.phase, state.version) == ("rolled_back", 1)
            (decision,) = state.log
            assert (decision.what, decision.who, decision.arm) == ("roll back", "forebay", "two")

    go(main())


def test_what_a_person_decides_at_one_replica_holds_at_all_and_after_a_restart(
    go: Go, kit: Kit, redis_server: RedisServer
):
    async def main() -> None:
        settings = shared(kit, redis_server, split={"one": 1, "two": 0})
        async with kit.running(settings) as one, kit.running(settings) as two:
            operations = one.process.operations
            name = only(one).trial.name
            report = await operations.decide(name, "roll back", arm="", who="ops")
            assert report.phase == "rolled_back"
            await kit.until(lambda: only(two).state.phase == "rolled_back")
        async with kit.running(settings) as three:
            assert only(three).state.log[-1].who == "ops"

    go(main())


def test_without_redis_replicas_go_on_with_what_they_know(
    go: Go, kit: Kit, redis_servers: Callable[..., RedisServer]
):
    async def main() -> None:
        server = redis_servers()
        settings = shared(kit, server)
        async with kit.running(settings) as gateway:
            await kit.until(lambda: only(gateway).state.since > 0)
            server.stop()
            await kit.until(lambda: gateway.process.experiments.away)
            for number in range(40):
                answer = await ask(gateway, kit, number)
                assert answer.status == 200
            # It cannot decide for all, but sends nothing more to what fails outright here.
            weights = dict(only(gateway).trial.weights)
            assert weights["two"] == 0

    go(main())


@pytest.mark.parametrize("first", ["bad answers", "rollback"])
def test_a_control_with_bad_answers_goes_on_where_the_candidate_is_gone(
    go: Go, kit: Kit, first: str
):
    async def main() -> None:
        pool = {"quality": {"share": 1.0, "out": 3600.0}}
        endpoints = [kit.sim("a", fault="empty"), kit.sim("b")]
        settings = kit.config(endpoints, experiments=trial(), pool=pool)
        async with kit.running(settings) as gateway:
            quality, keeper = (
                gateway.process.experiments.quality,
                gateway.process.experiments.keeper,
            )
            assert quality is not None
            assert keeper is not None
            if first == "rollback":
                await keeper.decide("t", "roll back", arm="", who="ops")
            for number in range(40):
                assert (await ask(gateway, kit, number)).status == 200
                await kit.until(lambda: not quality.waiting)
            if first == "bad answers":
                assert not gateway.pool.endpoints["a"].view.usable
                await keeper.decide("t", "roll back", arm="", who="ops")
            answer = await ask(gateway, kit)
            assert (answer.status, answer.headers["x-forebay-endpoint"]) == (200, "a")

    go(main())


def test_an_endpoint_of_no_arm_stands_in_for_the_control_after_a_rollback(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config([kit.sim("a"), kit.sim("b"), kit.sim("c")], experiments=trial())
        async with kit.running(settings) as gateway:
            keeper = gateway.process.experiments.keeper
            assert keeper is not None
            await keeper.decide("t", "roll back", arm="", who="ops")
            control = gateway.pool.endpoints["a"]
            control.health.suspect = "it babbles"
            gateway.pool.upkeep.refresh(control, 0.0)
            for number in range(10):
                answer = await ask(gateway, kit, number)
                assert (answer.status, answer.headers["x-forebay-endpoint"]) == (200, "c")

    go(main())
