"""What scheduling shows of itself: waits by class, prediction errors, what the queue does."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from forebay.gateway.telemetry.labels import LabelSpace, PoolLabels
from forebay.gateway.telemetry.metrics import Metrics
from forebay.gateway.telemetry.snapshot import PoolStatus, QueueStatus, Snapshot
from forebay.policies.contracts import Finish, Outcome, Route

if TYPE_CHECKING:
    from collections.abc import Mapping

SPACE = LabelSpace(
    MappingProxyType({"llama": PoolLabels()}),
    targets={"fast": (0.5, 0.05), "slow": (5.0, 1.0)},
)


def outcome(**fields: Any) -> Outcome:
    plain: dict[str, Any] = {"received": 1.0, "placed": 3.0, "ended": 9.0, "sla": "fast"}
    return Outcome("r", "llama", Route.CHAT, "acme", **{**plain, **fields})


def scrape(metrics: Metrics, snapshot: Snapshot) -> Mapping[tuple[str, ...], float]:
    """Name every sample by its metric and its labels' values."""
    _, text = metrics.render("text/plain", snapshot)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_each_class_has_its_waits():
    metrics = Metrics(SPACE)
    for told in (
        outcome(),
        outcome(placed=1.5),
        outcome(sla="slow", placed=61.0),
        outcome(placed=None),
        outcome(sla="unheard of"),
        outcome(sla=""),
    ):
        metrics.settled(told)
    found = scrape(metrics, Snapshot())

    counts = {
        key[1:]: n for key, n in found.items() if key[0] == "forebay_class_wait_seconds_count"
    }
    assert counts == {("llama", "fast"): 2, ("llama", "slow"): 1}
    assert found["forebay_class_wait_seconds_sum", "llama", "slow"] == 60.0
    assert found["forebay_queue_wait_seconds_count", "llama"] == 5


def test_a_prediction_is_held_against_whole_answers_only():
    metrics = Metrics(SPACE)
    for told in (
        outcome(predicted_tokens=150, output_tokens=100),
        outcome(predicted_tokens=50, output_tokens=100),
        outcome(predicted_tokens=50, output_tokens=10, finish=Finish.LEFT),
        outcome(predicted_tokens=0, output_tokens=10),
        outcome(predicted_tokens=50, output_tokens=None),
    ):
        metrics.settled(told)
    found = scrape(metrics, Snapshot())

    assert found["forebay_prediction_error_ratio_count", "llama"] == 2
    assert found["forebay_prediction_error_ratio_sum", "llama"] == 1.0


def test_the_queue_shows_whose_requests_wait_and_what_it_did():
    queue = QueueStatus(
        waiting=(("fast", "acme", 3), ("", "other", 1)),
        oldest_s=(("fast", 2.5), ("", 7.0)),
        overdue=1,
        spread=120.0,
        watermark=2,
        forced=4,
        recalls=5,
        displaced=6,
        gave_up=7,
        starved=0,
        rank_changes=8,
    )
    plain = PoolStatus("plain")
    found = scrape(Metrics(SPACE), Snapshot(pools=(PoolStatus("llama", queue=queue), plain)))

    assert (
        found.items()
        >= {
            ("forebay_class_queue_requests", "llama", "fast", "acme"): 3,
            ("forebay_class_queue_requests", "llama", "", "other"): 1,
            ("forebay_class_oldest_seconds", "llama", "fast"): 2.5,
            ("forebay_class_oldest_seconds", "llama", ""): 7.0,
            ("forebay_overdue_requests", "llama"): 1,
            ("forebay_virtual_time_spread", "llama"): 120.0,
            ("forebay_watermark_level", "llama"): 2,
            ("forebay_forced_dispatches_total", "llama"): 4,
            ("forebay_recalls_total", "llama"): 5,
            ("forebay_displaced_requests_total", "llama"): 6,
            ("forebay_gave_up_requests_total", "llama"): 7,
            ("forebay_starved_requests_total", "llama"): 0,
            ("forebay_rank_changes_total", "llama"): 8,
            ("forebay_starved_requests_total", "plain"): 0,
        }.items()
    )
    assert ("forebay_watermark_level", "plain") not in found
    assert ("forebay_virtual_time_spread", "plain") not in found
