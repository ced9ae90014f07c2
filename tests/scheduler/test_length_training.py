# pyright: basic, reportMissingImports=false
"""What a step of training draws, and what teachers say; with PyTorch only."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

pytest.importorskip("torch")

import onnxruntime as ort
import torch

from forebay.scheduler.length.encoder_export import export, reach
from forebay.scheduler.length.encoder_net import Net, Shape
from forebay.scheduler.length.encoder_tables import Drawing, Inputs, draws, tables_of
from forebay.scheduler.length.encoder_teach import teach
from forebay.scheduler.length.encoder_train import Task, Training, answers_of, say_all
from forebay.scheduler.length.fields import ROW
from forebay.scheduler.length.slots import WIDTH
from forebay.scheduler.length.text import COUNTED

PROMPTS = 60
SHAPE = Shape(vocabulary=8, models=4, layers=1, width=24, heads=2, inner=24, prompt=16)
HOW = Training(epochs=20, batch=10, answers=4, head_rate=1e-2, average=0.9)


def made_up(repeats: float = 1.0) -> Inputs:
    """Prompts of one word each, asking for a short or long one; three or six answers to each."""
    counts = np.where(np.arange(PROMPTS) % 3, 3, 6)
    starts = np.concatenate(([0], np.cumsum(counts)))
    long = np.repeat(np.arange(PROMPTS) % 2, counts)
    answers = int(starts[-1])
    counted = np.zeros((PROMPTS, COUNTED), dtype=np.float32)
    counted[:, 0] = np.arange(PROMPTS) % 2 - 0.5
    ids = np.zeros((PROMPTS, 3, WIDTH), dtype=np.int64)
    ids[:, 0, 0], ids[:, 1, 0], ids[:, 2, 0] = 2, 4 + np.arange(PROMPTS) % 2, 3
    return Inputs(
        slots=[(each, np.arange(3)) for each in ids],
        opinions=np.zeros((PROMPTS, 2), dtype=np.float32),
        kin=np.zeros((4, 0), dtype=np.float32),
        counts=counted,
        starts=starts,
        models=1 + np.arange(answers) % 3,
        rows=np.zeros((answers, ROW), dtype=np.float32),
        base=np.full(answers, 4.0, dtype=np.float32),
        tokens=np.where(long, 300, 10).astype(np.float32),
        repeats=np.full(PROMPTS, repeats),
    )


def test_an_epoch_draws_each_prompt_once_and_no_more_answers_than_asked_for():
    inputs, how = made_up(), Drawing(10, 4, unknown=0.5)

    epoch = list(draws(inputs, how, np.arange(PROMPTS), np.random.default_rng(0)))

    drawn = np.concatenate([each.prompts for each in epoch]).tolist()
    assert sorted(drawn) == list(range(PROMPTS))
    for each in epoch:
        there = each.weights > 0
        assert each.weights.sum() == pytest.approx(1.0)
        assert len(each.answers) == 40, "always as large as the largest"
        own = each.prompts[each.of[there]]
        assert (inputs.of[each.answers[there]] == own).all()
        assert (np.bincount(own)[own] == np.minimum(np.diff(inputs.starts)[own], 4)).all()
        assert len(set(each.answers[there].tolist())) == there.sum()
        assert each.width == 8


def test_a_small_set_is_drawn_more_often():
    epoch = draws(
        made_up(repeats=2.5), Drawing(10, 4, 0.0), np.arange(PROMPTS), np.random.default_rng(0)
    )

    assert sum(len(each.prompts) for each in epoch) == pytest.approx(2.5 * PROMPTS, rel=0.15)


def test_answers_of_some_prompts_are_found():
    inputs = made_up()

    assert answers_of(inputs, np.array([1, 0])).tolist() == [6, 7, 8, 0, 1, 2, 3, 4, 5]


def test_teachers_speak_of_every_answer_and_only_of_what_they_have_not_seen():
    inputs = made_up()
    # A prompt that is like no other: who has not seen it cannot know.
    odd = answers_of(inputs, np.array([7]))
    inputs.tokens[odd] = 1_000_000
    inputs.counts[7] = 1.0
    seen: list[tuple[int, int]] = []

    said = teach(Task(inputs, SHAPE), HOW, 1, lambda step, steps: seen.append((step, steps)))

    assert said.shape == (len(inputs.tokens), 5)
    assert said[:, 1:].sum(1) == pytest.approx(np.ones(len(said)), abs=1e-5)
    long = np.delete(inputs.tokens == 300, odd)
    residuals = np.delete(said[:, 0], odd)
    assert residuals[long].min() > residuals[~long].max()
    assert said[odd, 0].max() < 4.0, "log(1,000,000) is 9.8 over the mean"
    assert seen == sorted(seen)


def test_what_is_exported_says_what_the_network_says():
    net, inputs = sure(SHAPE), made_up()

    assert off(export(deepcopy(net)), net, inputs) < 0.05


@pytest.mark.parametrize("part", ["before", "within"])
def test_a_number_that_goes_far_costs_the_others_nothing(part: str):
    """Before a feed-forward part and within it one, of which little is made."""
    inputs = made_up()
    far = sure(SHAPE)
    layer = far.layers[0]
    with torch.no_grad():
        if part == "before":
            layer.norm1.bias[5] = 100.0
            layer.up.weight *= 10
            layer.up.weight[:, 5] *= 1e-2
            layer.norm2.weight *= 10
            layer.norm2.weight[5] = 0.0
        else:
            layer.up.bias[5] = 1000.0
            layer.down.weight[:, 5] *= 1e-3

    plain = off(export(deepcopy(far)), far, inputs)
    drawn_in = off(export(deepcopy(far), reach(far, inputs)), far, inputs)

    assert drawn_in < plain / 2


def sure(shape: Shape) -> Net:
    torch.manual_seed(0)
    net = Net(shape).eval()
    torch.nn.init.normal_(net.answer[-1].weight, std=0.3)
    return net


def off(exported: bytes, net: Net, inputs: Inputs) -> float:
    """Return how far what is exported is off, at most."""
    session = ort.InferenceSession(exported, providers=["CPUExecutionProvider"])
    prompts = np.arange(8)
    said = say_all(net, inputs, tables_of(inputs, "cpu"), prompts).numpy()
    told: list[np.ndarray] = []
    for prompt in prompts:
        own = answers_of(inputs, np.array([prompt]))
        feed = {
            "ids": inputs.slots[prompt][0],
            "positions": inputs.slots[prompt][1],
            "opinions": inputs.opinions[prompt],
            "counts": inputs.counts[prompt],
            "models": inputs.models[own],
            "rows": inputs.rows[own],
        }
        told.append(np.asarray(session.run(None, feed)[0]))
    return float(np.abs(np.concatenate(told) - said).max())
