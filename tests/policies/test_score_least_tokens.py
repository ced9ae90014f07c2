"""Least predicted load."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.asking import a_request

from forebay.policies.contracts import EndpointView
from forebay.policies.score_least_tokens import LeastTokens

if TYPE_CHECKING:
    from collections.abc import Mapping

REQUEST = a_request(prompt_tokens_estimate=500, output_tokens_estimate=200, uncached_tokens=300)
NOW = 100.0


def view(name: str, **fields: object) -> EndpointView:
    plain = EndpointView(name, "vllm", 10, running=0, waiting=0, load_at=NOW)
    return replace(plain, **fields)  # type: ignore[arg-type]  # the tests name real fields


def scores(*views: EndpointView) -> Mapping[str, float]:
    rated = LeastTokens()(REQUEST, views, NOW)
    return {v.name: round(score, 3) for v, score in zip(views, rated, strict=True)}


def test_an_idle_endpoint_scores_one_and_a_thousand_tokens_a_place_a_half():
    assert scores(view("idle"), view("busy", in_flight=5, in_flight_tokens=10_000)) == {
        "idle": 1.0,
        "busy": 0.5,
    }


def test_load_is_told_for_each_place():
    assert scores(
        view("small", in_flight_tokens=1000), view("large", limit=40, in_flight_tokens=4000)
    ) == {"small": 0.909, "large": 0.909}


def test_a_slow_return_has_fewer_places():
    rated = scores(
        view("whole", in_flight_tokens=1000), view("slow", share=0.1, in_flight_tokens=1000)
    )

    assert rated == {"whole": 0.909, "slow": 0.5}


@pytest.mark.parametrize("share", [0.0, 1e-9])
def test_an_idle_endpoint_on_trial_is_as_good_as_any_idle_one(share: float):
    assert scores(view("trial", share=share), view("idle")) == {"trial": 1.0, "idle": 1.0}


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        pytest.param({"waiting": 4, "in_flight": 0}, 0.833, id="four of others"),
        pytest.param({"waiting": 4, "running": 6, "in_flight": 10}, 1.0, id="all ours"),
        pytest.param({"waiting": 4, "running": 6, "in_flight": 8}, 0.909, id="two of others"),
        pytest.param({"waiting": 4, "running": 60, "in_flight": 2}, 0.833, id="four at most"),
        pytest.param({"waiting": 4, "running": None, "in_flight": 3}, 0.952, id="running unknown"),
        pytest.param({"waiting": 0, "running": 60, "in_flight": 0}, 1.0, id="running is no queue"),
    ],
)
def test_what_others_have_waiting_there_counts_as_requests_like_this_one(
    fields: dict[str, object], score: float
):
    assert scores(view("a", **fields)) == {"a": score}


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param({"waiting": None}, id="never said"),
        pytest.param({"waiting": 0, "load_at": NOW - 11}, id="said long ago"),
        pytest.param({"waiting": 9, "load_at": None}, id="said no time"),
    ],
)
def test_what_is_unknown_is_taken_to_be_as_bad_as_the_worst(silent: dict[str, object]):
    views = [view("silent", **silent), view("queue", waiting=4), view("free")]

    assert scores(*views) == {"silent": 0.833, "queue": 0.833, "free": 1.0}


def test_when_nobody_says_anything_our_own_tokens_decide():
    silent = {"waiting": None, "running": None, "load_at": None}

    assert scores(view("a", in_flight_tokens=10_000, **silent), view("b", **silent)) == {
        "a": 0.5,
        "b": 1.0,
    }
