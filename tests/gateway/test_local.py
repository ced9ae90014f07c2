"""What the gateway answers by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from forebay.gateway.config.sections import Tenant
from forebay.gateway.local import LocalAnswers, Scrape
from forebay.gateway.messages import Message
from forebay.gateway.telemetry.snapshot import EndpointStatus, PoolStatus, Snapshot
from forebay.policies.contracts import InvalidRequest

if TYPE_CHECKING:
    from forebay.gateway.messages import Responder

ANYBODY = Tenant.model_construct(name="default", keys=(), models=None)


class Answers:
    """Takes an answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def send(self, status: int, _headers: object, body: bytes) -> None:
        self.sent.append((status, body))

    @property
    def responder(self) -> Responder:
        return cast("Responder", self)


class Served:
    """Two pools."""

    def __init__(self) -> None:
        self.pools: dict[str, Any] = {"p": Models("a", "b"), "q": Models("c")}


class Models:
    def __init__(self, *names: str) -> None:
        self.models = dict.fromkeys(names, "")


def ask(local: LocalAnswers, path: str, query: str = "") -> tuple[int, Any]:
    message, answers = Message(0.0), Answers()
    message.method, message.path, message.query = "GET", path, query
    local.answer(message, answers.responder, ANYBODY, Served())
    ((status, body),) = answers.sent
    return status, json.loads(body)


def local(**snapshot: Any) -> LocalAnswers:
    taken = Snapshot(**snapshot)
    return LocalAnswers(snapshot=lambda: taken, scrape=None, created=7)


def test_models_of_all_pools_are_listed_and_told_one_by_one():
    status, said = ask(local(), "/v1/models")
    assert status == 200
    assert [card["id"] for card in said["data"]] == ["a", "b", "c"]
    card = {"id": "c", "object": "model", "created": 7, "owned_by": "forebay"}
    assert ask(local(), "/v1/models/c") == (200, card)
    with pytest.raises(InvalidRequest) as caught:
        ask(local(), "/v1/models/d")
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("snapshot", "status"),
    [
        ({}, 200),
        ({"draining": True}, 503),
        ({"listening": False}, 503),
        ({"config_ok": False}, 200),
    ],
)
def test_readiness_is_about_the_process(snapshot: dict[str, bool], status: int):
    found, said = ask(local(**snapshot), "/readyz")
    assert (found, said["ready"]) == (status, status == 200)


def test_readiness_of_a_pool_is_asked_for_by_name():
    up = EndpointStatus("e0", "sim", "up", usable=True)
    down = EndpointStatus("e1", "sim", "down", usable=False)
    pools = (PoolStatus("p", endpoints=(up, down)), PoolStatus("q", endpoints=(down,)))
    found = local(pools=pools)
    assert ask(found, "/readyz")[0] == 200
    assert ask(found, "/readyz", "pool=p")[0] == 200
    assert ask(found, "/readyz", "pool=q")[0] == 503
    assert ask(found, "/readyz", "pool=p&pool=q")[0] == 503
    status, said = ask(found, "/readyz", "pool=none&pool=p")
    assert (status, said["unknown"]) == (503, ["none"])
    assert ask(found, "/readyz", "pool=p")[1]["pools"] == {"p": {"usable": 1, "endpoints": 2}}


def test_metrics_have_a_path_only_where_they_are_served():
    scraped = LocalAnswers(snapshot=Snapshot, scrape=lambda _, __: None, created=0)
    assert scraped.methods("/metrics") == ("GET", "HEAD")
    assert local().methods("/metrics") is None
    assert local().methods("/nothing") is None


def test_a_scrape_answers_once_and_not_to_a_scraper_that_left():
    answers = Answers()
    scrape = Scrape(answers.responder)
    scrape.rendered("text/plain", b"x 1")
    scrape.failed()
    assert answers.sent == [(200, b"x 1")]
    left = Scrape(answers.responder)
    left.caller_left()
    left.rendered("text/plain", b"x 2")
    assert answers.sent == [(200, b"x 1")]
    broken = Scrape(answers.responder)
    broken.failed()
    assert [status for status, _ in answers.sent] == [200, 500]
