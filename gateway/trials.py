"""A configuration's experiments, compiled: which requests take part, and which arm they get."""

from __future__ import annotations

import time
from math import inf
from typing import TYPE_CHECKING

from forebay.gateway.config.experiments import read_hours
from forebay.policies.contracts import Route
from forebay.policies.experiments.assignment import assign, uniform
from forebay.policies.experiments.plan import GUARDRAILS, Plan
from forebay.policies.experiments.ramp import State, weights
from forebay.scheduler.health import State as Condition

from .experiments.store import stage_key
from .places import FROM_AN_ARM, UNHEALTHY, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.gateway.config.experiments import Arm, Experiment
    from forebay.gateway.config.sections import Config

    from .endpoint import Endpoint
    from .intake import Inbound
    from .pools import Pool

GENERATING = frozenset({Route.CHAT, Route.COMPLETIONS, Route.RESPONSES, Route.MESSAGES})
"""Routes that take part: what they cost and how good they are can be compared."""
HOLDOUT = "holdout"
_HOUR = 3600
_LAST_RESORT = frozenset({UNHEALTHY})
_NOBODY = frozenset[str]()


class Assigned:
    """One request's part in an experiment."""

    __slots__ = ("arm", "done", "stage", "trial")

    def __init__(self, trial: Trial, arm: str) -> None:
        self.trial = trial
        self.arm = arm
        self.stage = trial.stage
        self.done = False
        """It has been counted."""

    @property
    def candidate(self) -> bool:
        """Whether its arm is on trial."""
        return self.arm in self.trial.plan.candidates


class Trial:
    """One experiment, ready to be asked for each request."""

    def __init__(self, section: Experiment, config: Config, pools: Mapping[str, Pool]) -> None:
        self.section = section
        self.plan = plan_of(section, config)
        self.pool = pools[section.pool]
        names = {endpoint.name for endpoint in self.pool.section.endpoints}
        self.places = {
            arm: _place(where, self.pool, names, pools) for arm, where in section.arms.items()
        }
        self.endpoints = {arm: _endpoints(where, pools) for arm, where in section.arms.items()}
        """Each arm's (pool, endpoint) names."""
        self.spared = candidates_of(section)
        self._tenants = frozenset(section.eligible.tenants)
        self._classes = frozenset(section.eligible.sla)
        self._models = frozenset(section.eligible.models)
        self._hours = _hours(section.eligible.hours)
        self.weights: Sequence[tuple[str, float]] = ()
        self.gone = _NOBODY
        """Endpoints of candidates that were taken back."""
        self.rest: Place | None = None
        """Where the control's requests go when it cannot serve them: who is not rolled back."""
        self.stage = ""
        """What the counts of those who come now are kept under."""
        self.take(State())

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.section.name

    def take(self, state: State) -> None:
        """Take the shares that a state gives the arms."""
        self.weights = tuple(self._there(weights(self.plan, state)).items())
        self.stage = stage_key(state)
        back = self.plan.candidates if state.phase == "rolled_back" else state.out
        self.gone = frozenset(name for arm in back for name in self.endpoints.get(arm, ()))
        self.rest = self._rest()

    def _there(self, shares: dict[str, float]) -> dict[str, float]:
        """Let the control have what goes to arms whose names have no address, or none as yet.

        What fails there would say nothing against them, and take them back for good.
        """
        for arm in self.plan.candidates:
            where = self.section.arms[arm]
            if (where.endpoints or where.pool is not None) and not self.views(arm):
                shares[self.plan.control] += shares[arm]
                shares[arm] = 0.0
        return shares

    def _rest(self) -> Place | None:
        mine = self.section.arms[self.plan.control].endpoints
        names = {endpoint.name for endpoint in self.pool.section.endpoints}
        if not mine or names - self.gone <= set(mine):
            return None
        return Place(self.pool, "", self.gone, _LAST_RESORT)

    def down(self) -> frozenset[str]:
        """Return the candidates of which no endpoint is usable while the control has one.

        Endpoints that an operator drained, or that nobody has probed yet, say nothing against it.
        """
        control, *candidates = (self.views(arm) for arm in self.plan.arms)
        if not any(endpoint.view.usable for endpoint in control):
            return _NOBODY
        return frozenset(
            arm
            for arm, views in zip(self.plan.candidates, candidates, strict=True)
            if views and not any(e.view.usable or _is_unjudged(e) for e in views)
        )

    def views(self, arm: str) -> list[Endpoint]:
        """Return an arm's endpoints."""
        pool = self.places[arm].pool
        return [pool.endpoints[name] for name in self.endpoints[arm] if name in pool.endpoints]

    def wants(self, inbound: Inbound, sla: str, hour: int) -> bool:
        """Whether a request may take part."""
        if self._tenants and inbound.tenant.name not in self._tenants:
            return False
        if self._classes and sla not in self._classes:
            return False
        if self._models and inbound.model not in self._models:
            return False
        return self._hours is None or hour in self._hours

    def key_of(self, inbound: Inbound, session: bytes | None) -> bytes:
        """Return what stays at its arm; a request by itself where it names none."""
        sticky = self.section.sticky
        tenant = inbound.tenant.name.encode()
        if sticky == "tenant":
            return tenant
        found: object = None
        if sticky == "session":
            found = session
        elif sticky == "user" and "user" in inbound.body.members:
            found = inbound.body.get("user")
        if not found:
            return inbound.call.request_id.encode()
        return tenant + b"\x1f" + (found if isinstance(found, bytes) else str(found).encode())

    def arm_of(self, key: bytes) -> str | None:
        """Return a key's arm; None when it takes no part."""
        section = self.section
        if section.eligible.share < 1 and uniform(f"{section.name}\x1fshare", key) >= (
            section.eligible.share
        ):
            return None
        if section.holdout and uniform(f"{section.name}\x1fholdout", key) < section.holdout:
            return HOLDOUT
        return assign(section.name, key, self.weights)


