"""Tenants and SLA classes in whole requests: nobody passes for, sees or delays somebody else."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.keys import digest_of
from forebay.policies.contracts import Finish

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Answer, Gateway, Go, Kit

ACME, OTHER = "fb_a_" + "a" * 43, "fb_b_" + "b" * 43
SLA: dict[str, Any] = {
    "fast": {"ttft": "500ms", "tpot": "50ms", "deadline": "5s", "longest_wait": "2s", "weight": 8},
    "slow": {"deadline": "30m"},
    "idle": {},
}
TENANTS: list[dict[str, Any]] = [
    {"name": "acme", "keys": [digest_of(ACME)], "sla": "fast", "weight": 4},
    {
        "name": "other",
        "keys": [digest_of(OTHER)],
        "sla": "slow",
        "limits": {"sla": ["slow", "idle"]},
    },
]

NEVER = {"interval": 3600.0, "load_interval": 3600.0, "timeout": 0.01}


def bearer(key: str) -> str:
    return f"authorization: Bearer {key}\r\n"


async def ask(gateway: Gateway, kit: Kit, headers: str) -> Answer:
    return await gateway.ask(kit.post(kit.chat(), headers=headers))


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["code"]


# -- who calls -------------------------------------------------------------------------------------

SPOOFS = (
    "x-forebay-tenant: other",
    "x-tenant: other",
    "x-tenant-id: other",
    "x-forwarded-user: other",
    "x-forwarded-tenant: other",
    "x-forwarded-for: 127.0.0.1",
    "forwarded: for=127.0.0.1;by=other",
    "x-real-ip: 127.0.0.1",
    "openai-organization: other",
    "openai-project: other",
    "x-consumer-username: other",
    "x-forebay-weight: 1000",
    "x-forebay-priority: 1000",
    "x-forebay-deadline: 1",
    "x-forebay-pool: q",
    "x-forebay-session: other",
    f"x-api-key: {OTHER}",
    f"cookie: key={OTHER}",
)


def test_no_header_but_the_key_says_who_calls(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config(sla=SLA, tenants=TENANTS)) as gateway:
            for spoof in SPOOFS:
                assert (await ask(gateway, kit, bearer(ACME) + spoof + "\r\n")).status == 200
                outcome = gateway.outcomes[-1]
                assert (outcome.tenant, outcome.sla, outcome.pool) == ("acme", "fast", "p"), spoof
                named = spoof.replace(OTHER, "other") + "\r\n"
                assert refused(await ask(gateway, kit, named)) == (401, "invalid_api_key"), spoof

    go(main())


def test_what_callers_say_of_themselves_does_not_reach_an_engine(go: Go, kit: Kit):
    async def script(peer: Peer, _request: bytes, _number: int) -> None:
        peer.send(kit.whole({"choices": [], "usage": {}}))

    async def main() -> None:
        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], sla=SLA, tenants=TENANTS)
            async with kit.running(settings) as gateway:
                for spoof in (*SPOOFS, "x-forebay-sla: fast"):
                    assert (await ask(gateway, kit, bearer(ACME) + spoof + "\r\n")).status == 200
            for request in engine.requests:
                head = request.partition(b"\r\n\r\n")[0].lower()
                names = {line.partition(b":")[0] for line in head.split(b"\r\n")[1:]}
                spoofed = {spoof.partition(":")[0].encode() for spoof in SPOOFS}
                assert not names & (spoofed | {b"x-forebay-sla", b"authorization"})

    go(main())


def test_of_two_keys_the_bearer_counts_whatever_the_other_may(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config(tenants=TENANTS, sla=SLA)) as gateway:
            both = bearer(ACME) + f"x-api-key: {OTHER}\r\n"
            twice = bearer(ACME) + bearer(OTHER)
            assert (await ask(gateway, kit, both)).status == 200
            assert gateway.outcomes[-1].tenant == "acme"
            assert refused(await ask(gateway, kit, twice)) == (400, "invalid_request")
            wrong = bearer("wrong") + f"x-api-key: {OTHER}\r\n"
            assert refused(await ask(gateway, kit, wrong)) == (401, "invalid_api_key")

    go(main())


def test_requests_of_two_tenants_on_one_connection_stay_apart(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config(tenants=TENANTS, sla=SLA)) as gateway:
            async with await gateway.caller() as caller:
                for key in (ACME, OTHER, ACME, "wrong", OTHER):
                    caller.send(kit.post(kit.chat(), headers=bearer(key)))
                statuses = [(await caller.answer()).status for _ in range(5)]
            assert statuses == [200, 200, 200, 401, 200]
            assert [o.tenant for o in gateway.outcomes if o.tenant] == [
                "acme",
                "other",
                "acme",
                "other",
            ]

    go(main())


# -- keys that end ---------------------------------------------------------------------------------


def test_a_key_ends_even_where_its_head_is_known(go: Go, kit: Kit):
    async def main() -> None:
        ends = time.time() + 3600
        key = {"digest": digest_of(ACME), "expires": ends}
        settings = kit.config(tenants=[{"name": "acme", "keys": [key]}])
        async with kit.running(settings) as gateway, await gateway.caller() as caller:
            keys: Any = gateway.app._keys

            async def status() -> int:
                caller.send(kit.post(kit.chat(), headers=bearer(ACME)))
                return (await caller.answer()).status

            assert [await status(), await status()] == [200, 200]
            gateway.process.connections.heads.clear()
            gateway.app._clock = lambda: ends  # this head is good for no time at all
            assert await status() == 200
            assert len(gateway.process.connections.heads) == 1
            keys._clock = lambda: ends
            assert await status() == 401

    go(main())


def test_a_removed_key_stops_at_once(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config(tenants=TENANTS, sla=SLA)
        async with kit.running(settings) as gateway, await gateway.caller() as caller:

            async def status() -> int:
                caller.send(kit.post(kit.chat(), headers=bearer(ACME)))
                return (await caller.answer()).status

            assert [await status(), await status()] == [200, 200]
            gateway.process.apply(kit.config(tenants=TENANTS[1:], sla=SLA))
            assert await status() == 401
            gateway.process.apply(settings)
            assert await status() == 200

    go(main())


# -- sizes -----------------------------------------------------------------------------------------


SIZED: list[dict[str, Any]] = [
    {"name": "acme", "keys": [digest_of(ACME)], "limits": {"max_prompt": 50, "max_output": 20}},
    {"name": "other", "keys": [digest_of(OTHER)]},
]


def test_a_prompt_may_not_be_longer_than_the_tenants(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config(tenants=SIZED)) as gateway:
            long = kit.chat("x" * 400, max_tokens=1)
            answer = await gateway.ask(kit.post(long, headers=bearer(ACME)))
            assert refused(answer) == (400, "prompt_too_long")
            assert (await gateway.ask(kit.post(long, headers=bearer(OTHER)))).status == 200
            short = kit.post(kit.chat(max_tokens=1), headers=bearer(ACME))
            assert (await gateway.ask(short)).status == 200

    go(main())


BOUNDS: list[tuple[str, dict[str, Any], object]] = [
    ("/v1/chat/completions", {}, {"max_tokens": 20}),
    ("/v1/chat/completions", {"max_tokens": None}, {"max_tokens": 20}),
    ("/v1/chat/completions", {"max_tokens": 20}, {"max_tokens": 20}),
    ("/v1/chat/completions", {"max_completion_tokens": 5}, {"max_completion_tokens": 5}),
    ("/v1/chat/completions", {"max_tokens": 21}, "output_too_long"),
    ("/v1/chat/completions", {"max_tokens": 5, "max_completion_tokens": 21}, "output_too_long"),
    ("/v1/chat/completions", {"max_tokens": 5, "n_predict": 21}, "output_too_long"),
    ("/v1/chat/completions", {"max_tokens": -1}, "invalid_request"),
    ("/v1/chat/completions", {"max_tokens": 1e9}, "invalid_request"),
    ("/v1/chat/completions", {"max_tokens": "99"}, "invalid_request"),
    ("/v1/chat/completions", {"max_tokens": True}, "invalid_request"),
    (
        "/v1/completions",
        {"max_completion_tokens": 5},
        {"max_completion_tokens": 5, "max_tokens": 20},
    ),
    ("/v1/responses", {"max_tokens": 5}, {"max_tokens": 5, "max_output_tokens": 20}),
    ("/v1/messages", {"max_tokens": 5}, {"max_tokens": 5}),
    ("/v1/embeddings", {"max_tokens": 99}, {"max_tokens": 99}),
]


@pytest.mark.parametrize(("path", "members", "expected"), BOUNDS)
def test_an_answer_is_no_longer_than_the_tenant_may_have(
    go: Go, kit: Kit, path: str, members: dict[str, Any], expected: object
):
    async def main() -> None:
        async with (
            kit.engine(kit.whole({"ok": 1})) as engine,
            kit.running(kit.config([engine.section()], tenants=SIZED)) as gateway,
        ):
            request = kit.post({"model": "m", **members}, path, bearer(ACME))
            answer = await gateway.ask(request)
            if isinstance(expected, str):
                assert refused(answer)[1] == expected
                assert engine.bodies == []
            else:
                assert answer.status == 200
                assert json.loads(engine.bodies[0]) == {"model": "m", **expected}  # type: ignore[dict-item] - a dict

    go(main())


# -- SLA classes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "asked", "expected"),
    [
        (ACME, None, "fast"),
        (ACME, "fast", "fast"),
        (ACME, "slow", (403, "sla_not_allowed")),
        (ACME, "", (400, "sla_unknown")),
        (ACME, "FAST", (400, "sla_unknown")),
        (ACME, "fast, slow", (400, "sla_unknown")),
        (OTHER, None, "slow"),
        (OTHER, "idle", "idle"),
        (OTHER, "fast", (403, "sla_not_allowed")),
        (OTHER, "nope", (400, "sla_unknown")),
    ],
)
def test_a_caller_gets_only_a_class_its_tenant_may_use(
    go: Go, kit: Kit, key: str, asked: str | None, expected: object
):
    async def main() -> None:
        async with kit.running(kit.config(tenants=TENANTS, sla=SLA)) as gateway:
            header = "" if asked is None else f"x-forebay-sla: {asked}\r\n"
            answer = await ask(gateway, kit, bearer(key) + header)
            if isinstance(expected, str):
                assert (answer.status, gateway.outcomes[-1].sla) == (200, expected)
            else:
                assert refused(answer) == expected

    go(main())


def test_without_tenants_any_class_may_be_asked_for(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config(sla=SLA)) as gateway:
            for header, sla in (("", ""), ("x-forebay-sla: fast\r\n", "fast")):
                assert (await ask(gateway, kit, header)).status == 200
                assert gateway.outcomes[-1].sla == sla

    go(main())


@pytest.mark.interpreted
def test_a_class_sets_weight_rank_deadline_and_wait(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config(tenants=TENANTS, sla=SLA, pool={"queue": {"deadline": 60.0}})
        async with kit.running(settings) as gateway:
            seen: list[Any] = []
            submit: Any = gateway.pool.dispatcher.submit

            def watched(request: Any, now: float) -> Any:
                seen.append(request)
                return submit(request, now)

            gateway.pool.dispatcher.submit = watched  # type: ignore[method-assign] - a spy
            for headers in (bearer(ACME), bearer(OTHER), bearer(OTHER) + "x-forebay-sla: idle\r\n"):
                await ask(gateway, kit, headers)
            told = [
                (r.sla, r.weight, r.sla_rank, round(r.deadline - r.arrived), r.longest_wait)
                for r in seen
            ]
            assert told == [
                ("fast", 32.0, 2, 5, 2.0),
                ("slow", 1.0, 1, 1800, None),
                ("idle", 1.0, 1, 60, None),
            ]

    go(main())


def test_a_class_has_time_limits_of_its_own(go: Go, kit: Kit):
    async def script(peer: Peer, _request: bytes, _number: int) -> None:
        peer.send(kit.events_head() + kit.chunk(kit.delta("a")))
        await peer.gone()

    sla = {"hasty": {"timeouts": {"idle": "10ms"}}, "patient": {"timeouts": {"total": "1h"}}}
    tenants = [
        {"name": "acme", "keys": [digest_of(ACME)], "sla": "hasty"},
        {"name": "other", "keys": [digest_of(OTHER)], "sla": "patient"},
    ]

    async def main() -> None:
        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], sla=sla, tenants=tenants)
            async with (
                kit.running(settings) as gateway,
                await gateway.caller() as patient,
                await gateway.caller() as hasty,
            ):
                for caller, key in ((patient, OTHER), (hasty, ACME)):
                    caller.send(kit.post(kit.chat(stream=True), headers=bearer(key)))
                answer = await hasty.answer()
                assert b"the engine sent nothing for 0.01 s" in answer.body
                (ended,) = gateway.outcomes
                assert (ended.sla, ended.finish) == ("hasty", Finish.TRUNCATED)
                assert len(gateway.app.active) == 1
                patient.leave()
                await gateway.quiet()

    go(main())


def test_a_class_may_wait_less_for_a_connection(go: Go, kit: Kit):
    async def main() -> None:
        sla = {"hasty": {"timeouts": {"connect": "10ms"}}}
        tenants = [{"name": "acme", "keys": [digest_of(ACME)], "sla": "hasty"}]
        with closing(socket.socket()) as full:  # takes connections, and accepts none
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            url = f"http://127.0.0.1:{full.getsockname()[1]}"
            filling = [socket.socket() for _ in range(4)]
            for each in filling:
                each.setblocking(False)
                each.connect_ex(full.getsockname())
            endpoint = {"name": "e0", "engine": "openai", "url": url}
            pool = {"timeouts": {"connect": 3600.0}, "health": NEVER}
            settings = kit.config([endpoint], sla=sla, tenants=tenants, pool=pool)
            async with kit.running(settings) as gateway:
                answer = await ask(gateway, kit, bearer(ACME))
                assert refused(answer) == (502, "engine_unreachable")
            for each in filling:
                each.close()

    go(main())


def test_goodput_is_counted_by_class(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config(tenants=TENANTS, sla=SLA)) as gateway:
            for key in (ACME, ACME, OTHER):
                await ask(gateway, kit, bearer(key))
            metrics = gateway.process.metrics
            rendered = await asyncio.to_thread(metrics.render, "", gateway.process.snapshot())
            lines = rendered[1].decode().splitlines()
            assert {line for line in lines if line.startswith("forebay_sla_requests_total{")} == {
                'forebay_sla_requests_total{met="yes",sla="fast"} 2.0',
                'forebay_sla_requests_total{met="yes",sla="slow"} 1.0',
            }

    go(main())


# -- reserves and shares of the queue --------------------------------------------------------------


def test_a_reserve_is_taken_back_as_places_become_free_and_a_share_of_the_queue_holds(
    go: Go, kit: Kit
):
    tenants: list[dict[str, Any]] = [
        {"name": "acme", "keys": [digest_of(ACME)], "plan": "vip"},
        {"name": "other", "keys": [digest_of(OTHER)], "limits": {"queue_share": "40%"}},
    ]
    stall = kit.chat(sim={"fault": "stall"})

    async def main() -> None:
        settings = kit.config(
            [kit.sim(max_in_flight=2)],
            plans={"vip": {"reserve": True, "weight": 0.01}},
            tenants=tenants,
            pool={"queue": {"max_requests": 5}, "order": "fcfs"},
        )
        async with kit.running(settings) as gateway:
            core = gateway.pool.dispatcher
            mob = [await gateway.caller() for _ in range(4)]
            for number, caller in enumerate(mob):
                caller.send(kit.post(stall, headers=bearer(OTHER)))
                await kit.until(lambda n=number: core.in_flight + core.queued == n + 1)
            assert refused(await ask(gateway, kit, bearer(OTHER))) == (429, "rate_limit_exceeded")
            vip = await gateway.caller()
            vip.send(kit.post(kit.chat(), headers=bearer(ACME)))
            await kit.until(lambda: core.queued == 3)
            mob[0].leave()
            answer = await vip.answer()
            assert (answer.status, core.queued) == (
                200,
                1,
            )  # it went before two that had come first; one of them runs
            for caller in (*mob[1:], vip):
                caller.leave()

    go(main())
