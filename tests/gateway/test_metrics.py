"""What is counted, under which labels, and what a scrape says."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from threading import Thread
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from forebay.gateway.telemetry import catalog, metrics
from forebay.gateway.telemetry.counts import MAX_SETS
from forebay.gateway.telemetry.labels import FINISHES, STATES, LabelSpace, PoolLabels
from forebay.gateway.telemetry.metrics import Metrics
from forebay.gateway.telemetry.snapshot import EndpointStatus, PoolStatus, Snapshot
from forebay.policies.contracts import Finish, Outcome, Route

SPACE = LabelSpace(
    {
        "llama": PoolLabels(frozenset({"v0", "v1"}), frozenset({"m"})),
        "embed": PoolLabels(frozenset({"e0"}), frozenset({"bge"})),
    },
    frozenset({"acme"}),
    frozenset({"priority"}),
)
DONE = Outcome(
    request_id="r1",
    pool="llama",
    route=Route.CHAT,
    tenant="acme",
    model="m",
    endpoint="v0",
    status=200,
    stream=True,
    attempts=1,
    received=100.0,
    placed=100.25,
    first_byte=100.75,
    first_token=100.75,
    last_token=102.75,
    ended=103.0,
    prompt_tokens=30,
    cached_tokens=16,
    output_tokens=5,
    bytes_in=400,
    bytes_out=900,
)
Sample = tuple[str, tuple[tuple[str, str], ...]]


def scrape(m: Metrics, snapshot: Snapshot | None = None) -> dict[Sample, float]:
    _, text = m.render("", snapshot or Snapshot())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def named(samples: dict[Sample, float], name: str) -> dict[tuple[str, ...], float]:
    """One metric's values by its label values, in the order of the labels' names."""
    return {
        tuple(v for _, v in labels): n for (found, labels), n in samples.items() if found == name
    }


def test_a_finished_request_is_counted_once_with_all_its_labels():
    m = Metrics(SPACE)
    m.settled(DONE)
    m.fold()
    m.fold()
    samples = scrape(m)
    assert named(samples, "forebay_requests_total") == {
        ("v0", "completed", "llama", "/v1/chat/completions", "200"): 1
    }
    tokens = ("prompt", "cached", "output")
    assert [named(samples, f"forebay_{kind}_tokens_total") for kind in tokens] == [
        {("m", "llama", "acme"): 30},
        {("m", "llama", "acme"): 16},
        {("m", "llama", "acme"): 5},
    ]
    assert named(samples, "forebay_received_bytes_total") == {("llama",): 400, ("embed",): 0}
    assert named(samples, "forebay_sent_bytes_total") == {("llama",): 900, ("embed",): 0}


@pytest.mark.parametrize(
    ("name", "seconds"), [("queue_wait", 0.25), ("ttft", 0.75), ("tpot", 0.5), ("e2e", 3.0)]
)
def test_times_of_a_finished_request_are_observed(name: str, seconds: float):
    m = Metrics(SPACE)
    m.settled(DONE)
    samples = scrape(m)
    assert named(samples, f"forebay_{name}_seconds_sum") == {("llama",): seconds, ("embed",): 0}
    assert named(samples, f"forebay_{name}_seconds_count") == {("llama",): 1, ("embed",): 0}


def test_moments_that_never_came_are_not_observed():
    m = Metrics(SPACE)
    refused = Outcome("r", "llama", Route.CHAT, "acme", status=429, finish=Finish.REJECTED)
    m.settled(replace(refused, received=1.0, ended=1.001))
    samples = scrape(m)
    counts = [
        named(samples, f"forebay_{name}_seconds_count")["llama",]
        for name in ("queue_wait", "ttft", "tpot", "itl", "e2e")
    ]
    assert counts == [0, 0, 0, 0, 0]
    assert named(samples, "forebay_prompt_tokens_total") == {}


def test_one_output_token_has_no_time_per_further_token():
    m = Metrics(SPACE)
    m.settled(replace(DONE, output_tokens=1))
    assert named(scrape(m), "forebay_tpot_seconds_count")["llama",] == 0


def test_a_whole_answer_shows_neither_ttft_nor_tpot():
    m = Metrics(SPACE)
    m.settled(replace(DONE, stream=False, first_token=102.75))
    samples = scrape(m)
    counts = {
        name: named(samples, f"forebay_{name}_seconds_count")["llama",]
        for name in ("queue_wait", "ttft", "tpot", "e2e")
    }
    assert counts == {"queue_wait": 1, "ttft": 0, "tpot": 0, "e2e": 1}


def test_a_clock_that_goes_back_never_makes_a_sum_smaller():
    m = Metrics(SPACE)
    m.settled(replace(DONE, placed=99.0, first_token=98.0, last_token=97.0, ended=96.0))
    samples = scrape(m)
    sums = [
        named(samples, f"forebay_{name}_seconds_sum")["llama",]
        for name in ("queue_wait", "ttft", "tpot", "e2e")
    ]
    assert sums == [0, 0, 0, 0]


def test_attempts_after_the_first_are_retries():
    m = Metrics(SPACE)
    for attempts in (0, 1, 3):
        m.settled(replace(DONE, attempts=attempts))
    assert named(scrape(m), "forebay_retries_total") == {("llama",): 2, ("embed",): 0}


def test_a_caller_that_leaves_is_counted_by_where_the_request_was():
    m = Metrics(SPACE)
    left = replace(DONE, finish=Finish.LEFT, status=0, output_tokens=None, prompt_tokens=None)
    m.settled(left)
    m.settled(replace(left, first_byte=None, first_token=None))
    m.settled(replace(left, first_byte=None, first_token=None, placed=None, endpoint=""))
    m.settled(Outcome("r", "", Route.CHAT, "acme", finish=Finish.LEFT))
    assert named(scrape(m), "forebay_disconnects_total") == {
        ("streaming", "llama"): 1,
        ("waiting", "llama"): 1,
        ("queued", "llama"): 1,
        ("uploading", ""): 1,
    }


CANARIES = ("canary-7c1", 'evil"}\n# HELP', "x" * 10_000, "\x1b[31m", "ünï\u2028", "\ud800")


@pytest.mark.parametrize("canary", CANARIES)
def test_names_that_the_configuration_does_not_have_become_other(canary: str):
    m = Metrics(SPACE)
    m.settled(replace(DONE, tenant=canary))
    m.settled(replace(DONE, model=canary))
    m.settled(replace(DONE, endpoint=canary))
    m.settled(replace(DONE, route=canary))
    m.settled(replace(DONE, pool=canary))
    m.settled(replace(DONE, finish_reason=canary, error=canary, request_id=canary, trace=canary))
    m.stripped(canary, canary)
    m.transition(canary, canary, canary)
    m.retry_refused(canary)
    _, text = m.render("", Snapshot())
    assert canary.encode("utf-8", "surrogatepass") not in text
    assert canary.encode("unicode_escape") not in text
    samples = scrape(m)
    assert named(samples, "forebay_requests_total") == {
        ("v0", "completed", "llama", "/v1/chat/completions", "200"): 3,
        ("other", "completed", "llama", "/v1/chat/completions", "200"): 1,
        ("v0", "completed", "llama", "other", "200"): 1,
        ("other", "completed", "other", "/v1/chat/completions", "200"): 1,
    }
    assert named(samples, "forebay_output_tokens_total") == {
        ("m", "llama", "acme"): 15,
        ("m", "llama", "other"): 5,
        ("other", "llama", "acme"): 5,
        ("other", "other", "acme"): 5,
    }


def test_an_endpoint_of_another_pool_is_other():
    m = Metrics(SPACE)
    m.settled(replace(DONE, endpoint="e0"))
    assert [labels[0] for labels in named(scrape(m), "forebay_requests_total")] == ["other"]


@pytest.mark.parametrize(
    ("status", "label"), [(0, ""), (99, "other"), (418, "418"), (600, "other")]
)
def test_a_status_that_is_none_is_other(status: int, label: str):
    m = Metrics(SPACE)
    m.settled(replace(DONE, status=status))
    ((_, counts), *_) = m.copy().counters
    assert [labels[3] for labels in counts] == [label]


def test_label_sets_are_capped():
    endpoints = frozenset(f"e{n}" for n in range(MAX_SETS + 10))
    tenants = frozenset(f"t{n}" for n in range(MAX_SETS + 10))
    m = Metrics(LabelSpace({"p": PoolLabels(endpoints, frozenset({"m"}))}, tenants))
    for n in range(MAX_SETS + 10):
        m.settled(replace(DONE, pool="p", endpoint=f"e{n}", tenant=f"t{n}"))
        m.transition("p", f"e{n}", "up")
    counters = {metric.name: counts for metric, counts in m.copy().counters}
    for name, labels in (("forebay_requests_total", 5), ("forebay_output_tokens_total", 3)):
        assert len(counters[name]) == MAX_SETS + 1
        assert counters[name][("other",) * labels] in {10, 50}
    assert counters["forebay_endpoint_transitions_total"][("other",) * 3] == 10


def test_names_without_end_do_not_grow_memory():
    m = Metrics(SPACE)
    for n in range(metrics.MAX_CACHED + 100):
        m.settled(replace(DONE, tenant=f"made-up-{n}", route=f"/made/up/{n}"))
    m.fold()
    # No public number shows what is remembered.
    assert len(m._requests_by_name) == metrics.MAX_CACHED  # pyright: ignore[reportPrivateUsage] - its bound shows nowhere else
    assert len(m._tokens_by_name) == metrics.MAX_CACHED  # pyright: ignore[reportPrivateUsage] - its bound shows nowhere else
    assert named(scrape(m), "forebay_requests_total") == {
        ("v0", "completed", "llama", "other", "200"): metrics.MAX_CACHED + 100
    }


def test_a_relay_observes_gaps_through_its_pool():
    m = Metrics(SPACE)
    m.itl("llama").observe(0.5, 3)
    samples = scrape(m)
    assert named(samples, "forebay_itl_seconds_count") == {("llama",): 3, ("embed",): 0}
    assert named(samples, "forebay_itl_seconds_sum") == {("llama",): 0.5, ("embed",): 0}


def test_stripped_fields_and_refused_retries_and_transitions_are_counted():
    m = Metrics(SPACE)
    m.stripped("llama", "priority")
    m.stripped("llama", "priority")
    m.retry_refused("embed")
    m.transition("llama", "v1", "open")
    samples = scrape(m)
    assert named(samples, "forebay_stripped_fields_total") == {("priority", "llama"): 2}
    assert named(samples, "forebay_retries_refused_total") == {("embed",): 1}
    assert named(samples, "forebay_endpoint_transitions_total") == {("v1", "llama", "open"): 1}


def test_counts_of_names_that_stay_survive_a_reload():
    m = Metrics(SPACE)
    gaps = m.itl("llama")
    m.settled(DONE)
    m.settled(replace(DONE, endpoint="v1"))
    m.settled(replace(DONE, pool="embed", endpoint="e0", model="bge"))
    m.transition("llama", "v1", "down")
    m.stripped("embed", "priority")
    m.relabel(LabelSpace({"llama": PoolLabels(frozenset({"v0", "v2"}), frozenset({"m"}))}))
    m.settled(replace(DONE, endpoint="v2", tenant=""))
    gaps.observe(0.1)
    samples = scrape(m)
    assert named(samples, "forebay_requests_total") == {
        ("v0", "completed", "llama", "/v1/chat/completions", "200"): 1,
        ("v2", "completed", "llama", "/v1/chat/completions", "200"): 1,
    }
    assert named(samples, "forebay_ttft_seconds_count") == {("llama",): 3}
    assert named(samples, "forebay_itl_seconds_count") == {("llama",): 1}
    assert list(named(samples, "forebay_output_tokens_total").values()) == [5]
    assert named(samples, "forebay_endpoint_transitions_total") == {}
    assert named(samples, "forebay_stripped_fields_total") == {}


SNAPSHOT = Snapshot(
    pools=(
        PoolStatus(
            name="llama",
            models=("m",),
            endpoints=(
                EndpointStatus(
                    "v0", "vllm", "up", usable=True, in_flight=3, limit=64, running=2, kv_use=0.5
                ),
                EndpointStatus("v1", "vllm", "a state to come", usable=False),
            ),
            queued=7,
            queued_bytes=700,
            oldest_wait_s=1.5,
        ),
    ),
    client_connections=12,
    buffered_bytes=4096,
    config_ok=False,
    draining=True,
    loop_pause_max_s=0.02,
    chores_dropped=2,
    log_lines_dropped=4,
    version="0.1.0",
)


def test_gauges_come_from_the_snapshot():
    samples = scrape(Metrics(SPACE), SNAPSHOT)
    found = {
        name: named(samples, f"forebay_{name}")
        for name in (
            *("queue_requests", "queue_oldest_seconds", "endpoint_in_flight_requests"),
            *("client_connections", "config_ok", "ready", "draining", "build_info"),
            *("loop_pause_max_seconds", "chores_dropped_total", "log_lines_dropped_total"),
        )
    }
    assert found == {
        "queue_requests": {("llama",): 7},
        "queue_oldest_seconds": {("llama",): 1.5},
        "endpoint_in_flight_requests": {("v0", "llama"): 3, ("v1", "llama"): 0},
        "client_connections": {(): 12},
        "config_ok": {(): 0},
        "ready": {(): 0},
        "draining": {(): 1},
        "build_info": {("0.1.0",): 1},
        "loop_pause_max_seconds": {(): 0.02},
        "chores_dropped_total": {(): 2},
        "log_lines_dropped_total": {(): 4},
    }


def test_what_an_engine_does_not_say_is_absent_not_zero():
    samples = scrape(Metrics(SPACE), SNAPSHOT)
    assert named(samples, "forebay_endpoint_running_requests") == {("v0", "llama"): 2}
    assert named(samples, "forebay_endpoint_kv_use_ratio") == {("v0", "llama"): 0.5}
    assert named(samples, "forebay_endpoint_waiting_requests") == {}


def test_an_endpoint_is_in_exactly_one_state():
    states = named(scrape(Metrics(SPACE), SNAPSHOT), "forebay_endpoint_state")
    assert [labels for labels, value in states.items() if value] == [
        ("v0", "llama", "up"),
        ("v1", "llama", "other"),
    ]
    assert len(states) == 2 * len(STATES)


def test_buckets_are_cumulative_and_end_at_the_count():
    m = Metrics(SPACE)
    for n in range(20):
        m.settled(replace(DONE, first_token=DONE.received + 0.1 * n))
    samples = scrape(m)
    buckets = [
        n
        for labels, n in named(samples, "forebay_ttft_seconds_bucket").items()
        if labels[1] == "llama"
    ]
    assert all(low <= high for low, high in pairwise(buckets))
    assert buckets[-1] == named(samples, "forebay_ttft_seconds_count")["llama",] == 20


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain; version=0.0.4"),
        ("text/html, nonsense;;q=", "text/plain; version=0.0.4"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
    ],
)
def test_the_format_is_the_one_asked_for(accept: str, kind: str):
    content_type, text = Metrics(SPACE).render(accept, SNAPSHOT)
    assert content_type.startswith(kind)
    assert text.rstrip().endswith(b"# EOF") is ("openmetrics" in kind)


def test_the_process_is_measured_too():
    assert scrape(Metrics(SPACE))["process_resident_memory_bytes", ()] > 0


def test_totals_are_summed_for_each_pool_of_the_configuration():
    m = Metrics(SPACE)
    m.settled(DONE)
    m.settled(replace(DONE, tenant="", status=502, finish=Finish.ENGINE_ERROR))
    totals = m.totals()
    llama = totals["llama"]
    assert set(totals) == {"llama", "embed"}
    assert (llama.requests, llama.failed, totals["embed"].requests) == (2, 1, 0)
    assert (llama.prompt_tokens, llama.cached_tokens, llama.output_tokens) == (60, 32, 10)
    assert (llama.ttft.count, llama.tpot.count) == (2, 2)


def test_scrapes_beside_a_writing_loop_lose_nothing():
    m = Metrics(SPACE)
    scrapes: list[int] = []

    def keep_scraping() -> None:
        for _ in range(30):
            samples = scrape(m)
            scrapes.append(int(sum(named(samples, "forebay_requests_total").values())))

    reader = Thread(target=keep_scraping)
    reader.start()
    for n in range(20_000):
        m.settled(DONE)
        if n % 50 == 0:
            m.fold()
    reader.join()
    assert scrapes == sorted(scrapes)
    assert list(named(scrape(m), "forebay_requests_total").values()) == [20_000]


def test_names_follow_the_public_pattern():
    for metric in catalog.CATALOG:
        assert metric.name.startswith("forebay_")
        assert metric.name.endswith("_total") is (metric.kind == "counter")
        assert metric.kind != "histogram" or metric.name.endswith(("_seconds", "_ratio"))


def test_every_metric_of_the_catalog_is_rendered():
    _, text = Metrics(SPACE).render("", SNAPSHOT)
    typed = [
        line.split()[2:4]
        for line in text.decode().splitlines()
        if line.startswith("# TYPE forebay")
    ]
    assert sorted(map(tuple, typed)) == sorted((m.name, m.kind) for m in catalog.CATALOG)


def test_every_way_to_end_is_a_label():
    assert {str(finish) for finish in Finish} == FINISHES


TARGETS = {"fast": (1.0, 0.5), "any": (float("inf"), float("inf"))}


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, "yes"),
        ({"first_token": 101.25}, "no"),
        ({"last_token": 103.0}, "no"),
        ({"output_tokens": 1, "last_token": 100.75}, "yes"),
        ({"output_tokens": None}, "yes"),
        ({"stream": False, "first_token": 103.0, "last_token": 103.0}, "yes"),
        ({"stream": False, "first_token": 103.25, "last_token": 103.25}, "no"),
        ({"finish": Finish.TRUNCATED}, "no"),
        ({"finish": Finish.ENGINE_ERROR, "status": 502}, "no"),
        ({"finish": Finish.TIMEOUT, "status": 504, "first_token": None}, "no"),
        ({"finish": Finish.REJECTED, "status": 429, "first_token": None}, "no"),
        ({"finish": Finish.REJECTED, "status": 400, "first_token": None}, None),
        ({"finish": Finish.LEFT, "status": 499}, None),
        ({"sla": "gone"}, None),
        ({"sla": ""}, None),
        ({"sla": "any", "first_token": 900.0, "last_token": 999.0}, "yes"),
    ],
)
def test_goodput_counts_who_kept_to_both_targets(changes: dict[str, Any], met: str | None):
    m = Metrics(dataclasses.replace(SPACE, targets=TARGETS))
    outcome = replace(DONE, **{"sla": "fast", **changes})
    m.settled(outcome)
    expected = {} if met is None else {(met, outcome.sla): 1}
    assert named(scrape(m), "forebay_sla_requests_total") == expected


def test_goodput_of_a_class_that_a_reload_took_away_ends():
    m = Metrics(dataclasses.replace(SPACE, targets=TARGETS))
    m.settled(replace(DONE, sla="fast"))
    m.settled(replace(DONE, sla="any"))
    m.relabel(dataclasses.replace(SPACE, targets={"any": TARGETS["any"]}))
    assert named(scrape(m), "forebay_sla_requests_total") == {("yes", "any"): 1}
