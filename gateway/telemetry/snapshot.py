"""What the gateway is at one moment, as values: gauges, the status and the live page read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.scheduler.length.gate import Change


@dataclass(frozen=True, slots=True)
class SpeculationStatus:
    """One endpoint's speculation; rates are None until enough was drafted."""

    method: str
    pays: bool
    accept_rate: float | None = None
    accepted_a_draft: float | None = None
    drift: float | None = None


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """One endpoint. None is 'the engine does not say', never zero."""

    name: str
    engine: str
    state: str
    """One of `labels.STATES`."""
    usable: bool
    """Whether requests are placed on it."""
    why_out: str = ""
    """Why they are not; empty while they are."""
    in_flight: int = 0
    limit: int = 0
    """Requests it may have at once now, slow start included."""
    in_flight_tokens: int = 0
    connections: int = 0
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    """0 to 1."""
    load_age_s: float | None = None
    version: str | None = None
    """What the engine says of itself."""
    speculation: SpeculationStatus | None = None
    """None where it does not speculate."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What waits in a pool, and what was done to it since the dispatcher was made."""

    waiting: tuple[tuple[str, str, int], ...] = ()
    """SLA class, tenant, how many."""
    oldest_s: tuple[tuple[str, float], ...] = ()
    """SLA class, how long its oldest has waited."""
    reserved: tuple[tuple[str, int], ...] = ()
    """A reserve, how many of its places are in use."""
    overdue: int = 0
    spread: float | None = None
    watermark: int | None = None
    forced: int = 0
    recalls: int = 0
    displaced: int = 0
    gave_up: int = 0
    foretold: int = 0
    starved: int = 0
    rank_changes: int = 0


@dataclass(frozen=True, slots=True)
class LengthStatus:
    """A pool's predictor that reads prompts."""

    trusted: bool = True
    """Predictions are believed; otherwise the mean stands in and `ml` is `fair`."""
    reason: str = ""
    """Why they are not."""
    closed_times: int = 0
    """How often trust was lost."""
    accuracy: float | None = None
    tau: float | None = None
    """Of the last outcomes; None until there were enough."""
    outcomes: int = 0
    results: tuple[tuple[str, int], ...] = ()
    """What became of requests that were to be read, how many."""
    seconds: float = 0.0
    """Spent on reading."""
    challenger_share: float | None = None
    """Of requests, that new weights predict; None where there are none."""
    changes: tuple[Change, ...] = ()
    """How each model's answers have changed."""


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """How it is known what one endpoint's cache holds."""

    endpoint: str
    source: str
    """One of `labels.SOURCES`."""
    told_blocks: int = 0
    """Blocks that it said itself it holds."""
    expected_blocks: int = 0
    """Blocks that it is expected to hold."""
    events: int = 0
    oldest_s: float | None = None
    """For how long its least recently used expected block was not; None without any."""
    prefill_rate: float | None = None
    """Prompt tokens a second, as measured; None until enough was seen."""
    faults: Mapping[str, int] = field(default_factory=dict[str, int])
    """By kind: gaps, restarts, events not read, blocks whose beginning is not known."""


@dataclass(frozen=True, slots=True)
class WarmingStatus:
    """Hot prefixes, and their prefill on endpoints that joined."""

    hot: int = 0
    """Prefixes kept."""
    hot_bytes: int = 0
    left: Mapping[str, int] = field(default_factory=dict[str, int])
    """Prompts still to be sent, by endpoint that is being warmed."""
    results: Mapping[str, int] = field(default_factory=dict[str, int])
    tokens: int = 0
    """Prefilled, as engines say."""


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """Who watches the hit rate."""

    slowed: bool
    times: int
    recent: float
    usual: float
    share: float
    """Of their places, that endpoints may use now."""


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """One tenant's expected blocks."""

    tenant: str
    blocks: int
    evicted: int
    """Went first since they were more than its share."""
    refused: int
    """New ones that were not entered."""


