"""Endpoints that are found by name: each address of a host is one, and they come and go.

An endpoint with `discover` stands for all addresses of its url's host, such as the pods behind a
headless Service. A configuration with such ones is what its file says; `expanded` puts the
addresses in their place, and that is what runs. When they change it is applied anew, as a changed
file is: endpoints that stay keep their connections and their requests.

Names are known to fail for a while, and to be answered with some addresses only. So an address is
taken out when it is missing from `_FAREWELL` answers in a row, and a name that cannot be looked up
keeps the addresses that it had: probes find out who is not there.

A resolver may also not answer at all. Each lookup has a thread of its own, which nobody waits for
in the end, and there is one at a time for a host.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from forebay.policies.contracts import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from forebay.gateway.config.sections import Config, Endpoint

    Resolve = Callable[[str], Awaitable[Sequence[str]]]

logger = logging.getLogger(__name__)

_FAREWELL = 3
_LOOKUP_S = 5.0
"""Longest wait for a lookup. libc asks again after as long, which may still be answered."""
_AGAIN_S = 1.0
"""Longest pause until a host that has never been found is looked up again."""
_FOUND_IN_THIS_ORDER = (socket.AF_INET, socket.AF_INET6)


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
    taken = {each.name for pool in config.pools for each in pool.endpoints}
    pools = [
        pool.model_copy(
            update={
                "endpoints": tuple(
                    one for each in pool.endpoints for one in _each(each, addresses, names, taken)
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
    endpoint: Endpoint,
    addresses: Mapping[str, Sequence[str]],
    names: dict[str, tuple[str, ...]],
    taken: set[str],
) -> list[Endpoint]:
    """Return the endpoints that one stands for; `names` takes what they are called.

    What is `taken` already, by an endpoint that somebody named so, none of them is called.
    """
    if endpoint.discover is None:
        return [endpoint]
    host = _host_of(endpoint.url or "")
    found: list[Endpoint] = []
    for address in addresses.get(host, ()):
        name = f"{endpoint.name}-{address.replace(':', '-')}"
        while name in taken:
            name += "-x"
        taken.add(name)
        found.append(_at(endpoint, name, host, address))
    if found:  # an arm without any keeps the name, of an endpoint that is not there
        names[endpoint.name] = tuple(each.name for each in found)
    return found


def _at(endpoint: Endpoint, name: str, host: str, address: str) -> Endpoint:
    """Return the endpoint at one address."""
    literal = f"[{address}]" if ":" in address else address
    changed: dict[str, object] = {
        "name": name,
        "url": _moved(endpoint.url or "", host, literal),
        "discover": None,
    }
    if endpoint.events is not None:
        told = {key: getattr(endpoint.events, key) for key in ("address", "replay")}
        moved = {key: _moved(each, host, literal) for key, each in told.items() if each}
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
        before, new = self.known.get(host, ()), frozenset(found)
        kept = {address for address in before if self._stays(host, address, new)}
        after = tuple(sorted(kept | new))
        self.known[host] = after
        return after != before

    def _stays(self, host: str, address: str, found: frozenset[str]) -> bool:
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
    """Return a host's addresses. Raises OSError.

    Those of IPv4 where it has some: with both kinds, each engine would be there twice.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def look_up() -> None:
        found, error = _addresses_of(host)
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(_answer, answer, found, error)

    # Not one of the loop's few threads: with all of them waiting for a resolver, no other name
    # would be looked up, no file read, and the end of the process would wait for them.
    threading.Thread(target=look_up, name=f"look up {host}", daemon=True).start()
    return await answer


def _addresses_of(host: str) -> tuple[list[str], Exception | None]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return [], error
    for family in _FOUND_IN_THIS_ORDER:
        # One of a link ("fe80::1%eth0") is nothing that a url could hold.
        of_it = [str(each[4][0]) for each in found if each[0] == family]
        usable = [address for address in of_it if "%" not in address]
        if usable:
            return usable, None
    return [], OSError("no address that can be used")


