"""What several sections must agree on: names used once, names that exist, settings that fit.

Works on the file's plain values, not on sections, so that these errors are told together with
those that keep a section from being built. Anything of a wrong shape is skipped here: pydantic has
already refused it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from forebay.adapters.registry import ADAPTERS

from .errors import path_of
from .relations_experiments import find_experiment_faults, find_fallback_faults
from .suggest import did_you_mean
from .tenancy import read_reserve
from .units import Substituted, shown
from .values import check_digest, is_digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .errors import Place

    Found = Iterator[tuple[Place, str]]
    Named = Iterator[tuple[Place, str]]

_ROUNDING = 1e-9
_TELLING = ("vllm", "sglang", "sim")
_MONEY = ("money_per_day", "money_per_month")


def find_faults(data: object) -> list[tuple[Place, str]]:
    """Return the place and message of each disagreement."""
    if not isinstance(data, dict):
        return []
    file = cast("dict[str, object]", data)
    checks: tuple[Callable[[dict[str, object]], Found], ...] = (
        _names_once,
        _endpoints_complete,
        _events_fit,
        _fields_are_controls,
        _models_once,
        _models_exist,
        _names_exist,
        _queued_classes_exist,
        _long_pools_exist,
        _files_once,
        _money_has_prices,
        _reserves_fit,
        _tenants_have_keys,
        _keys_once,
        _server_fits,
        find_experiment_faults,
        find_fallback_faults,
    )
    return [fault for check in checks for fault in check(file)]


def _names_once(file: dict[str, object]) -> Found:
    pools, tenants = _entries(file, ("pools",)), _entries(file, ("tenants",))
    yield from _twice(_texts(pools, "name"), "name")
    yield from _twice(_texts(_endpoints(file), "name"), "name")
    yield from _twice(_texts(tenants, "name"), "name")


def _files_once(file: dict[str, object]) -> Found:
    yield from _twice(_files(file), "file")


def _files(file: dict[str, object]) -> Named:
    """Return what pools write to: each file is one pool's, which begins it or puts it aside."""
    for place, pool in _entries(file, ("pools",)):
        own, here = _mapping(pool.get("scheduling")), (*place, "scheduling")
        yield from _texts(iter([(here, own)]), "journal")
        said = _mapping(own.get("prediction"))
        yield from _texts(iter([((*here, "prediction"), said)]), "outcomes")


def _endpoints_complete(file: dict[str, object]) -> Found:
    for place, endpoint in _endpoints(file):
        embedded = endpoint.get("engine") == "sim" and "url" not in endpoint
        if "engine" in endpoint and "url" not in endpoint and not embedded:
            yield (*place, "url"), "is missing; only 'engine: sim' can do without"
        if "sim" in endpoint and not embedded:
            yield (*place, "sim"), "is for an embedded engine: 'engine: sim' without a url"
        if "discover" in endpoint:
            yield from _discovered(endpoint, place)


def _discovered(endpoint: dict[str, object], place: Place) -> Found:
    url = endpoint.get("url")
    if not isinstance(url, str):
        yield (*place, "discover"), "needs a url, whose host is looked up"
        return
    if not url.startswith("http://"):
        yield (*place, "discover"), "needs http: a certificate is for a name, not for an address"
    host = _host(url)
    told = _mapping(endpoint.get("events")) or {"address": endpoint.get("events")}
    if told.get("bind") is True:
        yield (
            (*place, "events", "bind"),
            "cannot be used: all addresses would be listened for at one",
        )
    for name in ("address", "replay"):
        address = told.get(name)
        fixed = isinstance(address, str) and address.startswith(("tcp://", "ipc://"))
        if fixed and _host(cast("str", address)) != host:
            yield (
                (*place, "events"),
                "must be at the url's host, or each address's would be the same",
            )


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _events_fit(file: dict[str, object]) -> Found:
    for place, pool in _entries(file, ("pools",)):
        prefix, here = _mapping(pool.get("prefix")), (*place, "prefix")
        exact = prefix.get("mode") == "exact"
        if exact and "tokenizer" not in prefix:
            yield (*here, "tokenizer"), "is missing; mode 'exact' cannot do without"
        salted = bool(_list(file.get("tenants"))) and prefix.get("shared") is not True
        for where, endpoint in _entries(pool, (*place, "endpoints")):
            if "events" in endpoint:
                for fault in _events_faults(endpoint, salted=salted):
                    yield (*where, "events"), fault
            elif exact:
                yield (*where, "events"), "is missing; the pool's prefix mode is 'exact'"


def _events_faults(endpoint: dict[str, object], *, salted: bool) -> Iterator[str]:
    engine, told = endpoint.get("engine"), endpoint["events"]
    if engine == "trtllm":
        if told != "poll" and _mapping(told).keys() != {"poll"}:
            yield "must be 'poll', or {poll: TIME}: trtllm has to be asked"
        elif salted:
            yield (
                "cannot be used: trtllm's name no tenant's salt; set the pool's prefix to"
                " 'shared: true', or leave them out"
            )
    elif engine not in _TELLING or "url" not in endpoint:
        yield "is only for vllm, sglang, trtllm, and sim with a url"
    elif told == "poll" or "poll" in _mapping(told):
        yield f"must be an address: {engine} publishes, only trtllm has to be asked"
    elif isinstance(told, dict) and "address" not in told:
        yield "lacks an 'address'"


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


