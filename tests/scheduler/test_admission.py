"""Watermarks: what is let in while KV cache or queue fill."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.policies.contracts import EndpointView, Request, Route
from forebay.scheduler.admission import Admission, Watermark, WatermarkSettings


def view(kv_use: float | None, *, load_at: float | None = 0.0, usable: bool = True) -> EndpointView:
    return EndpointView("a", "sim", 1, usable=usable, kv_use=kv_use, load_at=load_at)


def request(prompt: int = 100) -> Request:
    return Request(
        id="r",
        pool="p",
        route=Route.CHAT,
        model="m",
        tenant="t",
        sequence=1,
        arrived=0.0,
        deadline=60.0,
        prompt_tokens_estimate=prompt,
        output_tokens_estimate=1,
        uncached_tokens=prompt,
    )


def at(kv_use: float, queue_use: float = 0.0) -> Admission:
    admission = Admission(WatermarkSettings())
    admission.update([view(kv_use)], queue_use, 0.0)
    return admission


@pytest.mark.parametrize(
    ("kv_use", "expected"),
    [
        (0.59, (0, 1.0, None, False, True, False)),
        (0.6, (1, 0.5, 32_768, False, True, False)),
        (0.8, (2, 0.5, 32_768, True, True, False)),
        (0.9, (3, 0.5, 32_768, True, False, False)),
        (0.95, (4, 0.5, 8192, True, False, True)),
    ],
)
def test_the_usual_marks(kv_use: float, expected: tuple[Any, ...]):
    a = at(kv_use)

    told = (a.level, a.queue_share, a.max_prompt, a.short_first, not a.refusal(request()), a.alarm)
    assert told == expected


def test_a_mark_is_left_only_a_gap_below_it():
    admission = at(0.61)
    levels: list[int] = []
    for use in (0.58, 0.61, 0.56, 0.549, 0.58, 0.6, 0.91, 0.86, 0.84, 0.1):
        admission.update([view(use)], 0.0, 0.0)
        levels.append(admission.level)

    assert levels == [1, 1, 1, 0, 0, 1, 3, 3, 2, 0]


def test_prompts_past_the_limit_are_refused_with_the_reason():
    admission = at(0.7)

    assert admission.refusal(request(32_768)) is None
    assert admission.refusal(request(40_000)) == (
        "prompts over 32768 tokens wait for a quieter hour, and this has about 40000"
    )


def test_after_an_alarm_the_context_stays_short_until_all_is_well():
    admission = at(0.96)
    limits: list[int | None] = []
    for use in (0.8, 0.6, 0.56, 0.5):
        admission.update([view(use)], 0.0, 0.0)
        limits.append(admission.max_prompt)

    assert limits == [8192, 8192, 8192, None]


def test_the_queues_own_fill_counts_and_shrinks_no_queue():
    admission = at(0.0, queue_use=0.9)

    assert (admission.level, admission.queue_share) == (3, 1.0)
    assert admission.refusal(request()) == "the queue is past 90%"
    admission.fill(0.5)
    assert admission.refusal(request()) is None


def test_what_is_stale_or_silent_counts_as_declared_and_never_as_empty():
    admission = Admission(WatermarkSettings(stale_as=0.7, stale_after=10.0))
    uses: list[float] = []
    for views in (
        [view(None)],
        [view(0.1, load_at=None)],
        [view(0.1, load_at=-11.0)],
        [view(0.1), view(None)],
        [view(0.9, usable=False), view(0.1)],
        [],
    ):
        admission.update(views, 0.0, 0.0)
        uses.append(round(admission.kv_use, 3))

    assert uses == [0.7, 0.7, 0.7, 0.4, 0.1, 0.0]


def test_a_table_of_ones_own():
    admission = Admission(WatermarkSettings((Watermark(0.3, max_prompt=10),), gap=0.0))
    admission.update([view(0.3)], 0.0, 0.0)

    assert admission.refusal(request(11)) is not None
    admission.update([view(0.29)], 0.0, 0.0)
    assert admission.refusal(request(11)) is None
