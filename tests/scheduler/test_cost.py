"""What a request costs an engine."""

from __future__ import annotations

from forebay.scheduler.cost import Cost


def test_an_output_token_weighs_two_prompt_tokens_and_a_cached_one_nothing():
    assert Cost()(uncached_tokens=100, output_tokens=30) == 160.0
    assert Cost()(uncached_tokens=0, output_tokens=30) == 60.0


def test_weights_can_be_set():
    assert Cost(a=0.5, b=4.0)(uncached_tokens=100, output_tokens=30) == 170.0
