"""What the configuration says of scheduling, and what becomes of it in the core."""

from __future__ import annotations

import pytest

from forebay.gateway.config import load
from forebay.gateway.config.errors import ConfigErrors
from forebay.gateway.scheduling import Shared, predictor_of, scheduling_of, window_of
from forebay.scheduler.admission import TABLE, Watermark, WatermarkSettings
from forebay.scheduler.build import DoubleQueueSettings, Scheduling
from forebay.scheduler.guards import GuardSettings
from forebay.scheduler.length import ConstantLength, MeanLength
from forebay.scheduler.window_adaptive import WindowSettings

FILE = """\
version: 1
sla: {batch: {weight: 1}}
pools:
  - name: main
    models: [m]
    endpoints:
      - {name: e, engine: sim, max_in_flight: LIMIT}
"""


def read(*lines: str, limit: str = "4"):
    text = FILE.replace("LIMIT", limit) + "".join(f"    {line}\n" for line in lines)
    return load.read(text).pools[0]


def errors(*lines: str, limit: str = "4") -> list[tuple[str, str]]:
    with pytest.raises(ConfigErrors) as caught:
        read(*lines, limit=limit)
    return [(each.path.removeprefix("pools[0]."), each.message) for each in caught.value.errors]


def test_without_a_word_it_is_ml_with_guards_and_no_predictor():
    pool = read()

    assert scheduling_of(pool, Shared(classes=True)) == Scheduling(
        order="ml", guards=GuardSettings()
    )
    assert scheduling_of(pool, Shared()).guards == GuardSettings(recalls=0)
    assert isinstance(predictor_of(pool), ConstantLength)
    assert window_of(pool) == WindowSettings()


def test_every_word_reaches_the_core():
    pool = read(
        "order: hrrn",
        "queue: {classes: {batch: 1k}}",
        "scheduling:",
        "  predictor: mean",
        "  guards: {longest_wait: 1m, overdue_share: 50%, long_tokens: 4k, recalls: 1}",
        "  reread: {dispatches: 3, after: 10ms}",
        "  double_queue: {long_tokens: 2k, long_share: 20%}",
        "  watermarks: {marks: [{at: 70%, max_prompt: 8k}], gap: 10%, stale_as: 50%}",
        "  window: {ttft: 1s, tpot: 20ms, least: 2, most: 64}",
    )

    assert scheduling_of(pool, Shared(classes=True)) == Scheduling(
        order="hrrn",
        predicts=True,
        reread_s=0.01,
        reread_dispatches=3,
        guards=GuardSettings(60.0, 0.1, 0.5, 0.0, 4000, 1),
        watermarks=WatermarkSettings((Watermark(0.7, max_prompt=8000),), 0.1, 0.5),
        double_queue=DoubleQueueSettings(2000, 0.2),
        class_caps={"batch": 1000},
    )
    assert isinstance(predictor_of(pool), MeanLength)
    assert window_of(pool) == WindowSettings(1.0, 0.02, 2, 64)


def test_watermarks_are_the_usual_four_where_none_are_named():
    settings = scheduling_of(read("scheduling: {watermarks: {}}"), Shared()).watermarks

    assert settings == WatermarkSettings(TABLE)


def test_auto_is_a_limit():
    assert read(limit="auto").endpoints[0].max_in_flight == 0
    assert errors(limit="0") == [("endpoints[0].max_in_flight", "must be 1 or more, or 'auto'")]
    wrong = [("endpoints[0].max_in_flight", "must be a whole number, or 'auto'")]
    assert [errors(limit=each) for each in ("some", "1.5", "'-3'")] == [wrong] * 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("slwo", "there is no pool 'slwo'; did you mean 'slow'?"),
        ("main", "is this pool itself"),
        ("on", "the pool 'on' sends its long requests on, too"),
    ],
)
def test_long_requests_go_to_another_pool_that_keeps_them(name: str, message: str):
    others = [
        "  - {name: slow, models: [s], endpoints: [{name: f, engine: sim}]}",
        "  - {name: on, models: [o], endpoints: [{name: g, engine: sim}], scheduling: TO}",
    ]
    own = "    scheduling: {long_pool: {pool: NAME, tokens: 16k}}"
    text = FILE.replace("LIMIT", "4") + "\n".join([own, *others]) + "\n"
    text = text.replace("TO", "{long_pool: {pool: slow}}")

    with pytest.raises(ConfigErrors) as caught:
        load.read(text.replace("NAME", name))
    assert [(e.path, e.message) for e in caught.value.errors] == [
        ("pools[0].scheduling.long_pool.pool", message)
    ]
    assert load.read(text.replace("NAME", "slow")).guests == {"slow": {"m": "m", "o": "o"}}


@pytest.mark.parametrize(
    ("lines", "path", "message"),
    [
        (
            ("queue: {classes: {bath: 5}}",),
            "queue.classes.bath",
            "there is no SLA class 'bath'; did you mean 'batch'?",
        ),
        (
            ("scheduling: {window: {least: 5, most: 4}}",),
            "scheduling.window",
            "'most' is less than 'least'",
        ),
        (
            ("scheduling: {watermarks: {marks: [{at: 80%}, {at: 60%}]}}",),
            "scheduling.watermarks",
            "'marks' must rise from one to the next",
        ),
        (
            ("scheduling: {gards: {}}",),
            "scheduling.gards",
            "is no known key; did you mean 'guards'?",
        ),
    ],
)
def test_what_cannot_be_is_told(lines: tuple[str, ...], path: str, message: str):
    assert errors(*lines) == [(path, message)]
