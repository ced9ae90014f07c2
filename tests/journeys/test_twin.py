"""The gateway with embedded engines, under a virtual clock, and the twin: the same order."""

from __future__ import annotations

import asyncio
import json
import selectors
from math import inf, nextafter
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import pytest

from forebay.gateway.app import App
from forebay.gateway.assembly import Assembly
from forebay.gateway.config.sections import Config
from forebay.gateway.connections import Connections
from forebay.gateway.keys import Keys
from forebay.gateway.local import LocalAnswers
from forebay.gateway.messages import Limits
from forebay.gateway.meter import Unmetered
from forebay.gateway.protocol import HttpProtocol
from forebay.gateway.scheduling import Shared, scheduling_of
from forebay.gateway.telemetry.labels import LabelSpace
from forebay.gateway.telemetry.metrics import Metrics
from forebay.gateway.telemetry.observer import Telemetry
from forebay.scheduler.engine_profiles import CPU_TINY
from forebay.scheduler.traces import TraceRequest
from forebay.scheduler.twin import Settings, Twin
from forebay.scheduler.twin.guess import Oracle
from forebay.scheduler.twin.run import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.adapters.base import Opener, Sink, Stream
    from forebay.gateway.meter import Asking, Lease
    from forebay.gateway.telemetry.traces import RequestTrace
    from forebay.policies.contracts import Outcome, Request
    from forebay.scheduler.twin import Life

LIMIT = 6
POOL = "p"
PROFILE = CPU_TINY
"""Its measured times never meet by chance, so rounding decides nothing."""


class Jumping(selectors.DefaultSelector):
    """Waits for nothing: the loop's clock jumps to the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Timers of one moment go off in the order in which they were set: asyncio promises none."""

    def __init__(self) -> None:
        self.clock = Jumping()
        self._moments: set[float] = set()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        while when in self._moments:
            when = nextafter(when, inf)
        self._moments.add(when)
        return super().call_at(when, callback, *args, context=context)


class Caller(asyncio.Transport):
    """Takes all bytes at once and forgets them."""

    def write(self, data: Any) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


class Recording:
    """Stands before an embedded engine and notes who was sent to it, in turn."""

    def __init__(self, inner: Opener, name: str, sent: list[tuple[int, str]]) -> None:
        self._inner = inner
        self._name = name
        self._sent = sent

    def open(
        self, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes, sink: Sink
    ) -> Stream:
        number = int(json.loads(body)["prompt"].split()[0])
        self._sent.append((number, self._name))
        return self._inner.open(method, path, headers, body, sink)

    def close(self) -> None:
        self._inner.close()


