"""The control plane: who may ask, what it says, and the pages."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from forebay.gateway import page
from forebay.gateway.admin import admin_app
from forebay.gateway.admin_guard import OPEN
from forebay.gateway.admin_status import Status
from forebay.gateway.telemetry.labels import LabelSpace, PoolLabels
from forebay.gateway.telemetry.metrics import Metrics
from forebay.gateway.telemetry.snapshot import (
    EndpointStatus,
    LengthStatus,
    PoolStatus,
    Snapshot,
)
from forebay.policies.contracts import Finish, Outcome, Route
from forebay.scheduler.length.gate import Change

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI

    from forebay.gateway.telemetry.counts import PoolTotals

SNAPSHOT = Snapshot(
    pools=(
        PoolStatus(
            name="llama",
            models=("llama-3-8b",),
            endpoints=(
                EndpointStatus(
                    "v0", "vllm", "up", usable=True, in_flight=3, limit=64, kv_use=0.5, running=2
                ),
                EndpointStatus("v1", "vllm", "open", usable=False, why_out="4 in a row failed"),
            ),
            queued=7,
            oldest_wait_s=1.5,
        ),
        PoolStatus(name="embed", endpoints=(EndpointStatus("e0", "sim", "down", usable=False),)),
    ),
    client_connections=12,
    version="0.1.0",
    started_unix_s=1.0,
)
DONE = Outcome(
    "r", "llama", Route.CHAT, "", endpoint="v0", status=200, stream=True, received=1.0, placed=1.0,
    first_token=1.5, last_token=2.5, ended=2.5, prompt_tokens=10, output_tokens=3,
)  # fmt: skip


class State:
    """A gateway that stands still."""

    def __init__(self, snapshot: Snapshot = SNAPSHOT) -> None:
        self._snapshot = snapshot
        pools = {"llama": PoolLabels(frozenset({"v0"})), "embed": PoolLabels()}
        self.metrics = Metrics(LabelSpace(pools))

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def totals(self) -> Mapping[str, PoolTotals]:
        return self.metrics.totals()

    def render_metrics(self, accept: str) -> tuple[str, bytes]:
        return self.metrics.render(accept, self._snapshot)


@cache
def standing(key: str | None) -> FastAPI:
    return admin_app(State(), key)


def ask(
    path: str,
    *,
    method: str = "GET",
    state: State | None = None,
    key: str | None = None,
    peer: str = "127.0.0.1",
    host: str = "localhost:8081",
    **headers: str,
) -> httpx.Response:
    sent = {
        name.encode(): value.encode("latin-1") for name, value in {"host": host, **headers}.items()
    }

    async def get() -> httpx.Response:
        app = admin_app(state, key) if state else standing(key)
        transport = httpx.ASGITransport(app, client=(peer, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            return await client.request(method, path, headers=sent)

    return asyncio.run(get())


def test_the_status_says_what_the_gateway_is_and_does():
    state = State()
    state.metrics.settled(DONE)
    state.metrics.settled(
        Outcome("r", "llama", Route.CHAT, "", status=502, finish=Finish.TRUNCATED)
    )
    said: dict[str, Any] = ask("/admin/v1/status", state=state).json()
    assert Status.model_validate(said).model_dump() == said
    llama, embed = said["pools"]
    assert llama["endpoints"][1]["why_out"] == "4 in a row failed"
    assert llama["endpoints"][0] == {
        "name": "v0",
        "engine": "vllm",
        "state": "up",
        "usable": True,
        "why_out": "",
        "in_flight": 3,
        "limit": 64,
        "in_flight_tokens": 0,
        "connections": 0,
        "running": 2,
        "waiting": None,
        "kv_use": 0.5,
        "load_age_s": None,
        "version": None,
    }
    assert (llama["queued"], llama["oldest_wait_s"], llama["usable"]) == (7, 1.5, 1)
    assert (said["version"], said["ready"], said["client_connections"]) == ("0.1.0", True, 12)
    totals = llama["totals"]
    assert (totals["requests"], totals["failed"], totals["output_tokens"]) == (2, 1, 3)
    assert (sum(totals["ttft"]["counts"]), totals["ttft"]["sum_s"]) == (1, 0.5)
    assert len(totals["tpot"]["counts"]) == len(totals["tpot"]["bounds"]) + 1
    assert embed["totals"]["requests"] == 0


def test_a_pool_that_has_just_come_has_no_totals():
    snapshot = Snapshot(pools=(PoolStatus("new"),))
    assert ask("/admin/v1/status", state=State(snapshot)).json()["pools"][0]["totals"] is None


def test_the_status_tells_how_each_models_answers_have_changed():
    changes = (Change("llama-3-8b", 400, 3.5, 0.02, 0.05), Change("new", 12, 0.0, None, None))
    length = LengthStatus(trusted=False, reason="why", results=(("late", 2),), changes=changes)
    snapshot = Snapshot(pools=(PoolStatus(name="llama", endpoints=(), length=length),))

    (pool,) = ask("/admin/v1/status", state=State(snapshot)).json()["pools"]

    told = pool["length"]
    assert (told["trusted"], told["reason"], told["results"]) == (False, "why", {"late": 2})
    assert told["changes"] == [
        {"model": "llama-3-8b", "answers": 400, "sum": 3.5, "psi": 0.02, "ks": 0.05},
        {"model": "new", "answers": 12, "sum": 0.0, "psi": None, "ks": None},
    ]


def test_health_is_said_and_metrics_are_rendered():
    assert (ask("/healthz").status_code, ask("/healthz").text) == (200, "ok")
    metrics = ask("/metrics")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "forebay_client_connections 12.0" in metrics.text
    opened = ask("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert opened.headers["content-type"].startswith("application/openmetrics-text")


@pytest.mark.parametrize(
    ("path", "snapshot", "status"),
    [
        ("/readyz", SNAPSHOT, 200),
        ("/readyz?pool=llama", SNAPSHOT, 200),
        ("/readyz?pool=embed", SNAPSHOT, 503),
        ("/readyz?pool=llama&pool=embed", SNAPSHOT, 503),
        ("/readyz?pool=none", SNAPSHOT, 503),
        ("/readyz", Snapshot(draining=True), 503),
        ("/readyz", Snapshot(listening=False), 503),
        ("/readyz", Snapshot(config_ok=False), 200),
    ],
)
def test_readiness_is_of_the_process_or_of_the_pool_asked_for(
    path: str, snapshot: Snapshot, status: int
):
    answer = ask(path, state=State(snapshot))
    assert (answer.status_code, answer.json()["ready"]) == (status, status == 200)


def test_readiness_names_the_pools():
    assert ask("/readyz").json()["pools"] == {
        "llama": {"usable": 1, "endpoints": 2},
        "embed": {"usable": 0, "endpoints": 1},
    }
    said = ask("/readyz?pool=lama&pool=llama").json()
    assert (said["ready"], list(said["pools"]), said["unknown"]) == (False, ["llama"], ["lama"])


SECRET = "/admin/v1/status"


@pytest.mark.parametrize("path", [SECRET, "/metrics", "/", "/healthz", "/none"])
@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("10.0.0.7", "localhost:8081"),
        ("::ffff:10.0.0.7", "localhost"),
        ("2001:db8::1", "localhost"),
        ("testclient", "localhost"),
        ("127.0.0.1", "evil.example"),
        ("127.0.0.1", "evil.example:8081"),
        ("127.0.0.1", "localhost.evil.example"),
        ("127.0.0.1", "127.0.0.1.evil.example"),
        ("127.0.0.1", "10.0.0.1"),
        ("127.0.0.1", "[2001:db8::1]:8081"),
        ("127.0.0.1", "["),
        ("127.0.0.1", ""),
    ],
)
def test_without_a_key_only_this_machine_by_its_own_name_may_ask(path: str, peer: str, host: str):
    answer = ask(path, peer=peer, host=host, authorization="Bearer None")
    assert answer.status_code == 403
    assert answer.json()["error"]["type"] == "permission_error"
    assert "llama" not in answer.text


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8081", "127.0.0.1:8081", "[::1]:8081", "[::1]"]
)
def test_without_a_key_this_machine_may_ask(peer: str, host: str):
    assert ask(SECRET, peer=peer, host=host).status_code == 200


def test_with_the_key_anybody_may_ask_under_any_name():
    answer = ask(SECRET, key="s3cret", peer="10.0.0.7", host="fb", authorization="Bearer s3cret")
    assert answer.status_code == 200
    assert ask(SECRET, key="s3cret", authorization="bearer  s3cret ").status_code == 200


@pytest.mark.parametrize(
    "header", ["", "s3cret", "Bearer", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "Bearer é"]
)
@pytest.mark.parametrize("path", [SECRET, "/metrics", "/none", "/admin", "/healthz/"])
def test_with_a_key_not_even_this_machine_may_ask_without_it(path: str, header: str):
    answer = ask(path, key="s3cret", authorization=header)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "s3cret" not in answer.text
    assert "llama" not in answer.text


@pytest.mark.parametrize("path", sorted(OPEN))
def test_what_needs_no_key_says_nothing_of_the_traffic(path: str):
    answer = ask(path, key="s3cret", peer="10.0.0.7", host="fb")
    assert answer.status_code == 200
    assert "v0" not in answer.text
    assert "s3cret" not in answer.text


def test_what_is_not_there_is_told_in_the_shape_of_every_error():
    answer = ask("/none")
    assert (answer.status_code, answer.json()) == (
        404,
        {
            "error": {
                "message": "there is no route /none; /docs says which there are",
                "type": "invalid_request_error",
                "code": None,
            }
        },
    )


def test_the_wrong_method_is_told_with_the_right_one():
    answer = ask("/admin/v1/status", method="POST")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        405,
        "/admin/v1/status takes GET",
    )


def test_another_sites_page_is_told_why_it_may_change_nothing():
    answer = ask("/admin/v1/reload", method="POST", origin="http://evil.example")
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        403,
        "another site's page may change nothing here; set server.admin.key",
    )


@pytest.mark.parametrize("key", [None, "s3cret"])
def test_the_description_tells_of_the_key_and_of_refusals_where_there_are(key: str | None):
    openapi = standing(key).openapi()
    asked = {path: told["get"] for path, told in openapi["paths"].items()}
    keyed = [path for path, told in asked.items() if told.get("security") == [{"admin key": []}]]
    assert keyed == ([] if key is None else [SECRET, "/metrics"])
    refusing = [path for path, told in asked.items() if "401" in told["responses"]]
    assert refusing == [SECRET, "/metrics"]
    assert "parameters" not in asked["/metrics"]
    assert "HTTPValidationError" not in openapi["components"]["schemas"]


def test_the_page_loads_nothing_from_elsewhere():
    answer = ask("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", answer.text)
    assert "@import" not in answer.text
    assert "style=" not in answer.text
    assert "innerHTML" not in answer.text


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_only_what_is_in_the_page_may_run(path: str):
    answer = ask(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        for text in re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_page_reads_only_what_the_status_has():
    fields = {name for model in _models(Status) for name in model.model_fields}
    read = set(
        re.findall(r"\b(?:now|pool|endpoint|total|totals|short|long)\.([a-z_]+)\b", page.PAGE)
    )
    own = {"pools", "counts", "bounds", "passed", "length"}
    assert read - own <= fields


def _models(model: Any) -> list[Any]:
    found = [model]
    for field in model.model_fields.values():
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if hasattr(part, "model_fields"):
                found.extend(_models(part))
    return found


def test_the_description_shows_every_path_and_shape():
    described = ask("/docs").text
    openapi: dict[str, Any] = ask("/openapi.json").json()
    assert set(openapi["paths"]) == {"/admin/v1/status", "/healthz", "/readyz", "/metrics"}
    for name in (*openapi["paths"], *openapi["components"]["schemas"]):
        assert name in described


def test_the_description_says_what_a_path_takes_and_answers():
    schema = {"type": "array", "items": {"$ref": "#/components/schemas/Arm"}}
    takes = [
        {"name": "what", "schema": {"enum": ["promote", "pause"]}},
        {"name": "since", "description": "a UTC day", "schema": {"type": "string"}},
    ]
    answers = {"200": {"content": {"application/json": {"schema": schema}}}}
    said = page.describe(
        {
            "info": {"title": "t", "version": "1"},
            "paths": {"/a": {"get": {"parameters": takes, "responses": answers}}},
            "components": {"schemas": {"Arm": {}}},
        }
    )
    assert "<p>Parameters: what (promote or pause), since (a UTC day)</p>" in said
    assert '<p>Answer: list of <a href="#Arm">Arm</a></p>' in said
    assert '<h2 id="Arm">Arm</h2>' in said


def test_the_description_escapes_what_it_shows():
    said = page.describe(
        {
            "info": {"title": "<b>", "version": "&"},
            "paths": {"/<i>": {"get": {"description": "<script>"}}},
            "components": {"schemas": {"<u>": {"properties": {"<s>": {"type": "<em>"}}}}},
        }
    )
    for tag in ("<b>", "<i>", "<script>", "<u>", "<s>", "<em>"):
        assert tag not in said


def test_the_serving_path_does_not_load_fastapi():
    modules = "forebay.gateway.telemetry.metrics, forebay.gateway.telemetry.access_log"
    program = f"import sys, {modules}; print('fastapi' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.strip() == b"False"
