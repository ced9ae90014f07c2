"""The table of a call's states."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.scheduler.lifecycle import (
    TRANSITIONS,
    Event,
    IllegalTransition,
    State,
    advance,
)

BEFORE_BYTES = set(State) - {State.STREAMING, State.SETTLED}
ALIVE = set(State) - {State.SETTLED}


def states_with(event: Event) -> set[State]:
    return {state for state, possible in TRANSITIONS if possible == event}


@pytest.mark.parametrize(
    "story",
    [
        "place stream complete",
        "queue place hold complete",
        "queue place hold stream complete",
        "place retry place retry",
        "place hold complete",
        "queue expire",
        "place stream cut",
        "place retry place fail",
        "place hold retry reject",
    ],
)
def test_a_call_goes_down_and_its_answer_comes_up(story: str):
    state = State.RECEIVING
    for word in story.split():
        state = advance(state, Event(word))

    assert state in {State.SETTLED, State.QUEUED}


def test_nothing_follows_the_end():
    assert {event for state, event in TRANSITIONS if state == State.SETTLED} == set()


@pytest.mark.parametrize("event", [Event.LEAVE, Event.DRAIN, Event.EXPIRE])
def test_a_call_can_always_be_ended_from_outside(event: Event):
    assert states_with(event) == ALIVE
    assert {advance(state, event) for state in ALIVE} == {State.SETTLED}


def test_nothing_is_retried_or_refused_after_the_first_byte():
    after = {event for state, event in TRANSITIONS if state == State.STREAMING}

    assert after == {Event.COMPLETE, Event.CUT, Event.EXPIRE, Event.LEAVE, Event.DRAIN}
    assert states_with(Event.RETRY) <= BEFORE_BYTES
    assert states_with(Event.CUT) == {State.STREAMING}


def test_every_state_can_be_reached_and_left():
    reached = {State.RECEIVING}
    while (more := {TRANSITIONS[s, e] for s, e in TRANSITIONS if s in reached}) - reached:
        reached |= more

    assert reached == set(State)
    assert {state for state, _ in TRANSITIONS} == ALIVE


def test_what_cannot_happen_is_named():
    with pytest.raises(IllegalTransition, match="a call that is queued cannot stream"):
        advance(State.QUEUED, Event.STREAM)
    with pytest.raises(LookupError):
        advance(State.SETTLED, Event.LEAVE)


@settings(deadline=None)
@given(st.lists(st.sampled_from(list(Event)), max_size=30))
def test_however_it_goes_a_call_is_settled_once(events: list[Event]):
    state, settled = State.RECEIVING, 0
    for event in events:
        if (state, event) in TRANSITIONS:
            state = advance(state, event)
            settled += state == State.SETTLED

    assert settled == (state == State.SETTLED)
