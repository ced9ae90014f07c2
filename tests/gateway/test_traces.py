"""W3C trace context, sampling, and the spans that a request leaves."""

from __future__ import annotations

import gzip
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Semaphore, Thread
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from forebay.gateway.telemetry.labels import LabelSpace, PoolLabels
from forebay.gateway.telemetry.spans import MAX_WAITING, SCHEMA_URL, Spans, otlp_spans
from forebay.gateway.telemetry.traces import (
    UNTRACED,
    PassOn,
    RequestTrace,
    Sampler,
    TraceContext,
    parse_traceparent,
)
from forebay.policies.contracts import Finish, Outcome, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
SPAN_ID = 0xB7AD6B7169203331
SAMPLED = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = SAMPLED[:-1] + b"0"

GARBAGE = (
    b"",
    b"garbage",
    SAMPLED.upper(),
    SAMPLED + b"-extra",
    b"ff" + SAMPLED[2:],
    SAMPLED[:-1],
    SAMPLED + b"\n",
    b" " + SAMPLED,
    b"00-" + b"0" * 32 + SAMPLED[35:],
    SAMPLED[:36] + b"0" * 16 + b"-01",
    SAMPLED.replace(b"-", b"_"),
    b"01" + SAMPLED[2:] + b"-\r\nx-evil: 1",
    b"01" + SAMPLED[2:] + b"-" + b"x" * 300,
    b"\xff" * 55,
)  # fmt: skip


def test_a_traceparent_is_read():
    assert parse_traceparent(SAMPLED) == TraceContext(TRACE_ID, SPAN_ID, 0, sampled=True)
    assert parse_traceparent(UNSAMPLED) == TraceContext(TRACE_ID, SPAN_ID, 0, sampled=False)


def test_unknown_flags_and_later_versions_are_read_by_what_is_known():
    later = b"cc" + SAMPLED[2:-2] + b"ff-what-comes-later"
    assert parse_traceparent(later) == TraceContext(TRACE_ID, SPAN_ID, 0, sampled=True)


@pytest.mark.parametrize("header", GARBAGE)
def test_garbage_is_no_trace(header: bytes):
    assert parse_traceparent(header) is None
    assert PassOn().begin(header) == UNTRACED
    assert Sampler(0.0).begin(header) == UNTRACED
    started = Sampler(1.0, rng=Random(1)).begin(header)
    assert started == Sampler(1.0, rng=Random(1)).begin(None)


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_can_be_read(trace_id: int, span_id: int, sampled: bool):  # noqa: FBT001 - hypothesis passes it
    context = TraceContext(trace_id, span_id, 0, sampled)
    assert parse_traceparent(context.traceparent.encode()) == context


@given(st.binary(max_size=80))
def test_no_header_breaks_the_reader(header: bytes):
    parse_traceparent(header)


def test_a_child_hangs_below_its_parent():
    parent = TraceContext(TRACE_ID, SPAN_ID, 0, sampled=True)
    child = parent.child(Random(1))
    assert (child.trace_id, child.parent_id, child.sampled) == (TRACE_ID, SPAN_ID, True)
    assert child.span_id not in {0, SPAN_ID}


def test_a_sampled_caller_is_traced_whatever_the_share():
    trace = Sampler(0.0).begin(SAMPLED)
    assert trace.request is not None
    assert trace.engine is not None
    assert (trace.request.trace_id, trace.request.parent_id) == (TRACE_ID, SPAN_ID)
    assert (trace.engine.trace_id, trace.engine.parent_id) == (TRACE_ID, trace.request.span_id)


def test_the_engine_gets_the_id_of_our_call_to_it():
    trace = Sampler(1.0).begin(None)
    assert trace.engine is not None
    assert trace.traceparent == trace.engine.traceparent
    assert trace.traceparent.endswith(f"-{trace.engine.span_id:016x}-01")