def _models_exist(file: dict[str, object]) -> Found:
    known = {model for _, model in _models(file)}
    named = [(("prices", name), name) for name in _mapping(file.get("prices"))]
    for place, limits in _limits(file):
        models = enumerate(_list(limits.get("models")))
        named += [((*place, "models", i), model) for i, model in models if isinstance(model, str)]
    for place, model in named if known else ():
        if model not in known:
            yield place, f"no pool has the model {_hinted(model, known)}"


def _names_exist(file: dict[str, object]) -> Found:
    """Find plans and SLA classes that are named and do not exist."""
    for place, key, name in _references(file):
        section = "plans" if key == "plan" else "sla"
        known = _mapping(file.get(section))
        if name not in known:
            what = "plan" if key == "plan" else "SLA class"
            yield place, f"there is no {what} {_hinted(name, known)}"


def _references(file: dict[str, object]) -> Iterator[tuple[Place, str, str]]:
    for place, holder in _holders(file):
        for key in ("plan", "sla"):
            name = holder.get(key)
            if isinstance(name, str):
                yield (*place, key), key, name
    for place, limits in _limits(file):
        for i, name in enumerate(_list(limits.get("sla"))):
            if isinstance(name, str):
                yield (*place, "sla", i), "sla", name


def _queued_classes_exist(file: dict[str, object]) -> Found:
    known = _mapping(file.get("sla"))
    for place, pool in _entries(file, ("pools",)):
        for name in _mapping(_mapping(pool.get("queue")).get("classes")):
            if name not in known:
                where = (*place, "queue", "classes", name)
                yield where, f"there is no SLA class {shown(name)}{did_you_mean(name, known)}"


def _long_pools_exist(file: dict[str, object]) -> Found:
    pools = list(_entries(file, ("pools",)))
    names = {name for _, name in _texts(iter(pools), "name")}
    sending = {str(pool.get("name")) for _, pool in pools if _long_pool(pool)}
    for place, pool in pools:
        name, where = _long_pool(pool), (*place, "scheduling", "long_pool", "pool")
        if not isinstance(name, str):
            continue
        if name not in names:
            yield where, f"there is no pool {_hinted(name, names)}"
        elif name == pool.get("name"):
            yield where, "is this pool itself"
        elif name in sending:
            yield where, f"the pool {shown(name)} sends its long requests on, too"


def _long_pool(pool: dict[str, object]) -> object:
    return _mapping(_mapping(pool.get("scheduling")).get("long_pool")).get("pool")


def _money_has_prices(file: dict[str, object]) -> Found:
    """Find limits on money that would let in for nothing what has no price."""
    priced = _mapping(file.get("prices")).keys()
    plans = _mapping(file.get("plans"))
    for place, tenant in _entries(file, ("tenants",)):
        plan = _mapping(_mapping(plans.get(str(tenant.get("plan")))).get("limits"))
        limits = {**plan, **_mapping(tenant.get("limits"))}
        models = _list(limits.get("models")) or [model for _, model in _models(file)]
        free = sorted({m for m in models if isinstance(m, str)} - priced)
        if free and any(key in limits for key in _MONEY):
            names = ", ".join(map(shown, free))
            yield place, f"has a limit on money, but 'prices' has none for {names}"


def _reserves_fit(file: dict[str, object]) -> Found:
    """Find the reserve with which more is kept than there is."""
    total = 0.0
    for place, holder in _holders(file):
        try:
            share = cast("float", read_reserve(holder.get("reserve", 0)))
        except ValueError:
            continue
        total += share if share <= 1 else 0.0  # what is more has been told
        if share and total > 1 + _ROUNDING:
            yield (*place, "reserve"), f"makes all reserves {total:.0%} of each pool's places"


def _tenants_have_keys(file: dict[str, object]) -> Found:
    signed = "jwt" in _mapping(file.get("auth"))
    for place, tenant in _entries(file, ("tenants",)):
        if "keys" not in tenant and not signed:
            yield (*place, "keys"), "is missing; only 'auth.jwt' can do without"
        elif tenant.get("keys") == [] and not signed:
            yield (*place, "keys"), "needs at least one entry"
    if signed and not _list(file.get("tenants")):
        yield ("auth", "jwt"), "needs 'tenants': a token names one of them"


def _keys_once(file: dict[str, object]) -> Found:
    keys: list[tuple[Place, str]] = []
    for place, tenant in _entries(file, ("tenants",)):
        for i, key in enumerate(_list(tenant.get("keys"))):
            entry = _mapping(key)
            digest = _digest(entry.get("digest") if entry else key)
            if digest is None:
                continue
            keys.append(((*place, "keys", i, *(("digest",) if entry else ())), digest))
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


def _holders(file: dict[str, object]) -> Iterator[tuple[Place, dict[str, object]]]:
    """Go through plans and tenants, which both hold limits and name SLA classes."""
    for name, plan in _mapping(file.get("plans")).items():
        if isinstance(plan, dict):
            yield ("plans", name), cast("dict[str, object]", plan)
    yield from _entries(file, ("tenants",))


def _limits(file: dict[str, object]) -> Iterator[tuple[Place, dict[str, object]]]:
    for place, holder in _holders(file):
        yield (*place, "limits"), _mapping(holder.get("limits"))


def _hinted(name: str, known: Iterable[str]) -> str:
    return shown(name) + ("" if isinstance(name, Substituted) else did_you_mean(name, known))


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
