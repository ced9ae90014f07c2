"""What is read of the process as a whole, its tenants and experiments included."""

from __future__ import annotations

from .reading import Scope, counter, gauge, named, one_of
from .snapshot import PHASES_OF_EXPERIMENTS, ExperimentStatus, Snapshot

EXPERIMENTS: Scope[ExperimentStatus] = Scope(
    ("experiment",),
    lambda s: [((e.name,), e) for e in s.experiments],
    (
        gauge(
            "forebay_arm_share_ratio",
            "share of the keys that the arm gets now",
            lambda e: named(e.shares.items()),
            by=("arm",),
        ),
        gauge(
            "forebay_experiment_phase",
            "1 for the phase it is in, else 0",
            lambda e: one_of(PHASES_OF_EXPERIMENTS, e.phase),
            by=("phase",),
        ),
        gauge(
            "forebay_experiment_decisions", "decisions taken since it began", lambda e: e.decisions
        ),
        counter(
            "forebay_shadow_copies_total",
            "copies of requests: same, different, sampled (not at temperature 0), failed, or "
            "dropped",
            lambda e: named(e.copies.items()),
            by=("result",),
        ),
    ),
)

GATEWAY: Scope[Snapshot] = Scope(
    (),
    lambda s: [((), s)],
    (
        gauge(
            "forebay_client_connections",
            "open connections of callers",
            lambda s: s.client_connections,
        ),
        gauge(
            "forebay_buffered_bytes",
            "bodies and answers held in memory",
            lambda s: s.buffered_bytes,
        ),
        gauge(
            "forebay_buffered_limit_bytes", "server.max_buffered", lambda s: s.buffered_limit_bytes
        ),
        gauge(
            "forebay_settlements_waiting",
            "ended requests whose I/O is still to do",
            lambda s: s.settlements_waiting,
        ),
        gauge("forebay_config_ok", "0 after a refused reload", lambda s: s.config_ok),
        gauge("forebay_ready", "1 while readyz says 200", lambda s: s.ready),
        gauge("forebay_draining", "1 from SIGTERM on", lambda s: s.draining),
        gauge(
            "forebay_loop_pause_max_seconds",
            "the longest pause of the last 30 to 60 s",
            lambda s: s.loop_pause_max_s,
        ),
        counter(
            "forebay_chores_dropped_total",
            "aborts and the like not done since too many waited",
            lambda s: s.chores_dropped,
        ),
        counter(
            "forebay_log_lines_dropped_total",
            "log lines lost since their reader was too slow",
            lambda s: s.log_lines_dropped,
        ),
        counter(
            "forebay_traces_dropped_total",
            "sampled requests whose spans were lost",
            lambda s: s.traces_dropped,
        ),
        counter(
            "forebay_quota_refused_total",
            "requests refused by a tenant's own limit",
            lambda s: s.quota.refused.items(),
            by=("tenant", "limit"),
        ),
        counter(
            "forebay_quota_local_total",
            "requests let in on this replica's share of a limit while shared counters were away",
            lambda s: named(s.quota.admitted_here.items()),
            by=("tenant",),
        ),
        gauge(
            "forebay_quota_away",
            "1 while shared counters cannot be reached",
            lambda s: s.quota.away,
        ),
        counter(
            "forebay_quota_outages_total",
            "times that shared counters went away",
            lambda s: s.quota.times_away,
        ),
        gauge(
            "forebay_quota_replicas",
            "replicas that shared the counters when last seen",
            lambda s: s.quota.replicas,
        ),
        gauge(
            "forebay_quota_waiting",
            "reservations and settlements that shared counters owe an answer",
            lambda s: s.quota.waiting,
        ),
        counter(
            "forebay_usage_lost_total",
            "requests whose usage could not be kept in the ledger",
            lambda s: s.quota.usage_lost,
        ),
        gauge(
            "forebay_experiments_away",
            "1 while the state of experiments cannot be stored",
            lambda s: s.experiments_away,
        ),
        gauge(
            "forebay_prefix_sharing_away",
            "1 while replicas cannot tell each other of prefixes",
            lambda s: s.prefix_sharing.away,
        ),
        gauge(
            "forebay_discover_failing_hosts",
            "hosts that could not be looked up when last asked",
            lambda s: s.hosts_failing,
        ),
        gauge(
            "forebay_limits_away",
            "1 while replicas cannot divide endpoints' limits anew",
            lambda s: s.limits_away,
        ),
        counter(
            "forebay_prefix_deltas_heard_total",
            "notes of other replicas of where prefixes went",
            lambda s: s.prefix_sharing.heard,
        ),
        counter(
            "forebay_prefix_untold_blocks_total",
            "blocks not told to other replicas: too many waited",
            lambda s: s.prefix_sharing.dropped_blocks,
        ),
        gauge("forebay_build_info", "always 1", lambda s: [((s.version,), 1)], by=("version",)),
    ),
)
