"""How metrics are read from a snapshot, and what an outcome counts as in an experiment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from forebay.gateway.telemetry.catalog import CATALOG
from forebay.gateway.telemetry.labels import LabelSpace, PoolLabels
from forebay.gateway.telemetry.metrics import Metrics
from forebay.gateway.telemetry.outcome_labels import arm_result, phase
from forebay.gateway.telemetry.reading import Scope, counter, gauge, named, one_of
from forebay.gateway.telemetry.snapshot import Snapshot
from forebay.policies.contracts import Finish, Outcome, Route

SPACE = LabelSpace({"p": PoolLabels(frozenset({"e"}), frozenset({"m"}))})
ARM = {"experiment": "trial", "arm": "new"}


DONE = Outcome("r", "p", Route.CHAT, "t", model="m", endpoint="e", status=200)


def outcome(**changes: Any) -> Outcome:
    return structs.replace(DONE, **changes)


def counts(metrics: Metrics, name: str) -> dict[tuple[str, ...], int]:
    return next(dict(found) for metric, found in metrics.copy().counters if metric.name == name)


def test_a_scope_gives_its_labels_and_the_metrics_of_their_own():
    scope: Scope[int] = Scope(
        ("pool",),
        lambda _: [(("a",), 1), (("b",), 2)],
        (
            counter("c", "one value", lambda n: n),
            gauge("g", "one by name", lambda n: named([("x", n), ("y", 0.5)]), by=("name",)),
            gauge("s", "a state", lambda n: one_of(("1", "2"), str(n)), by=("state",)),
            gauge("u", "not known of a", lambda n: n if n > 1 else None),
        ),
    )
    assert [(m.name, m.kind, m.labels) for m in scope.metrics] == [
        ("c", "counter", ("pool",)),
        ("g", "gauge", ("pool", "name")),
        ("s", "gauge", ("pool", "state")),
        ("u", "gauge", ("pool",)),
    ]
    assert {metric.name: dict(values) for metric, values in scope.read(Snapshot())} == {
        "c": {("a",): 1, ("b",): 2},
        "g": {("a", "x"): 1, ("a", "y"): 0.5, ("b", "x"): 2, ("b", "y"): 0.5},
        "s": {("a", "1"): 1.0, ("a", "2"): 0.0, ("b", "1"): 0.0, ("b", "2"): 1.0},
        "u": {("b",): 2},
    }


def test_each_metric_has_a_name_of_its_own():
    names = [metric.name for metric in CATALOG]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("changes", "result"),
    [
        ({}, "answered"),
        ({"moved": "stalled"}, "failed"),
        ({"finish": Finish.TRUNCATED}, "failed"),
        ({"finish": Finish.REJECTED, "status": 429}, "failed"),
        ({"finish": Finish.REJECTED, "status": 400}, "refused"),
        ({"finish": Finish.LEFT, "status": 499}, "left"),
    ],
)
def test_an_arm_is_judged_by_what_its_engine_did(changes: dict[str, Any], result: str):
    assert arm_result(outcome(**changes)) == result


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"pool": ""}, "uploading"),
        ({}, "queued"),
        ({"placed": 1.0}, "waiting"),
        ({"placed": 1.0, "first_byte": 2.0}, "streaming"),
    ],
)
def test_a_caller_leaves_somewhere(changes: dict[str, Any], where: str):
    assert phase(outcome(**changes)) == where


def test_counts_of_an_arm_stay_for_as_long_as_its_experiment():
    metrics = Metrics(replace(SPACE, experiments=frozenset({"trial"})))
    metrics.settled(outcome(**ARM))
    metrics.relabel(replace(SPACE, experiments=frozenset({"trial", "other"})))
    assert counts(metrics, "forebay_arm_requests_total") == {("trial", "new", "answered"): 1}
    metrics.relabel(SPACE)
    assert counts(metrics, "forebay_arm_requests_total") == {}
