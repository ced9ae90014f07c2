"""Every route of the data plane, and whose it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.keys import digest_of

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Go, Kit

ACME, OTHER, NARROW = "fb_a_" + "a" * 43, "fb_b_" + "b" * 43, "fb_c_" + "c" * 43
TENANTS: list[dict[str, Any]] = [
    {"name": "acme", "keys": [digest_of(ACME)], "debug_headers": True},
    {"name": "other", "keys": [digest_of(OTHER)]},
    {"name": "narrow", "keys": [digest_of(NARROW)], "limits": {"models": ["b"]}},
]


def bearer(key: str) -> str:
    return f"authorization: Bearer {key}\r\n"


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/rerank": {"query": "a", "documents": ["a", "b"]},
    "/v1/score": {"text_1": "a", "text_2": ["a", "b"]},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2, 3]},
}


def test_every_route_is_served_with_a_model_and_without(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config()) as gateway:
            for path, body in ROUTES.items():
                for model in ({"model": "m"}, {}):
                    answer = await gateway.ask(kit.post(body | model, path))
                    assert answer.status == 200, (path, answer.body)
                    assert answer.json
            tokens = (await gateway.ask(kit.post({"prompt": "abc"}, "/tokenize"))).json["tokens"]
            back = await gateway.ask(kit.post({"tokens": tokens}, "/detokenize"))
            assert back.json == {"prompt": "abc"}

    go(main())


def test_audio_goes_through_as_a_form(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config()) as gateway:
            body = (
                b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
                b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
                + bytes(range(256)) * 20
                + b"\r\n--b--\r\n"
            )
            path = "/v1/audio/transcriptions"
            form = kit.post(body, path).replace(
                b"application/json", b"multipart/form-data; boundary=b"
            )
            answer = await gateway.ask(form)
            assert (answer.status, set(answer.json)) == (200, {"text", "usage"})
            refused = {
                "json": await gateway.ask(kit.post({"model": "m"}, path)),
                "no boundary": await gateway.ask(form.replace(b"; boundary=b", b"")),
                "other boundary": await gateway.ask(form.replace(b"boundary=b", b"boundary=c")),
                "form for chat": await gateway.ask(form.replace(path.encode(), b"/v1/completions")),
            }
            assert {name: told.status for name, told in refused.items()} == {
                "json": 415,
                "no boundary": 400,
                "other boundary": 400,
                "form for chat": 415,
            }

    go(main())


def two_pools(kit: Kit, **rest: Any) -> Any:
    pools = [
        {"name": "pa", "models": {"a": "a"}, "endpoints": [kit.sim("e0"), kit.sim("e1", seed=1)]},
        {"name": "pb", "models": {"b": "b", "c": "c"}, "endpoints": [kit.sim("e2", seed=2)]},
    ]
    return kit.config(pools=pools, **rest)


def test_models_are_merged_and_each_key_sees_its_own(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(two_pools(kit, tenants=TENANTS)) as gateway:
            seen: dict[str, list[str]] = {}
            for key in (ACME, NARROW):
                answer = await gateway.ask(kit.get("/v1/models", bearer(key)))
                seen[key] = [card["id"] for card in answer.json["data"]]
            assert seen == {ACME: ["a", "b", "c"], NARROW: ["b"]}
            card = await gateway.ask(kit.get("/v1/models/b", bearer(NARROW)))
            assert (card.status, card.json["id"]) == (200, "b")
            hidden = await gateway.ask(kit.get("/v1/models/a", bearer(NARROW)))
            assert (hidden.status, hidden.json["error"]["code"]) == (404, "model_not_found")
            head = await gateway.ask(kit.get("/v1/models", bearer(ACME), "HEAD"))
            assert (head.status, head.body) == (200, b"")

    go(main())


def test_a_key_may_use_its_models_only(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(two_pools(kit, tenants=TENANTS)) as gateway:

            async def ask(key: str, **members: Any) -> tuple[int, str]:
                body = {"messages": [{"role": "user", "content": "hi"}], **members}
                answer = await gateway.ask(kit.post(body, headers=bearer(key) if key else ""))
                said = answer.json
                return answer.status, said["error"]["code"] if "error" in said else said["model"]

            refused = await gateway.ask(
                kit.post({"messages": [], "model": "a"}, headers=bearer(NARROW))
            )
            assert refused.json["error"]["type"] == "permission_error"
            assert await ask(NARROW, model="b") == (200, "b")
            assert await ask(NARROW, model="a") == (403, "model_not_allowed")
            assert await ask(NARROW) == (200, "b")
            assert await ask(ACME) == (400, "invalid_request")
            assert await ask(ACME, model="nope") == (404, "model_not_found")
            assert await ask("", model="a") == (401, "invalid_api_key")
            assert await ask(ACME[:-1], model="a") == (401, "invalid_api_key")

    go(main())


def test_a_key_that_may_not_use_a_pools_first_model_gets_its_own(go: Go, kit: Kit):
    async def main() -> None:
        tenants = [{"name": "t", "keys": [digest_of(ACME)], "limits": {"models": ["c"]}}]
        async with kit.running(two_pools(kit, tenants=tenants)) as gateway:
            body = {"messages": [{"role": "user", "content": "hi"}]}
            answer = await gateway.ask(kit.post(body, headers=bearer(ACME)))
            assert (answer.status, answer.json["model"]) == (200, "c")

    go(main())


def test_a_response_stays_with_its_tenant_and_its_endpoint(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(two_pools(kit, tenants=TENANTS)) as gateway:
            made: list[tuple[str, str]] = []
            for _ in range(8):
                answer = await gateway.ask(
                    kit.post({"model": "a", "input": "hi"}, "/v1/responses", bearer(ACME))
                )
                made.append((answer.json["id"], answer.headers["x-forebay-endpoint"]))
            assert {endpoint for _, endpoint in made} == {"e0", "e1"}
            for name, endpoint in made:
                path = f"/v1/responses/{name}"
                mine = await gateway.ask(kit.get(path + "?include[]=x", bearer(ACME)))
                assert (mine.status, mine.json["id"]) == (200, name)
                assert mine.headers["x-forebay-endpoint"] == endpoint
                theirs = await gateway.ask(kit.get(path, bearer(OTHER)))
                assert (theirs.status, theirs.json["error"]["code"]) == (404, "response_not_found")
                gone = await gateway.ask(kit.get(path, bearer(OTHER), "DELETE"))
                assert gone.status == 404
                body = {"model": "a", "input": "more", "previous_response_id": name}
                more = await gateway.ask(kit.post(body, "/v1/responses", bearer(ACME)))
                assert more.headers["x-forebay-endpoint"] == endpoint
                stolen = await gateway.ask(kit.post(body, "/v1/responses", bearer(OTHER)))
                assert (stolen.status, stolen.json["error"]["param"]) == (
                    404,
                    "previous_response_id",
                )
                deleted = await gateway.ask(kit.get(path, bearer(ACME), "DELETE"))
                assert deleted.status == 200

    go(main())


def test_a_stored_response_is_asked_for_in_origin_form_however_the_caller_wrote(go: Go, kit: Kit):
    async def main() -> None:
        async def script(peer: Peer, _request: bytes, _number: int) -> None:
            peer.send(kit.whole({"id": "resp_é/1 x", "object": "response", "status": "completed"}))

        async with (
            kit.engine(script) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            await gateway.ask(kit.post({"input": "hi"}, "/v1/responses"))
            gateway.app.preparation._stored.add(
                "resp_1",
                tenant="default",
                pool="p",
                endpoint="e0",
                model="m",
                engine_model="m",
                now=gateway.app.now(),
            )
            for target in (
                "/v1/responses/resp_1?a=b",
                "http://h/v1/responses/resp_1?a=b",
                "/v1/responses/%72esp_1?a=b",
            ):
                answer = await gateway.ask(kit.get(target))
                assert answer.status == 200
            lines = {request.split(b"\r\n")[0] for request in engine.requests[1:]}
            assert lines == {b"GET /v1/responses/resp_1?a=b HTTP/1.1"}
            assert {outcome.route for outcome in gateway.outcomes[1:]} == {"/v1/responses/{id}"}

    go(main())


def test_a_route_that_no_endpoint_has_is_a_404_that_says_so(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole(b'{"detail":"Not Found"}', status=404)) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            answer = await gateway.ask(kit.post(ROUTES["/v1/rerank"], "/v1/rerank"))
            assert (answer.status, answer.json["error"]["code"]) == (404, "route_not_found")
            assert "no endpoint of pool 'p' has" in answer.json["error"]["message"]
            assert gateway.pool.endpoints["e0"].view.usable

    go(main())


def test_health_readiness_and_metrics_need_no_key(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(two_pools(kit, tenants=TENANTS)) as gateway:
            assert (await gateway.ask(kit.get("/healthz"))).json == {"status": "ok"}
            ready = await gateway.ask(kit.get("/readyz"))
            assert ready.json == {
                "ready": True,
                "draining": False,
                "config_ok": True,
                "pools": {"pa": {"usable": 2, "endpoints": 2}, "pb": {"usable": 1, "endpoints": 1}},
                "unknown": [],
            }
            one = await gateway.ask(kit.get("/readyz?pool=pb"))
            assert (one.status, list(one.json["pools"])) == (200, ["pb"])
            assert (await gateway.ask(kit.get("/readyz?pool=none"))).status == 503
            for endpoint in gateway.app.pools["pb"].endpoints.values():
                endpoint.view.usable = False
            assert (await gateway.ask(kit.get("/readyz?pool=pb"))).status == 503
            assert (await gateway.ask(kit.get("/readyz"))).status == 200
            metrics = await gateway.ask(kit.get("/metrics"))
            assert metrics.status == 200
            assert metrics.headers["content-type"].startswith(("text/plain", "application/open"))

    go(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_full_queue_is_a_429_with_a_time_to_return(go: Go, kit: Kit, path: str):
    async def main() -> None:
        section = kit.sim("e0", max_in_flight=1)
        settings = kit.config([section], pool={"queue": {"max_requests": 1}})
        async with kit.running(settings) as gateway:
            held = [await gateway.caller() for _ in range(2)]
            for caller in held:
                caller.send(kit.post(kit.chat(sim={"fault": "stall"})))
            await kit.until(lambda: gateway.pool.dispatcher.queued == 1)
            answer = await gateway.ask(kit.post(ROUTES[path], path))
            assert answer.status == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert json.loads(answer.body)["error"]["message"]
            for caller in held:
                caller.leave()

    go(main())
