"""Every metric that forebay exposes: name, kind, labels, meaning. docs/metrics.md says the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_POOL = ("pool",)
_ENDPOINT = ("pool", "endpoint")
_TOKENS = ("pool", "tenant", "model")


def _counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, "counter", labels, text)


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, "gauge", labels, text)


def _histogram(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, "histogram", labels, text)


REQUESTS = _counter(
    "forebay_requests_total",
    ("pool", "route", "endpoint", "status", "finish"),
    "requests that ended, by how they ended",
)
TTFT = _histogram("forebay_ttft_seconds", _POOL, "request received to first output token sent")
TPOT = _histogram(
    "forebay_tpot_seconds", _POOL, "time per output token after the first, one value a request"
)
ITL = _histogram("forebay_itl_seconds", _POOL, "each gap between two events of an answer")
E2E = _histogram(
    "forebay_e2e_seconds", _POOL, "request received to last byte sent, completed requests only"
)
QUEUE_WAIT = _histogram(
    "forebay_queue_wait_seconds", _POOL, "request received to placed on an endpoint"
)
CLASS_WAIT = _histogram(
    "forebay_class_wait_seconds",
    ("pool", "sla"),
    "request received to placed on an endpoint, of requests of an SLA class",
)
PREDICTION_ERROR = _histogram(
    "forebay_prediction_error_ratio",
    _POOL,
    "predicted less true output tokens over the true ones, without sign; whole answers only",
)
PROMPT_TOKENS = _counter("forebay_prompt_tokens_total", _TOKENS, "prompt tokens, as engines say")
CACHED_TOKENS = _counter(
    "forebay_cached_tokens_total", _TOKENS, "prompt tokens that engines had cached"
)
OUTPUT_TOKENS = _counter("forebay_output_tokens_total", _TOKENS, "output tokens, as engines say")
SLA_REQUESTS = _counter(
    "forebay_sla_requests_total",
    ("sla", "met"),
    "requests of an SLA class; met is whether both ttft and tpot kept to its targets",
)
RETRIES = _counter("forebay_retries_total", _POOL, "attempts after a request's first")
RETRIES_REFUSED = _counter(
    "forebay_retries_refused_total", _POOL, "retries not made since the budget was spent"
)
STRIPPED_FIELDS = _counter(
    "forebay_stripped_fields_total",
    ("pool", "field"),
    "engine-control fields taken out of callers' requests",
)
DISCONNECTS = _counter(
    "forebay_disconnects_total", ("pool", "phase"), "callers that left before the end, and when"
)
RECEIVED_BYTES = _counter("forebay_received_bytes_total", _POOL, "request bodies received")
SENT_BYTES = _counter("forebay_sent_bytes_total", _POOL, "answer bodies sent")
TRANSITIONS = _counter(
    "forebay_endpoint_transitions_total",
    ("pool", "endpoint", "state"),
    "times that an endpoint came into a state; open is the breaker",
)
STATE = _gauge(
    "forebay_endpoint_state", ("pool", "endpoint", "state"), "1 for the state it is in, else 0"
)
IN_FLIGHT = _gauge(
    "forebay_endpoint_in_flight_requests", _ENDPOINT, "requests that forebay has placed on it"
)
LIMIT = _gauge("forebay_endpoint_limit_requests", _ENDPOINT, "requests it may have at once now")
IN_FLIGHT_TOKENS = _gauge(
    "forebay_endpoint_in_flight_tokens", _ENDPOINT, "predicted tokens of the requests placed on it"
)
RUNNING = _gauge(
    "forebay_endpoint_running_requests",
    _ENDPOINT,
    "running, as the engine says; absent when unknown",
)
WAITING = _gauge(
    "forebay_endpoint_waiting_requests",
    _ENDPOINT,
    "waiting inside the engine, as it says; absent when unknown",
)
KV_USE = _gauge(
    "forebay_endpoint_kv_use_ratio",
    _ENDPOINT,
    "KV blocks in use, 0 to 1, as the engine says; absent when unknown",
)
SPEC_ACCEPT_RATE = _gauge(
    "forebay_spec_accept_rate",
    _ENDPOINT,
    "share of an endpoint's guessed tokens that were accepted, over the window",
)
SPEC_ACCEPTED = _gauge(
    "forebay_spec_avg_accepted_tokens", _ENDPOINT, "accepted tokens of a draft, over the window"
)
SPEC_DRIFT = _gauge(
    "forebay_spec_accept_drift",
    _ENDPOINT,
    "the acceptance rate less its average of about a week; negative where drafts got worse",
)
SPEC_PAYS = _gauge(
    "forebay_spec_pays", _ENDPOINT, "1 while drafts pay there, 0 while requests go elsewhere"
)
SPEC_SPEED_UP = _gauge(
    "forebay_spec_speedup_ratio",
    ("pool", "kind"),
    "time per output token at plain endpoints over that at speculative ones, by kind of request",
)
SPEC_REQUESTS = _counter(
    "forebay_spec_requests_total",
    ("pool", "speculative"),
    "requests that ended in a pool with endpoints that speculate, by whether theirs did",
)
LOAD_AGE = _gauge(
    "forebay_endpoint_load_age_seconds",
    _ENDPOINT,
    "age of what the engine last said of its load; absent when unknown",
)
ENDPOINT_CONNECTIONS = _gauge(
    "forebay_endpoint_connections", _ENDPOINT, "open connections to it, idle ones included"
)
QUEUED = _gauge("forebay_queue_requests", _POOL, "requests waiting")
QUEUED_BYTES = _gauge("forebay_queue_bytes", _POOL, "bodies of the requests waiting")
OLDEST_WAIT = _gauge("forebay_queue_oldest_seconds", _POOL, "how long the oldest has waited")
PREFIX_BLOCKS = _gauge(
    "forebay_prefix_blocks", _POOL, "distinct blocks that endpoints are expected to hold"
)
PREFIX_PREDICTED = _counter(
    "forebay_prefix_predicted_tokens_total", _POOL, "prompt tokens predicted to be cached"
)
PREFIX_HITS = _counter(
    "forebay_prefix_hits_total",
    ("pool", "outcome"),
    "predicted hits by what the engine then said: confirmed or ghost",
)
PREFIX_EVICTED = _counter(
    "forebay_prefix_evicted_blocks_total", _POOL, "expected blocks that gave way to others"
)
PREFIX_EMPTIED = _counter(
    "forebay_prefix_emptied_total", _POOL, "caches found to be empty by cached tokens alone"
)
PREFIX_PROMPTS = _counter(
    "forebay_prefix_prompts_total",
    ("pool", "outcome"),
    "prompts to be cut into tokens: as many as the engine counted or others, late, or failed",
)
PREFIX_SOURCE = _gauge(
    "forebay_prefix_source",
    ("pool", "endpoint", "source"),
    "1 for how it is known what an endpoint holds, else 0; silent is a fault",
)
PREFIX_HELD = _gauge(
    "forebay_prefix_endpoint_blocks",
    ("pool", "endpoint", "source"),
    "blocks of an endpoint: told by its events, or expected",
)
PREFIX_EVENTS = _counter(
    "forebay_prefix_events_total", ("pool", "endpoint"), "KV events read since it is watched"
)
PREFIX_FAULTS = _counter(
    "forebay_prefix_event_faults_total",
    ("pool", "endpoint", "kind"),
    "numbers missing, new processes, events not read, blocks whose beginning was missed",
)
PREFIX_OLDEST = _gauge(
    "forebay_prefix_oldest_block_seconds",
    _ENDPOINT,
    "for how long the least recently used block expected at an endpoint was not used",
)
PREFIX_PREFILL_RATE = _gauge(
    "forebay_prefix_prefill_tokens_per_second",
    _ENDPOINT,
    "prompt tokens a second that an endpoint prefills, measured on streams; absent until known",
)
PREFIX_PROMPT_TOKENS = _counter(
    "forebay_prefix_prompt_tokens_total",
    ("pool", "source"),
    "prompt tokens of answers that told their cached ones, by how it was known what lies there",
)
PREFIX_HIT_TOKENS = _counter(
    "forebay_prefix_hit_tokens_total",
    ("pool", "source", "kind"),
    "cached tokens of those, as engines say; padding are hits under 128 tokens, business the rest",
)
PREFIX_SAVED = _counter(
    "forebay_prefix_saved_seconds_total",
    _POOL,
    "prefill that cached tokens spared, by each endpoint's measured rate",
)
PREFIX_TENANT_BLOCKS = _gauge(
    "forebay_prefix_tenant_blocks",
    ("pool", "tenant"),
    "expected blocks of a tenant, all endpoints together; absent with fewer than two tenants",
)
PREFIX_TENANT_EVICTED = _counter(
    "forebay_prefix_tenant_evicted_blocks_total",
    ("pool", "tenant"),
    "expected blocks that gave way first, since their tenant had more than its share",
)
PREFIX_TENANT_REFUSED = _counter(
    "forebay_prefix_tenant_refused_blocks_total",
    ("pool", "tenant"),
    "new blocks that were not entered, since their tenant brought too many",
)
PREFIX_HIT_RATIO = _gauge(
    "forebay_prefix_hit_ratio",
    ("pool", "window"),
    "share of prompt tokens that hit: recent (15 s) and usual (half an hour); with a guard only",
)
PREFIX_SLOWED = _gauge(
    "forebay_prefix_intake_slowed", _POOL, "1 while intake is slowed since the hit rate collapsed"
)
PREFIX_INTAKE_SHARE = _gauge(
    "forebay_prefix_intake_share_ratio", _POOL, "share of their places that endpoints may use"
)
PREFIX_SLOWDOWNS = _counter(
    "forebay_prefix_slowdowns_total", _POOL, "times that intake was slowed by the hit rate"
)
PREFIX_HOT = _gauge(
    "forebay_prefix_hot_prefixes", _POOL, "prefixes whose text is kept, to warm endpoints with"
)
PREFIX_HOT_BYTES = _gauge("forebay_prefix_hot_bytes", _POOL, "text of those")
PREFIX_WARMING = _gauge(
    "forebay_prefix_warming_prompts",
    ("pool", "endpoint"),
    "prompts still to be sent to an endpoint that is being warmed",
)
PREFIX_WARMED = _counter(
    "forebay_prefix_warm_prompts_total",
    ("pool", "result"),
    "prompts sent to warm endpoints: warmed, failed, gave_way (to callers, sent again later) or "
    "held (there already)",
)
PREFIX_WARM_TOKENS = _counter(
    "forebay_prefix_warm_tokens_total", _POOL, "prompt tokens that engines prefilled to be warm"
)
PREFIX_AWAY = _gauge(
    "forebay_prefix_sharing_away", (), "1 while replicas cannot tell each other of prefixes"
)
PREFIX_HEARD = _counter(
    "forebay_prefix_deltas_heard_total", (), "notes of other replicas of where prefixes went"
)
PREFIX_UNTOLD = _counter(
    "forebay_prefix_untold_blocks_total", (), "blocks not told to other replicas: too many waited"
)
PREDICTIONS = _counter(
    "forebay_predictions_total",
    ("pool", "result"),
    "requests by what reading made of them: predicted, cached, idle (never waited), large, late, "
    "placed (before it was read) or failed",
)
PREDICTION_TIME = _counter(
    "forebay_prediction_seconds_total", _POOL, "time spent on reading prompts, off the loop"
)
PREDICTOR_TRUSTED = _gauge(
    "forebay_predictor_trusted", _POOL, "1 while predicted lengths are believed, else 0"
)
PREDICTOR_ACCURACY = _gauge(
    "forebay_predictor_bucket_accuracy_ratio", _POOL, "of the last outcomes, in the right bucket"
)
PREDICTOR_TAU = _gauge(
    "forebay_predictor_tau", _POOL, "rank correlation of the last outcomes with what was predicted"
)
CLASS_QUEUED = _gauge(
    "forebay_class_queue_requests", ("pool", "sla", "tenant"), "requests waiting, by whose"
)
CLASS_OLDEST = _gauge(
    "forebay_class_oldest_seconds", ("pool", "sla"), "how long the oldest of a class has waited"
)
RESERVED = _gauge(
    "forebay_reserve_in_flight_requests",
    ("pool", "reserve"),
    "places in use of a reserve, by whose it is",
)
OVERDUE = _gauge("forebay_overdue_requests", _POOL, "requests waiting past their longest wait")
SPREAD = _gauge(
    "forebay_virtual_time_spread",
    _POOL,
    "cost over weight between the waiting tenants that got most and least; absent without turns",
)
WATERMARK = _gauge(
    "forebay_watermark_level", _POOL, "watermarks in force, 0 is none; absent without watermarks"
)
FORCED = _counter(
    "forebay_forced_dispatches_total", _POOL, "overdue requests put before the ordering's choice"
)
RECALLS = _counter(
    "forebay_recalls_total", _POOL, "placements called back for a higher class before any byte"
)
DISPLACED = _counter(
    "forebay_displaced_requests_total", _POOL, "waiting requests refused for a higher class"
)
GAVE_UP = _counter(
    "forebay_gave_up_requests_total",
    _POOL,
    "waiting requests refused since they could not start in time",
)
FORETOLD = _counter(
    "forebay_foretold_requests_total",
    _POOL,
    "new requests refused since they would have waited too long",
)
STARVED = _counter(
    "forebay_starved_requests_total", _POOL, "requests started after their time; must be 0"
)
RANK_CHANGES = _counter(
    "forebay_rank_changes_total", _POOL, "waiting requests whose rank has changed"
)
CLIENT_CONNECTIONS = _gauge("forebay_client_connections", (), "open connections of callers")
BUFFERED = _gauge("forebay_buffered_bytes", (), "bodies and answers held in memory")
BUFFERED_LIMIT = _gauge("forebay_buffered_limit_bytes", (), "server.max_buffered")
SETTLEMENTS = _gauge("forebay_settlements_waiting", (), "ended requests whose I/O is still to do")
CONFIG_OK = _gauge("forebay_config_ok", (), "0 after a refused reload")
READY = _gauge("forebay_ready", (), "1 while readyz says 200")
DRAINING = _gauge("forebay_draining", (), "1 from SIGTERM on")
LOOP_PAUSE = _histogram(
    "forebay_loop_pause_seconds", (), "how late the event loop ran its watch, every 50 ms"
)
LOOP_PAUSE_MAX = _gauge(
    "forebay_loop_pause_max_seconds", (), "the longest pause of the last 30 to 60 s"
)
CHORES_DROPPED = _counter(
    "forebay_chores_dropped_total", (), "aborts and the like not done since too many waited"
)
LOG_DROPPED = _counter(
    "forebay_log_lines_dropped_total", (), "log lines lost since their reader was too slow"
)
TRACES_DROPPED = _counter(
    "forebay_traces_dropped_total", (), "sampled requests whose spans were lost"
)
QUOTA_REFUSED = _counter(
    "forebay_quota_refused_total", ("tenant", "limit"), "requests refused by a tenant's own limit"
)
QUOTA_LOCAL = _counter(
    "forebay_quota_local_total",
    ("tenant",),
    "requests let in on this replica's share of a limit while shared counters were away",
)
QUOTA_AWAY = _gauge("forebay_quota_away", (), "1 while shared counters cannot be reached")
QUOTA_TIMES_AWAY = _counter(
    "forebay_quota_outages_total", (), "times that shared counters went away"
)
QUOTA_REPLICAS = _gauge(
    "forebay_quota_replicas", (), "replicas that shared the counters when last seen"
)
QUOTA_WAITING = _gauge(
    "forebay_quota_waiting", (), "reservations and settlements that shared counters owe an answer"
)
USAGE_LOST = _counter(
    "forebay_usage_lost_total", (), "requests whose usage could not be kept in the ledger"
)
MOVED = _counter(
    "forebay_moved_requests_total",
    ("pool", "reason"),
    "requests that went on at another arm or pool, by the one they left and why",
)
_ARM = ("experiment", "arm")
ARM_REQUESTS = _counter(
    "forebay_arm_requests_total",
    ("experiment", "arm", "result"),
    "requests of an experiment's arm: answered, failed, refused by its engine, or left",
)
ARM_TTFT = _histogram("forebay_arm_ttft_seconds", _ARM, "TTFT of an experiment's arm")
ARM_TPOT = _histogram("forebay_arm_tpot_seconds", _ARM, "TPOT of an experiment's arm")
ARM_SHARE = _gauge("forebay_arm_share_ratio", _ARM, "share of the keys that the arm gets now")
EXPERIMENT_PHASE = _gauge(
    "forebay_experiment_phase",
    ("experiment", "phase"),
    "1 for the phase it is in, else 0",
)
EXPERIMENT_DECISIONS = _gauge(
    "forebay_experiment_decisions", ("experiment",), "decisions taken since it began"
)
EXPERIMENTS_AWAY = _gauge(
    "forebay_experiments_away", (), "1 while the state of experiments cannot be stored"
)
SHADOW_COPIES = _counter(
    "forebay_shadow_copies_total",
    ("experiment", "result"),
    "copies of requests: same, different, sampled (not at temperature 0), failed, or dropped",
)
BUILD = _gauge("forebay_build_info", ("version",), "always 1")

CATALOG = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
