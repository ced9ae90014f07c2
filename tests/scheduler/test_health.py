"""Health as tables of events: what is said of an endpoint, and where it then stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.policies.contracts import EndpointView
from forebay.scheduler.health import Change, Health, HealthSettings, State

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = HealthSettings(
    interval=5.0, fails=3, successes=2, breaker_fails=4, breaker_open=10.0, slow_start=20.0
)

EVENTS: dict[str, Callable[[Health, float], Change | None]] = {
    "pass": lambda health, now: health.probe_passed(now),
    "miss": lambda health, now: health.probe_failed(now, "timed out"),
    "ok": lambda health, now: health.request_succeeded(now),
    "fail": lambda health, now: health.request_failed(now, "500"),
    "full": lambda health, now: health.request_refused(now, "503"),
    "bytes": lambda health, now: health.good_bytes(now),
    "wrong": lambda health, now: health.misconfigured(now, "401: no such key"),
    "restart": lambda health, now: health.restarted(now),
    "tick": lambda health, now: health.tick(now),
}


def after(script: str, *, optimistic: bool = False) -> tuple[Health, list[Change]]:
    """Play `event event@time ...`; without a time, an event comes at the last one's time."""
    health, changes, now = Health(SETTINGS, optimistic=optimistic), list[Change](), 0.0
    for word in script.split():
        event, _, time = word.partition("@")
        now = float(time) if time else now
        change = EVENTS[event](health, now)
        if change is not None:
            changes.append(change)
    return health, changes


@pytest.mark.parametrize(
    ("script", "state"),
    [
        pytest.param("", State.STARTING, id="nothing is known at first"),
        pytest.param("pass", State.UP, id="the first pass is enough at the start"),
        pytest.param("miss miss", State.STARTING, id="a few misses at the start are no verdict"),
        pytest.param("miss miss miss", State.DOWN, id="never came up"),
        pytest.param("ok", State.UP, id="an answer is as good as a probe"),
        pytest.param("pass miss miss", State.UP, id="two misses are not enough"),
        pytest.param("pass miss miss pass miss miss", State.UP, id="misses must be in a row"),
        pytest.param("pass miss miss miss", State.DOWN, id="three misses in a row"),
        pytest.param("pass miss miss miss pass", State.DOWN, id="one pass is not enough"),
        pytest.param(
            "pass miss miss miss pass miss pass", State.DOWN, id="passes must be in a row"
        ),
        pytest.param("pass miss miss miss pass pass", State.UP, id="two passes in a row"),
        pytest.param("pass miss miss miss ok ok ok", State.DOWN, id="late answers revive nothing"),
        pytest.param(
            "pass bytes@10 miss@11 miss@12 miss@13 miss@14", State.UP, id="bytes outweigh probes"
        ),
        pytest.param(
            "pass ok@10 miss@11 miss@12 miss@13 miss@14", State.UP, id="so do whole answers"
        ),
        pytest.param(
            "pass bytes@10 miss@11 miss@16 miss@17", State.UP, id="a miss under bytes is no miss"
        ),
        pytest.param(
            "pass bytes@10 miss@15.1 miss@16 miss@17", State.DOWN, id="but only recent bytes"
        ),
        pytest.param("pass fail fail fail", State.UP, id="three failures are not enough"),
        pytest.param("pass fail fail fail ok fail fail fail", State.UP, id="failures in a row"),
        pytest.param("pass fail fail fail fail", State.OPEN, id="four failures open the breaker"),
        pytest.param("pass fail fail fail pass fail", State.OPEN, id="a probe forgives nothing"),
        pytest.param("pass fail fail fail fail pass pass", State.OPEN, id="probes close nothing"),
        pytest.param("pass fail fail fail fail ok", State.OPEN, id="late answers close nothing"),
        pytest.param("pass fail fail fail fail tick@9.9", State.OPEN, id="it stays open"),
        pytest.param("pass fail fail fail fail tick@10", State.TRIAL, id="it tries half-open"),
        pytest.param("pass fail fail fail fail tick@10 ok", State.UP, id="the trial succeeds"),
        pytest.param("pass fail fail fail fail tick@10 fail", State.OPEN, id="the trial fails"),
        pytest.param(
            "pass fail fail fail fail tick@10 fail@11 tick@30", State.OPEN, id="open for longer"
        ),
        pytest.param(
            "pass fail fail fail fail tick@10 fail@11 tick@31", State.TRIAL, id="twice as long"
        ),
        pytest.param(
            "pass fail fail fail fail tick@10 miss miss miss", State.DOWN, id="trial, then dead"
        ),
        pytest.param("pass fail fail fail fail miss miss miss", State.DOWN, id="open, then dead"),
        pytest.param("pass fail fail fail fail restart", State.TRIAL, id="a new process is tried"),
        pytest.param(
            "pass fail fail fail miss miss miss pass pass fail",
            State.UP,
            id="a return is a fresh start",
        ),
        pytest.param("pass fail fail fail restart fail", State.UP, id="so is a new process"),
        pytest.param(
            "pass miss miss fail fail fail fail miss", State.DOWN, id="each witness for itself"
        ),
        pytest.param("pass full full full full full", State.UP, id="a burst of 503s is a full one"),
        pytest.param("pass full full@5 full", State.UP, id="three 503s are not enough"),
        pytest.param("pass full full full full@4.9", State.UP, id="nor is a short time"),
        pytest.param("pass full full full full@5", State.OPEN, id="503 and nothing else"),
        pytest.param("pass full full full bytes@4 full@5", State.UP, id="some stream goes on"),
        pytest.param("pass full full full ok@4 full@5", State.UP, id="some request succeeds"),
        pytest.param("pass full full full pass full@5", State.OPEN, id="a probe is no answer"),
        pytest.param("pass full full full full@5 tick@15 ok", State.UP, id="it serves again"),
        pytest.param("pass full full full full@5 tick@15 full", State.OPEN, id="503 on trial"),
        pytest.param(
            "pass full full full full@5 tick@15 full tick@25", State.TRIAL, id="not for longer"
        ),
        pytest.param("pass full full full full@5 tick@6", State.OPEN, id="nothing came of it"),
        pytest.param("pass full full full full@5 ok@9 tick@9", State.UP, id="it was at work"),
        pytest.param("pass full full full full@5 bytes@9 tick@9", State.UP, id="a first byte"),
        pytest.param(
            "pass full full full full@5 tick@15 full bytes@16 tick@16", State.UP, id="full on trial"
        ),
        pytest.param("pass fail fail fail fail bytes@1 tick@1", State.OPEN, id="failures stand"),
        pytest.param("pass full@1 miss@2 miss@3 miss@4", State.DOWN, id="503 outweighs no probe"),
        pytest.param("pass wrong", State.MISCONFIGURED, id="a wrong key"),
        pytest.param("pass wrong ok pass", State.MISCONFIGURED, id="one pass may be an old one"),
        pytest.param("pass wrong pass wrong pass", State.MISCONFIGURED, id="it is still wrong"),
        pytest.param("pass wrong pass pass", State.UP, id="put right and confirmed"),
        pytest.param("pass wrong miss miss miss miss", State.MISCONFIGURED, id="wrong stays wrong"),
        pytest.param("pass wrong fail fail fail fail", State.MISCONFIGURED, id="whatever fails"),
        pytest.param("wrong", State.MISCONFIGURED, id="wrong from the start"),
    ],
)
def test_what_is_seen_decides_where_an_endpoint_stands(script: str, state: State):
    assert after(script)[0].state == state


