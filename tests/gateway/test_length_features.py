"""What a predictor is told of a body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.asking import a_request

from forebay.gateway import wire
from forebay.gateway.length_features import features_of
from forebay.gateway.outcomes import OutcomeLog
from forebay.policies.contracts import ConfigError, Outcome, Route
from forebay.scheduler.length import LengthFeatures

ASK = "Name three rivers"


def read(route: Route, body: dict[str, Any]) -> LengthFeatures:
    request = a_request(route=route, model="big", prompt_tokens_estimate=10)
    raw = wire.read(json.dumps(body).encode(), frozenset())
    return features_of(request, raw, answers=1, hour=7)


def says(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (Route.CHAT, {"messages": [says("user", ASK)]}),
        (Route.CHAT, {"messages": [says("user", [{"type": "text", "text": ASK}])]}),
        (
            Route.CHAT,
            {"messages": [says("user", "hi"), says("assistant", "yes"), says("user", ASK)]},
        ),
        (Route.MESSAGES, {"system": "Be brief", "messages": [says("user", ASK)]}),
        (Route.RESPONSES, {"input": ASK}),
        (Route.RESPONSES, {"input": [says("user", [{"type": "input_text", "text": ASK}])]}),
        (Route.COMPLETIONS, {"prompt": ASK}),
        (Route.COMPLETIONS, {"prompt": [ASK, "and more"]}),
    ],
)
def test_the_callers_last_words_are_the_text(route: Route, body: dict[str, Any]):
    assert read(route, body).text == ASK


ODD: list[dict[str, Any]] = [
    {"messages": None},
    {"messages": [1, None, {"role": 3}, {"content": {}}]},
    {"messages": [says("user", [{"type": "image_url"}, 7])]},
    {"messages": {}},
    {},
]


@pytest.mark.parametrize("body", ODD)
def test_what_is_no_conversation_has_no_text(body: dict[str, Any]):
    assert read(Route.CHAT, body).text == ""


def test_what_stands_around_the_words_is_the_template():
    plain: dict[str, Any] = {"messages": [says("user", ASK)]}
    system: dict[str, Any] = {"messages": [says("system", "Be brief"), says("user", "other")]}

    assert read(Route.CHAT, plain).template == ""
    assert (
        read(Route.CHAT, system).template
        == read(
            Route.CHAT, {"messages": [says("developer", "Be brief"), says("user", ASK)]}
        ).template
    )
    assert read(Route.CHAT, {**system, "tools": [{}]}).template != read(Route.CHAT, system).template


def test_fields_of_the_request_are_told():
    body: dict[str, Any] = {
        "messages": [says("user", ASK), says("assistant", "x"), says("user", ASK)],
        "max_tokens": 64,
        "temperature": 0.5,
        "tools": [{}, {}],
        "response_format": {"type": "json_object"},
        "stop": ["\n"],
    }

    told = read(Route.CHAT, body)

    assert told._replace(template="") == LengthFeatures(
        Route.CHAT,
        "big",
        "acme",
        10,
        64,
        1,
        text=ASK,
        turns=2,
        tools=2,
        schema=True,
        stop=True,
        temperature=0.5,
        hour=7,
    )
    odd: dict[str, Any] = {"messages": [], "max_tokens": "9", "temperature": "hot", "tools": 4}
    assert read(Route.CHAT, odd)[4:6] == (None, 1)


@pytest.mark.parametrize(
    ("temperature", "told"),
    [(10**400, 100.0), (-(10**400), 0.0), (1e300, 100.0), (0, 0.0), (True, None), (None, None)],
    ids=["huge", "far below", "hot", "cold", "true", "null"],
)
def test_a_number_of_any_size_is_one_that_can_be_reckoned_with(
    temperature: object, told: float | None
):
    body: dict[str, Any] = {"messages": [], "max_tokens": 10**400, "temperature": temperature}
    found = read(Route.CHAT, body)
    assert (found.temperature, found.max_tokens) == (told, 1 << 30)


def test_the_log_of_outcomes_has_an_end(tmp_path: Any):
    path = tmp_path / "outcomes"
    log = OutcomeLog(str(path), limit=1 << 16, prompts=False)
    features = read(Route.CHAT, {"messages": [says("user", ASK)]})
    for _ in range(1000):
        log.write(features, Outcome("r", "p", Route.CHAT, "acme", output_tokens=5))
    log.close()
    log.write(features, Outcome("r", "p", Route.CHAT, "acme"))

    sizes = [(tmp_path / name).stat().st_size for name in ("outcomes", "outcomes.1")]
    assert max(sizes) <= 1 << 15
    assert "acme" not in path.read_text()


def test_a_log_that_cannot_be_written_is_refused():
    with pytest.raises(ConfigError, match="cannot write outcomes to '/nowhere/x': No such file"):
        OutcomeLog("/nowhere/x", limit=1 << 16, prompts=False)


@pytest.mark.parametrize("fault", ["full", "moved"])
def test_a_log_that_can_be_written_no_more_is_told_once_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
):
    path = Path("/dev/full") if fault == "full" else tmp_path / "outcomes"
    log = OutcomeLog(str(path), limit=1 << 16, prompts=False)
    if fault == "moved":
        (tmp_path / "outcomes.1").mkdir()
    features = read(Route.CHAT, {"messages": [says("user", ASK)]})
    for _ in range(1000):
        log.write(features, Outcome("r", "p", Route.CHAT, "acme", output_tokens=5))
    log.flush()
    log.close()
    assert [record.message for record in caplog.records] == ["outcomes are no longer written"]
