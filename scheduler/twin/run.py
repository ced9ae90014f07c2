"""The loop of the simulator: arrivals and engines in, one `Life` for each request out.

The order of things at one instant is that of the gateway: engines tell first, the room they made
is handed out, then who arrives is placed or queued.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from random import Random
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from forebay.policies.contracts import EndpointView, Placement, Rejected, Request, Route
from forebay.scheduler.build import Scheduling, make_dispatcher
from forebay.scheduler.cost import Cost
from forebay.scheduler.engine_sequence import Sequence

from .guess import Oracle
from .station import Station

if TYPE_CHECKING:
    from collections import abc

    from forebay.scheduler.dispatch import Dispatcher
    from forebay.scheduler.engine_profiles import Profile
    from forebay.scheduler.traces import TraceRequest

    from .guess import Guess

NEVER = 1e18
"""Later than any event."""
NO_LIMIT = 1_000_000_000
"""More than ever wait."""
_REPORT_EVERY = 1000
_COST = Cost()
_NOWHERE = (None, None)


@dataclass(frozen=True, slots=True)
class Class:
    """One SLA class, and how many of the requests are of it."""

    name: str
    longest_wait: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run is made with; together with the trace and a `Guess` it decides everything."""

    profile: Profile
    scheduling: Scheduling = field(default_factory=Scheduling)
    """Ordering and guards, as a pool has them."""
    endpoints: int = 1
    max_in_flight: int = 0
    """Requests in flight at one endpoint; 0 takes the profile's `max_num_seqs`."""
    max_queue: int = NO_LIMIT
    classes: tuple[Class, ...] = ()
    """SLA classes, the lowest first; empty: all requests are alike."""
    weights: abc.Mapping[str, float] = field(default_factory=dict[str, float])
    reserve_of: abc.Mapping[str, str] = field(default_factory=dict[str, str])
    """Which of `scheduling.reserves` a tenant draws on."""
    seed: int = 0

    @property
    def limit(self) -> int:
        """Requests in flight at one endpoint."""
        return self.max_in_flight or self.profile.max_num_seqs


class Life(Struct, gc=False):
    """What became of one request; times as in the trace, None for what never came."""

    arrived: float
    predicted: int
    rank: int = 0
    """Of its SLA class; higher matters more."""
    placed: float | None = None
    endpoint: str = ""
    first: float | None = None
    ended: float | None = None
    refused: float | None = None