def test_each_change_says_from_where_to_where_and_why():
    script = "pass fail fail fail fail tick@10 fail tick@30 ok miss@40 miss miss pass@50 pass"

    assert after(script)[1] == [
        Change(State.STARTING, State.UP, "first probe passed"),
        Change(State.UP, State.OPEN, "4 requests in a row failed: 500"),
        Change(
            State.OPEN,
            State.TRIAL,
            "the breaker was open long enough; one request tries it",
        ),
        Change(State.TRIAL, State.OPEN, "the trial request failed: 500"),
        Change(
            State.OPEN,
            State.TRIAL,
            "the breaker was open long enough; one request tries it",
        ),
        Change(State.TRIAL, State.UP, "the trial request succeeded"),
        Change(State.UP, State.DOWN, "3 probes in a row failed: timed out"),
        Change(State.DOWN, State.UP, "2 probes in a row passed"),
    ]


@pytest.mark.parametrize(
    ("script", "optimistic", "usable"),
    [
        ("", False, False),
        ("", True, True),
        ("miss miss miss", True, False),
        ("pass", False, True),
        ("pass fail fail fail fail", False, False),
        ("pass fail fail fail fail tick@10", False, True),
        ("pass wrong", True, False),
    ],
)
def test_only_up_and_trial_are_in_rotation(script: str, *, optimistic: bool, usable: bool):
    assert after(script, optimistic=optimistic)[0].usable == usable


