"""Who gets which arm."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from forebay.policies.experiments.assignment import assign, uniform

KEYS = [b"key %d" % number for number in range(100_000)]
CHI_SQUARE = {1: 10.83, 2: 13.82}
"""Exceeded once in a thousand times by chance, by degrees of freedom."""


def shares(weights: dict[str, float]) -> dict[bytes, str | None]:
    return {key: assign("trial", key, weights.items()) for key in KEYS}


def chi_square(found: Counter[str | None], weights: dict[str, float]) -> float:
    whole = sum(weights.values())
    expected = {arm: len(KEYS) * weight / whole for arm, weight in weights.items()}
    return sum((found[arm] - n) ** 2 / n for arm, n in expected.items())


def test_each_arm_gets_its_share_of_a_hundred_thousand_keys():
    for weights in ({"a": 95.0, "b": 5.0}, {"a": 1.0, "b": 1.0}, {"a": 6.0, "b": 3.0, "c": 1.0}):
        found = Counter(shares(weights).values())
        assert chi_square(found, weights) < CHI_SQUARE[len(weights) - 1], weights


def test_from_5_to_50_percent_only_those_move_that_must():
    before = shares({"a": 95, "b": 5})
    after = shares({"a": 50, "b": 50})
    moved = Counter((before[key], after[key]) for key in KEYS if before[key] != after[key])
    assert set(moved) == {("a", "b")}
    assert abs(moved["a", "b"] - 45_000) < 800


def test_a_change_of_one_weight_moves_keys_only_to_or_from_that_arm():
    before = shares({"a": 60, "b": 20, "c": 20})
    after = shares({"a": 60, "b": 20, "c": 40})
    moved = {(before[key], after[key]) for key in KEYS if before[key] != after[key]}
    assert moved == {("a", "c"), ("b", "c")}


def test_an_arm_without_weight_gets_nothing_and_the_others_keep_theirs():
    before = shares({"a": 60, "b": 20, "c": 20})
    after = shares({"a": 60, "b": 20, "c": 0})
    assert {before[key] for key in KEYS if before[key] != after[key]} == {"c"}
    assert assign("trial", b"k", [("a", 0.0)]) is None


def test_another_process_finds_the_same_arm_for_every_key():
    code = (
        "from forebay.policies.experiments.assignment import assign\n"
        "w = [('a', .3), ('b', .7)]\n"
        "print(''.join(assign('trial', b'key %d' % n, w) for n in range(2000)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = "".join(str(assign("trial", key, [("b", 0.7), ("a", 0.3)])) for key in KEYS[:2000])
    assert told.stdout.strip() == here


def test_experiments_share_out_independently():
    one = {key: assign("one", key, [("a", 1), ("b", 1)]) for key in KEYS[:20_000]}
    two = {key: assign("two", key, [("a", 1), ("b", 1)]) for key in KEYS[:20_000]}
    both = sum(one[key] == two[key] for key in one)
    assert abs(both - 10_000) < 300


@given(st.text(max_size=20), st.binary(max_size=40))
def test_a_uniform_number_lies_between_0_and_1(seed: str, key: bytes):
    assert 0 < uniform(seed, key) < 1
    assert uniform(seed, key) == uniform(seed, key)
