"""Fitting a profile to measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.scheduler.engine_fit import Decode, Limits, Prefill, fit, least_squares
from forebay.scheduler.engine_model import EngineModel
from forebay.scheduler.engine_profiles import H200_8B, Profile
from forebay.scheduler.engine_sequence import Sequence

LIMITS = Limits(max_num_seqs=64, block_tokens=32, num_blocks=2000, max_model_len=4096)


def ttft(profile: Profile, prompt: int) -> float:
    model = EngineModel(profile)
    model.add(Sequence("s", prompt, 2))
    elapsed = profile.overhead_s
    while True:
        result = model.step()
        elapsed += result.duration_s
        if result.first:
            return elapsed


def decode(profile: Profile, together: int, prompt: int) -> Decode:
    model = EngineModel(profile)
    for number in range(together):
        model.add(Sequence(number, prompt, 100))
    while model.step().prefill_tokens:
        pass
    steps = [model.step().duration_s for _ in range(40)]
    return Decode(together, together * (prompt + 21.5), sum(steps) / 40)


def test_a_modelled_engine_is_found_again() -> None:
    true = replace(H200_8B, name="again", overhead_s=0.02, schedules_ahead=False)
    prefills = [Prefill(p, ttft(true, p)) for p in (32, 256, 1024, 4096)]
    decodes = [decode(true, n, p) for n in (1, 4, 16, 32) for p in (16, 1024)]

    found = fit("again", prefills, decodes, LIMITS)

    for name in (
        "step_s",
        "prefill_token_s",
        "prefill_pair_s",
        "decode_sequence_s",
        "context_token_s",
        "overhead_s",
    ):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.05), name
    assert (found.max_num_seqs, found.block_tokens, found.num_blocks) == (64, 32, 2000)


def test_no_term_is_below_nothing() -> None:
    # More sequences were quicker here: the rest is explained without them.
    found = least_squares([((1.0, n), 1.0 - 0.01 * n) for n in (1, 4, 16)])
    assert found == (pytest.approx(0.93, abs=0.03), 0.0)


def test_terms_that_cannot_be_told_apart_are_not_both_used() -> None:
    found = least_squares([((n, 2.0 * n), 3.0 * n) for n in (1.0, 2.0, 5.0)])
    assert found[0] + 2 * found[1] == pytest.approx(3.0)
    assert 0.0 in found


@pytest.mark.parametrize(
    ("prefills", "decodes"),
    [
        ([Prefill(32, 0.1)], [Decode(1, 10, 0.1), Decode(2, 20, 0.1)]),
        ([Prefill(32, 0.1), Prefill(64, 0.2)], [Decode(1, 10, 0.1), Decode(1, 20, 0.1)]),
    ],
)
def test_too_few_measurements_are_told(prefills: list[Prefill], decodes: list[Decode]) -> None:
    with pytest.raises(ValueError, match="two prompt lengths and two concurrencies are the least"):
        fit("x", prefills, decodes, LIMITS)