def test_the_breaker_stays_open_for_twice_as_long_each_time_up_to_a_minute():
    health, _ = after("pass fail fail fail fail")
    opened: list[float] = []
    now = 0.0
    for _ in range(5):
        until = health.next_tick(now)
        assert until is not None
        opened.append(until - now)
        now = until
        health.tick(now)
        health.request_failed(now, "500")

    assert opened == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_bytes_older_than_the_first_503_do_not_speak_for_an_endpoint():
    health, _ = after("pass full@20 full@21 full@22")
    health.good_bytes(19.0)

    change = health.request_refused(25.0, "it answered 503")

    assert change == Change(
        State.UP,
        State.OPEN,
        "4 requests in a row were refused, and nothing good came for 5.0 s: it answered 503",
    )


def test_a_return_makes_the_breaker_patient_again():
    health, _ = after("pass fail fail fail fail tick@10 fail tick@30 ok fail fail fail fail")

    assert health.next_tick(30.0) == 40.0


def test_an_endpoint_that_joins_others_passes_a_probe_first_and_starts_small():
    health = Health(SETTINGS, optimistic=True)
    health.join()
    assert not health.usable
    health.probe_passed(5.0)
    assert (health.usable, health.share(5.0)) == (True, 0.1)
    assert health.share(5.0 + SETTINGS.slow_start) == 1.0


def test_an_endpoint_that_was_there_from_the_start_starts_whole():
    health, _ = after("pass")

    assert (health.share(0.0), health.next_tick(0.0)) == (1.0, None)


@pytest.mark.parametrize(
    "script",
    [
        "pass miss miss miss pass@100 pass",
        "pass fail fail fail fail tick@10 ok@100",
        "pass wrong pass pass@100",
        "pass restart@100",
    ],
)
def test_a_return_is_slow(script: str):
    health, _ = after(script)

    assert [round(health.share(at), 3) for at in (100, 105, 110, 119, 120, 500)] == [
        0.1,
        0.325,
        0.55,
        0.955,
        1.0,
        1.0,
    ]
    ticks = [health.next_tick(at) for at in (100.0, 102.0, 119.5, 120.0)]
    assert ticks == [102.0, 104.0, 120.0, None]


def test_without_a_slow_start_a_return_is_whole():
    health = Health(HealthSettings(successes=1, fails=1, slow_start=0.0))
    health.probe_failed(0.0, "refused")
    health.probe_passed(1.0)

    assert (health.share(1.0), health.next_tick(1.0)) == (1.0, None)


def test_a_restart_is_a_change_although_it_stays_up():
    assert after("pass restart@5")[1][1:] == [Change(State.UP, State.UP, "the engine restarted")]


def test_a_trial_has_room_for_one_request_whatever_the_limit():
    health, _ = after("pass fail fail fail fail tick@10")
    view = EndpointView("a", "sim", limit=10_000, share=health.share(10.0))

    assert view.room == 1


def test_other_settings_count_from_the_next_event_on():
    health = Health(SETTINGS, optimistic=True)
    health.probe_passed(0.0)
    for now in (10.0, 20.0):
        assert health.probe_failed(now, "no answer") is None
    health.configure(HealthSettings(fails=4, breaker_open=5.0))
    assert health.probe_failed(30.0, "no answer") is None
    change = health.probe_failed(40.0, "no answer")
    assert change is not None
    assert change.reason == "4 probes in a row failed: no answer"


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.floats(0, 8)), max_size=60),
    optimistic=st.booleans(),
)
def test_changes_form_a_chain_and_every_state_is_left_again(
    *, steps: list[tuple[str, float]], optimistic: bool
):
    health, now, state = Health(SETTINGS, optimistic=optimistic), 0.0, State.STARTING
    for event, step in steps:
        now += step
        change = EVENTS[event](health, now)
        if change is not None:
            assert change.old == state
            assert change.reason
            state = change.new
        assert health.state == state
        assert 0.0 < health.share(now) <= 1.0
        tick = health.next_tick(now)
        assert tick is None or tick > now or state == State.OPEN

    now = max(now, health.next_tick(now) or now) + 60.0
    health.tick(now)
    for event in ("ok", "pass", "pass"):
        EVENTS[event](health, now)
    assert (health.state, health.usable) == (State.UP, True)


def test_why_an_endpoint_is_out_is_known_and_nothing_while_it_is_in():
    health, _ = after("pass")
    assert (health.usable, health.why_out) == (True, "")
    health.suspect = "7 of 8 answers are empty"
    assert (health.usable, health.why_out) == (False, "bad answers: 7 of 8 answers are empty")
    health.drained = True
    assert health.why_out == "an operator drained it"
    assert after("")[0].why_out == "no probe has passed yet"
    assert after("pass miss miss miss")[0].why_out == "3 probes in a row failed: timed out"
    assert after("pass wrong")[0].why_out == "401: no such key"
