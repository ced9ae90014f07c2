"""What a predictor learns while it serves: correction, trust, and rivals."""

from __future__ import annotations

from math import log1p
from random import Random
from typing import Any

import pytest
from msgspec import structs

from forebay.policies.contracts import Finish, Outcome, Request, Route
from forebay.scheduler.length import LengthFeatures, Prediction
from forebay.scheduler.length.correction import Correction
from forebay.scheduler.length.gate import Gate, GateSettings
from forebay.scheduler.length.live import LiveLength
from forebay.scheduler.length.rivals import Rivals


def test_a_template_is_corrected_by_its_own_residuals_and_a_new_one_by_the_models():
    correction, rng = Correction(), Random(0)
    for _ in range(400):
        correction.add("acme", "big", "long", 1.0 + rng.gauss(0, 0.2))
        correction.add("acme", "big", "short", -1.0 + rng.gauss(0, 0.2))
        correction.add("other", "small", "", 0.5 + rng.gauss(0, 0.2))

    assert correction.shift("acme", "big", "long") == pytest.approx(1.0, abs=0.15)
    assert correction.shift("acme", "big", "short") == pytest.approx(-1.0, abs=0.15)
    assert correction.shift("nobody", "small", "") == pytest.approx(0.5, abs=0.15)
    assert abs(correction.shift("acme", "big", "new")) < 0.9
    assert Correction().shift("acme", "big", "") == 0.0


def test_a_cut_answer_says_only_that_it_would_have_been_longer():
    correction = Correction()
    for _ in range(200):
        correction.add("acme", "big", "", 0.0)
    before = correction.shift("acme", "big", "")
    for _ in range(200):
        correction.add("acme", "big", "", -3.0, cut=True)
    assert correction.shift("acme", "big", "") == before
    for _ in range(200):
        correction.add("acme", "big", "", 2.0, cut=True)
    assert correction.shift("acme", "big", "") > before + 0.9


def test_only_so_many_keys_are_kept():
    correction = Correction(most=10)
    for number in range(100):
        correction.add(f"t{number}", "big", "x", 0.0)
    assert len(correction) == 10


def feed(gate: Gate, times: int, seed: int, *, shift: float = 0.0, skill: float = 1.0) -> list[int]:
    """Let outcomes come; return after how many trust changed."""
    rng, changed = Random(seed), list[int]()
    for number in range(times):
        true = rng.gauss(5.0, 1.1)
        raw = skill * true + (1 - skill) * rng.gauss(5.0, 1.1) + rng.gauss(0, 0.25)
        if gate.add("big", said=raw, true=true + shift, raw=raw):
            changed.append(number)
    return changed


def test_good_predictions_keep_their_trust():
    assert [feed(Gate(), 20_000, seed) for seed in range(2)] == [[], []]


def test_a_shift_ends_trust_soon_and_more_so_a_large_one():
    small, large = Gate(), Gate()
    feed(small, 1000, 0)
    feed(large, 1000, 0)

    (first,) = feed(small, 250, 1, shift=0.2)
    (sooner,) = feed(large, 250, 1, shift=0.7)

    assert sooner < first
    assert (small.closed_times, large.closed_times) == (1, 1)


@pytest.mark.parametrize("shift", [0.5, -0.5], ids=["longer", "shorter"])
def test_how_a_models_answers_have_changed_is_told(shift: float):
    gate = Gate(GateSettings(sum=1e9, p=0.0, accuracy=0.0))
    assert gate.changes == []

    feed(gate, 1000, 0)
    (same,) = gate.changes
    feed(gate, 200, 1, shift=shift)
    (moved,) = gate.changes

    assert (same.model, same.psi is not None, same.ks is not None) == ("big", True, True)
    assert (same.psi or 0) < 0.25 < (moved.psi or 0)
    assert (same.ks or 0) < 0.2 < (moved.ks or 0)
    assert same.sum < 29 < moved.sum


def test_a_small_shift_that_lasts_ends_trust_though_residuals_spread_widely():
    gate, rng = Gate(GateSettings(accuracy=0.0, tau=-1.0)), Random(0)

    def after(shift: float, times: int) -> int | None:
        for number in range(times):
            raw = rng.gauss(5.0, 1.0)
            if gate.add("big", said=raw, true=raw + shift + rng.gauss(0, 0.5), raw=raw):
                return number
        return None

    assert after(0.0, 20_000) is None
    noticed = after(0.22, 150)
    assert noticed is not None
    assert gate.reason == "answers of big are no longer as long as they were"


def test_answers_that_spread_otherwise_end_trust_though_their_mean_stays():
    gate, rng = Gate(GateSettings(accuracy=0.0, tau=-1.0)), Random(0)

    def change(spread: float, times: int) -> list[bool]:
        return [
            gate.add("big", said=5.0, true=5.0 + rng.gauss(0, spread), raw=5.0)
            for _ in range(times)
        ]

    assert not any(change(0.3, 5000))
    assert any(change(1.2, 400))
    assert gate.reason == "answers of big are no longer as long as they were"


def test_predictions_without_an_order_end_trust_and_good_ones_bring_it_back():
    gate = Gate(GateSettings(accuracy=0.0))
    assert len(feed(gate, 600, 3, skill=0.0)) == 1
    assert "the order of predictions is off" in gate.reason
    feed(gate, 900, 4)
    assert (gate.open, gate.reason) == (True, "")


