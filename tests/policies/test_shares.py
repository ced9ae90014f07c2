"""Reserves and weights: who may hold how much of a pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policies.shares import RESERVE, Claim, entitlements, first

claims = st.lists(
    st.builds(
        Claim,
        tenant=st.sampled_from("abcdef"),
        weight=st.floats(0.1, 10),
        reserve=st.sampled_from([None, "vip"]),
        holding=st.integers(0, 30),
        waiting=st.integers(0, 30),
    ),
    unique_by=lambda claim: claim.tenant,
)


@given(claims, st.integers(0, 100), st.floats(0, 1))
def test_all_of_a_pool_is_given_to_those_who_want_it(
    made: list[Claim], capacity: int, reserve: float
):
    granted = entitlements(made, capacity, {"vip": reserve})
    wanted = {claim.tenant: claim.wanted for claim in made}
    assert sum(granted.values()) == pytest.approx(min(capacity, sum(wanted.values())))
    assert all(granted[name] <= wanted[name] + 1e-9 for name in wanted)


@given(claims, st.integers(0, 100), st.floats(0, 1))
def test_a_reserve_is_there_whoever_else_wants_the_pool(
    made: list[Claim], capacity: int, reserve: float
):
    granted = entitlements(made, capacity, {"vip": reserve})
    vip = [claim for claim in made if claim.reserve == "vip"]
    sure = min(capacity * reserve, sum(claim.wanted for claim in vip))
    assert sum(granted[claim.tenant] for claim in vip) >= sure - 1e-9


def test_what_is_left_is_shared_by_weight():
    made = [Claim("a", weight=3, waiting=100), Claim("b", weight=1, waiting=100)]
    assert entitlements(made, 40, {}) == {"a": 30.0, "b": 10.0}


def test_what_one_does_not_want_goes_to_the_others():
    made = [Claim("a", weight=3, waiting=4), Claim("b", weight=1, waiting=100)]
    assert entitlements(made, 40, {}) == {"a": 4.0, "b": 36.0}


def test_an_unused_reserve_is_lent_and_taken_back_at_the_next_dispatch():
    batch = Claim("batch", holding=10, waiting=90)
    idle = [Claim("vip", reserve="gold"), batch]
    assert entitlements(idle, 10, {"gold": RESERVE}) == {"vip": 0.0, "batch": 10.0}
    back = [Claim("vip", reserve="gold", waiting=2, weight=0.001), batch]
    granted = entitlements(back, 10, {"gold": RESERVE})
    assert granted["vip"] == pytest.approx(2.0, abs=0.01)
    assert first(back, granted) == "vip"


def test_reserves_beyond_the_pool_give_way_in_proportion():
    made = [Claim("a", reserve="x", waiting=100), Claim("b", reserve="y", waiting=100)]
    granted = entitlements(made, 30, {"x": 1.0, "y": 0.5})
    assert granted == pytest.approx({"a": 20.0, "b": 10.0})


def test_nobody_goes_first_beyond_what_it_is_entitled_to():
    made = [Claim("a", holding=5, waiting=5), Claim("b", holding=5)]
    assert first(made, {"a": 5.0, "b": 5.0}) is None
    assert first([], {}) is None


def test_whoever_holds_least_of_its_part_goes_first():
    made = [Claim("a", holding=2, waiting=5), Claim("b", holding=1, waiting=5)]
    assert first(made, {"a": 4.0, "b": 4.0}) == "b"
    assert first(made, {"a": 4.0, "b": 1.5}) == "a"