def _answer(answer: asyncio.Future[list[str]], found: list[str], error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(found)
    else:
        answer.set_exception(error)


def _taken(lookup: asyncio.Task[Sequence[str]]) -> None:
    """Have an error not be told again that nobody waits for any more."""
    if not lookup.cancelled():
        lookup.exception()


class Discovery:
    """Looks hosts up, again and again. For the loop's thread."""

    def __init__(
        self,
        apply: Callable[[Config], None],
        *,
        resolve: Resolve = resolve,
        patience_s: float = _LOOKUP_S,
    ) -> None:
        """`apply` takes the configuration attended to, when its hosts have other addresses.

        No answer within `patience_s` is a failure; what is answered later is still taken.
        """
        self._apply = apply
        self._patience_s = patience_s
        self._resolve = resolve
        self._addresses = Addresses()
        self._failing: set[str] = set()
        self._tasks: dict[tuple[str, float], asyncio.Task[None]] = {}
        self._lookups: dict[str, asyncio.Task[Sequence[str]]] = {}
        self._coming: frozenset[str] = frozenset()
        """Hosts of a configuration that is prepared, while another is in force."""
        self._due = False
        """Addresses are known that have not been applied."""
        self._refused = ""

    @property
    def failing(self) -> int:
        """How many hosts could not be looked up when last asked."""
        return len(self._failing)

    async def prepare(self, config: Config) -> None:
        """Look up hosts that are not looked up already, before a configuration is applied."""
        followed = {host for host, _ in self._tasks}
        self._coming = new = frozenset(hosts_of(config).keys() - followed)
        for host in new:  # what a configuration had found that was refused
            self._addresses.forget(host)
        await asyncio.gather(*map(self._look_up, new))

    def expand(self, config: Config) -> Config:
        """Return a configuration with what is known of its hosts."""
        return expanded(config, self._addresses.known)

    def attend(self, config: Config) -> None:
        """Look up the hosts of this configuration, which is in force, and no others.

        What is prepared at the same time is let be: it comes into force after this one.
        """
        self._config = config
        self._due, self._refused = False, ""
        wanted = hosts_of(config)
        for key in self._tasks.keys() - wanted.items():
            self._tasks.pop(key).cancel()
        self._coming -= wanted.keys()
        asked = wanted.keys() | self._coming
        for host in self._addresses.known.keys() - asked:
            self._addresses.forget(host)
        self._failing &= asked
        for host in self._lookups.keys() - asked:
            self._lookups.pop(host).cancel()
        for key in wanted.items() - self._tasks.keys():
            self._tasks[key] = asyncio.get_running_loop().create_task(self._follow(*key))

    async def _follow(self, host: str, every_s: float) -> None:
        while True:
            known = host in self._addresses.known
            await asyncio.sleep(every_s if known else min(every_s, _AGAIN_S))
            self._due |= await self._look_up(host)
            if self._due:
                self._take_into_force(host)

    def _take_into_force(self, host: str) -> None:
        """Apply what is known; where that fails, the next lookup tries it again."""
        try:
            self._apply(self._config)
        except Exception as error:  # a bug, too, must not end the looking
            reason = error.message if isinstance(error, ConfigError) else repr(error)
            if reason != self._refused:
                self._refused = reason
                extra = {"host": host, "reason": reason}
                bug = None if isinstance(error, ConfigError) else error
                logger.error("addresses cannot be used", extra=extra, exc_info=bug)  # noqa: TRY400 - our words say it

    async def _look_up(self, host: str) -> bool:
        """Look a host up; True when what is known of it has changed."""
        lookup = self._lookups.get(host) or self._begin(host)
        try:
            async with asyncio.timeout(self._patience_s):
                found = await asyncio.shield(lookup)
        except (OSError, TimeoutError, UnicodeError) as error:
            if host not in self._failing:
                self._failing.add(host)
                reason = str(error) or "no answer in time"
                logger.warning("host cannot be looked up", extra={"host": host, "reason": reason})
            return False
        finally:
            if lookup.done():  # else the next one takes its answer
                self._lookups.pop(host, None)
        if host in self._failing:
            self._failing.discard(host)
            logger.info("host can be looked up again", extra={"host": host})
        before = self._addresses.known.get(host, ())
        if not self._addresses.take(host, found):
            return False
        after = self._addresses.known[host]
        gone = sorted(set(before) - set(after))
        new = sorted(set(after) - set(before))
        logger.info("host has other addresses", extra={"host": host, "new": new, "gone": gone})
        return True

    def _begin(self, host: str) -> asyncio.Task[Sequence[str]]:
        lookup = asyncio.get_running_loop().create_task(self._ask(host))
        lookup.add_done_callback(_taken)
        self._lookups[host] = lookup
        return lookup

    async def _ask(self, host: str) -> Sequence[str]:
        return await self._resolve(host)

    async def close(self) -> None:
        """Stop looking."""
        tasks: list[asyncio.Task[Any]] = [*self._tasks.values(), *self._lookups.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