@dataclass(frozen=True, slots=True)
class PrefixStatus:
    """What a pool knows of prefixes, and how true that was."""

    blocks: int = 0
    """Distinct blocks held or expected anywhere."""
    predicted_tokens: int = 0
    confirmed: int = 0
    ghosts: int = 0
    """Predicted hits that the engine said did not happen."""
    evicted_blocks: int = 0
    emptied: int = 0
    prompts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Prompts to be cut into tokens, by what became of it."""
    sources: tuple[PrefixSource, ...] = ()
    prompt_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Of answers that told their cached ones, by source."""
    hit_tokens: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """As engines say, by source and kind (business, padding)."""
    saved_s: float = 0.0
    """Of prefill, as estimated."""
    shares: tuple[ShareStatus, ...] = ()
    guard: GuardStatus | None = None
    """None where nobody watches."""
    warming: WarmingStatus | None = None
    """None where nothing is warmed."""


@dataclass(frozen=True, slots=True)
class SharingStatus:
    """What replicas tell each other of prefixes."""

    away: bool = False
    """The store does not answer: each goes on by itself."""
    times_away: int = 0
    heard: int = 0
    waiting_blocks: int = 0
    dropped_blocks: int = 0


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """One pool and its queue."""

    name: str
    models: tuple[str, ...] = ()
    endpoints: tuple[EndpointStatus, ...] = ()
    queued: int = 0
    queued_bytes: int = 0
    oldest_wait_s: float = 0.0
    queue: QueueStatus = QueueStatus()
    prefix: PrefixStatus | None = None
    """None where prefixes are not looked at."""
    length: LengthStatus | None = None
    """None where no prompts are read."""

    speed_ups: Mapping[str, float] = field(default_factory=dict[str, float])
    """Plain time per token over speculative, by kind of request."""
    speed_up_drifts: Mapping[str, float] = field(default_factory=dict[str, float])
    """The same less its average of about a week."""
    speculated: Mapping[bool, int] = field(default_factory=dict[bool, int])
    """Requests that ended, by whether a speculative endpoint had them."""

    @property
    def usable(self) -> int:
        """How many of its endpoints requests are placed on."""
        return sum(endpoint.usable for endpoint in self.endpoints)


@dataclass(frozen=True, slots=True)
class QuotaStatus:
    """Tenants' limits: what was refused, and how the store of shared counters is."""

    refused: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """By tenant and limit."""
    admitted_here: Mapping[str, int] = field(default_factory=dict[str, int])
    """By tenant: let in on this replica's share while the store was away."""
    away: bool = False
    times_away: int = 0
    replicas: int = 1
    """Seen lately, this one included."""
    waiting: int = 0
    """Reservations and settlements that the store has not answered."""
    usage_lost: int = 0
    """Requests whose usage could not be kept."""


@dataclass(frozen=True, slots=True)
class ExperimentStatus:
    """One experiment."""

    name: str
    phase: str
    decisions: int
    shares: Mapping[str, float]
    """By arm."""
    copies: Mapping[str, int] = field(default_factory=dict[str, int])
    """Copies of requests, by what became of them; empty where none are made."""


PHASES_OF_EXPERIMENTS = ("running", "paused", "rolled_back", "promoted")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole gateway. Everything in it is a copy, so any thread may read it."""

    pools: tuple[PoolStatus, ...] = ()
    client_connections: int = 0
    buffered_bytes: int = 0
    buffered_limit_bytes: int = 0
    settlements_waiting: int = 0
    config_ok: bool = True
    """False after a refused reload: the configuration before it still serves."""
    listening: bool = True
    draining: bool = False
    loop_pause_max_s: float = 0.0
    chores_dropped: int = 0
    log_lines_dropped: int = 0
    traces_dropped: int = 0
    quota: QuotaStatus = QuotaStatus()
    experiments: tuple[ExperimentStatus, ...] = ()
    experiments_away: bool = False
    prefix_sharing: SharingStatus = SharingStatus()
    hosts_failing: int = 0
    """Hosts of endpoints that cannot be looked up."""
    limits_away: bool = False
    """Endpoints' limits cannot be divided anew among replicas."""
    version: str = ""
    started_unix_s: float = 0.0

    @property
    def ready(self) -> bool:
        """Listening and not about to stop; the health of pools is said beside it."""
        return self.listening and not self.draining
