"""The keeper by itself: what it counts, and what it does while nothing can be stored."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from forebay.gateway.config.sections import Config
from forebay.gateway.experimenting import Experiments
from forebay.gateway.experiments.store import ExperimentsAway, Kept, Nowhere, decode, encode
from forebay.gateway.experiments.store_file import FileStore
from forebay.gateway.keeper import Keeper
from forebay.gateway.trials import HOLDOUT, Assigned, Trial, Trials
from forebay.policies.contracts import Finish, Outcome, Route
from forebay.policies.experiments.ramp import Decision, State
from forebay.scheduler.health import State as Condition

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Run


class FakePool:
    """As much of a pool as a trial looks at."""

    def __init__(self, section: Any, *, usable: bool = True) -> None:
        self.section = section
        self.name = section.name
        self.allow = frozenset[str]()
        view = SimpleNamespace(usable=usable, in_flight=0, limit=8)
        health = SimpleNamespace(drained=False, state=Condition.UP)
        self.endpoints = {
            e.name: SimpleNamespace(name=e.name, view=view, health=health)
            for e in section.endpoints
        }
        self.models = section.models

    def engine_model(self, model: str) -> str:
        return self.section.models[model]


def config(**rest: Any) -> Config:
    experiment = {"name": "t", "pool": "p", "arms": {"one": ["a"], "two": ["b"]}, "warmup": 0.0}
    endpoints = [{"name": name, "engine": "sim"} for name in "ab"]
    return Config.model_validate(
        {
            "version": 1,
            "pools": [{"name": "p", "models": {"m": "m"}, "endpoints": endpoints}],
            "experiments": [{**experiment, **rest}],
        }
    )


def trials(**rest: Any) -> list[Trial]:
    made = config(**rest)
    pools = {pool.name: FakePool(pool) for pool in made.pools}
    return Trials(made, pools).all  # type: ignore[arg-type] - as much of a pool as is looked at


def inbound(assigned: Assigned) -> Any:
    return SimpleNamespace(trial=assigned, request=SimpleNamespace(prompt_tokens_estimate=10))


def outcome(finish: Finish = Finish.COMPLETED, **rest: Any) -> Outcome:
    made = Outcome("r", "p", Route.CHAT, "t", status=200, finish=finish, endpoint="b", ended=1.0)
    for name, value in rest.items():
        setattr(made, name, value)
    return made


class Away(Nowhere):
    """A store that cannot be reached for a while."""

    def __init__(self) -> None:
        self.away = True
        self.saved: list[Kept] = []

    async def save(self, name: str, kept: Kept) -> None:  # noqa: ARG002 - the protocol's signature
        if self.away:
            raise ExperimentsAway("gone")
        self.saved.append(kept)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def started(run_trials: list[Trial], store: Any = None, **rest: Any) -> Keeper:
    clock = Clock()
    keeper = Keeper(store or Nowhere(), now=clock, clock=clock, **rest)
    await keeper.start(run_trials)
    return keeper


def test_an_outcome_counts_once_whatever_is_told_later(run: Run):
    async def main() -> None:
        (trial,) = trials()
        keeper = await started([trial])
        assigned = Assigned(trial, "two")
        keeper.failed(assigned, "", 10)
        keeper.settled(inbound(assigned), outcome())
        keeper.tick(101.0)
        whole = keeper.live["t"].whole().whole("two")
        assert (whole.requests, whole.errors, whole.answered) == (1, 1, 0)
        await keeper.close()

    run(main())


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        (outcome(), (1, 0, 0, 0)),
        (outcome(Finish.ENGINE_ERROR, status=502), (1, 1, 0, 0)),
        (outcome(Finish.TIMEOUT, status=504), (1, 1, 0, 0)),
        (outcome(Finish.REJECTED, status=429), (1, 1, 0, 0)),
        (outcome(Finish.REJECTED, status=400), (1, 0, 1, 0)),
        (outcome(Finish.REJECTED, status=400, endpoint=""), (0, 0, 0, 0)),
        (outcome(Finish.LEFT), (1, 0, 0, 1)),
        (outcome(Finish.LEFT, first_byte=0.5), (0, 0, 0, 0)),
        (outcome(Finish.DRAINED), (0, 0, 0, 0)),
    ],
)
def test_each_end_says_its_own_of_the_arm(
    run: Run, told: Outcome, counts: tuple[int, int, int, int]
):
    async def main() -> None:
        (trial,) = trials()
        keeper = await started([trial])
        keeper.settled(inbound(Assigned(trial, "one")), told)
        keeper.tick(101.0)
        whole = keeper.live["t"].whole().whole("one")
        assert (whole.requests, whole.errors, whole.refused, whole.left) == counts
        await keeper.close()

    run(main())


def test_who_came_in_an_earlier_stage_does_not_count_in_this_one(run: Run):
    async def main() -> None:
        (trial,) = trials(ramp={"stages": [0.1, 0.5]})
        keeper = await started([trial])
        early = Assigned(trial, "two")
        await keeper.decide("t", "promote", arm="", who="ops")
        keeper.settled(inbound(early), outcome())
        keeper.settled(inbound(Assigned(trial, "two")), outcome())
        keeper.tick(101.0)
        live = keeper.live["t"]
        assert (live.counts("0.0").requests("two"), live.counts("0.1").requests("two")) == (1, 1)
        assert live.whole().requests("two") == 2
        await keeper.close()

    run(main())


def test_a_store_that_is_away_holds_nothing_up_and_gets_all_later(run: Run):
    async def main() -> None:
        (trial,) = trials()
        store = Away()
        keeper = await started([trial], store)
        keeper.settled(inbound(Assigned(trial, "one")), outcome())
        await keeper._store_all()
        assert keeper.away
        store.away = False
        await keeper.close()
        assert not keeper.away
        ((_, _, _, tally),) = store.saved[-1].stages["0.0"]
        assert tally.requests == 1

    run(main())


def test_a_state_of_other_arms_begins_a_new_run(run: Run):
    async def main() -> None:
        (old,) = trials(ramp={"stages": [0.1, 0.5]})
        keeper = await started([old])
        await keeper.decide("t", "promote", arm="", who="ops")
        keeper.configure(trials(ramp={"stages": [0.1, 0.5]}, arms={"one": ["a"], "three": ["b"]}))
        state = keeper.live["t"].state
        assert (state.phase, state.stage, state.run, state.log) == ("running", 0, 1, ())
        await keeper.close()

    run(main())


def test_a_reload_that_keeps_the_arms_keeps_state_and_counts(run: Run):
    async def main() -> None:
        (old,) = trials()
        keeper = await started([old])
        keeper.settled(inbound(Assigned(old, "one")), outcome())
        await keeper.decide("t", "pause", arm="", who="ops")
        keeper.tick(101.0)
        keeper.configure(trials(alpha=0.1))
        live = keeper.live["t"]
        assert (live.state.phase, live.whole().requests("one")) == ("paused", 1)
        await keeper.close()

    run(main())


def test_who_is_told_of_a_rollback_is_told_once(run: Run):
    async def main() -> None:
        told: list[tuple[str, str]] = []
        (trial,) = trials()

        def stopped(_trial: Trial, arm: str, why: str) -> None:
            told.append((arm, why))

        keeper = await started([trial], stopped=stopped)
        for _ in range(20):
            keeper.failed(Assigned(trial, "two"), "", 10)
        keeper.tick(101.0)
        assert [arm for arm, _ in told] == ["two"]
        assert told[0][1].startswith("errors: ")
        await keeper.close()

    run(main())


def test_a_candidate_that_fails_outright_is_stopped_without_waiting_for_the_clock(run: Run):
    async def main() -> None:
        (trial,) = trials()
        keeper = await started([trial])
        for _ in range(20):
            keeper.failed(Assigned(trial, "two"), "", 10)
        assert keeper.live["t"].state.phase == "running"  # nothing while requests are settled
        await asyncio.sleep(0)
        assert keeper.live["t"].state.phase == "rolled_back"
        assert dict(trial.weights) == {"one": 1.0, "two": 0.0}
        await keeper.close()

    run(main())


def test_a_bug_in_what_is_counted_holds_up_nothing(run: Run):
    async def main() -> None:
        process = Experiments(config(), None, now=lambda: 0.0)
        ticks: list[float] = []

        def fails(now: float) -> None:
            ticks.append(now)
            raise ZeroDivisionError

        process.keeper = SimpleNamespace(tick=fails)  # type: ignore[assignment] - all that is used
        for now in (1.0, 1.1, 11.5):
            process.tick(now)
        assert ticks == [1.0, 11.5]

    run(main())


def test_a_share_of_the_keys_is_held_out_and_of_some_only_a_share_takes_part():
    (held,) = trials(holdout=0.5)
    arms = [held.arm_of(b"key %d" % n) for n in range(2000)]
    assert 900 < arms.count(HOLDOUT) < 1100
    (shared,) = trials(eligible={"share": 0.25})
    some = [shared.arm_of(b"key %d" % n) for n in range(2000)]
    assert 430 < 2000 - some.count(None) < 570


def test_a_key_takes_part_in_one_experiment_of_a_group_only():
    made = config()
    one = made.experiments[0].model_copy(update={"group": "g", "name": "one"})
    two = one.model_copy(update={"name": "two"})
    made = made.model_copy(update={"experiments": (one, two)})
    found = Trials(made, {p.name: FakePool(p) for p in made.pools})  # type: ignore[arg-type] - as above
    keys = [b"key %d" % n for n in range(2000)]
    taken = [[found._arm(trial, key) is not None for trial in found.all] for key in keys]
    assert {sum(each) for each in taken} == {1}
    assert 900 < sum(each[0] for each in taken) < 1100


def asking(**rest: Any) -> Any:
    """Make a request that was read, as much of it as a trial looks at."""
    members: dict[str, Any] = {"user": rest.get("user")} if "user" in rest else {}
    return SimpleNamespace(
        tenant=SimpleNamespace(name=rest.get("tenant", "acme")),
        model=rest.get("model", "m"),
        call=SimpleNamespace(route=Route.CHAT, request_id="r1"),
        body=SimpleNamespace(members=members, get=members.get),
    )


def test_what_is_sticky_names_the_key_and_a_request_without_it_is_its_own():
    told = {
        kind: trials(sticky=kind)[0].key_of(asking(user="ann"), b"s1")
        for kind in ("request", "tenant", "session", "user")
    }
    assert told == {
        "request": b"r1",
        "tenant": b"acme",
        "session": b"acme\x1fs1",
        "user": b"acme\x1fann",
    }
    assert trials(sticky="session")[0].key_of(asking(), None) == b"r1"
    assert trials(sticky="user")[0].key_of(asking(user=""), None) == b"r1"


def test_who_is_eligible_is_of_the_tenants_classes_models_and_hours_that_are_named():
    (trial,) = trials(eligible={"models": ["m"], "hours": ["22-2"]})
    assert trial.wants(asking(), "", 23)
    assert not trial.wants(asking(), "", 12)
    assert not trial.wants(asking(model="n"), "", 23)
    (classes,) = trials(eligible={"sla": ["fast"], "tenants": ["acme"]})
    assert classes.wants(asking(), "fast", 0)
    assert not classes.wants(asking(), "slow", 0)
    assert not classes.wants(asking(tenant="globex"), "fast", 0)


def test_a_state_survives_as_json():
    decision = Decision(at=1.0, what="roll back", why="x", arm="two", who="ops")
    kept = Kept(state=State(phase="rolled_back", out=("two",), log=(decision,), version=3))
    from forebay.gateway.experiments.store import decode, encode

    assert decode(encode(kept)) == kept


class Shelf(Nowhere):
    """A store that keeps what it is given."""

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.kept: dict[str, Kept] = {}
        self.away = False

    async def load(self, name: str) -> Kept | None:
        if self.away:
            raise ExperimentsAway("gone")
        kept = self.kept.get(name)
        return kept and decode(encode(kept))

    async def save(self, name: str, kept: Kept) -> None:
        if self.away:
            raise ExperimentsAway("gone")
        if not self.shared or name not in self.kept:
            self.kept[name] = decode(encode(kept))

    async def decide(self, name: str, state: State) -> bool:
        if self.kept[name].state.version != state.version - 1:
            return False
        self.kept[name].state = state
        return True


def test_an_experiment_that_a_reload_takes_away_and_brings_back_goes_on(run: Run):
    async def main() -> None:
        (old,) = trials()
        keeper = await started([old], Shelf())
        keeper.settled(inbound(Assigned(old, "one")), outcome())
        await keeper.decide("t", "roll back", arm="", who="ops")
        keeper.settled(inbound(Assigned(old, "one")), outcome())
        keeper.configure([])
        keeper.configure(trials())
        await keeper._store_all()
        live = keeper.live["t"]
        assert (live.state.phase, dict(live.trial.weights)["two"]) == ("rolled_back", 0.0)
        assert live.whole().requests("one") == 2
        await keeper.close()

    run(main())


def test_a_process_that_finds_its_folder_held_goes_on_from_there_once_it_is_free(
    run: Run, tmp_path: Path
):
    async def main() -> None:
        first = await started(trials(), FileStore(tmp_path))
        await first.decide("t", "roll back", arm="", who="ops")
        second = await started(trials(), FileStore(tmp_path))
        await second._store_all()
        assert (second.away, second.live["t"].state.phase) == (True, "running")
        await first.close()
        await second._store_all()
        assert (second.away, second.live["t"].state.phase) == (False, "rolled_back")
        await second.close()

    run(main())


def test_a_state_of_other_arms_that_is_found_late_begins_a_new_run(run: Run):
    async def main() -> None:
        shelf = Shelf(shared=True)
        first = await started(trials(), shelf)
        await first._store_all()
        await first.decide("t", "roll back", arm="", who="ops")
        shelf.away = True
        others = trials(arms={"one": ["a"], "three": ["b"]})
        second = await started(others, shelf)
        second.configure(others)
        shelf.away = False
        await second._store_all()
        assert (second.live["t"].state.phase, second.live["t"].state.run) == ("running", 1)
        assert shelf.kept["t"].state == second.live["t"].state
        await first._store_all()  # its file still names the old arms
        assert first.live["t"].state.arms == ("one", "two")
        assert shelf.kept["t"].state.arms == ("one", "three")

    run(main())


@pytest.mark.parametrize(
    ("state", "down"), [(Condition.STARTING, frozenset[str]()), (Condition.DOWN, {"two"})]
)
def test_an_arm_is_not_down_before_it_was_looked_at(state: Condition, down: frozenset[str]):
    (trial,) = trials()
    candidate: Any = trial.pool.endpoints["b"]
    candidate.view, candidate.health = (
        SimpleNamespace(usable=False),
        SimpleNamespace(**vars(candidate.health)),
    )
    candidate.health.state = state
    assert trial.down() == down


def test_an_arm_whose_name_has_no_address_gets_nothing_until_it_has():
    made = config()
    pools = {pool.name: FakePool(pool) for pool in made.pools}
    there = pools["p"].endpoints.pop("b")
    (trial,) = Trials(made, pools).all  # type: ignore[arg-type] - as above
    assert trial.weights == (("one", 1.0), ("two", 0.0))
    pools["p"].endpoints["b"] = there
    (trial,) = Trials(made, pools).all  # type: ignore[arg-type] - as above
    assert trial.weights == (("one", 0.5), ("two", 0.5))
