"""What an operator looks at and changes through the admin API while the gateway runs."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from forebay.gateway.admin import admin_app
from forebay.gateway.admin_operations import operations_router
from forebay.gateway.config import load
from forebay.gateway.keys import digest_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine
    from pathlib import Path

    from tests.journeys.conftest import Gateway, Go, Kit

ACME, OTHER = "fb_a_" + "a" * 43, "fb_b_" + "b" * 43
ADMIN = "adm1n-k3y"
TENANTS: list[dict[str, Any]] = [
    {
        "name": "acme",
        "plan": "gold",
        "keys": [
            digest_of(ACME),
            {"digest": digest_of("old"), "expires": "2020-01-01", "note": "laptop"},
        ],
    },
    {"name": "other", "keys": [digest_of(OTHER)]},
]
PLANS = {"gold": {"weight": 4, "fail": "closed", "limits": {"models": ["m"]}}}
CHANGES = (
    "/admin/v1/tenants/acme/pause",
    "/admin/v1/tenants/acme/resume",
    "/admin/v1/pools/p/endpoints/e0/drain",
    "/admin/v1/pools/p/endpoints/e0/undrain",
    "/admin/v1/pools/p/endpoints/e0/warm",
    "/admin/v1/reload",
)


def bearer(key: str) -> str:
    return f"authorization: Bearer {key}\r\n"


@asynccontextmanager
async def admin(
    gateway: Gateway, *, key: str | None = ADMIN, **headers: str
) -> AsyncGenerator[httpx.AsyncClient]:
    """Ask the admin app as its server does: from another thread, with the work on this loop."""
    loop = asyncio.get_running_loop()

    def call(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    state: Any = None  # only the routes of changes are asked here
    app = admin_app(state, key, operations_router(gateway.process.operations, call))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    sent = {"authorization": f"Bearer {ADMIN}", **headers}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://localhost:8081", headers=sent
    ) as client:
        yield client


def audited(gateway: Gateway) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in gateway.records.lines if "forebay.audit" in line]
    fields = ("action", "who", "tenant", "pool", "endpoint", "changed")
    return [{name: line[name] for name in fields if name in line} for line in told]


def settings(kit: Kit, **rest: Any) -> Any:
    endpoints = [kit.sim("e0"), kit.sim("e1", seed=1)]
    return kit.config(endpoints, **{"tenants": TENANTS, "plans": PLANS, **rest})


WHO = "key:" + digest_of(ADMIN).removeprefix("sha256:")[:12]


def test_tenants_are_shown_with_what_their_plan_gives(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(settings(kit)) as gateway, admin(gateway) as client:
            acme, other = (await client.get("/admin/v1/tenants")).json()
            assert acme == {
                "name": "acme",
                "plan": "gold",
                "sla": None,
                "weight": 4.0,
                "fail": "closed",
                "paused": False,
                "keys": 2,
                "models": ["m"],
            }
            assert (other["plan"], other["models"], other["keys"]) == (None, None, 1)
            assert (await client.get("/admin/v1/tenants/acme")).json() == acme

    go(main())


def test_keys_are_shown_by_a_part_of_their_digest_only(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(settings(kit)) as gateway, admin(gateway) as client:
            answer = await client.get("/admin/v1/tenants/acme/keys")
            first, second = answer.json()
            digest = digest_of(ACME).removeprefix("sha256:")
            assert first == {"id": digest[:12], "expires": None, "expired": False, "note": None}
            assert (second["expires"], second["expired"]) == ("2020-01-01T00:00:00+00:00", True)
            assert second["note"] == "laptop"
            assert digest[12:] not in answer.text

    go(main())


def test_a_paused_tenant_is_refused_until_it_is_resumed(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(settings(kit)) as gateway, admin(gateway) as client:
            async with await gateway.caller() as caller:

                async def ask(key: str) -> tuple[int, str]:
                    caller.send(kit.post(kit.chat(), headers=bearer(key)))
                    answer = await caller.answer()
                    return answer.status, answer.json.get("error", {}).get("code", "")

                assert await ask(ACME) == (200, "")
                assert await ask(ACME) == (200, "")  # its head is known by now
                paused = await client.post("/admin/v1/tenants/acme/pause")
                assert (paused.status_code, paused.json()["paused"]) == (200, True)
                assert await ask(ACME) == (403, "tenant_paused")
                assert await ask(OTHER) == (200, "")
                assert (await client.post("/admin/v1/tenants/acme/pause")).status_code == 200
                resumed = await client.post("/admin/v1/tenants/acme/resume")
                assert resumed.json()["paused"] is False
                assert await ask(ACME) == (200, "")
            assert audited(gateway) == [
                {"action": "pause tenant", "who": WHO, "tenant": "acme", "changed": True},
                {"action": "pause tenant", "who": WHO, "tenant": "acme", "changed": False},
                {"action": "resume tenant", "who": WHO, "tenant": "acme", "changed": True},
            ]

    go(main())


def test_a_drained_endpoint_gets_nothing_new_and_keeps_what_it_has(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(settings(kit)) as gateway, admin(gateway) as client:

            async def used() -> set[str]:
                count = len(gateway.outcomes)
                for _ in range(8):
                    await gateway.ask(kit.post(kit.chat(), headers=bearer(ACME)))
                return {outcome.endpoint for outcome in gateway.outcomes[count:]}

            assert await used() == {"e0", "e1"}
            path = "/admin/v1/pools/p/endpoints/e0"
            drained = await client.post(path + "/drain")
            assert drained.json() == {
                "pool": "p",
                "endpoint": "e0",
                "drained": True,
                "in_flight": 0,
            }
            assert await used() == {"e1"}
            gateway.process.apply(settings(kit, pool={"queue": {"max_requests": 5}}))
            assert await used() == {"e1"}
            assert (await client.post(path + "/undrain")).json()["drained"] is False
            assert await used() == {"e0", "e1"}
            assert [each["action"] for each in audited(gateway)] == [
                "drain endpoint",
                "undrain endpoint",
            ]

    go(main())


def written(kit: Kit, path: Path, **rest: Any) -> bytes:
    """Write a file that changes nothing which needs a restart; return its content."""
    told = settings(kit, **rest).model_dump(mode="json", exclude_unset=True)
    told["tenants"] = rest.get("tenants", TENANTS)
    for pool in told["pools"]:
        pool["health"] = {name: f"{s}s" for name, s in pool["health"].items()}
    told["server"]["drain"] = {"notice": 0, "limit": 0}
    content = yaml.safe_dump(told).encode()
    path.write_bytes(content)
    return content


def test_a_reload_says_what_is_wrong_or_takes_all_of_it(go: Go, kit: Kit, tmp_path: Path):
    file = tmp_path / "forebay.yaml"

    async def main() -> None:
        content = written(kit, file)
        options: dict[str, Any] = {"path": file, "read": load.read, "loaded": content}
        config = load.read(content)
        async with kit.running(config, **options) as gateway, admin(gateway) as client:
            assert (await client.post("/admin/v1/reload")).json() == {"ok": True, "errors": []}
            file.write_bytes(content + b"\ntenantz: []\n")
            refused = await client.post("/admin/v1/reload")
            assert refused.status_code == 422
            (error,) = refused.json()["errors"]
            assert error["path"] == "tenantz"
            assert error["message"] == "is no known key; did you mean 'tenants'?"
            asked = kit.post(kit.chat(), headers=bearer(OTHER))
            assert (await gateway.ask(asked)).status == 200
            written(kit, file, tenants=TENANTS[:1])
            assert (await client.post("/admin/v1/reload")).status_code == 200
            assert (await gateway.ask(asked)).status == 401
            assert [each["changed"] for each in audited(gateway)] == [True, False, True]

    go(main())


def test_without_a_file_there_is_nothing_to_reload(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(settings(kit)) as gateway, admin(gateway) as client:
            answer = await client.post("/admin/v1/reload")
            assert (answer.status_code, answer.json()["error"]["message"]) == (
                409,
                "there is no configuration file to read",
            )

    go(main())


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("GET", "/admin/v1/tenants/nobody", "tenant 'nobody'; there are: "),
        ("GET", "/admin/v1/tenants/nobody/keys", "tenant 'nobody'; there are: "),
        ("GET", "/admin/v1/tenants/nobody/limits", "tenant 'nobody'; there are: "),
        ("POST", "/admin/v1/tenants/nobody/pause", "tenant 'nobody'; there are: "),
        ("POST", "/admin/v1/tenants/ACMEE/resume", "tenant 'ACMEE'; did you mean 'acme'?"),
        ("POST", "/admin/v1/pools/none/endpoints/e0/drain", "pool 'none'; there are: p"),
        ("POST", "/admin/v1/pools/p/endpoints/none/undrain", "endpoint 'none'; there are: e0, e1"),
        ("GET", "/admin/v1/experiments/none", "experiment 'none'; there is none at all"),
        ("POST", "/admin/v1/experiments/none/pause", "experiment 'none'; there is none at all"),
    ],
)
def test_a_name_that_is_none_is_not_found(go: Go, kit: Kit, method: str, path: str, what: str):
    async def main() -> None:
        async with kit.running(settings(kit)) as gateway, admin(gateway) as client:
            answer = await client.request(method, path)
            assert answer.status_code == 404
            assert answer.json()["error"]["message"].startswith(f"there is no {what}")
            assert audited(gateway) == []

    go(main())


def test_nothing_is_shown_or_changed_without_the_admin_key(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(settings(kit)) as gateway:
            paths = [("POST", path) for path in CHANGES]
            paths += [("GET", "/admin/v1/" + name) for name in ("tenants", "usage")]
            paths += [("GET", f"/admin/v1/tenants/acme/{name}") for name in ("keys", "limits")]
            for key in (ACME, "", ADMIN[:-1]):
                async with admin(gateway, authorization=f"Bearer {key}") as client:
                    for method, path in paths:
                        answer = await client.request(method, path)
                        assert (answer.status_code, "acme" in answer.text) == (401, False)
            assert audited(gateway) == []
            assert gateway.app.paused == set()

    go(main())


def test_another_sites_page_cannot_change_what_needs_no_key(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(settings(kit)) as gateway:
            path = "/admin/v1/tenants/acme/pause"
            for origin in ("http://evil.example", "null", "http://localhost:9999"):
                async with admin(gateway, key=None, origin=origin) as client:
                    assert (await client.post(path)).status_code == 403
                    assert (await client.get("/admin/v1/tenants")).status_code == 200
            for headers in ({}, {"origin": "http://localhost:8081"}):
                async with admin(gateway, key=None, **headers) as client:
                    assert (await client.post(path)).status_code == 200
            assert {each["who"] for each in audited(gateway)} == {"loopback"}

    go(main())


def test_the_admin_port_serves_all_of_it_and_describes_it(go: Go, kit: Kit):
    async def main() -> None:
        with_admin = settings(kit, server={"admin": {"port": 0, "key": ADMIN}})
        async with kit.running(with_admin) as gateway:
            server = gateway.process._admin
            assert server is not None
            async with asyncio.timeout(20):
                while not server._server.started:  # noqa: ASYNC110 - it starts in a thread
                    await asyncio.sleep(0.01)
            port = server._server.servers[0].sockets[0].getsockname()[1]
            headers = {"authorization": f"Bearer {ADMIN}"}
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers=headers
            ) as client:
                named = [each["name"] for each in (await client.get("/admin/v1/tenants")).json()]
                assert named == ["acme", "other"]
                assert (await client.post("/admin/v1/tenants/other/pause")).status_code == 200
                paths = (await client.get("/openapi.json")).json()["paths"]
                assert {"/admin/v1/reload", "/admin/v1/usage"} <= set(paths)
                docs = (await client.get("/docs")).text
                assert all(path in docs for path in paths)
            assert gateway.app.paused == {"other"}

    go(main())
