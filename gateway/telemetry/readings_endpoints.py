"""What is read of endpoints, their speculation included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .labels import STATES, state_label
from .reading import Scope, gauge, one_of

if TYPE_CHECKING:
    from .snapshot import EndpointStatus, SpeculationStatus

ENDPOINTS: Scope[EndpointStatus] = Scope(
    ("pool", "endpoint"),
    lambda s: [((p.name, e.name), e) for p in s.pools for e in p.endpoints],
    (
        gauge(
            "forebay_endpoint_state",
            "1 for the state it is in, else 0",
            lambda e: one_of(STATES, state_label(e.state)),
            by=("state",),
        ),
        gauge(
            "forebay_endpoint_in_flight_requests",
            "requests that forebay has placed on it",
            lambda e: e.in_flight,
        ),
        gauge(
            "forebay_endpoint_limit_requests", "requests it may have at once now", lambda e: e.limit
        ),
        gauge(
            "forebay_endpoint_in_flight_tokens",
            "predicted tokens of the requests placed on it",
            lambda e: e.in_flight_tokens,
        ),
        gauge(
            "forebay_endpoint_running_requests",
            "running, as the engine says; absent when unknown",
            lambda e: e.running,
        ),
        gauge(
            "forebay_endpoint_waiting_requests",
            "waiting inside the engine, as it says; absent when unknown",
            lambda e: e.waiting,
        ),
        gauge(
            "forebay_endpoint_kv_use_ratio",
            "KV blocks in use, 0 to 1, as the engine says; absent when unknown",
            lambda e: e.kv_use,
        ),
        gauge(
            "forebay_endpoint_load_age_seconds",
            "age of what the engine last said of its load; absent when unknown",
            lambda e: e.load_age_s,
        ),
        gauge(
            "forebay_endpoint_connections",
            "open connections to it, idle ones included",
            lambda e: e.connections,
        ),
    ),
)

SPECULATIONS: Scope[SpeculationStatus] = Scope(
    ("pool", "endpoint"),
    lambda s: [
        ((p.name, e.name), e.speculation) for p in s.pools for e in p.endpoints if e.speculation
    ],
    (
        gauge(
            "forebay_spec_accept_rate",
            "share of an endpoint's guessed tokens that were accepted, over the window",
            lambda s: s.accept_rate,
        ),
        gauge(
            "forebay_spec_avg_accepted_tokens",
            "accepted tokens of a draft, over the window",
            lambda s: s.accepted_a_draft,
        ),
        gauge(
            "forebay_spec_accept_drift",
            "the acceptance rate less its average of about a week; negative where drafts got worse",
            lambda s: s.drift,
        ),
        gauge(
            "forebay_spec_pays",
            "1 while drafts pay there, 0 while requests go elsewhere",
            lambda s: s.pays,
        ),
    ),
)
