"""Builds pools and endpoints from a configuration, and keeps across reloads what has not changed.

`build` does whatever can fail and touches nothing that runs; `take` swaps, and cannot fail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from zlib import crc32

from forebay.adapters.connections import Connections
from forebay.adapters.registry import ADAPTERS

from .attention import Attention, check
from .endpoint import Endpoint
from .monitor import Monitor
from .pools import Pool
from .scheduling import Shared, shared_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import httpx

    from forebay.adapters.sim import Embedded
    from forebay.gateway.config import sections

    from .prefix_sharing import Sharing
    from .shared_limits import SharedLimits
    from .telemetry.metrics import Metrics

_CONTROL_CONNECT_S = 2.0

Built = list[tuple[Pool, "sections.Pool", list[Endpoint]]]
"""Pools, old and new, each with its new section and endpoints."""


class Assembly:
    """The live pools of one process."""

    def __init__(
        self,
        *,
        now: Callable[[], float],
        metrics: Metrics,
        changed: Callable[[str, str, str], None],
        control: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self.pools: dict[str, Pool] = {}
        self._now = now
        self._metrics = metrics
        self._changed = changed
        self._control = control
        self._monitors: dict[tuple[str, Endpoint], Monitor] = {}
        self._clients: dict[Endpoint, httpx.AsyncClient] = {}
        self._retired: list[Pool] = []
        self._shared = Shared()
        self._attention = Attention(self.http)
        self._store: str | None = None
        self.limits: SharedLimits | None = None
        """Divided with other replicas, where there is a store."""

    def build(self, config: sections.Config) -> Built:
        """Make what the configuration names; raises ConfigError and changes nothing."""
        guests = config.guests
        built = [self._build_pool(each, guests.get(each.name, {})) for each in config.pools]
        self._shared = shared_of(config)  # nothing can fail any more
        url = config.state.url
        self._store = None if url is None else url.get_secret_value()
        return built

    def _build_pool(
        self, section: sections.Pool, guests: Mapping[str, str]
    ) -> tuple[Pool, sections.Pool, list[Endpoint]]:
        check(section)
        pool = self.pools.get(section.name)
        known = {} if pool is None else {e.identity: e for e in pool.endpoints.values()}
        endpoints = [self._build_endpoint(e, section, guests, known) for e in section.endpoints]
        if pool is None:
            itl = self._metrics.itl(section.name)
            pool = Pool(section, seed=crc32(section.name.encode()), itl=itl, changed=self._changed)
        return pool, section, endpoints

    def _build_endpoint(
        self,
        section: sections.Endpoint,
        pool: sections.Pool,
        guests: Mapping[str, str],
        known: dict[tuple[str, str | None, str, str | None], Endpoint],
    ) -> Endpoint:
        key = section.key.get_secret_value() if section.key else None
        same = known.get((section.name, section.url, section.engine, key))
        if same is not None and same.section.sim == section.sim:
            return same
        if section.url is None:
            embedded = _embedded(section, pool, guests)
            return Endpoint(section, pool.health, embedded, embedded=embedded)
        connections = _connections(section, pool.timeouts.connect)
        return Endpoint(section, pool.health, connections)

    def take(self, built: Built) -> None:
        """Swap to what was built: what is the same goes on, the rest starts or stops."""
        now = self._now()
        before = self.pools
        self.pools = {pool.name: pool for pool, _, _ in built}
        for pool, section, endpoints in built:
            pool.take(section, endpoints, shared=self._shared)
            for endpoint in endpoints:
                if isinstance(endpoint.opener, Connections):
                    endpoint.opener.connect_timeout = section.timeouts.connect
            pool.itl = self._metrics.itl(pool.name)
        self._retired = [pool for name, pool in before.items() if name not in self.pools]
        self._watch()
        self._attention.attend(self.pools.values(), self._store)
        self._divide_limits()
        for pool in self.pools.values():
            pool.wake(now)

    def _divide_limits(self) -> None:
        if self._store is None or self.limits is not None:
            return
        # redis takes 100 ms to import, so only who shares pays for it.
        from .shared_limits import SharedLimits  # noqa: PLC0415 - see above

        self.limits = SharedLimits(
            self._store,
            lambda: self.pools.values(),  # noqa: PLW0108 - each configuration has others
            now=self._now,
        )
        self.limits.start()

    def recheck(self) -> None:
        """Refuse what waits for something that no longer exists."""
        now = self._now()
        for pool in self._retired:
            pool.set_endpoints(())
            pool.recheck(now)
            pool.close()
        self._retired = []
        for pool in self.pools.values():
            pool.recheck(now)

    def _watch(self) -> None:
        """Start and stop monitors so that each endpoint has one."""
        wanted = {
            (pool.name, e): pool for pool in self.pools.values() for e in pool.endpoints.values()
        }
        for key in self._monitors.keys() - wanted.keys():
            self._monitors.pop(key).cancel()
            self._retire(key[1])
        for key, pool in wanted.items():
            if key not in self._monitors:
                self._monitors[key] = Monitor(pool, key[1], http=self.http, now=self._now)

    def _retire(self, endpoint: Endpoint) -> None:
        """Close an endpoint's idle connections; answers under way go on."""
        endpoint.opener.close()
        client = self._clients.pop(endpoint, None)
        if client is not None:
            self._control(client.aclose)

    def http(self, endpoint: Endpoint) -> httpx.AsyncClient:
        """Return the client for an endpoint's control calls; made when first asked for."""
        client = self._clients.get(endpoint)
        if client is None:
            # Takes 100 ms, and embedded engines need none.
            from .control import control_client  # noqa: PLC0415 - only where it is needed

            # Not over the callers' connections: a probe must see that a new one can be made.
            own = _connections(endpoint.section, _CONTROL_CONNECT_S)
            client = control_client(own, endpoint.target.url)
            self._clients[endpoint] = client
        return client

    def abort(self, endpoint: Endpoint, request_id: str) -> None:
        """Tell an engine to stop, where closing the connection is not enough."""
        adapter, target = endpoint.adapter, endpoint.target
        if adapter.wants_abort:
            self._control(lambda: adapter.abort(self.http(endpoint), target, request_id))

    @property
    def sharing(self) -> Sharing | None:
        """What tells other replicas of prefixes, and is told."""
        return self._attention.sharing

    async def close(self) -> None:
        """Stop watching and close what is idle."""
        for monitor in self._monitors.values():
            monitor.cancel()
        await asyncio.gather(*(monitor.closed() for monitor in self._monitors.values()))
        await self._attention.close()
        if self.limits is not None:
            await self.limits.close()
        for pool in self.pools.values():
            pool.close()
            for endpoint in pool.endpoints.values():
                endpoint.opener.close()
        await asyncio.gather(*(client.aclose() for client in self._clients.values()))


def _connections(section: sections.Endpoint, connect_timeout: float) -> Connections:
    """Make an endpoint's connections; raises ConfigError for a URL or key that cannot be used."""
    return Connections(
        section.url or "",
        key=section.key.get_secret_value() if section.key else None,
        connect_timeout=connect_timeout,
        keep_alive=ADAPTERS[section.engine].keep_alive_s,
        loop=asyncio.get_running_loop(),
    )


def _embedded(
    section: sections.Endpoint, pool: sections.Pool, guests: Mapping[str, str]
) -> Embedded:
    """Make an embedded engine that serves whatever the pool sends on."""
    # Whoever has real engines need not load a make-believe one.
    from forebay.adapters.sim import Embedded  # noqa: PLC0415 - only where it is needed

    sim = section.sim
    own = (pool.models[m] or pool.engine_model or m for m in pool.models)
    names = tuple(dict.fromkeys([*own, *guests.values()]))
    if sim is None:
        return Embedded(model=names)
    return Embedded(model=names, seed=sim.seed, profile=sim.profile, fault=sim.fault)
