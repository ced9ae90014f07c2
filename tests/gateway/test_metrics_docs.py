"""docs/metrics.md and docs/operations.md say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from forebay.gateway.admin_guard import OPEN
from forebay.gateway.telemetry.access_log import AccessLog
from forebay.gateway.telemetry.catalog import CATALOG
from forebay.gateway.telemetry.histogram import QUEUE_BOUNDS, TTFT_BOUNDS
from forebay.gateway.telemetry.labels import FINISHES, PHASES, STATES, LabelSpace
from forebay.gateway.telemetry.spans import SCHEMA_URL
from forebay.policies.contracts import Outcome, Route

ROOT = Path(__file__).parents[2]
DOCS, DEPLOY = ROOT / "docs", ROOT / "deploy"
METRICS = (DOCS / "metrics.md").read_text("utf-8")
OPERATIONS = (DOCS / "operations.md").read_text("utf-8")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")
LABELS = {metric.name: {*metric.labels, "le"} for metric in CATALOG}


ALERTS = (DEPLOY / "prometheus" / "alerts.yaml").read_text("utf-8")
DASHBOARD = (DEPLOY / "grafana" / "forebay.json").read_text("utf-8")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS)["groups"]
    return group["rules"]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD)["panels"] if panel["type"] != "row"]


def queries() -> list[str]:
    (block,) = re.findall(r"```promql\n(.*?)```", METRICS, re.DOTALL)
    written = [*re.findall(r"`([^`]*forebay_[^`]*)`", METRICS), block]
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*written, *(rule["expr"] for rule in rules()), *shown]


def test_the_table_is_the_catalog():
    found = re.findall(
        r"^\| `(forebay_\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \|$", METRICS, re.MULTILINE
    )
    assert found == [(m.name, m.kind, ", ".join(m.labels) or "-", m.help) for m in CATALOG]


@pytest.mark.parametrize("text", [METRICS, OPERATIONS, ALERTS, DASHBOARD])
def test_every_metric_that_is_named_exists(text: str):
    kinds = {metric.name: metric.kind for metric in CATALOG}
    for name in re.findall(r"\bforebay_\w+", text):
        base = _SUFFIX.sub("", name)
        assert name in kinds or kinds.get(base) == "histogram", name


def test_every_label_of_a_query_is_one_of_its_metric():
    for query in queries():
        for name, selector in re.findall(r"(forebay_\w+)\{([^}]*)\}", query):
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert used <= LABELS[_SUFFIX.sub("", name)], query


def test_every_label_value_of_a_query_exists():
    known = {"finish": FINISHES, "state": set(STATES), "phase": set(PHASES), "endpoint": {""}}
    known["met"], known["kind"] = {"yes", "no"}, {"business", "padding"}
    known["le"] = {str(bound) for bound in (*TTFT_BOUNDS, *QUEUE_BOUNDS)}
    for query in queries():
        for label, values in re.findall(r'(\w+)=~?"([^"$]*)"', query):
            assert set(values.split("|")) <= known[label], query


def test_queries_are_balanced():
    for query in queries():
        assert query.count("(") == query.count(")")
        assert query.count("{") == query.count("}")


def labels_left(query: str) -> set[str]:
    """Labels of what a query returns: those it groups by, or all of its metrics'."""
    grouped = re.findall(r"by \(([^)]*)\)", query)
    if grouped:
        return {label for group in grouped for label in re.split(r",\s*", group)}
    names = re.findall(r"forebay_\w+", query)
    return {"instance"}.union(*(LABELS[_SUFFIX.sub("", name)] for name in names))


def test_lines_of_a_panel_are_named_by_labels_that_are_there():
    for panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert named, panel["title"]
            assert named <= labels_left(target["expr"]), panel["title"]


def test_each_alert_says_what_and_how_urgent():
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]


@pytest.mark.parametrize(
    ("label", "values"), [("finish", FINISHES), ("state", STATES), ("phase", PHASES)]
)
def test_all_values_of_a_label_are_listed(label: str, values: frozenset[str]):
    (row,) = re.findall(rf"^\| `{label}` \| (.*) \|$", METRICS, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(values)


def test_every_field_of_a_request_line_is_described():
    kept: list[bytes] = []

    class Kept:
        def put(self, lines: bytes) -> None:
            kept.append(lines)

    log = AccessLog(Kept(), LabelSpace({}))
    trial: dict[str, Any] = {"experiment": "x", "arm": "a", "moved": "stalled", "engine_id": "e"}
    log.add(
        Outcome("r", "", Route.CHAT, "", **trial, trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01")
    )
    log.flush()
    table = OPERATIONS.split("Each request is one line", 1)[1].split("A reader that", 1)[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert described == set(json.loads(kept[0]))


def test_the_paths_that_need_no_key_are_listed():
    (listed,) = re.findall(r"With a key, all but (.*?) \(which", OPERATIONS, re.DOTALL)
    assert set(re.findall(r"`([^`]+)`", listed)) == OPEN


def test_the_version_of_the_conventions_is_the_one_in_use():
    (version,) = re.findall(r"conventions (\d+\.\d+)", OPERATIONS)
    assert SCHEMA_URL.endswith(f"/{version}.0")