class Meter(Unmetered):
    """Lets everybody in and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def reserve(self, request: Request, model: str, asking: Asking) -> Lease:
        self.requests.append(request)
        return super().reserve(request, model, asking)


class Watching(Telemetry):
    """Keeps the outcomes."""

    outcomes: list[Outcome]
    _wanted = 0
    _done: asyncio.Event

    def settled(self, outcome: Outcome, trace: RequestTrace) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == self._wanted:
            self._done.set()
        super().settled(outcome, trace)

    async def all_of(self, count: int) -> None:
        if len(self.outcomes) < count:
            self._wanted, self._done = count, asyncio.Event()
            await self._done.wait()


def config(order: str) -> Config:
    quiet = {"interval": 3600.0, "load_interval": 3600.0}
    endpoints = [
        {"name": f"e{n}", "engine": "sim", "sim": {"profile": PROFILE.name}, "max_in_flight": LIMIT}
        for n in range(2)
    ]
    pool = {
        "name": POOL,
        "models": {"m": "m"},
        "health": quiet,
        "endpoints": endpoints,
        "order": order,
        "queue": {"max_requests": 100_000},
    }
    return Config.model_validate({"version": 1, "pools": [pool]})


def ask(number: int, words: int, tokens: int) -> bytes:
    """Ask for an answer of a fixed length; no prompt begins like another."""
    body = {
        "model": "m",
        "prompt": f"{number} " + "again and " * words,
        "max_tokens": 400,
        "sim": {"output_tokens": tokens},
    }
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


class Live:
    """What a gateway did with arrivals that were drawn."""

    def __init__(self, settings: Config, count: int, *, rate: float) -> None:
        self.settings = settings
        self.sent: list[tuple[int, str]] = []
        self.meter = Meter()
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(self._serve(count, rate))

    async def _serve(self, count: int, rate: float) -> None:
        loop, settings = asyncio.get_running_loop(), self.settings
        labels = LabelSpace.from_config(settings)
        metrics = Metrics(labels)
        observer = Watching(metrics, None, None, sample=0.0)
        self.outcomes = observer.outcomes = []
        assembly = Assembly(
            now=loop.time, metrics=metrics, changed=observer.transition, control=lambda _: None
        )
        built = assembly.build(settings)
        for _, _, endpoints in built:
            for endpoint in endpoints:
                endpoint.opener = Recording(endpoint.opener, endpoint.name, self.sent)
        assembly.take(built)
        app = App(
            settings,
            keys=Keys(settings.tenants),
            pools=assembly.pools,
            meter=self.meter,
            observer=observer,
            local=LocalAnswers(snapshot=_nothing, scrape=None, created=0),
            now=loop.time,
            abort=lambda _endpoint, _request: None,
        )
        connections = Connections(app, Limits(), loop.time)
        await self._arrive(connections, count, rate)
        await observer.all_of(count)
        assembly.take([])
        await asyncio.sleep(0.0)

    async def _arrive(self, connections: Connections, count: int, rate: float) -> None:
        rng = Random(5)
        for number in range(count):
            await asyncio.sleep(rng.expovariate(rate))
            connection = HttpProtocol(connections)
            connection.connection_made(Caller())
            connection.data_received(ask(number, rng.randrange(300), 1 + rng.randrange(60)))


def _nothing() -> Any:
    raise AssertionError


class Told(Twin):
    """A twin that is told of the gateway's very requests."""

    requests: Sequence[Request] = ()

    def _request(self, index: int, asked: TraceRequest, life: Life) -> Request:  # noqa: ARG002 - as Twin has it
        return msgspec.structs.replace(self.requests[index], id=str(index), sequence=index)


def replayed(live: Live) -> list[tuple[int, str]]:
    """Run the twin on what came to the gateway; return who was sent where, in turn."""
    (section,) = live.settings.pools
    by_id = {outcome.request_id: outcome for outcome in live.outcomes}
    trace: list[TraceRequest] = []
    for request in live.meter.requests:
        outcome = by_id[request.id]
        assert outcome.prompt_tokens is not None
        assert outcome.output_tokens is not None
        assert not outcome.cached_tokens
        trace.append(TraceRequest(request.arrived, outcome.prompt_tokens, outcome.output_tokens))
    settings = Settings(
        profile=PROFILE,
        scheduling=scheduling_of(section, Shared()),
        endpoints=2,
        max_in_flight=LIMIT,
        seed=crc32(POOL.encode()),
    )
    twin = Told(trace, settings, Oracle())
    twin.requests = live.meter.requests
    index = 0
    while index < len(trace) or twin.next_event() < NEVER:
        if index < len(trace) and trace[index].arrival_s < twin.next_event():
            twin.arrive(trace[index].arrival_s)
            twin.settle()
            index += 1
        else:
            twin.advance()
    return [(number, twin.lives[number].endpoint) for number in twin.order]


@pytest.mark.interpreted
@pytest.mark.parametrize("order", ["fcfs", "sjf", "bounded", "ml"])
@pytest.mark.parametrize(
    "count", [400, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_the_twin_sends_the_same_requests_to_the_same_places_in_the_same_order(
    order: str, count: int
) -> None:
    live = Live(config(order), count, rate=90.0)

    assert len(live.sent) == count
    assert replayed(live) == live.sent
    waits = [o.placed - o.received for o in live.outcomes if o.placed is not None]
    assert sum(wait > 0 for wait in waits) > count / 2
