"""Every metric that forebay exposes: name, kind, labels, meaning. docs/metrics.md says the same.

What `metrics` counts is declared here; what is read of a snapshot comes with how (`reading`).
"""

from __future__ import annotations

from .metric import Metric
from .readings_endpoints import ENDPOINTS, SPECULATIONS
from .readings_prefixes import PREFIX_GUARDS, PREFIX_SOURCES, PREFIXES, WARMINGS
from .readings_process import EXPERIMENTS, GATEWAY
from .readings_queues import POOLS, PREDICTORS, QUEUES

_POOL = ("pool",)
_TOKENS = ("pool", "tenant", "model")


def _counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, "counter", labels, text)


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
LOOP_PAUSE = _histogram(
    "forebay_loop_pause_seconds", (), "how late the event loop ran its watch, every 50 ms"
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

SCOPES = (
    *(ENDPOINTS, SPECULATIONS, POOLS, QUEUES, PREDICTORS),
    *(PREFIXES, PREFIX_SOURCES, PREFIX_GUARDS, WARMINGS, EXPERIMENTS, GATEWAY),
)
_COUNTED = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
CATALOG = (*_COUNTED, *(metric for scope in SCOPES for metric in scope.metrics))
