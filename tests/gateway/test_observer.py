"""Metrics, request lines and spans behind one seam."""

from __future__ import annotations

from forebay.gateway.config.sections import Config
from forebay.gateway.telemetry.access_log import AccessLog
from forebay.gateway.telemetry.labels import LabelSpace
from forebay.gateway.telemetry.metrics import Metrics
from forebay.gateway.telemetry.observer import BATCH, Telemetry
from forebay.gateway.telemetry.traces import UNTRACED, PassOn
from forebay.policies.contracts import Outcome, Route

CONFIG = Config.model_validate(
    {
        "version": 1,
        "pools": [
            {
                "name": "llama",
                "models": {"m": "m"},
                "endpoints": [{"name": "e0", "engine": "sim"}],
            }
        ],
    }
)
SPACE = LabelSpace.from_config(CONFIG)
DONE = Outcome("r", "llama", Route.CHAT, "default", model="m", endpoint="e0", status=200)


class Kept:
    """Counts lines."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def put(self, lines: bytes) -> None:
        self.batches.append(lines.count(b"\n"))


def telemetry() -> tuple[Telemetry, Kept]:
    kept = Kept()
    return Telemetry(Metrics(SPACE), AccessLog(kept, SPACE), None, sample=1.0), kept


def test_outcomes_wait_for_the_next_flush():
    told, kept = telemetry()
    told.settled(DONE, UNTRACED)
    assert kept.batches == []
    told.flush()
    assert kept.batches == [1]


def test_a_busy_gateway_encodes_before_the_clock_does_and_writes_once():
    kept = Kept()
    log = AccessLog(kept, SPACE)
    told = Telemetry(Metrics(SPACE), log, None, sample=1.0)
    for _ in range(2 * BATCH + 1):
        told.settled(DONE, UNTRACED)
    assert len(log._pending) == 1
    assert kept.batches == []
    told.close()
    assert kept.batches == [2 * BATCH + 1]
    assert told.metrics.totals()["llama"].requests == 2 * BATCH + 1


def test_without_a_collector_contexts_are_only_passed_on():
    told, _ = telemetry()
    assert isinstance(told.tracing, PassOn)


def test_the_labels_are_the_names_of_the_configuration():
    assert SPACE.names(DONE) == (
        "llama",
        "/v1/chat/completions",
        "e0",
        "default",
        "m",
        "completed",
        "",
        "",
    )
    assert [SPACE.field(name) for name in ("priority", "temperature")] == ["priority", "other"]


def test_without_a_log_nothing_is_written():
    told = Telemetry(Metrics(SPACE), None, None, sample=0.0)
    told.settled(DONE, UNTRACED)
    told.relabel(SPACE)
    told.close()
    assert told.metrics.totals()["llama"].requests == 1
