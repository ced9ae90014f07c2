"""What several sections must agree on: names used once, names that exist, settings that fit.

Works on the file's plain values, not on sections, so that these errors are told together with
those that keep a section from being built. Anything of a wrong shape is skipped here: pydantic has
already refused it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from forebay.adapters.registry import ADAPTERS

from .errors import path_of
from .suggest import did_you_mean
from .units import Substituted, shown
from .values import check_digest, is_digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .errors import Place

    Found = Iterator[tuple[Place, str]]
    Named = Iterator[tuple[Place, str]]


def find_faults(data: object) -> list[tuple[Place, str]]:
    """Return the place and message of each disagreement."""
    if not isinstance(data, dict):
        return []
    file = cast("dict[str, object]", data)
    checks: tuple[Callable[[dict[str, object]], Found], ...] = (
        _names_once,
        _endpoints_complete,
        _fields_are_controls,
        _models_once,
        _tenants_know_their_models,
        _keys_once,
        _server_fits,
    )
    return [fault for check in checks for fault in check(file)]


def _names_once(file: dict[str, object]) -> Found:
    pools, tenants = _entries(file, ("pools",)), _entries(file, ("tenants",))
    yield from _twice(_texts(pools, "name"), "name")
    yield from _twice(_texts(_endpoints(file), "name"), "name")
    yield from _twice(_texts(tenants, "name"), "name")


def _endpoints_complete(file: dict[str, object]) -> Found:
    for place, endpoint in _endpoints(file):
        embedded = endpoint.get("engine") == "sim" and "url" not in endpoint
        if "engine" in endpoint and "url" not in endpoint and not embedded:
            yield (*place, "url"), "is missing; only 'engine: sim' can do without"
        if "sim" in endpoint and not embedded:
            yield (*place, "sim"), "is for an embedded engine: 'engine: sim' without a url"


def _fields_are_controls(file: dict[str, object]) -> Found:
    for place, pool in _entries(file, ("pools",)):
        engines = {name for _, name in _texts(_entries(pool, (*place, "endpoints")), "engine")}
        known = {
            name for engine in engines & ADAPTERS.keys() for name in ADAPTERS[engine].control_fields
        }
        for i, name in enumerate(_list(pool.get("allow_fields"))):
            if engines <= ADAPTERS.keys() and isinstance(name, str) and name not in known:
                hint = "" if isinstance(name, Substituted) else did_you_mean(name, known)
                message = f"{shown(name)} is no control field of this pool's engines{hint}"
                yield (*place, "allow_fields", i), message


def _models_once(file: dict[str, object]) -> Found:
    yield from _twice(_models(file), "model")


def _tenants_know_their_models(file: dict[str, object]) -> Found:
    known = {model for _, model in _models(file)}
    for place, tenant in _entries(file, ("tenants",)):
        for i, model in enumerate(_list(tenant.get("models"))):
            if known and isinstance(model, str) and model not in known:
                hint = "" if isinstance(model, Substituted) else did_you_mean(model, known)
                yield (*place, "models", i), f"no pool has the model {shown(model)}{hint}"


def _keys_once(file: dict[str, object]) -> Found:
    keys: list[tuple[Place, str]] = []
    for place, tenant in _entries(file, ("tenants",)):
        for i, key in enumerate(_list(tenant.get("keys"))):
            digest = _digest(key)
            if digest is None:
                continue
            keys.append(((*place, "keys", i), digest))
            name = tenant.get("name")
            if isinstance(name, str) and is_digest_of(digest, name):
                yield keys[-1][0], "is the digest of the tenant's name; anybody can guess that key"
    yield from _twice(iter(keys), "key")


def _server_fits(file: dict[str, object]) -> Found:
    server = _mapping(file.get("server"))
    admin = server.get("admin")
    if server.get("metrics") == "admin" and "admin" not in server:
        yield ("server", "metrics"), "is 'admin', but there is no 'admin' section"
    port = _mapping(admin).get("port", 8081)
    if "admin" in server and port == server.get("port", 8080) != 0:
        yield ("server", "admin", "port"), "is the port of the server itself"


def _twice(named: Named, what: str) -> Found:
    first: dict[str, Place] = {}
    for place, name in named:
        if name in first:
            shown_name = "" if what == "key" else f" {shown(name)}"
            yield place, f"the {what}{shown_name} stands twice, first at {path_of(first[name])}"
        else:
            first[name] = place


def _models(file: dict[str, object]) -> Named:
    for place, pool in _entries(file, ("pools",)):
        models, here = pool.get("models"), (*place, "models")
        yield from ((here, name) for name in _mapping(models))
        for i, item in enumerate(_list(models)):
            names = [item] if isinstance(item, str) else _mapping(item)
            yield from (((*here, i), name) for name in names)


def _endpoints(file: dict[str, object]) -> Iterator[tuple[Place, dict[str, object]]]:
    for place, pool in _entries(file, ("pools",)):
        yield from _entries(pool, (*place, "endpoints"))


def _entries(section: dict[str, object], place: Place) -> Iterator[tuple[Place, dict[str, object]]]:
    for i, entry in enumerate(_list(section.get(str(place[-1])))):
        if isinstance(entry, dict):
            yield (*place, i), cast("dict[str, object]", entry)


def _texts(entries: Iterator[tuple[Place, dict[str, object]]], key: str) -> Named:
    for place, entry in entries:
        value = entry.get(key)
        if isinstance(value, str):
            yield (*place, key), value


def _digest(key: object) -> str | None:
    try:
        return check_digest(key) if isinstance(key, str) else None
    except ValueError:
        return None


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _mapping(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
