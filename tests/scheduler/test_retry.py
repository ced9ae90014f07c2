"""When a failed request may be tried again."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import msgspec
import pytest

from forebay.adapters.base import Verdict
from forebay.policies.contracts import Request, Route
from forebay.scheduler.retry import MOVES_ON, RetryBudget, Tries, again, may_retry


@dataclass(frozen=True)
class Case:
    """A request that may be retried; each test spoils one thing."""

    verdict: str = "broken"
    made: int = 1
    broken: int = 0
    attempts: int = 2
    begun: bool = False
    elsewhere: bool = True
    deadline: float = 60.0

    def decide(self, budget: RetryBudget | None = None) -> bool:
        return may_retry(
            self.verdict,
            tries=Tries(self.made, self.broken),
            attempts=self.attempts,
            begun=self.begun,
            elsewhere=self.elsewhere,
            deadline=self.deadline,
            now=30.0,
            budget=budget or RetryBudget(0.1),
        )


@pytest.mark.parametrize(
    ("case", "retried"),
    [
        pytest.param(Case(), True, id="a first failure moves on"),
        pytest.param(Case(made=2), True, id="and a second one"),
        pytest.param(Case(made=3), False, id="attempts are spent"),
        pytest.param(Case(attempts=0), False, id="no further attempts are allowed"),
        pytest.param(Case(begun=True), False, id="the caller has seen bytes"),
        pytest.param(Case(elsewhere=False), False, id="every endpoint was tried"),
        pytest.param(Case(deadline=30.0), False, id="the deadline has come"),
        pytest.param(Case(broken=1), True, id="broken after it was sent: once more"),
        pytest.param(Case(made=2, broken=2), False, id="broken twice: it may be poison"),
        pytest.param(Case(verdict="full", made=2, broken=1), True, id="full after a break"),
        pytest.param(Case(verdict="full"), True, id="full moves on"),
        pytest.param(Case(verdict="misconfigured"), True, id="misconfigured moves on"),
        pytest.param(Case(verdict="missing_route"), True, id="a missing route moves on"),
        pytest.param(Case(verdict="neutral"), False, id="the caller's own fault is final"),
        pytest.param(Case(verdict="good"), False, id="an answer is final"),
    ],
)
def test_a_retry_needs_everything_to_be_right(case: Case, *, retried: bool):
    assert case.decide() == retried


def test_verdicts_are_the_adapters_words():
    assert {verdict for verdict in Verdict if verdict in MOVES_ON} == set(Verdict) - {
        Verdict.GOOD,
        Verdict.NEUTRAL,
    }


def test_a_refused_retry_costs_no_budget():
    budget = RetryBudget(0.1, floor=1)

    assert not Case(begun=True).decide(budget)
    assert [Case().decide(budget), Case().decide(budget)] == [True, False]


@pytest.mark.parametrize(
    "sent", [(True, True), (False, True, True), (True, False, True), (False, False, True)]
)
def test_a_poison_request_takes_down_two_endpoints_at_most(sent: tuple[bool, ...]):
    tries, broken = Tries(), 0
    for whole in sent:
        broken += whole
        tries.ended("broken", sent=whole)
        if not Case(made=tries.made, broken=tries.broken).decide():
            break

    assert (broken <= 2, tries.made <= 3) == (True, True)


def test_only_a_break_after_it_was_sent_counts_as_broken():
    tries = Tries()
    tries.ended("full", sent=True)
    tries.ended("broken", sent=False)

    assert tries == Tries(made=2, broken=0)


def test_when_everything_fails_retries_stay_a_tenth_of_the_requests():
    budget, retries = RetryBudget(0.1), 0
    for n in range(10_000):
        budget.request(n / 100)
        retries += budget.allow(n / 100)

    assert 900 <= retries <= 1000


def test_no_window_ever_holds_more_than_the_share():
    rng, budget, now = Random(5), RetryBudget(0.1), 0.0
    asked: list[float] = []
    allowed: list[float] = []
    for _ in range(5000):
        now += rng.choice([0.0, 0.001, 0.01, 0.5])
        budget.request(now)
        asked.append(now)
        if budget.allow(now):
            allowed.append(now)
            recent = sum(at > now - 9.0 for at in allowed)
            assert recent <= max(3, 0.1 * sum(at >= now - 10.0 for at in asked))


def test_a_quiet_pool_may_retry_a_little():
    budget = RetryBudget(0.1)

    assert [budget.allow(0.0) for _ in range(5)] == [True, True, True, False, False]
    assert budget.allow(10.0)


def test_a_budget_of_nothing_allows_nothing():
    budget = RetryBudget(0.0)
    budget.request(0.0)

    assert not budget.allow(0.0)


def test_a_retried_request_keeps_its_place_and_avoids_where_it_was():
    first = Request(
        id="r1",
        pool="llama",
        route=Route.CHAT,
        model="big",
        tenant="acme",
        sequence=7,
        arrived=1.0,
        deadline=61.0,
        prompt_tokens_estimate=10,
        output_tokens_estimate=20,
        uncached_tokens=10,
    )

    second = again(again(first, "a"), "b")

    assert second == msgspec.structs.replace(first, avoid=frozenset({"a", "b"}))
