"""What probes and load readings say, told to the endpoint's health."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from forebay.adapters.base import Load, ModelCard, Probe
from forebay.gateway.monitor import Monitor
from forebay.policies.contracts import EngineRefused, EngineUnreachable
from forebay.scheduler.health import Change, Health, HealthSettings, State

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tests.conftest import Run

    from forebay.gateway.endpoint import Endpoint
    from forebay.gateway.pools import Pool

GOOD = Probe(engine="openai", models=(ModelCard("m"),))


class Section:
    class health:  # noqa: N801 - named as the section's key
        interval = 3600.0
        load_interval = 3600.0
        timeout = 0.05


class FakePool:
    """Notes what a monitor tells a pool, and is its own upkeep."""

    section = Section
    prefix = None

    def __init__(self) -> None:
        self.upkeep = self
        self.changes: list[Change] = []
        self.loads: list[Load] = []
        self.woken = 0
        self.unserved = ""
        self.forgotten: list[object] = []

    def moved(self, _endpoint: object, change: Change, _now: float) -> None:
        self.changes.append(change)

    def restarted(self, endpoint: object) -> None:
        self.forgotten.append(endpoint)

    def why_unserved(self, _endpoint: object) -> str:
        return self.unserved

    def wake(self, _now: float) -> None:
        self.woken += 1

    def loaded(self, _endpoint: object, load: Load, _now: float) -> None:
        self.loads.append(load)


class FakeEndpoint:
    """An endpoint whose adapter answers as the test says."""

    name = "e0"
    embedded = None
    target = None

    def __init__(self, said: Callable[[], Any]) -> None:
        self.health = Health(HealthSettings(fails=1, successes=1), optimistic=True)
        self.said = said
        self.restarted = False

    @property
    def adapter(self) -> FakeEndpoint:
        return self

    async def probe(self, *_: object) -> Probe:
        return await self._answer()

    async def read_load(self, *_: object) -> Load:
        return await self._answer()

    def adopt(self, _probe: Probe) -> bool:
        return self.restarted

    async def _answer(self) -> Any:
        found = self.said()
        if isinstance(found, BaseException):
            raise found
        if found is None:
            await asyncio.sleep(3600)
        return found


@asynccontextmanager
async def watching(said: Any) -> AsyncGenerator[tuple[Monitor, FakePool, FakeEndpoint]]:
    pool, endpoint = FakePool(), FakeEndpoint(lambda: said)
    monitor = Monitor(
        cast("Pool", pool),
        cast("Endpoint", endpoint),
        http=lambda _: cast("Any", None),
        now=lambda: 1.0,
    )
    yield monitor, pool, endpoint
    monitor.cancel()
    await monitor.closed()


@pytest.mark.parametrize(
    ("said", "state", "reason"),
    [
        (GOOD, State.UP, "first probe passed"),
        (None, State.DOWN, "no answer in 0.05 s"),
        (EngineUnreachable("cannot connect"), State.DOWN, "cannot connect"),
        (EngineRefused("CANARY", status=500), State.DOWN, "the probe got 500"),
        (EngineRefused("CANARY", status=401), State.MISCONFIGURED, "the probe got 401"),
        (EngineRefused("CANARY", status=403), State.MISCONFIGURED, "the probe got 403"),
    ],
    ids=["good", "hung", "unreachable", "500", "401", "403"],
)
def test_what_a_probe_means(run: Run, said: Any, state: State, reason: str):
    async def main() -> None:
        async with watching(said) as (monitor, pool, endpoint):
            await monitor.probe_once()
            assert endpoint.health.state is state
            assert pool.changes[0].reason.endswith(reason)

    run(main())


def test_an_engine_without_our_models_is_misconfigured(run: Run):
    async def main() -> None:
        async with watching(GOOD) as (monitor, pool, endpoint):
            pool.unserved = "it serves none of m, n"
            await monitor.probe_once()
            assert endpoint.health.state is State.MISCONFIGURED
            assert pool.changes[0].reason == "it serves none of m, n"

    run(main())


def test_a_restarted_engine_begins_slowly(run: Run):
    async def main() -> None:
        async with watching(GOOD) as (monitor, pool, endpoint):
            await monitor.probe_once()
            endpoint.restarted = True
            await monitor.probe_once()
            assert pool.changes[-1].reason == "the engine restarted"
            assert pool.forgotten == [endpoint]
            assert pool.woken >= 2
            assert endpoint.health.share(1.0) < 1.0

    run(main())


def test_a_bug_in_an_adapter_is_a_failed_probe_and_an_error_line(
    run: Run, caplog: pytest.LogCaptureFixture
):
    async def main() -> None:
        async with watching(KeyError("bug")) as (monitor, _, endpoint):
            await monitor.probe_once()
            await monitor._read_load()
            assert endpoint.health.state is State.DOWN

    with caplog.at_level(logging.ERROR):
        run(main())
    assert {record.getMessage() for record in caplog.records} == {
        "probe failed",
        "load reading failed",
    }


@pytest.mark.parametrize("said", [None, EngineUnreachable("gone"), EngineRefused("no")])
def test_a_load_that_cannot_be_read_changes_nothing(run: Run, said: Any):
    async def main() -> None:
        async with watching(said) as (monitor, pool, _):
            await monitor._read_load()
            assert pool.loads == []

    run(main())


def test_a_load_is_told_to_the_pool(run: Run):
    async def main() -> None:
        load = Load(running=1, waiting=2, kv_use=0.5)
        async with watching(load) as (monitor, pool, _):
            await monitor._read_load()
            assert pool.loads == [load]

    run(main())