def test_an_unsampled_caller_is_not_traced_and_its_context_goes_on():
    assert Sampler(1.0).begin(UNSAMPLED) == RequestTrace(UNSAMPLED.decode())


def test_without_tracing_a_valid_context_goes_on_as_it_came():
    assert PassOn().begin(SAMPLED) == RequestTrace(SAMPLED.decode())
    assert PassOn().begin(None) == UNTRACED


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_share_of_requests_is_traced(share: float):
    sampler = Sampler(share, rng=Random(7))
    traced = sum(sampler.begin(None).request is not None for _ in range(4000))
    assert abs(traced / 4000 - share) < 0.03


def test_ids_are_distinct():
    sampler = Sampler(1.0)
    ids = {trace.traceparent for trace in (sampler.begin(None) for _ in range(1000))}
    assert len(ids) == 1000


SPACE = LabelSpace({"llama": PoolLabels(frozenset({"v0"}), frozenset({"m"}))}, frozenset({"acme"}))
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
    first_byte=100.5,
    first_token=100.5,
    last_token=102.0,
    ended=102.5,
    prompt_tokens=30,
    cached_tokens=16,
    output_tokens=5,
    finish_reason="stop",
)


def spans_of(outcome: Outcome, trace: RequestTrace) -> dict[str, ReadableSpan]:
    exporter = InMemorySpanExporter()
    spans = Spans(exporter, SPACE, version="0.1.0", clock=lambda: 0.0)
    spans.settled(outcome, trace)
    spans.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def traced() -> RequestTrace:
    return Sampler(1.0, rng=Random(3)).begin(SAMPLED)


def test_a_traced_request_leaves_one_span_a_step():
    trace = traced()
    spans = spans_of(DONE, trace)
    assert list(spans) == ["/v1/chat/completions", "queue", "chat m", "relay"]
    assert trace.request is not None
    assert trace.engine is not None
    ids = [span.context for span in spans.values() if span.context]
    assert {context.trace_id for context in ids} == {TRACE_ID}
    assert len({context.span_id for context in ids}) == 4
    request, queue, engine, relay = spans.values()
    assert request.parent is not None
    assert (request.parent.span_id, ids[0].span_id) == (SPAN_ID, trace.request.span_id)
    assert ids[2].span_id == trace.engine.span_id
    for span in (queue, engine, relay):
        assert span.parent is not None
        assert span.parent.span_id == trace.request.span_id


def test_spans_last_as_long_as_their_steps():
    lasts = [
        round(((span.end_time or 0) - (span.start_time or 0)) / 1e9, 6)
        for span in spans_of(DONE, traced()).values()
    ]
    assert lasts == [2.5, 0.25, 2.25, 2.0]


def test_the_call_to_the_engine_says_what_the_gen_ai_conventions_name():
    engine = spans_of(DONE, traced())["chat m"]
    assert engine.kind is SpanKind.CLIENT
    assert dict(engine.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.usage.output_tokens": 5,
        "forebay.pool": "llama",
        "forebay.endpoint": "v0",
    }


def test_a_failed_request_is_an_error_by_its_code():
    broken = replace(DONE, status=502, finish=Finish.ENGINE_ERROR, error="engine_error")
    spans = spans_of(broken, traced())
    codes = [span.status.status_code for span in spans.values()]
    assert codes == [StatusCode.ERROR, StatusCode.UNSET, StatusCode.ERROR, StatusCode.UNSET]
    assert (spans["chat m"].attributes or {})["error.type"] == "engine_error"


def test_a_refused_request_has_no_span_for_what_never_was():
    refused = Outcome("r", "", Route.CHAT, "", status=401, finish=Finish.REJECTED)
    assert list(spans_of(refused, traced())) == ["/v1/chat/completions"]
    waited = replace(DONE, placed=None, first_byte=None, status=504, finish=Finish.TIMEOUT)
    assert list(spans_of(waited, traced())) == ["/v1/chat/completions", "queue"]


