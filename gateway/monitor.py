"""Asks endpoints how they are: probes for health, readings of load. One task an endpoint and kind.

The only reader of whatever an engine drains by being read.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from forebay.policies.contracts import EngineFailed, EngineRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from forebay.adapters.base import Load, Probe

    from .endpoint import Endpoint
    from .pools import Pool

logger = logging.getLogger(__name__)

JITTER = 0.2


class Monitor:
    """Watches one endpoint until cancelled."""

    def __init__(
        self,
        pool: Pool,
        endpoint: Endpoint,
        *,
        http: Callable[[Endpoint], httpx.AsyncClient],
        now: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._endpoint = endpoint
        self._http = http
        self._now = now
        self._rng = random.Random()  # noqa: S311 - jitter
        self._tasks = [asyncio.create_task(self._probes()), asyncio.create_task(self._loads())]

    def cancel(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """Wait until both tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _probes(self) -> None:
        while True:
            await self.probe_once()
            await asyncio.sleep(self._jittered(self._pool.section.health.interval))

    async def _loads(self) -> None:
        while True:
            await asyncio.sleep(self._jittered(self._pool.section.health.load_interval))
            await self._read_load()
            if self._endpoint.section.speculative is not None:
                await self._read_speculation()

    def _jittered(self, seconds: float) -> float:
        return seconds * self._rng.uniform(1 - JITTER, 1 + JITTER)

    async def probe_once(self) -> None:
        """Probe, and tell the endpoint's health."""
        pool, endpoint = self._pool, self._endpoint
        health = endpoint.health
        try:
            async with asyncio.timeout(pool.section.health.timeout):
                probe = await self._ask()
        except TimeoutError:
            limit = pool.section.health.timeout
            change = health.probe_failed(self._now(), f"no answer in {limit:g} s")
        except EngineRefused as error:
            if error.status in (401, 403):
                change = health.misconfigured(self._now(), f"the probe got {error.status}")
            else:
                change = health.probe_failed(self._now(), f"the probe got {error.status}")
        except EngineFailed as error:
            change = health.probe_failed(self._now(), error.message)
        except Exception:
            logger.exception("probe failed", extra={"endpoint": endpoint.name})
            change = health.probe_failed(self._now(), "the probe could not be read")
        else:
            self._passed(probe)
            return
        if change is not None:
            pool.upkeep.moved(endpoint, change, self._now())

    def _passed(self, probe: Probe) -> None:
        pool, endpoint, now = self._pool, self._endpoint, self._now()
        health = endpoint.health
        if pool.prefix is not None:
            pool.prefix.probed(endpoint.name, probe)
        if endpoint.adopt(probe):
            pool.upkeep.restarted(endpoint)
            restart = health.restarted(now)
            if restart is not None:
                pool.upkeep.moved(endpoint, restart, now)
        unserved = pool.why_unserved(endpoint)
        change = health.misconfigured(now, unserved) if unserved else health.probe_passed(now)
        if change is not None:
            pool.upkeep.moved(endpoint, change, now)
        pool.wake(now)

    async def _ask(self) -> Probe:
        embedded = self._endpoint.embedded
        if embedded is not None:
            return embedded.probe()
        return await self._endpoint.adapter.probe(self._http(self._endpoint), self._endpoint.target)

    async def _read_load(self) -> None:
        """Read the load; what cannot be read stays as old as it is."""
        endpoint = self._endpoint
        try:
            async with asyncio.timeout(self._pool.section.health.timeout):
                load = await self._ask_load()
        except (TimeoutError, EngineFailed):
            return
        except Exception:
            logger.exception("load reading failed", extra={"endpoint": endpoint.name})
            return
        self._pool.upkeep.loaded(endpoint, load, self._now())

    async def _read_speculation(self) -> None:
        """Read what became of drafts; where it cannot be read, nothing is concluded."""
        endpoint = self._endpoint
        if endpoint.embedded is not None:
            return
        # Wanted by pools that speculate only.
        from forebay.adapters.speculation import read_speculation  # noqa: PLC0415 - only where it is needed

        reading = None
        try:
            async with asyncio.timeout(self._pool.section.health.timeout):
                http = self._http(endpoint)
                reading = await read_speculation(http, endpoint.target, endpoint.section.engine)
        except (TimeoutError, EngineFailed):
            pass
        except Exception:
            logger.exception("speculation reading failed", extra={"endpoint": endpoint.name})
        self._pool.upkeep.speculated(endpoint, reading, self._now())

    async def _ask_load(self) -> Load:
        embedded = self._endpoint.embedded
        if embedded is not None:
            return embedded.load()
        return await self._endpoint.adapter.read_load(
            self._http(self._endpoint), self._endpoint.target
        )