def plan_of(section: Experiment, config: Config) -> Plan:
    """Turn a section into what the pure core takes."""
    ramp = section.ramp
    arms = tuple(section.arms)
    return Plan(
        name=section.name,
        arms=arms,
        weights=section.split or dict.fromkeys(arms, 1.0),
        stages=() if ramp is None else ramp.stages,
        dwell_s=0.0 if ramp is None else ramp.dwell,
        min_requests=1 if ramp is None else ramp.min_requests,
        primary=section.primary,
        promote=section.promote if ramp is not None else "never",
        margin=section.margin,
        guardrails=_guardrails(section),
        max_errors=section.max_errors,
        alpha=section.alpha,
        classes=_classes(section, config),
    )


def _guardrails(section: Experiment) -> dict[str, float]:
    margins = {**GUARDRAILS, **section.guardrails}
    return {name: margin for name, margin in margins.items() if margin < inf}


def _classes(section: Experiment, config: Config) -> tuple[str, ...]:
    if not config.sla:
        return ("",)
    named = section.eligible.sla or tuple(config.sla)
    return named if section.eligible.sla else ("", *named)


def candidates_of(section: Experiment) -> frozenset[str]:
    """Return the endpoints of the pool itself that only candidates get requests on."""
    _, *candidates = section.arms.values()
    return frozenset(name for arm in candidates for name in arm.endpoints)


def _place(arm: Arm, pool: Pool, names: set[str], pools: Mapping[str, Pool]) -> Place:
    if arm.pool is None or arm.pool == pool.name:
        without = names - set(arm.endpoints) if arm.endpoints else _NOBODY
        return Place(pool, "", frozenset(without))
    other = pools[arm.pool]
    return Place(other, only_model(other))


