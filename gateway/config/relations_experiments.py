"""What experiments and fallbacks must agree on with pools, tenants and classes.

As `relations`: works on the file's plain values, and passes over what pydantic refuses anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .suggest import did_you_mean
from .units import Substituted, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .errors import Place

    Found = Iterator[tuple[Place, str]]


def find_experiment_faults(file: dict[str, object]) -> Found:
    """Find what experiments name that is not there, or is there twice."""
    pools = _pools(file)
    seen: set[str] = set()
    sticky: dict[str, object] = {}
    taken: dict[str, str] = {}
    for i, experiment in enumerate(_list(file.get("experiments"))):
        section, place = _mapping(experiment), ("experiments", i)
        name = str(section.get("name"))
        if name in seen:
            yield (*place, "name"), f"the experiment {shown(name)} stands twice"
        seen.add(name)
        pool = section.get("pool")
        if isinstance(pool, str) and pool not in pools:
            yield (*place, "pool"), f"there is no pool {_hinted(pool, pools)}"
            continue
        yield from _arms(section, place, pools, taken)
        yield from _names(section, place)
        yield from _eligible(file, section, place, pools)
        group = section.get("group")
        if isinstance(group, str):
            kind = section.get("sticky", "request")
            if sticky.setdefault(group, kind) != kind:
                yield (*place, "sticky"), f"all of group {shown(group)} must be sticky by the same"


def _arms(
    section: dict[str, Any], place: Place, pools: dict[str, dict[str, Any]], taken: dict[str, str]
) -> Found:
    own = str(section.get("pool"))
    endpoints = _endpoints(pools.get(own, {}))
    for number, (arm, where) in enumerate(_mapping(section.get("arms")).items()):
        here = (*place, "arms", arm)
        other = _mapping(where).get("pool")
        if isinstance(other, str):
            yield from _other_pool(other, own, here, pools)
        for j, name in enumerate(_list(_mapping(where).get("endpoints", where))):
            if not isinstance(name, str):
                continue
            if name not in endpoints:
                yield (*here, j), f"pool {shown(own)} has no endpoint {_hinted(name, endpoints)}"
            role = f"{section.get('name')}/{arm}"
            if name in taken and (number or not taken[name].startswith("=")):
                yield (*here, j), f"endpoint {shown(name)} is in arm {taken[name].lstrip('=')} too"
            # Controls of several experiments may share endpoints; candidates may not.
            taken[name] = role if number else f"={role}"


def _other_pool(other: str, own: str, here: Place, pools: dict[str, dict[str, Any]]) -> Found:
    if other not in pools:
        yield (*here, "pool"), f"there is no pool {_hinted(other, pools)}"
    elif other != own and _engine_models(pools[other]) != 1:
        yield (*here, "pool"), f"pool {shown(other)} serves several models; one must be meant"


def _names(section: dict[str, Any], place: Place) -> Found:
    arms = _mapping(section.get("arms"))
    for name in _mapping(section.get("split")):
        if name not in arms:
            yield (*place, "split", name), f"there is no arm {_hinted(name, arms)}"
    shadow = _mapping(section.get("shadow")).get("arm")
    if isinstance(shadow, str) and shadow not in arms:
        yield (*place, "shadow", "arm"), f"there is no arm {_hinted(shadow, arms)}"
    if "split" in section and "ramp" in section and arms:
        control = next(iter(arms))
        if control in _mapping(section.get("split")):
            text = "of the control is what 'ramp' leaves; leave it out"
            yield (*place, "split", control), text


def _eligible(
    file: dict[str, object], section: dict[str, Any], place: Place, pools: dict[str, Any]
) -> Found:
    known = {
        "tenants": [_mapping(t).get("name") for t in _list(file.get("tenants"))],
        "sla": list(_mapping(file.get("sla"))),
        "models": list(_model_names(pools.get(str(section.get("pool")), {}))),
    }
    words = {
        "tenants": "there is no tenant",
        "sla": "there is no SLA class",
        "models": "the pool has no model",
    }
    eligible = _mapping(section.get("eligible"))
    for key, names in known.items():
        for j, name in enumerate(_list(eligible.get(key))):
            if isinstance(name, str) and name not in names:
                hint = _hinted(name, [n for n in names if isinstance(n, str)])
                yield (*place, "eligible", key, j), f"{words[key]} {hint}"


def find_fallback_faults(file: dict[str, object]) -> Found:
    """Find fallbacks to pools that are not there, to itself, or of several models."""
    pools = _pools(file)
    for i, entry in enumerate(_list(file.get("pools"))):
        pool = _mapping(entry)
        named: set[str] = set()
        for j, each in enumerate(_list(pool.get("fallback"))):
            other, here = _mapping(each).get("pool"), ("pools", i, "fallback", j, "pool")
            if not isinstance(other, str):
                continue
            if other == pool.get("name"):
                yield here, "is the pool itself"
            elif other in named:
                yield here, f"pool {shown(other)} stands twice"
            else:
                yield from _other_pool(other, "", here[:-1], pools)
            named.add(other)


def _pools(file: dict[str, object]) -> dict[str, dict[str, Any]]:
    found = (_mapping(entry) for entry in _list(file.get("pools")))
    return {str(pool.get("name")): pool for pool in found}


def _endpoints(pool: dict[str, Any]) -> list[str]:
    found = (_mapping(entry).get("name") for entry in _list(pool.get("endpoints")))
    return [name for name in found if isinstance(name, str)]


def _model_names(pool: dict[str, Any]) -> Iterator[str]:
    models = pool.get("models")
    yield from (str(name) for name in _mapping(models))
    for item in _list(models):
        yield from ([item] if isinstance(item, str) else map(str, _mapping(item)))


def _engine_models(pool: dict[str, Any]) -> int:
    """Count the engine's names of a pool's models."""
    default, found = pool.get("engine_model"), set[object]()
    models = pool.get("models")
    for item in _list(models) or [models]:
        if isinstance(item, str):
            found.add(default or item)
        else:
            found.update(engine or default or name for name, engine in _mapping(item).items())
    return len(found)


def _hinted(name: str, known: Iterable[str]) -> str:
    return shown(name) + ("" if isinstance(name, Substituted) else did_you_mean(name, known))


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
