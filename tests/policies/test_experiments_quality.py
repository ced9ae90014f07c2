"""When an endpoint's answers have become bad."""

from __future__ import annotations

from forebay.policies.experiments.quality import EndpointQuality, QualityLimits, out_of

LIMITS = QualityLimits({"empty": 0.1, "repeated": 0.05}, window_s=60.0, out_s=30.0)
GOOD, EMPTY = {"empty": False, "repeated": False}, {"empty": True, "repeated": False}


def test_a_few_bad_answers_in_a_row_are_enough():
    quality = EndpointQuality(LIMITS, 0.0)
    told = [quality.add(EMPTY, 1.0) for _ in range(8)]
    assert [bool(why) for why in told].index(True) < 6
    assert quality.until == 31.0
    assert next(filter(None, told)).endswith("answers are empty")


def test_what_is_within_the_limit_is_no_reason():
    quality = EndpointQuality(LIMITS, 0.0)
    told = [quality.add(EMPTY if n % 20 == 0 else GOOD, n * 0.1) for n in range(1000)]
    assert set(told) == {""}


def test_a_share_that_rises_is_seen_though_it_was_long_good():
    quality = EndpointQuality(LIMITS, 0.0)
    for n in range(2000):
        quality.add(GOOD, n * 0.1)
    bad = 0
    while not quality.until and bad < 1000:
        bad += 1
        quality.add(EMPTY, 200.0 + bad * 0.1)
    assert bad < 400


def test_it_comes_back_after_its_time_and_begins_anew():
    quality = EndpointQuality(LIMITS, 0.0)
    while not quality.until:
        quality.add(EMPTY, 1.0)
    assert (quality.tick(30.9), quality.tick(31.0), quality.until) == (False, True, 0.0)
    assert quality.add(EMPTY, 32.0) == ""


def test_a_kind_without_a_limit_is_only_counted():
    quality = EndpointQuality(QualityLimits({"empty": 0.1}), 0.0)
    assert {quality.add({"repeated": True}, 1.0) for _ in range(50)} == {""}


def test_where_all_are_suspect_none_goes():
    assert out_of({"a"}, {"a", "b"}) == {"a"}
    assert out_of({"a", "b"}, {"a", "b"}) == frozenset()
