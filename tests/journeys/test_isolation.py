"""A tenant cannot see, starve or bill another: requests against its own and others' limits."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from forebay.gateway.admin import admin_app
from forebay.gateway.admin_operations import operations_router
from forebay.gateway.keys import digest_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine
    from pathlib import Path

    from tests.conftest import Peer
    from tests.journeys.conftest import Answer, Gateway, Go, Kit

ACME, OTHER = "fb_a_" + "a" * 43, "fb_b_" + "b" * 43


def tenants(**limits: Any) -> list[dict[str, Any]]:
    return [
        {"name": "acme", "keys": [digest_of(ACME)], "limits": limits},
        {"name": "other", "keys": [digest_of(OTHER)], "limits": {"requests_per_minute": 100}},
    ]


def bearer(key: str) -> str:
    return f"authorization: Bearer {key}\r\n"


async def ask(
    gateway: Gateway, kit: Kit, key: str, path: str = "/v1/chat/completions", **members: Any
) -> Answer:
    body = kit.chat(**members) if "prompt" not in members else {"model": "m", **members}
    return await gateway.ask(kit.post(body, path, bearer(key)))


@asynccontextmanager
async def admin(gateway: Gateway) -> AsyncGenerator[httpx.AsyncClient]:
    loop = asyncio.get_running_loop()

    def call(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    state: Any = None
    app = admin_app(state, None, operations_router(gateway.process.operations, call))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


def test_one_tenants_requests_use_up_nothing_of_anothers(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config(tenants=tenants(requests_per_minute=3))) as gateway:
            mine = [(await ask(gateway, kit, ACME)).status for _ in range(5)]
            assert mine == [200, 200, 200, 429, 429]
            answer = await ask(gateway, kit, OTHER)
            assert answer.status == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "100"
            assert answer.headers["x-ratelimit-remaining-requests"] == "99"

    go(main())


def test_a_refusal_tells_of_the_tenants_own_limit_only(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config(tenants=tenants(requests_per_minute=1))) as gateway:
            await ask(gateway, kit, ACME)
            answer = await ask(gateway, kit, ACME)
            assert answer.status == 429
            refused = gateway.outcomes[-1]
            assert (refused.tenant, refused.error) == ("acme", "rate_limit_exceeded")
            assert 1 <= int(answer.headers["retry-after"]) <= 62
            assert answer.headers["x-ratelimit-limit-requests"] == "1"
            assert "other" not in answer.body.decode()

    go(main())


def test_a_tenant_with_all_its_places_taken_delays_nobody(go: Go, kit: Kit):
    async def script(peer: Peer, request: bytes, _number: int) -> None:
        if b"slow" in request:
            await peer.gone()
        else:
            peer.send(kit.whole({"ok": 1}))

    async def main() -> None:
        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], tenants=tenants(concurrent=2))
            async with kit.running(settings) as gateway:
                held = [await gateway.caller() for _ in range(2)]
                for caller in held:
                    caller.send(kit.post(kit.chat("slow"), headers=bearer(ACME)))
                await kit.until(lambda: len(engine.requests) == 2)
                assert (await ask(gateway, kit, ACME)).status == 429
                assert (await ask(gateway, kit, OTHER)).status == 200
                held[0].leave()
                await kit.until(lambda: len(gateway.app.active) == 1)
                assert (await ask(gateway, kit, ACME)).status == 200
                held[1].leave()
                await gateway.quiet()

    go(main())


SPLITS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a", "n": 8}),
    ("/v1/completions", {"prompt": "a", "best_of": 8}),
    ("/v1/completions", {"prompt": ["a"] * 8}),
    ("/v1/completions", {"prompt": [[1], [2], [3], [4], [5], [6], [7], [8]]}),
    ("/v1/completions", {"prompt": ["a"] * 4, "n": 2}),
    ("/v1/chat/completions", {"n": 8}),
]


@pytest.mark.parametrize(("path", "members"), SPLITS)
def test_one_request_for_many_answers_is_as_large_as_they_are(
    go: Go, kit: Kit, path: str, members: dict[str, Any]
):
    async def main() -> None:
        async with kit.running(kit.config(tenants=tenants(tokens_per_minute=500))) as gateway:
            answer = await ask(gateway, kit, ACME, path, max_tokens=100, **members)
            assert answer.status == 429
            assert answer.json["error"]["code"] == "request_too_large"
            one = {"prompt": "a"} if "prompt" in members else {}
            assert (await ask(gateway, kit, ACME, path, max_tokens=100, **one)).status == 200

    go(main())


def test_many_small_requests_come_to_the_same_as_one(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config(tenants=tenants(tokens_per_minute=300))) as gateway:
            sim = {"output_tokens": 20}
            answers = [await ask(gateway, kit, ACME, max_tokens=20, sim=sim) for _ in range(30)]
            used = sum(a.json["usage"]["total_tokens"] for a in answers if a.status == 200)
            assert used <= 300
            assert answers[-1].status == 429

    go(main())


def test_counters_outlive_a_reload_and_a_new_limit_counts_at_once(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config(tenants=tenants(requests_per_minute=3))
        async with kit.running(settings) as gateway:
            assert [(await ask(gateway, kit, ACME)).status for _ in range(2)] == [200, 200]
            gateway.process.apply(kit.config(tenants=tenants(requests_per_minute=3, concurrent=9)))
            assert [(await ask(gateway, kit, ACME)).status for _ in range(2)] == [200, 429]
            gateway.process.apply(kit.config(tenants=tenants(requests_per_minute=4)))
            assert [(await ask(gateway, kit, ACME)).status for _ in range(2)] == [200, 429]

    go(main())


def test_the_admin_api_says_what_is_left_and_who_used_what(go: Go, kit: Kit, tmp_path: Path):
    async def main() -> None:
        settings = kit.config(
            tenants=tenants(requests_per_minute=3, money_per_day=5),
            prices={"m": {"prompt": 1000, "output": 2000}},
            state={"ledger": str(tmp_path / "usage.db")},
        )
        async with kit.running(settings) as gateway, admin(gateway) as client:
            answer = await ask(gateway, kit, ACME, max_tokens=5)
            usage = answer.json["usage"]
            cost = (usage["prompt_tokens"] + 2 * usage["completion_tokens"]) / 1000
            limits = {
                each["name"]: (each["limit"], each["used"], each["left"])
                for each in (await client.get("/admin/v1/tenants/acme/limits")).json()
            }
            assert limits["requests_per_minute"] == (3, 1, 2)
            assert limits["tokens_per_day"] == (None, usage["total_tokens"], None)
            assert limits["money_per_day"] == pytest.approx((5, cost, 5 - cost))
            (row,) = (await client.get("/admin/v1/usage", params={"tenant": "acme"})).json()["rows"]
            assert (row["tenant"], row["model"], row["requests"]) == ("acme", "m", 1)
            assert row["cost"] == pytest.approx(cost)
            assert (await client.get("/admin/v1/usage?tenant=other")).json() == {"rows": []}
            assert (await client.get("/admin/v1/usage?since=2999-01-01")).json() == {"rows": []}
            for words, message in (
                ("since=2026-13-01", "since: '2026-13-01' is no day; write 2026-11-01"),
                ("since=yesterday", "since: 'yesterday' is no day; write 2026-11-01"),
                ("format=xml", "format: must be 'json' or 'csv'"),
            ):
                wrong = await client.get(f"/admin/v1/usage?{words}")
                assert (wrong.status_code, wrong.json()["error"]["message"]) == (422, message)
            wrong = await client.get("/admin/v1/usage?tenant=acmi")
            message = "there is no tenant 'acmi'; did you mean 'acme'?"
            assert (wrong.status_code, wrong.json()["error"]["message"]) == (404, message)
            told = await client.get("/admin/v1/usage?format=csv")
            assert told.headers["content-type"].startswith("text/csv")
            first, second = told.text.splitlines()
            assert first == (
                "tenant,model,day,requests,prompt_tokens,cached_tokens,output_tokens,cost"
            )
            assert second.startswith("acme,m,")

    go(main())


def test_counters_that_are_away_are_said_so(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config(
            tenants=tenants(requests_per_minute=3), state={"url": "redis://127.0.0.1:1/0"}
        )
        async with kit.running(settings) as gateway, admin(gateway) as client:
            assert (await ask(gateway, kit, ACME)).status == 200
            for path in ("tenants/acme/limits", "usage"):
                answer = await client.get(f"/admin/v1/{path}")
                assert answer.status_code == 503
                assert "cannot be" in answer.json()["error"]["message"]
            assert (await client.get("/admin/v1/tenants")).status_code == 200

    go(main())


def test_without_tenants_the_admin_api_says_why_there_is_no_usage(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config()) as gateway, admin(gateway) as client:
            answer = await client.get("/admin/v1/usage")
            message = (
                "no usage is kept: it needs tenants, or a ledger that can be written (state.ledger)"
            )
            assert (answer.status_code, answer.json()["error"]["message"]) == (409, message)

    go(main())
