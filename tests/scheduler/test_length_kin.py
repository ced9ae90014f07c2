"""Models that answer alike, and the ridges that they get."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from forebay.policies.contracts import Route
from forebay.scheduler.length import Example, LengthFeatures
from forebay.scheduler.length.encoder import (
    OPINIONS,
    Calibration,
    Encoder,
    Said,
    Shifts,
    blend,
    own_opinion,
)
from forebay.scheduler.length.encoder_calibrate import calibrate
from forebay.scheduler.length.kin import Kin, kin_of
from forebay.scheduler.length.linear import (
    Ridge,
    by_prompt,
    kin_targets,
    matrix_of,
    prompt_weights,
)


def answered(model: str, prompts: int, group: str) -> list[Example]:
    return [
        Example(LengthFeatures(Route.CHAT, model, "", 5, text=f"{group} {number}"), number, group)
        for number in range(prompts)
    ]


def kin_among(examples: list[Example]) -> Kin:
    return kin_of(examples, by_prompt(examples).of)


def test_a_model_with_many_prompts_is_its_own_kin_and_one_with_few_has_none():
    found = kin_among(answered("big", 250, "log") + answered("small", 249, "log"))

    assert found == Kin(("big",), {"big": 0})
    assert found.table(["small", "big"]).tolist() == [[0.0], [0.0], [1.0]]


def test_a_crowd_of_models_on_the_same_prompts_is_one_kin():
    crowd = [each for n in range(9) for each in answered(f"m{n}", 100, "arena")]
    few = [each for n in range(9) for each in answered(f"f{n}", 99, "few")]

    found = kin_among(crowd + few)

    assert found.names == ("arena",)
    assert found.of == {f"m{n}": 0 for n in range(9)}


def test_a_models_own_ridge_outdoes_that_of_a_crowd_it_is_in():
    crowd = [each for n in range(9) for each in answered(f"m{n}", 100, "arena")]

    found = kin_among(crowd + answered("m0", 300, "exams"))

    assert found.names == ("arena", "m0")
    assert found.of["m0"] == 1
    assert found.of["m1"] == 0


def test_each_kin_learns_from_its_own_answers():
    examples = answered("up", 60, "log") + answered("down", 60, "log")
    prompts, tall = by_prompt(examples), np.arange(60) >= 30
    said = np.concatenate((np.where(tall, 1.0, -1.0), np.where(tall, -1.0, 1.0)))
    kin = np.repeat([0, 1], 60)

    own, certain = kin_targets(prompts, said, kin, 2)
    mean = np.zeros((60, 1))
    targets, weights = np.hstack((mean, own)), np.hstack((prompt_weights(prompts, 1), certain))
    ridge = Ridge().fit_matrix(*matrix_of(prompts.texts), targets, weights)

    told = ridge.many(*matrix_of(prompts.texts))
    assert abs(told[:, 0]).max() < 0.1
    assert told[tall, 1].mean() > 0.3 > -0.3 > told[tall, 2].mean()


def test_a_ridge_read_from_its_arrays_says_nearly_the_same():
    examples = answered("up", 60, "log")
    prompts = by_prompt(examples)
    targets = np.log1p(np.arange(60.0))[:, None]
    matrix = matrix_of(prompts.texts)
    ridge = Ridge().fit_matrix(*matrix, targets, prompt_weights(prompts, 1))

    again = Ridge.from_arrays(Ridge.from_arrays(ridge.arrays()).arrays())

    assert again.many(*matrix) == pytest.approx(ridge.many(*matrix), abs=0.05)


def test_a_target_that_few_prompts_know_is_told_as_its_mean():
    prompts = by_prompt(answered("up", 60, "log"))
    targets, weights = np.zeros((60, 1)), np.zeros((60, 1))
    targets[:5], weights[:5] = 2.0, 1.0

    ridge = Ridge().fit_matrix(*matrix_of(prompts.texts), targets, weights)

    assert ridge.many(*matrix_of(["anything"])).tolist() == [[2.0]]


def test_an_opinion_is_that_of_all_where_a_model_has_no_kin():
    opinions = np.array([1.0, 0.0, 5.0, 3.0], dtype=np.float32)

    assert OPINIONS == 2
    assert own_opinion(opinions, None) == 1.0
    assert own_opinion(opinions, 1) == 2.0


def test_a_stranger_is_told_more_by_the_ridge_and_kin_are_shifted_by_their_own_errors():
    calibration = Calibration(
        ridge=0.25, stranger=0.75, shifts=Shifts(0.0, 0.0, 0.0), kin={"b": Shifts(-1.0, 0.1, 1.0)}
    )
    even = (0.25,) * 4
    said = Said(5.0, 1.0, 0.0, -0.5, 0.5, even, known=True, kin="a")

    known, stranger, shifted = (
        blend(each, calibration)
        for each in (said, said._replace(known=False, kin=""), said._replace(kin="b"))
    )

    assert known.rank == pytest.approx(5.75)
    assert stranger.rank == pytest.approx(5.25)
    logs = np.log1p(shifted.quantiles)
    assert logs.tolist() == pytest.approx([5.75 - 1.5, 5.75 + 0.1, 5.75 + 1.5])


def test_the_order_leans_to_where_answers_spread_more_and_the_guess_does_not():
    said = Said(5.0, 0.0, 0.0, -0.5, 0.5, (0.25,) * 4, known=True, kin="")
    even, upward = (blend(each, Calibration()) for each in (said, said._replace(high=1.5)))

    assert upward.rank > even.rank == pytest.approx(5.0)
    assert upward.tokens == even.tokens
    assert upward.quantiles[0] == even.quantiles[0]
    plain = blend(said._replace(high=1.5), Calibration(lean=0.0))
    assert (plain.tokens, plain.quantiles, plain.buckets) == (
        upward.tokens,
        upward.quantiles,
        upward.buckets,
    )


class Torn:
    """An encoder that half expects a long answer to each prompt."""

    def say(self, features: list[LengthFeatures]) -> list[Said]:
        base, shares = float(np.log1p(1000)), (0.0, 0.1, 0.6, 0.3)
        return [Said(base, 0.0, 0.0, -0.2, 0.2, shares, known=True, kin="") for _ in features]


@pytest.mark.parametrize(("prompts", "more"), [(3, 2.2), (300, 1.25)])
def test_a_few_answers_do_not_move_the_weight_of_the_longest_bucket(prompts: int, more: float):
    """With it all prompts are told to be long, of which a third is."""
    examples = [
        Example(
            LengthFeatures(Route.CHAT, "m", "", 5, text=str(number)),
            500 if number % 3 else 2000,
            "some",
        )
        for number in range(prompts)
    ]

    told = calibrate(cast("Encoder", Torn()), examples, np.random.default_rng(0))

    assert told.more == more


class Unsure:
    """An encoder that says the same of all prompts."""

    def say(self, features: list[LengthFeatures]) -> list[Said]:
        base = float(np.log1p(100))
        return [Said(base, 0.0, 0.0, 0.0, 0.0, (0.25,) * 4, known=True, kin="") for _ in features]


def test_a_large_set_and_a_small_one_weigh_alike_in_what_is_common():
    def answers(group: str, count: int, tokens: int) -> list[Example]:
        features = (
            LengthFeatures(Route.CHAT, "m", "", 5, text=f"{group} {n}") for n in range(count)
        )
        return [Example(each, tokens, group) for each in features]

    examples = answers("large", 190, 100) + answers("small", 10, 1000)
    encoder = cast("Encoder", Unsure())
    shifts = calibrate(encoder, examples, np.random.default_rng(0)).shifts
    alone = calibrate(encoder, examples[:190], np.random.default_rng(0)).shifts

    assert (shifts.low, shifts.high) == pytest.approx((0.0, np.log1p(1000) - np.log1p(100)))
    assert alone == (0.0, 0.0, 0.0)
