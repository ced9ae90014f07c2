"""Spans of traced requests, built from their outcomes and sent by OTLP over HTTP.

    request                  received to the last byte
    ├── queue                received to placed
    ├── chat MODEL           placed to the end: the call to the engine; its own spans hang here
    └── relay                first byte to last byte

Nothing is built on the loop: it only appends, and a thread does the rest in small slices. Loaded
only where `telemetry.otlp` is set, since the SDK takes 100 ms to import.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from forebay.policies.contracts import Finish, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.policies.contracts import Outcome

    from .labels import LabelSpace, Names
    from .traces import RequestTrace, TraceContext

logger = logging.getLogger(__name__)

MAX_WAITING = 2048
"""Traced requests whose spans are not sent yet; more are dropped and counted."""
BATCH = 32
"""Requests whose spans are sent together: encoding more would hold the interpreter for too long."""
SLICE = 8
"""Requests built before the thread lets go of the interpreter (about 0.5 ms)."""
# The gen_ai names are still in development: these are those of semantic conventions 1.41.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
_OPERATIONS: dict[str, str] = {
    Route.CHAT: "chat",
    Route.RESPONSES: "chat",
    Route.MESSAGES: "chat",
    Route.COMPLETIONS: "text_completion",
    Route.EMBEDDINGS: "embeddings",
}
_Attributes = dict[str, str | int | float | bool | list[str]]
_FAILED = frozenset({Finish.ENGINE_ERROR, Finish.TRUNCATED, Finish.TIMEOUT})


class Spans:
    """Takes settled requests from the loop; builds and sends their spans in a thread.

    One bounded queue and one thread, where the SDK's batch processor would put a second queue
    behind it that loses spans uncounted. A collector that is away is logged once, not each time.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        labels: LabelSpace,
        *,
        version: str = "",
        clock: Callable[[], float] = time.monotonic,
        interval: float = 1.0,
    ) -> None:
        """`clock` is the one that the outcomes' times come from."""
        self.dropped = 0
        """Traced requests whose spans were lost."""
        self.labels = labels
        """A reload replaces it."""
        self._exporter = exporter
        self._builder = _Builder(version)
        self._clock = clock
        self._interval = interval
        self._reached = True
        self._waiting: deque[tuple[Outcome, RequestTrace]] = deque()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="forebay-spans", daemon=True)
        self._thread.start()

    def settled(self, outcome: Outcome, trace: RequestTrace) -> None:
        """Remember how one request ended, if it is traced."""
        if trace.request is None:
            return
        if len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        self._waiting.append((outcome, trace))

    def close(self, timeout: float = 5.0) -> None:
        """Send what waits, for at most `timeout` seconds, and stop."""
        self._stop.set()
        self._thread.join(timeout)
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._send_all()
        self._send_all()

    def _send_all(self) -> None:
        while self._waiting:
            count = min(BATCH, len(self._waiting))
            reached = self._export(self._build(count))
            if not reached:
                self.dropped += count
            if reached != self._reached:
                self._reached = reached
                self._tell()
            if not reached and self._stop.is_set():
                self.dropped += len(self._waiting)
                return

    def _build(self, count: int) -> list[ReadableSpan]:
        offset = time.time_ns() - int(self._clock() * 1e9)
        built: list[ReadableSpan] = []
        for number in range(1, count + 1):
            outcome, trace = self._waiting.popleft()
            built += self._builder.build(outcome, trace, self.labels.names(outcome), offset)
            if number % SLICE == 0:
                self._stop.wait(0.001)
        return built

    def _export(self, spans: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - whatever a foreign exporter raises, spans are lost
            return False

    def _tell(self) -> None:
        if self._reached:
            logger.info("spans are sent again", extra={"requests_lost": self.dropped})
        else:
            logger.warning("spans cannot be sent, the collector of telemetry.otlp is away")


def otlp_spans(url: str, labels: LabelSpace, *, version: str) -> Spans:
    """Send spans to the collector at `url`, as http://localhost:4318."""
    endpoint = url if url.endswith("/v1/traces") else url.rstrip("/") + "/v1/traces"
    # It logs each attempt; what matters is said above.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    return Spans(OTLPSpanExporter(endpoint=endpoint, timeout=4), labels, version=version)


@dataclass(frozen=True, slots=True)
class _Step:
    """One span's name, ids and Unix nanoseconds."""

    name: str
    ids: TraceContext
    start: int
    end: int


class _Builder:
    """Turns one outcome into spans."""

    def __init__(self, version: str) -> None:
        self._resource = Resource.create({"service.name": "forebay", "service.version": version})
        self._scope = InstrumentationScope("forebay", version, SCHEMA_URL)

    def build(
        self, o: Outcome, trace: RequestTrace, names: Names, offset: int
    ) -> Iterator[ReadableSpan]:
        """Build one span a step; `offset` turns the outcome's times into Unix nanoseconds."""
        request, engine = trace.request, trace.engine
        assert request is not None
        assert engine is not None
        received, ended = _ns(o.received, offset), _ns(o.ended, offset)
        yield self._span(
            _Step(names.route or "request", request, received, ended),
            kind=SpanKind.SERVER,
            attributes=_request_attributes(o, names),
            failed=o.status >= 500 or o.finish in _FAILED,
        )
        placed = ended if o.placed is None else _ns(o.placed, offset)
        if o.pool:
            yield self._span(_Step("queue", _below(request, 1), received, placed))
        if o.placed is not None:
            yield self._span(
                _Step(f"{_operation(o)} {names.model}".rstrip(), engine, placed, ended),
                kind=SpanKind.CLIENT,
                attributes=_engine_attributes(o, names),
                failed=o.finish in _FAILED,
            )
        if o.first_byte is not None:
            first = _ns(o.first_byte, offset)
            yield self._span(_Step("relay", _below(request, 2), first, ended))

    def _span(
        self,
        step: _Step,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: _Attributes | None = None,
        failed: bool = False,
    ) -> ReadableSpan:
        # The SDK would have spans started and ended as things happen; ours are told afterwards,
        # with ids that were given out at the start.
        ids = step.ids
        return ReadableSpan(
            name=step.name,
            context=_context(ids.trace_id, ids.span_id),
            parent=_context(ids.trace_id, ids.parent_id) if ids.parent_id else None,
            resource=self._resource,
            attributes=attributes or {},
            kind=kind,
            status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
            start_time=step.start,
            end_time=max(step.start, step.end),
            instrumentation_scope=self._scope,
        )


def _request_attributes(o: Outcome, names: Names) -> _Attributes:
    said: _Attributes = {
        "http.route": names.route,
        "forebay.pool": names.pool,
        "forebay.tenant": names.tenant,
        "forebay.finish": names.finish,
        "forebay.attempts": o.attempts,
    }
    if o.status:
        said["http.response.status_code"] = o.status
    if names.error:
        said["error.type"] = names.error
    if o.experiment:
        said |= {"forebay.experiment": o.experiment, "forebay.arm": o.arm}
    if o.moved:
        said["forebay.moved"] = o.moved
    return said


def _engine_attributes(o: Outcome, names: Names) -> _Attributes:
    said: _Attributes = {
        "gen_ai.operation.name": _operation(o),
        "gen_ai.request.model": names.model,
        "gen_ai.request.stream": o.stream,
        "forebay.pool": names.pool,
        "forebay.endpoint": names.endpoint,
    }
    counts = {
        "gen_ai.usage.input_tokens": o.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": o.cached_tokens,
        "gen_ai.usage.output_tokens": o.output_tokens,
    }
    said.update({name: count for name, count in counts.items() if count is not None})
    if names.finish_reason:
        said["gen_ai.response.finish_reasons"] = [names.finish_reason]
    if o.first_byte is not None and o.placed is not None:
        said["gen_ai.response.time_to_first_chunk"] = o.first_byte - o.placed
    if names.error:
        said["error.type"] = names.error
    return said


def _operation(o: Outcome) -> str:
    return _OPERATIONS.get(o.route, "request")


def _below(request: TraceContext, number: int) -> TraceContext:
    # Nobody needed this step's id before, so it is made now, from the request's own.
    span_id = (request.span_id + number) % 2**64 or number
    return replace(request, span_id=span_id, parent_id=request.span_id)


def _context(trace_id: int, span_id: int) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags)


def _ns(seconds: float, offset: int) -> int:
    return int(seconds * 1e9) + offset
