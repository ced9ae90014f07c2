"""Finds keys that are right and do nothing: for `forebay check`, which warns of them.

Only what was written in the file is looked at, never a default.
"""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .errors import Place
    from .experiments import Experiment
    from .prefix import Prefix
    from .sections import Config, Pool
    from .tenancy import Tenant

    Found = Iterator[tuple[Place, str]]

_BLIND = frozenset({"aged", "edf", "fcfs"})
"""Orders that look at no predicted length."""
_READING_NONE = ("mean", "none")
"""Predictors that read no prompts."""


def find_idle(config: Config, now: float) -> list[tuple[Place, str]]:
    """Return the place of each key that does nothing, and why; `now` is in Unix seconds."""
    found: list[tuple[Place, str]] = []
    for i, pool in enumerate(config.pools):
        looks = (_speculation, _prediction, _windows, _prefix)
        found += [each for look in looks for each in look(pool, ("pools", i))]
        found += _consent(config, pool, ("pools", i))
    for i, tenant in enumerate(config.tenants):
        found += _expired(tenant, ("tenants", i), now)
    for i, experiment in enumerate(config.experiments):
        found += _experiment(experiment, ("experiments", i))
    return [*found, *_whole(config)]


def _speculation(pool: Pool, place: Place) -> Found:
    speaks = any(endpoint.speculative for endpoint in pool.endpoints)
    if "speculation" in pool.model_fields_set and not speaks:
        yield (*place, "speculation"), "does nothing: no endpoint of the pool has 'speculative'"


def _prediction(pool: Pool, place: Place) -> Found:
    own, here = pool.scheduling, (*place, "scheduling")
    given, name = own.model_fields_set, own.predictor
    if name != "none" and pool.order in _BLIND:
        text = f"orders nothing: order '{pool.order}' looks at no predicted length, 'ml' does"
        yield (*here, "predictor"), text
    if "prediction" not in given:
        return
    if name in _READING_NONE:
        yield (*here, "prediction"), f"does nothing: predictor '{name}' reads no prompts"
    elif name.startswith("http") and own.prediction.weights is not None:
        yield (*here, "prediction", "weights"), "does nothing: the predictor at the URL has its own"


def _windows(pool: Pool, place: Place) -> Found:
    limits = [endpoint.max_in_flight for endpoint in pool.endpoints]
    if "window" in pool.scheduling.model_fields_set and 0 not in limits:
        text = "does nothing: no endpoint of the pool has 'max_in_flight: auto'"
        yield (*place, "scheduling", "window"), text


def _prefix(pool: Pool, place: Place) -> Found:
    prefix, here = pool.prefix, (*place, "prefix")
    if prefix is None or prefix.mode == "off":
        for j, endpoint in enumerate(pool.endpoints):
            if endpoint.events is not None:
                yield (*place, "endpoints", j, "events"), "does nothing: the pool has no 'prefix'"
    if prefix is None:
        return
    if prefix.mode == "off":
        if prefix.model_fields_set - {"mode"}:
            yield here, "does nothing but say so: its mode is 'off'"
        return
    yield from _scores(prefix, here)
    yield from _tokens(prefix, here, events=any(each.events for each in pool.endpoints))


def _scores(prefix: Prefix, here: Place) -> Found:
    for key, policy in (("weights", "weighted"), ("stickiness", "sticky_until_saturated")):
        if key in prefix.model_fields_set and prefix.policy != policy:
            yield (*here, key), f"does nothing: it is of policy '{policy}', not '{prefix.policy}'"


def _tokens(prefix: Prefix, here: Place, *, events: bool) -> Found:
    if prefix.tokenizer is None:
        if "tokenize_budget" in prefix.model_fields_set:
            yield (*here, "tokenize_budget"), "does nothing without 'tokenizer'"
    elif prefix.mode == "learned":
        yield (*here, "tokenizer"), "does nothing: mode 'learned' goes by the text"
    elif not events:
        yield (*here, "tokenizer"), "does nothing: no endpoint of the pool has 'events'"


def _consent(config: Config, pool: Pool, place: Place) -> Found:
    if pool.fallback and config.tenants and not any(each.fallback for each in config.tenants):
        yield (*place, "fallback"), "does nothing: no tenant has 'fallback: true'"


def _expired(tenant: Tenant, place: Place, now: float) -> Found:
    for j, key in enumerate(tenant.keys):
        if key.expires is not None and key.expires <= now:
            day = datetime.fromtimestamp(key.expires, UTC).strftime("%Y-%m-%d %H:%M UTC")
            yield (*place, "keys", j, "expires"), f"lets nobody in: it was over at {day}"


def _experiment(experiment: Experiment, place: Place) -> Found:
    control, *candidates = experiment.arms
    shared = candidates if experiment.ramp is not None else [control, *candidates]
    for arm in shared if experiment.split else ():
        if arm not in experiment.split:
            yield (*place, "split"), f"leaves arm '{arm}' without requests; say 0 if that is meant"
    given, rules = experiment.model_fields_set, _RULES
    for key, holds, text in rules:
        if key in given and not holds(experiment):
            yield (*place, key), f"does nothing: {text}"


_RULES: tuple[tuple[str, Callable[[Experiment], bool], str], ...] = (
    ("promote", lambda e: e.ramp is not None, "without 'ramp' nothing is promoted"),
    ("margin", lambda e: e.promote == "not_worse", "it is of 'promote: not_worse'"),
)


def _whole(config: Config) -> Found:
    admin = config.server.admin
    if admin is not None and admin.key is None and not _is_here(admin.host):
        yield ("server", "admin", "host"), "lets nobody in from elsewhere: there is no 'key'"
    if "tenants" in config.model_fields_set and not config.tenants:
        yield ("tenants",), "is empty: nobody needs a key"
    named = {tenant.plan for tenant in config.tenants}
    for name in config.plans:
        if name not in named:
            yield ("plans", name), "does nothing: no tenant has this plan"
    if "timeout" in config.state.model_fields_set and config.state.url is None:
        yield ("state", "timeout"), "does nothing without 'url'"
    for key in ("ledger", "experiments") if config.state.url is not None else ():
        if key in config.state.model_fields_set:
            yield ("state", key), "does nothing: what it is for is kept at 'url'"
    if "sample" in config.telemetry.model_fields_set and config.telemetry.otlp is None:
        yield ("telemetry", "sample"), "does nothing without 'otlp'"


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