def only_model(pool: Pool) -> str:
    """Return the one engine model of a pool (the configuration is checked for it)."""
    return pool.engine_model(next(iter(pool.models)))


def _endpoints(arm: Arm, pools: Mapping[str, Pool]) -> tuple[str, ...]:
    if arm.pool is None:
        return arm.endpoints
    return tuple(endpoint.name for endpoint in pools[arm.pool].section.endpoints)


def _is_unjudged(endpoint: Endpoint) -> bool:
    return endpoint.health.drained or endpoint.health.state is Condition.STARTING


def _hours(spans: Sequence[str]) -> frozenset[int] | None:
    return frozenset[int]().union(*map(read_hours, spans)) if spans else None


def fallbacks_of(config: Config, pools: Mapping[str, Pool]) -> dict[str, tuple[Place, ...]]:
    """Return where each pool's requests go when it cannot serve them.

    Only the chain of the pool that was asked for counts, never that of one further on.
    """
    spared: dict[str, frozenset[str]] = {}
    for section in config.experiments:
        spared[section.pool] = spared.get(section.pool, _NOBODY) | candidates_of(section)
    return {
        pool.name: tuple(
            Place(
                pools[each.pool],
                only_model(pools[each.pool]),
                spared.get(each.pool, _NOBODY),
                frozenset(each.on),
            )
            for each in pool.fallback
        )
        for pool in config.pools
        if pool.fallback
    }


class Trials:
    """All experiments of a configuration."""

    def __init__(
        self,
        config: Config,
        pools: Mapping[str, Pool],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.all = [Trial(section, config, pools) for section in config.experiments]
        self._clock = clock
        self._by_pool: dict[str, list[Trial]] = {}
        self._groups: dict[str, list[tuple[str, float]]] = {}
        for trial in self.all:
            self._by_pool.setdefault(trial.pool.name, []).append(trial)
            if trial.section.group is not None:
                self._groups.setdefault(trial.section.group, []).append((trial.name, 1.0))
        self._spared = {
            name: frozenset[str]().union(*(trial.spared for trial in trials))
            for name, trials in self._by_pool.items()
        }

    def join(self, inbound: Inbound, session: bytes | None, sla: str) -> frozenset[str]:
        """Give a request its arm, and return the endpoints that it must not go to.

        Where its arm is another pool, the request's pool and model become that one's.
        """
        trials = self._by_pool.get(inbound.pool.name)
        if trials is None:
            return _NOBODY
        spared = self._spared[inbound.pool.name]
        if inbound.call.route not in GENERATING:
            return spared
        hour = int(self._clock()) // _HOUR % 24
        for trial in trials:
            if not trial.wants(inbound, sla, hour):
                continue
            arm = self._arm(trial, trial.key_of(inbound, session))
            if arm is not None:
                return self._enter(inbound, trial, arm, spared)
        return spared

    def _arm(self, trial: Trial, key: bytes) -> str | None:
        group = trial.section.group
        if group is not None:
            mine = assign(f"group\x1f{group}", key, self._groups[group])
            if mine != trial.name:
                return None
        return trial.arm_of(key)

    @staticmethod
    def _enter(inbound: Inbound, trial: Trial, arm: str, spared: frozenset[str]) -> frozenset[str]:
        inbound.trial = assigned = Assigned(trial, arm)
        place = trial.places[trial.plan.control if arm == HOLDOUT else arm]
        if assigned.candidate:
            home = Place(inbound.pool, inbound.call.model, spared, FROM_AN_ARM)
            inbound.places = (home, *inbound.places)
        elif arm != HOLDOUT and trial.rest is not None:
            without = trial.rest.without | (spared - trial.spared)
            rest = Place(inbound.pool, inbound.call.model, without, _LAST_RESORT)
            inbound.places = (rest, *inbound.places)
        if place.pool is not inbound.pool:
            inbound.pool, inbound.call.model = place.pool, place.model
            inbound.call.allow = place.pool.allow
        return place.without