def test_no_name_of_a_callers_making_is_in_a_span():
    text = "canary\n\x1b[1m and a prompt"
    made_up = replace(
        DONE, request_id=text, pool=text, route=text, tenant=text, model=text, endpoint=text,
        error=text, finish_reason=text, trace=text,
    )  # fmt: skip
    told = "".join(span.to_json() for span in spans_of(made_up, traced()).values())
    assert "canary" not in told
    assert "prompt" not in told


def test_an_untraced_request_leaves_nothing():
    assert spans_of(DONE, UNTRACED) == {}
    assert spans_of(DONE, RequestTrace(UNSAMPLED.decode())) == {}


class Exporter(SpanExporter):
    """Says how each batch fared, when it is let."""

    def __init__(self, *results: SpanExportResult | Exception) -> None:
        self.results = iter(results)
        self.began, self.let = Semaphore(0), Semaphore(0)
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.began.release()
        self.let.acquire()
        result = next(self.results, SpanExportResult.SUCCESS)
        if isinstance(result, Exception):
            raise result
        if result is SpanExportResult.SUCCESS:
            self.spans += len(spans)
        return result


def test_spans_past_what_may_wait_are_counted():
    exporter = Exporter()
    spans = Spans(exporter, SPACE, interval=0.001)
    spans.settled(DONE, traced())
    exporter.began.acquire()
    for _ in range(MAX_WAITING + 2):
        spans.settled(DONE, traced())
    exporter.let.release(MAX_WAITING)
    spans.close()
    assert (spans.dropped, exporter.spans) == (2, 4 * (MAX_WAITING + 1))


def test_a_collector_that_is_away_is_logged_once_and_what_is_lost_is_counted(
    caplog: pytest.LogCaptureFixture,
):
    away = SpanExportResult.FAILURE
    exporter = Exporter(away, ConnectionError("canary"), away, SpanExportResult.SUCCESS)
    spans = Spans(exporter, SPACE, interval=0.001)
    with caplog.at_level("INFO"):
        for _ in range(4):
            spans.settled(DONE, traced())
            exporter.began.acquire()
            exporter.let.release()
        spans.close()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "spans cannot be sent, the collector of telemetry.otlp is away"),
        ("INFO", "spans are sent again"),
    ]
    assert (spans.dropped, exporter.spans) == (3, 4)


class Collector(ThreadingHTTPServer):
    """An OTLP/HTTP receiver on loopback."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.thread = Thread(target=self.serve_forever)
        self.thread.start()

    def server_close(self) -> None:
        self.shutdown()
        self.thread.join()
        super().server_close()


class CollectorHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Collector)
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        del format, args


def test_a_collector_gets_the_spans_over_http():
    with Collector() as collector:
        spans = otlp_spans(f"http://127.0.0.1:{collector.server_port}/", SPACE, version="0.1.0")
        spans.settled(DONE, traced())
        spans.close()
        ((path, request),) = collector.requests
    (resource,) = request.resource_spans
    (scope,) = resource.scope_spans
    names = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert (path, names["service.name"]) == ("/v1/traces", "forebay")
    assert scope.schema_url == SCHEMA_URL
    assert [span.name for span in scope.spans] == [
        "/v1/chat/completions",
        "queue",
        "chat m",
        "relay",
    ]
    assert {span.trace_id.hex() for span in scope.spans} == {f"{TRACE_ID:032x}"}
    tokens = {a.key: a.value.int_value for a in scope.spans[2].attributes}
    assert tokens["gen_ai.usage.output_tokens"] == 5


def test_the_sdk_is_not_loaded_without_an_address_to_send_to():
    modules = "forebay.gateway.telemetry.traces", "forebay.gateway.telemetry.metrics"
    program = (
        f"import sys, {', '.join(modules)}; print([m for m in sys.modules if 'opentelemetry' in m])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.strip() == b"[]"