def test_predictions_in_the_wrong_bucket_end_trust():
    gate = Gate(GateSettings(tau=-1.0, sum=1e9, p=0.0))
    rng = Random(0)
    changes = [gate.add("big", said=3.0, true=rng.gauss(6, 0.5), raw=3.0) for _ in range(200)]
    assert changes.index(True) == 149
    assert gate.reason == "only 0% of answers were in their bucket"


def test_a_better_challenger_takes_over_in_steps_and_a_worse_one_is_dropped():
    rng, better, worse = Random(0), Rivals(fewest=50), Rivals(fewest=50)
    shares: list[float] = []
    for _ in range(400):
        error = abs(rng.gauss(0, 0.5))
        if better.add(error, error * 0.8):
            shares.append(better.share)
        worse.add(error, error * 1.2)

    assert shares == [0.1, 1.0]
    assert better.promoted
    assert (worse.dropped, worse.share) == (True, 0.0)


def test_a_share_of_the_requests_is_the_challengers():
    rivals = Rivals(fewest=1)
    for error in (1.0, 2.0):
        rivals.add(error, 0.0)
    chosen = sum(rivals.chooses_challenger(f"request-{number}") for number in range(5000))
    assert rivals.share in (0.1, 1.0)
    assert chosen / 5000 == pytest.approx(rivals.share, abs=0.02)


FEATURES = LengthFeatures(Route.CHAT, "big", "acme", 10, max_tokens=300, answers=2, text="hello")
REQUEST = Request(
    id="r",
    pool="p",
    route=Route.CHAT,
    model="big",
    tenant="acme",
    sequence=1,
    arrived=0.0,
    deadline=60.0,
    prompt_tokens_estimate=10,
    output_tokens_estimate=10,
    uncached_tokens=10,
)


def said(tokens: float) -> Prediction:
    return Prediction(tokens, (tokens, tokens, tokens), (0.0, 1.0, 0.0, 0.0), log1p(tokens))


def ended(**fields: Any) -> Outcome:
    fields.setdefault("output_tokens", 200)
    return Outcome("r", "p", Route.CHAT, "acme", **fields)


def test_a_prediction_counts_all_answers_and_never_passes_what_is_allowed():
    live = LiveLength()

    assert live.take("r", FEATURES, said(100)) == 200
    assert live.take("r", FEATURES, said(1000)) == 600
    assert live.take("r", FEATURES._replace(max_tokens=None), said(1000)) == 2000
    assert live.take("r", FEATURES._replace(route=Route.EMBEDDINGS), said(9)) is None


def test_outcomes_correct_what_is_predicted_next():
    live = LiveLength()
    for _ in range(300):
        live.take("r", FEATURES, said(20))
        live.learn(REQUEST, ended())  # two answers of a hundred tokens each

    assert live.take("r", FEATURES, said(20)) == pytest.approx(200, abs=40)


@pytest.mark.parametrize(
    "fields",
    [
        {"finish": Finish.ENGINE_ERROR},
        {"finish": Finish.REJECTED, "output_tokens": None},
        {"output_tokens": 0},
        {"finish": Finish.LEFT, "output_tokens": None, "events": 3},
        {"finish_reason": "length", "output_tokens": 3},
    ],
)
def test_failures_and_answers_cut_early_teach_nothing(fields: dict[str, Any]):
    live = LiveLength()
    for _ in range(50):
        live.take("r", FEATURES, said(50))
        live.learn(REQUEST, ended(**fields))

    assert live.take("r", FEATURES, said(50)) == 100
    assert live.gate.outcomes == 0


def test_a_request_that_was_not_read_teaches_the_mean_only():
    live = LiveLength()
    for _ in range(10):
        live.learn(REQUEST, ended())

    assert live.estimate(FEATURES._replace(answers=1)) == 200
    assert live.asked("r") is None


def test_a_challenger_that_takes_over_is_corrected_by_its_own_errors():
    live = LiveLength(rivals=Rivals(fewest=20))
    # Two answers of a hundred tokens: the champion says too little, the challenger too much.
    for number in range(300):
        live.take(f"r{number}", FEATURES, said(60), said(120))
        live.learn(structs.replace(REQUEST, id=f"r{number}"), ended())

    assert live.rivals is not None
    assert live.rivals.promoted
    assert live.trusted
    assert live.take("last", FEATURES, said(60), said(120)) == pytest.approx(204, abs=8)


def test_a_challenger_that_has_taken_over_is_read_alone():
    live = LiveLength(rivals=Rivals(fewest=20))
    for number in range(300):
        live.take(f"r{number}", FEATURES, said(60), said(120))
        live.learn(structs.replace(REQUEST, id=f"r{number}"), ended())
    outcomes = live.gate.outcomes
    for number in range(300, 600):
        live.take(f"r{number}", FEATURES, said(120))
        live.learn(structs.replace(REQUEST, id=f"r{number}"), ended())

    assert live.gate.outcomes == outcomes + 300
    assert live.take("last", FEATURES, said(120)) == pytest.approx(204, abs=8)
