"""The state machine: promoted, paused, rolled back."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from forebay.policies.experiments.measures import Effect
from forebay.policies.experiments.plan import Plan
from forebay.policies.experiments.ramp import (
    Decision,
    State,
    apply,
    by_hand,
    judge,
    weights,
    worded,
)
from forebay.policies.experiments.tallies import Cell, Observation, Tallies

PLAN = Plan("x", ("a", "b"), {"a": 1.0, "b": 1.0}, stages=(0.05, 0.5), min_requests=100)


def tallies(count: int = 300, *, factor: float = 1.0, failing: float = 0.0) -> Tallies:
    rng, made = Random(4), Tallies()
    for arm, own in (("a", 1.0), ("b", factor)):
        for _ in range(count):
            failed = arm == "b" and rng.random() < failing
            ttft = None if failed else rng.lognormvariate(-1, 0.5) * own
            made.add(Observation(arm, Cell(), ttft=ttft, errors=failed))
    return made


def decided(state: State, made: Tallies, now: float = 1000.0, **rest: Any) -> Decision | None:
    return judge(rest.pop("plan", PLAN), state, made, now, **rest)


def what(decision: Decision | None) -> tuple[str, str]:
    assert decision is not None
    return decision.what, decision.arm


def test_a_stage_ends_after_its_time_and_its_requests():
    assert decided(State(since=500), tallies(), now=1000) is None
    assert decided(State(), tallies(50)) is None
    advance = decided(State(), tallies())
    assert what(advance) == ("advance", "")
    assert advance is not None
    after = apply(PLAN, State(), advance)
    assert (after.stage, after.since, after.version) == (1, 1000.0, 1)
    assert weights(PLAN, after) == {"a": 0.5, "b": 0.5}


def test_the_last_stage_ends_only_when_the_primary_is_surely_better():
    last = State(stage=1)
    assert decided(last, tallies(2000)) is None
    better = decided(last, tallies(2000, factor=0.7))
    assert what(better) == ("promote", "b")
    assert better is not None
    after = apply(PLAN, last, better)
    assert weights(PLAN, after) == {"a": 0.0, "b": 1.0}


def test_a_candidate_that_is_no_worse_is_promoted_where_that_is_asked_for():
    plan = Plan("x", ("a", "b"), {}, stages=(0.5,), promote="not_worse", margin=0.1)
    assert what(decided(State(), tallies(6000), plan=plan)) == ("promote", "b")


def test_what_is_never_to_be_promoted_stays():
    plan = Plan("x", ("a", "b"), {"a": 9, "b": 1}, promote="never")
    assert decided(State(), tallies(2000, factor=0.5), plan=plan) is None


def test_a_slow_candidate_is_rolled_back_before_any_time_or_minimum():
    back = decided(State(since=999.9), tallies(80, factor=3.0))
    assert what(back) == ("roll back", "b")
    assert back is not None
    assert back.why.startswith("ttft: ")
    after = apply(PLAN, State(), back)
    assert (after.phase, after.out) == ("rolled_back", ("b",))
    assert weights(PLAN, after) == {"a": 1.0, "b": 0.0}


def test_failing_requests_stop_a_candidate_without_any_of_the_control():
    made = Tallies()
    count = 0
    while decided(State(), made) is None:
        made.add(Observation("b", Cell(), errors=True))
        count += 1
    assert count <= 20
    assert what(decided(State(), made)) == ("roll back", "b")


def test_a_candidate_without_usable_endpoints_is_rolled_back_at_once():
    assert what(decided(State(), Tallies(), down={"b"})) == ("roll back", "b")


def test_a_paused_experiment_is_guarded_and_not_promoted():
    paused = State(phase="paused")
    assert decided(paused, tallies()) is None
    assert what(decided(paused, tallies(200, factor=3.0))) == ("roll back", "b")


def test_a_promoted_candidate_is_still_taken_back_when_it_fails_outright():
    promoted = State(phase="promoted", winner="b")
    assert decided(promoted, tallies(factor=3.0)) is None
    back = decided(promoted, tallies(failing=0.9))
    assert what(back) == ("roll back", "b")
    assert back is not None
    assert apply(PLAN, promoted, back).phase == "rolled_back"


def test_one_of_two_candidates_goes_and_the_other_goes_on():
    plan = Plan("x", ("a", "b", "c"), {}, stages=(0.2, 0.5))
    back = decided(State(), Tallies(), plan=plan, down={"b"})
    assert back is not None
    after = apply(plan, State(), back)
    assert after.phase == "running"
    assert weights(plan, after) == pytest.approx({"a": 0.8 / 0.9, "b": 0.0, "c": 0.1 / 0.9})


def test_harm_to_one_class_only_is_found():
    plan = Plan("x", ("a", "b"), {"a": 1, "b": 1}, classes=("batch", "fast"))
    rng, made = Random(8), Tallies()
    for number in range(6000):
        arm = "ab"[number % 2]
        sla = "fast" if rng.random() < 0.1 else "batch"
        slow = 3.0 if arm == "b" and sla == "fast" else 1.0
        ttft = rng.lognormvariate(-1, 0.5) * slow
        made.add(Observation(arm, Cell(sla), ttft=ttft))
    back = decided(State(), made, plan=plan)
    assert what(back) == ("roll back", "b")


def test_a_person_promotes_step_by_step_and_takes_back():
    state, steps = State(), list[tuple[str, int, str]]()
    for asked in ("promote", "promote", "roll back", "restart", "pause", "resume"):
        decision = by_hand(PLAN, state, asked, arm="", who="ops", now=5.0)  # type: ignore[arg-type] - a What
        state = apply(PLAN, state, decision)
        steps.append((state.phase, state.stage, state.winner))
    assert steps == [
        ("running", 1, ""),
        ("promoted", 1, "b"),
        ("rolled_back", 1, ""),
        ("running", 0, ""),
        ("paused", 0, ""),
        ("running", 0, ""),
    ]
    assert state.run == 1
    assert {each.who for each in state.log} == {"ops"}


def test_a_person_is_told_what_makes_no_sense():
    gone = State(phase="rolled_back", out=("b",))
    for asked in ("promote", "roll back", "pause", "resume"):
        with pytest.raises(ValueError, match=f"cannot {asked}: it is rolled back"):
            by_hand(PLAN, gone, asked, arm="", who="ops", now=5.0)  # type: ignore[arg-type] - a What
    two = Plan("x", ("a", "b", "c"), {})
    with pytest.raises(ValueError, match="say which arm: b, c"):
        by_hand(two, State(), "promote", arm="", who="ops", now=5.0)
    for asked in ("promote", "roll back"):
        with pytest.raises(ValueError, match="there is no candidate 'a'; there are: b, c"):
            by_hand(two, State(), asked, arm="a", who="ops", now=5.0)  # type: ignore[arg-type] - a What
    with pytest.raises(ValueError, match="'b' is rolled back; restart the experiment first"):
        by_hand(two, State(out=("b",)), "promote", arm="b", who="ops", now=5.0)


def test_the_one_candidate_that_is_left_need_not_be_named():
    two = Plan("x", ("a", "b", "c"), {})
    decision = by_hand(two, State(out=("b",)), "promote", arm="", who="ops", now=5.0)
    assert decision.arm == "c"


def test_all_tests_together_have_the_experiments_alpha():
    plan = Plan("x", ("a", "b", "c"), {}, stages=(0.1, 0.5), classes=("", "fast"))
    alphas, cells = plan.alphas, len(plan.cells)
    runs, rails = 2 * 2, len(plan.guardrails) + 1
    spent = runs * (rails * (alphas.whole + cells * alphas.cell) + alphas.promote)
    assert spent == pytest.approx(plan.alpha)


@pytest.mark.parametrize(
    ("measure", "said"),
    [
        ("ttft", "ttft: 0.2 s against 0.1 s, ratio 1.500 to 2.500"),
        ("length", "length: 0.2 tokens against 0.1 tokens, ratio 1.500 to 2.500"),
        ("ttft_p99", "ttft_p99: 0.2 against 0.1, ratio 1.500 to 2.500"),
    ],
)
def test_an_effect_is_worded_with_its_unit(measure: str, said: str):
    found = Effect(measure, None, 0.2, 0.1, 2.0, 1.5, 2.5, 100, 100)
    assert worded(found) == said
