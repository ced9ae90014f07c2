"""Endpoints that are found by name: each address of a host is one, and they come and go.

An endpoint with `discover` stands for all addresses of its url's host, such as the pods behind a
headless Service. A configuration with such ones is what its file says; `expanded` puts the
addresses in their place, and that is what runs. When they change it is applied anew, as a changed
file is: endpoints that stay keep their connections and their requests.

Names are known to fail for a while, and to be answered with some addresses only. So an address is
taken out when it is missing from `_FAREWELL` answers in a row, and a name that cannot be looked up
keeps the addresses that it had: probes find out who is not there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forebay.policies.contracts import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from forebay.gateway.config.sections import Config, Endpoint

    Resolve = Callable[[str], Awaitable[Sequence[str]]]

logger = logging.getLogger(__name__)

_FAREWELL = 3
_LOOKUP_S = 5.0
"""Longest lookup. libc gives up after as long, and asks again."""


def hosts_of(config: Config) -> dict[str, float]:
    """Return the hosts to look up, and how often, in seconds."""
    hosts: dict[str, float] = {}
    for pool in config.pools:
        for endpoint in pool.endpoints:
            if endpoint.discover is not None:
                host = _host_of(endpoint.url or "")
                hosts[host] = min(endpoint.discover, hosts.get(host, endpoint.discover))
    return hosts


def expanded(config: Config, addresses: Mapping[str, Sequence[str]]) -> Config:
    """Return a configuration with an endpoint for each address of those that are discovered."""
    if not hosts_of(config):
        return config
    names: dict[str, tuple[str, ...]] = {}
    pools = [
        pool.model_copy(
            update={
                "endpoints": tuple(
                    one for each in pool.endpoints for one in _each(each, addresses, names)
                )
            }
        )
        for pool in config.pools
    ]
    experiments = [
        experiment.model_copy(
            update={
                "arms": {
                    arm: where.model_copy(
                        update={
                            "endpoints": tuple(
                                one for name in where.endpoints for one in names.get(name, (name,))
                            )
                        }
                    )
                    for arm, where in experiment.arms.items()
                }
            }
        )
        for experiment in config.experiments
    ]
    return config.model_copy(update={"pools": tuple(pools), "experiments": tuple(experiments)})


def _each(
    endpoint: Endpoint, addresses: Mapping[str, Sequence[str]], names: dict[str, tuple[str, ...]]
) -> list[Endpoint]:
    """Return the endpoints that one stands for; `names` takes what they are called."""
    if endpoint.discover is None:
        return [endpoint]
    host = _host_of(endpoint.url or "")
    found = [_at(endpoint, host, address) for address in addresses.get(host, ())]
    if found:  # an arm without any keeps the name, of an endpoint that is not there
        names[endpoint.name] = tuple(each.name for each in found)
    return found


def _at(endpoint: Endpoint, host: str, address: str) -> Endpoint:
    """Return the endpoint at one address."""
    literal = f"[{address}]" if ":" in address else address
    changed: dict[str, object] = {
        "name": f"{endpoint.name}-{address.replace(':', '-')}",
        "url": _moved(endpoint.url or "", host, literal),
        "discover": None,
    }
    if endpoint.events is not None:
        told = {name: getattr(endpoint.events, name) for name in ("address", "replay")}
        moved = {name: _moved(each, host, literal) for name, each in told.items() if each}
        changed["events"] = endpoint.events.model_copy(update=moved)
    return endpoint.model_copy(update=changed)


def _host_of(url: str) -> str:
    return urlsplit(url).hostname or ""


def _moved(url: str, host: str, literal: str) -> str:
    """Put an address in the place of a url's host; one of another host stays."""
    parts = urlsplit(url)
    if parts.hostname != host:
        return url
    port = "" if parts.port is None else f":{parts.port}"
    return parts._replace(netloc=literal + port).geturl()


class Addresses:
    """What names have been answered with of late."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, ...]] = {}
        self._missing: dict[tuple[str, str], int] = {}

    def take(self, host: str, found: Sequence[str]) -> bool:
        """Take an answer; True when it changes what is known."""
        before = self.known.get(host, ())
        kept = {address for address in before if self._stays(host, address, found)}
        after = tuple(sorted(kept.union(found)))
        self.known[host] = after
        return after != before

    def _stays(self, host: str, address: str, found: Sequence[str]) -> bool:
        missing = 0 if address in found else self._missing.get((host, address), 0) + 1
        self._missing[host, address] = missing
        if missing and missing < _FAREWELL:
            return True
        del self._missing[host, address]
        return not missing

    def forget(self, host: str) -> None:
        """Forget a host that nobody asks for any more."""
        for address in self.known.pop(host, ()):
            self._missing.pop((host, address), None)


async def resolve(host: str) -> list[str]:
    """Return a host's addresses. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]


class Discovery:
    """Looks hosts up, again and again. For the loop's thread."""

    def __init__(self, apply: Callable[[Config], None], *, resolve: Resolve = resolve) -> None:
        """`apply` takes the configuration attended to, when its hosts have other addresses."""
        self._apply = apply
        self._resolve = resolve
        self._addresses = Addresses()
        self._failing: set[str] = set()
        self._tasks: dict[tuple[str, float], asyncio.Task[None]] = {}

    async def prepare(self, config: Config) -> None:
        """Look up those hosts that have not been, before a configuration is applied."""
        new = [host for host in hosts_of(config) if host not in self._addresses.known]
        await asyncio.gather(*map(self._look_up, new))

    def expand(self, config: Config) -> Config:
        """Return a configuration with what is known of its hosts."""
        return expanded(config, self._addresses.known)

    def attend(self, config: Config) -> None:
        """Look up the hosts of this configuration from now on, and no others."""
        self._config = config
        wanted = hosts_of(config)
        for key in self._tasks.keys() - wanted.items():
            self._tasks.pop(key).cancel()
        for host in self._addresses.known.keys() - wanted:
            self._addresses.forget(host)
        for key in wanted.items() - self._tasks.keys():
            self._tasks[key] = asyncio.get_running_loop().create_task(self._follow(*key))

    async def _follow(self, host: str, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            if not await self._look_up(host):
                continue
            try:
                self._apply(self._config)
            except ConfigError as error:
                extra = {"host": host, "reason": error.message}
                logger.error("addresses cannot be used", extra=extra)  # noqa: TRY400 - our words say it

    async def _look_up(self, host: str) -> bool:
        """Look a host up; True when what is known of it has changed."""
        try:
            async with asyncio.timeout(_LOOKUP_S):
                found = await self._resolve(host)
        except (OSError, TimeoutError, UnicodeError) as error:
            if host not in self._failing:
                self._failing.add(host)
                reason = str(error) or "no answer in time"
                logger.warning("host cannot be looked up", extra={"host": host, "reason": reason})
            return False
        self._failing.discard(host)
        before = self._addresses.known.get(host, ())
        if not self._addresses.take(host, found):
            return False
        after = self._addresses.known[host]
        gone = sorted(set(before) - set(after))
        new = sorted(set(after) - set(before))
        logger.info("host has other addresses", extra={"host": host, "new": new, "gone": gone})
        return True

    async def close(self) -> None:
        """Stop looking."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
