"""Predictors that learn from examples: one contract for all."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from forebay.gateway.weights import load_encoder
from forebay.policies.contracts import Route
from forebay.scheduler.length import (
    Example,
    LengthFeatures,
    LengthPredictor,
    MeanLength,
    NotFitted,
)
from forebay.scheduler.length.encoder import Encoder
from forebay.scheduler.length.linear import LinearText, scale_of

TOPICS = [
    "rivers",
    "stars",
    "bread",
    "music",
    "trains",
    "clouds",
    "bridges",
    "cats",
    "glass",
    "winter",
]


def asked(text: str, model: str = "big") -> LengthFeatures:
    return LengthFeatures(Route.CHAT, model, "acme", len(text) // 4, text=text)


def made_up() -> list[Example]:
    """Essays are long, yes-or-no questions short, and one model says twice as much."""
    rng, found = Random(0), list[Example]()
    for number in range(240):
        topic, kind = TOPICS[number % 10], number % 2
        text = f"Write an essay about {topic} {number}" if kind else f"Yes or no: {topic} {number}?"
        for model, factor in (("big", 2.0), ("small", 1.0)):
            tokens = (400 if kind else 12) * factor * rng.uniform(0.8, 1.25)
            found.append(Example(asked(text, model), round(tokens), "made up", text))
    return found


@pytest.mark.parametrize(
    "predictor", [MeanLength(), LinearText(), Encoder()], ids=lambda p: p.__class__.__name__
)
def test_without_fit_a_predictor_says_so(predictor: LengthPredictor):
    with pytest.raises(NotFitted, match=r"learnt nothing|seen no answer"):
        predictor.predict([asked("hello")])


@pytest.mark.parametrize(
    "predictor", [MeanLength(), LinearText()], ids=lambda p: p.__class__.__name__
)
def test_predictions_keep_their_promises(predictor: LengthPredictor):
    said = predictor.fit(made_up()).predict([asked(each.features.text) for each in made_up()[:50]])

    for prediction in said:
        low, half, high = prediction.quantiles
        assert 0 <= low <= half <= high
        assert sum(prediction.buckets) == pytest.approx(1)
        assert min(prediction.buckets) >= 0
        assert prediction.tokens > 0


def test_the_linear_one_reads_the_prompt_and_knows_the_model():
    predictor = LinearText().fit(made_up())

    essay, question, less, unknown = predictor.predict(
        [
            asked("Write an essay about lamps"),
            asked("Yes or no: lamps?"),
            asked("Write an essay about lamps", "small"),
            asked("Write an essay about lamps", "never seen"),
        ]
    )

    assert essay.rank > question.rank + 2
    assert essay.rank > unknown.rank > less.rank
    assert question.buckets[0] > 0.8
    assert essay.quantiles[0] < essay.tokens < essay.quantiles[2]


def test_what_no_prompt_learnt_from_had_does_not_outweigh_all_else():
    predictor = LinearText().fit(made_up())
    odd = "Write an essay about lamps\n```{x: $1}```\n" * 30
    plain, strange = predictor.predict([asked("Write an essay about lamps"), asked(odd)])
    assert abs(strange.rank - plain.rank) < 4


def test_each_count_is_divided_by_its_spread_where_it_has_one():
    counts = np.zeros((1000, 4))
    counts[:, 0] = np.arange(1000) % 2
    counts[0, 1] = 1.0
    counts[0, 2] = 0.1
    assert scale_of(counts) == pytest.approx([0.5, 0.05, 1.0, 1.0], abs=1e-5)


def test_learning_twice_from_the_same_gives_the_same():
    first, second = (LinearText(random_state=3).fit(made_up()) for _ in range(2))
    asks = [asked("Write an essay about lamps"), asked("短い")]

    assert first.predict(asks) == second.predict(asks)


def test_no_examples_are_an_error():
    with pytest.raises(ValueError, match="no examples to learn from"):
        LinearText().fit([])


def test_the_default_weights_read_english_and_chinese():
    encoder = load_encoder()

    story, word, chinese, short = encoder.predict(
        [
            asked("Write a detailed 3,000 word report on the history of the Roman empire."),
            asked("What is the capital of France? Answer with one word."),
            asked("请详细解释量子力学的基本原理,并写一篇2000字的文章。"),
            asked("你好"),
        ]
    )

    assert story.rank > word.rank
    assert chinese.rank > short.rank
    assert encoder.predict([asked("")])[0].tokens > 0


def test_answers_of_several_models_to_one_prompt_are_read_once_and_alike():
    encoder = load_encoder()
    models = ("gpt-4-0314", "o3-mini-2025-01-31", "never seen")
    asks = [asked("Explain how a forebay works", model) for model in models]

    together = [each.rank for each in encoder.predict(asks)]
    alone = [encoder.predict([each])[0].rank for each in asks]
    # Products in 8 bits are scaled by the largest number of all answers asked for at once.
    assert together == pytest.approx(alone, abs=0.02)


def test_weights_survive_being_written_and_read():
    encoder = load_encoder()
    again = Encoder.from_files(encoder.to_files())

    assert again.predict([asked("hello")]) == encoder.predict([asked("hello")])


def test_weights_of_another_format_or_with_a_part_missing_are_refused():
    files = load_encoder().to_files()

    with pytest.raises(ValueError, match=r"model\.onnx missing"):
        Encoder.from_files({"meta.json": files["meta.json"], "text.npz": files["text.npz"]})
    with pytest.raises(ValueError, match="weights of format 99; this version reads 3"):
        Encoder.from_files({**files, "meta.json": b'{"format": 99}'})