class Twin:
    """One run, event by event. `simulate` feeds it a trace's arrivals; `settle` ends an instant."""

    def __init__(self, trace: abc.Sequence[TraceRequest], settings: Settings, guess: Guess) -> None:
        self.trace = trace
        self.lives: list[Life] = []
        self.order: list[int] = []
        """Indices in the order in which they were placed."""
        self.finished = 0
        self.stations = [Station(settings.profile) for _ in range(settings.endpoints)]
        self.dispatcher = queue_of(settings)
        self._waiting = self.dispatcher.waiting
        self.now = 0.0
        self._by_name = dict(zip(self.dispatcher.endpoints, self.stations, strict=True))
        self._settings = settings
        self._guess = guess
        self._longest = settings.profile.num_blocks * settings.profile.block_tokens
        self._placed: dict[int, tuple[Placement, Sequence]] = {}
        self._rng = Random(settings.seed + 1)  # noqa: S311 - draws classes
        self._on_the_way: list[tuple[float, int, Station, Sequence]] = []
        self._touched: dict[Station, None] = {}

    def arrive(self, arrived: float) -> None:
        """Let the next request come in; where the trace is over it begins anew."""
        index = len(self.lives)
        asked = self.trace[index % len(self.trace)]
        guessed = self._guess(index % len(self.trace), asked)
        life = Life(arrived, guessed, self._draw_class())
        self.lives.append(life)
        if asked.prompt_tokens + asked.output_tokens > self._longest:
            life.refused = arrived
            return
        try:
            placement = self.dispatcher.submit(self._request(index, asked, life), arrived)
        except Rejected:
            life.refused = arrived
            placement = None
        self._see_others(arrived)
        if placement is not None:
            self._start([placement], arrived)

    def next_event(self) -> float:
        """Return when something other than an arrival happens; NEVER when nothing will."""
        due = min(NEVER, *(station.due for station in self.stations))
        if self._on_the_way:
            due = min(due, self._on_the_way[0][0])
        if self._waiting.size and (deadline := self.dispatcher.next_deadline) is not None:
            due = min(due, deadline)
        return due

    def advance(self) -> None:
        """Let the next event happen."""
        self.now = now = max(self.now, self.next_event())
        while self._on_the_way and self._on_the_way[0][0] <= now:
            _, _, station, sequence = heappop(self._on_the_way)
            self._add(station, sequence, now)
        for station in self.stations:
            if station.due <= now:
                self._tell(station, now)
        if not self._waiting.size:
            self.settle()
            return
        deadline = self.dispatcher.next_deadline
        if deadline is not None and deadline <= now:
            self._refuse(self.dispatcher.expire(now), now)
            self._see_others(now)
        self.settle()

    def settle(self) -> None:
        """Let the engines go on that were told of something: nothing more comes at this instant."""
        for station in self._touched:
            station.go_on()
        self._touched.clear()

    def _request(self, index: int, asked: TraceRequest, life: Life) -> Request:
        settings = self._settings
        return Request(
            id=str(index),
            pool="twin",
            route=Route.CHAT,
            model="twin",
            tenant=asked.tenant,
            sequence=index,
            arrived=life.arrived,
            deadline=NEVER,
            prompt_tokens_estimate=asked.prompt_tokens,
            output_tokens_estimate=life.predicted,
            uncached_tokens=asked.prompt_tokens,
            stream=True,
            weight=settings.weights.get(asked.tenant, 1.0),
            reserve=settings.reserve_of.get(asked.tenant, ""),
            sla=settings.classes[life.rank].name if settings.classes else "",
            sla_rank=life.rank,
            longest_wait=settings.classes[life.rank].longest_wait if settings.classes else None,
        )

    def _draw_class(self) -> int:
        classes = self._settings.classes
        if len(classes) < 2:
            return 0
        left = self._rng.random() * sum(each.share for each in classes)
        for rank, each in enumerate(classes):
            left -= each.share
            if left < 0:
                return rank
        return len(classes) - 1

    def _tell(self, station: Station, now: float) -> None:
        result = station.tell()
        self._touched[station] = None
        for sequence in result.first:
            index = cast("int", sequence.id)
            placement, own = self._placed.get(index, _NOWHERE)
            if own is sequence and placement is not None:  # not called back during the step
                self.lives[index].first = now
                self.dispatcher.began(placement)
        for sequence in result.finished:
            index = cast("int", sequence.id)
            placement, own = self._placed.get(index, _NOWHERE)
            if own is not sequence or placement is None:
                continue
            del self._placed[index]
            self.lives[index].ended = now
            self.finished += 1
            asked = self.trace[index % len(self.trace)]
            self._guess.ended(asked)
            cost = _COST(uncached_tokens=asked.prompt_tokens, output_tokens=asked.output_tokens)
            freed = self.dispatcher.release(placement, now, cost)
            self._see_others(now)
            self._start(freed, now)

    def _start(self, placements: abc.Iterable[Placement], now: float) -> None:
        overhead = self._settings.profile.overhead_s
        for placement in placements:
            index = placement.request.sequence
            life, asked = self.lives[index], self.trace[index % len(self.trace)]
            life.placed, life.endpoint = now, placement.endpoint
            self.order.append(index)
            station = self._by_name[placement.endpoint]
            sequence = Sequence(index, asked.prompt_tokens, asked.output_tokens)
            self._placed[index] = (placement, sequence)
            if overhead:
                heappush(self._on_the_way, (now + overhead, len(self.order), station, sequence))
            else:
                self._add(station, sequence, now)

    def _see_others(self, now: float) -> None:
        """Carry out what an event did to others."""
        others = self.dispatcher.take_others()
        if others is None:
            return
        for placement in others.recalled:
            index = placement.request.sequence
            _, sequence = self._placed.pop(index)
            self.lives[index].placed = None
            station = self._by_name[placement.endpoint]
            station.abort(sequence, now)
            self._on_the_way = [each for each in self._on_the_way if each[3] is not sequence]
            heapify(self._on_the_way)
            self._touched[station] = None
        self._refuse((request for request, _ in others.refused), now)
        self._refuse(others.expired, now)
        self._start(others.started, now)

    def _refuse(self, requests: abc.Iterable[Request], now: float) -> None:
        for request in requests:
            self.lives[request.sequence].refused = now

    def _add(self, station: Station, sequence: Sequence, now: float) -> None:
        station.add(sequence, now)
        self._touched[station] = None


def simulate(
    trace: abc.Sequence[TraceRequest],
    settings: Settings,
    guess: Guess | None = None,
    *,
    progress: abc.Callable[[int], None] | None = None,
) -> list[Life]:
    """Run a whole trace, to the end of its last answer.

    `progress` is told now and then how many requests have come in.
    """
    twin = Twin(trace, settings, guess or Oracle())
    index, count = 0, len(trace)
    while True:
        due = twin.next_event()
        if index < count and trace[index].arrival_s < due:
            at = trace[index].arrival_s
            while index < count and trace[index].arrival_s == at:
                twin.arrive(at)
                index += 1
                if progress is not None and index % _REPORT_EVERY == 0:
                    progress(index)
            twin.settle()
        elif due < NEVER:
            twin.advance()
        else:
            return twin.lives


def queue_of(settings: Settings) -> Dispatcher:
    """Make the dispatcher of a run, with its endpoints."""
    dispatcher = make_dispatcher(
        settings.scheduling,
        pool="twin",
        rng=Random(settings.seed),  # noqa: S311 - spreads ties, hides nothing
        max_requests=settings.max_queue,
        max_bytes=1 << 62,
    )
    dispatcher.set_endpoints(
        EndpointView(name=f"e{number}", engine="sim", limit=settings.limit)
        for number in range(settings.endpoints)
    )
    return dispatcher
