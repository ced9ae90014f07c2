"""The arithmetic of limits against what it says it does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policies.quota import (
    CONCURRENT,
    DAY_TOKENS,
    REQUESTS,
    TOKENS,
    WINDOW_S,
    Account,
    Caps,
    Dates,
    Estimate,
    Limits,
    Price,
    Shortage,
    Window,
    estimate,
)

TODAY = Dates(20261129, 202611, day_left_s=3600.0, month_left_s=90000.0)
TOMORROW = Dates(20261130, 202611, day_left_s=86400.0, month_left_s=86400.0)


def account(now: float = 1000.0) -> Account:
    made = Account()
    made.advance(now, TODAY)
    return made


@given(st.lists(st.tuples(st.integers(0, 70), st.integers(1, 9)), max_size=40))
def test_a_window_holds_what_any_moment_of_its_last_minute_saw(steps: list[tuple[int, int]]):
    window, taken, now = Window(), list[tuple[int, int]](), 0
    for pause, amount in steps:
        now += pause
        window.advance(now)
        window.add(amount)
        taken.append((now, amount))
        assert window.total == sum(n for second, n in taken if second >= now - WINDOW_S)


@given(
    st.lists(st.tuples(st.floats(0, 25), st.integers(1, 6)), min_size=1, max_size=60),
    st.integers(6, 12),
)
def test_no_minute_ever_holds_more_than_the_limit(steps: list[tuple[float, int]], limit: int):
    taker, now, caps = Account(), 0.0, Caps(tokens=limit)
    taken = list[tuple[float, int]]()
    for pause, tokens in steps:
        now += pause
        taker.advance(now, TODAY)
        asked = Estimate(1, tokens)
        if taker.fits(caps, asked):
            taker.take(asked)
            taken.append((now, tokens))
            assert sum(n for t, n in taken if t > now - WINDOW_S) <= limit


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 6)), min_size=1, max_size=60),
    st.integers(6, 12),
)
def test_retry_after_is_when_this_very_request_would_pass(
    steps: list[tuple[float, int]], limit: int
):
    taker, now, caps = Account(), 0.0, Caps(tokens=limit)
    for pause, tokens in steps:
        now += pause
        taker.advance(now, TODAY)
        asked = Estimate(1, tokens)
        if taker.fits(caps, asked):
            taker.take(asked)
            continue
        short = taker.shortage(caps, asked, now, TODAY)
        assert short.limit == TOKENS
        assert short.retry_after is not None
        early = math.ceil(now + short.retry_after) - 1
        if early > now:
            taker.advance(early, TODAY)
            assert not taker.fits(caps, asked)
        now = math.ceil(now + short.retry_after)
        taker.advance(now, TODAY)
        assert taker.fits(caps, asked)


def test_a_request_larger_than_its_limit_is_told_that_it_never_passes():
    short = account().shortage(Caps(tokens=100), Estimate(1, 101), 1000.0, TODAY)
    assert short == Shortage(TOKENS, None)


def test_the_limit_that_frees_up_last_is_the_one_that_is_told():
    taker, caps = account(), Caps(requests=1, day_tokens=10)
    taker.take(Estimate(1, 10))
    assert taker.shortage(caps, Estimate(1, 5), 1000.0, TODAY) == Shortage(DAY_TOKENS, 3600.0)
    assert taker.shortage(caps, Estimate(1, 0), 1000.0, TODAY) == Shortage(REQUESTS, 61.0)


def test_a_request_over_the_concurrent_limit_comes_back_in_a_second():
    taker = account()
    taker.take(Estimate())
    short = taker.shortage(Caps(concurrent=1), Estimate(), 1000.0, TODAY)
    assert short == Shortage(CONCURRENT, 1.0)


def test_what_was_not_used_goes_back_to_the_second_it_was_taken_in():
    taker = account()
    taker.take(Estimate(1, 100, 10))
    taker.advance(1030.0, TODAY)
    taker.settle(Estimate(1, 100, 10), Estimate(1, 40, 4), 1000, TODAY.day)
    assert (taker.tokens.total, taker.day.tokens, taker.day.nano) == (40, 40, 4)
    taker.advance(1061.0, TODAY)
    assert taker.tokens.total == 0


def test_what_was_used_beyond_the_estimate_counts_from_when_it_is_known():
    taker = account()
    taker.take(Estimate(1, 100))
    taker.advance(1100.0, TODAY)
    taker.settle(Estimate(1, 100), Estimate(1, 150), 1000, TODAY.day)
    assert (taker.tokens.total, taker.day.tokens) == (50, 150)


def test_a_request_that_ends_tomorrow_was_used_today():
    taker = account()
    taker.take(Estimate(1, 100))
    taker.advance(5000.0, TOMORROW)
    taker.settle(Estimate(1, 100), Estimate(1, 60), 1000, TODAY.day)
    assert (taker.day.tokens, taker.month.tokens, taker.concurrent) == (0, 60, 0)


def test_clocks_that_go_back_change_nothing():
    taker = account()
    taker.take(Estimate(1, 5))
    taker.advance(900.0, Dates(20261128, 202611))
    assert (taker.tokens.second, taker.tokens.total, taker.day.name) == (1000, 5, TODAY.day)


def test_money_is_counted_in_billionths():
    price = Price(prompt=0.5, cached=0.05, output=1.5)
    assert price.nano(1_000_000, 0, 0) == 500_000_000
    assert price.nano(100, 40, 10) == 60 * 500 + 40 * 50 + 10 * 1500
    assert Price(prompt=1.0).nano(10, 10, 0) == 10_000
    assert estimate(price, 100, 10) == Estimate(1, 110, 100 * 500 + 10 * 1500)


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_all_shares_together_are_never_more_than_the_limit(parts: int):
    caps = Caps.of(Limits(requests_per_minute=10, tokens_per_day=100, money_per_day=0.5))
    assert caps.requests == 10
    assert caps.day_nano == 500_000_000
    for whole, part in zip(caps.numbers(), caps.share(parts).numbers(), strict=True):
        assert part * parts <= whole or part == whole == math.inf
