"""One call, from its body to its settlement: queue, placement, engine, bytes, and back.

Everything here is a callback on the event loop. The caller's connection tells a relay that the
caller left or is slow (`messages.Guest`), the engine's stream pushes the answer into it
(`adapters.base.Sink`), the pool says that its turn has come or its deadline (`placed`, `expired`),
and `check` is called a few times a second for the time limits. `scheduler.lifecycle` is the table
of what may follow what.

A relay is settled exactly once, by `_settle`, which is synchronous: the place is free, the memory
given back and the outcome written before anything else can happen. Retries are decided in one
place, `_attempt_failed`, and only while nothing has gone to the caller.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from forebay.adapters.base import Verdict
from forebay.policies.contracts import (
    DeadlineExpired,
    EngineFailed,
    EngineRefused,
    EngineUnreachable,
    Finish,
    ForebayError,
    InvalidRequest,
    Outcome,
    Rejected,
)
from forebay.scheduler.lifecycle import Event, State, advance
from forebay.scheduler.retry import Tries, again, may_retry

from .answer import Events, Held
from .dialects import Seen, dialect_of
from .failing import final, last_event, not_started, shutting_down, told

if TYPE_CHECKING:
    from forebay.adapters.base import Headers, Stream, Translation
    from forebay.gateway.config.sections import Timeouts
    from forebay.policies.contracts import Placement, Request

    from .app import App
    from .endpoint import Endpoint
    from .intake import Inbound
    from .messages import Responder
    from .meter import Lease

MAX_ERROR_BODY = 64 << 10
_SHORT_BODY = 64 << 10
COMMENT_AFTER = 15.0
"""Seconds without a byte after which a comment keeps an idle edge open."""
COMMENT = b": keep-alive\n\n"


class Kind(StrEnum):
    """What is being done with the answer's bytes."""

    NONE = "none"
    HELD = "held"
    """Gathered whole, so that a cut one can be retried."""
    EVENTS = "events"
    """A stream of server-sent events, relayed as it comes."""
    RAW = "raw"
    """Too long to hold: relayed as it comes, unread."""
    ERROR = "error"


# Reading an enum's member costs 0.1 us in Python 3.11, and a call reads thirty of them.
_NONE, _HELD, _EVENTS, _RAW, _ERROR = Kind
_RECEIVING, _QUEUED, _STREAMING = State.RECEIVING, State.QUEUED, State.STREAMING
_QUEUE, _PLACE, _HOLD, _STREAM = Event.QUEUE, Event.PLACE, Event.HOLD, Event.STREAM
_COMPLETED = Finish.COMPLETED


class Relay:
    """Carries one call."""

    __slots__ = (
        "_app",
        "_commented",
        "_dialect",
        "_endpoint",
        "_events",
        "_held",
        "_inbound",
        "_kind",
        "_last_bytes",
        "_placement",
        "_responder",
        "_seen",
        "_sent_at",
        "_settled",
        "_state",
        "_status",
        "_stream",
        "_translation",
        "_tries",
        "_type",
        "lease",
        "outcome",
        "request",
    )

    def __init__(self, app: App, inbound: Inbound, responder: Responder) -> None:
        self._app = app
        self._inbound = inbound
        self._responder = responder
        self._state = _RECEIVING
        self._dialect = dialect_of(inbound.request.route)
        self._tries = Tries()
        self._placement: Placement | None = None
        self._stream: Stream | None = None
        self._translation: Translation | None = None
        self._endpoint: Endpoint
        self._events: Events | None = None
        self._seen: Seen | None = None
        self._kind = _NONE
        self._held = Held(app.buffered)
        self._status = 0
        self._type = b""
        self._sent_at = self._last_bytes = self._commented = 0.0
        self._settled = False
        self.lease: Lease
        self.request = request = inbound.request
        self.outcome = Outcome(
            request_id=request.id,
            pool=request.pool,
            route=request.route,
            tenant=request.tenant,
            model=inbound.model,
            stream=request.stream,
            received=request.arrived,
            bytes_in=request.body_bytes,
            sla=request.sla,
            predicted_tokens=request.output_tokens_estimate if inbound.pool.predicts else 0,
            trace=inbound.trace.traceparent,
        )

    # -- the way down ----------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Queue the call, or send it on at once."""
        pool = self._inbound.pool
        pool.budget.request(now)
        self._app.active.add(self)
        self._submit(self.request, now)

    def granted(self) -> None:
        """See meter.Asking."""
        self.begin(self._app.now())

    def _submit(self, request: Request, now: float) -> None:
        self.request = request
        try:
            self._inbound.pool.submit(self, request, now)
        except Rejected as error:
            self._reject(error)

    def queued(self) -> None:
        """Wait until some endpoint has room."""
        if self._state is not _QUEUED:  # where a retry stands already
            self._state = advance(self._state, _QUEUE)

    def placed(self, placement: Placement, now: float) -> None:
        """Send the call to the endpoint that was chosen for it."""
        self._state = advance(self._state, _PLACE)
        self._placement = placement
        inbound, outcome = self._inbound, self.outcome
        self._endpoint = endpoint = inbound.pool.endpoints[placement.endpoint]
        outcome.endpoint = placement.endpoint
        outcome.attempts += 1
        if outcome.placed is None:
            outcome.placed = now
        self._sent_at = self._last_bytes = now
        pool = inbound.pool
        if pool.recallable is not None and self.request.stream:
            pool.recallable[self.request.id] = self
        inbound.call.priority = pool.priority(self.request)
        try:
            translation = endpoint.adapter.translate(inbound.call)
        except InvalidRequest as error:
            self._attempt_failed(Verdict.MISSING_ROUTE, error)
            return
        self._translation = translation
        members = translation.set
        if inbound.bound is not None:
            members = {**inbound.bound, **members}
        body = inbound.body.splice(members, translation.drop)
        if translation.drop and outcome.attempts == 1:
            self._app.stripped(inbound, translation.drop)
        headers = inbound.headers(translation.headers)
        self._kind, self._events = _NONE, None
        self._stream = endpoint.opener.open(
            inbound.call.method, translation.path, headers, body, self
        )

    def expired(self, now: float) -> None:
        """Give up waiting: the deadline has come and nothing could be placed."""
        self._reject(not_started(self.request.pool, now - self.request.arrived))

    def recalled(self) -> None:
        """Wait again: a higher class got the place, and no byte of the answer had come."""
        self._state = advance(self._state, Event.RECALL)
        self._close_stream()
        self._placement = None
        self.outcome.attempts -= 1
        self.outcome.placed = None

    def refused(self, error: Rejected) -> None:
        """Give up waiting: displaced, too late to start, or a reload took away what it is for."""
        self._reject(error)

    # -- the way up: adapters.base.Sink ----------------------------------------------------------

    def on_head(self, status: int, headers: Headers) -> None:
        """Decide what is done with the bytes that follow."""
        self._last_bytes = self._app.now()
        self._status = status
        self._type = content_type = _content_type(headers)
        if not 200 <= status < 300:
            self._kind = _ERROR
            self._state = advance(self._state, _HOLD)
            self._began()
        elif content_type.startswith(b"text/event-stream"):
            self._kind = _EVENTS
            inbound = self._inbound
            self._events = Events(
                self._dialect, self.outcome, inbound.pool.itl, strip_usage=inbound.strip_usage
            )
        else:
            self._kind = _HELD
            self._state = advance(self._state, _HOLD)
            self._began()

    def on_data(self, data: bytes) -> None:
        """Relay, hold, or gather what came."""
        if self._kind is _EVENTS:
            self._relay_events(data)
        elif self._kind is _RAW:
            self._last_bytes = self._app.now()
            self.outcome.bytes_out += len(data)
            self._responder.write(data)
        else:
            self._hold(data)

    def on_end(self) -> None:
        """Finish the answer, or find out that it is none."""
        self._stream = None
        kind = self._kind
        if kind is _EVENTS:
            self._end_events()
        elif kind is _HELD:
            self._end_held()
        elif kind is _RAW:
            self._inbound.pool.succeeded(self._endpoint, self._app.now())
            self._responder.finish()
            self._settle(_COMPLETED)
        else:
            self._end_error()

    def on_failure(self, error: EngineFailed) -> None:
        """Try elsewhere, or say that the answer broke off."""
        sent = self._stream is not None and self._stream.sent
        self._stream = None
        if error.code == "internal_error":  # ours: no other endpoint would fare better
            self._answer_error(error, finish=Finish.ENGINE_ERROR)
            return
        if self._state is _STREAMING:
            self._judge(Verdict.BROKEN, error.message)
            said = final(Verdict.BROKEN, error, self.request.pool)  # without the engine's address
            self._end_stream(said, b"", Finish.TRUNCATED)
        else:
            self._attempt_failed(Verdict.BROKEN, error, sent=sent)

    # -- streams ---------------------------------------------------------------------------------

    def _relay_events(self, data: bytes) -> None:
        events = self._events
        assert events is not None
        self._last_bytes = now = self._app.now()
        data = events.pass_on(data, now)
        if not data:
            return
        if self._state is _STREAMING:
            self._responder.write(data)
        else:
            self._start(now, data)

    def _start(self, now: float, data: bytes) -> None:
        """Send the head with the first bytes; from here on nothing can be retried."""
        self._state = advance(self._state, _STREAM)
        self._began()
        self.outcome.first_byte = now
        self.outcome.status = self._status
        self._responder.start(self._status, self._head(), data)
        self._responder.forget_body()
        self._inbound.forget_body()
        if self._responder.slow and self._stream is not None:
            self._stream.pause()

    def _end_events(self) -> None:
        events, now = self._events, self._app.now()
        assert events is not None
        held = events.scanner.flush()
        self.outcome.bytes_out += len(held)
        if self._state is not _STREAMING:
            if not (events.complete and held):
                error = EngineFailed("the engine ended its stream before the first event")
                self._attempt_failed(Verdict.BROKEN, error, sent=True)
                return
            self._start(now, held)
            held = b""
        if not events.complete:
            error = EngineFailed("the engine ended its stream without the end mark")
            self._broke_off(error, held)
            return
        self._inbound.pool.succeeded(self._endpoint, now)
        self._responder.finish(held)
        self._settle(Finish.ENGINE_ERROR if events.scanner.seen.error else _COMPLETED)

    def _broke_off(self, error: ForebayError, held: bytes = b"") -> None:
        """End a stream that has begun and cannot be finished, with an error event of the route."""
        self._judge(Verdict.BROKEN, error.message)
        self._end_stream(error, held, Finish.TRUNCATED)

    def _end_stream(self, error: ForebayError, held: bytes, finish: Finish) -> None:
        """Say an error inside a stream, or break off where none can be said."""
        self.outcome.error = error.code
        events = self._events
        words = None if events is None else events.last_words(error, held)
        if words is None:
            self._responder.abort()
        else:
            self._responder.finish(words)
        self._settle(finish)

    # -- whole answers ---------------------------------------------------------------------------

    def _hold(self, data: bytes) -> None:
        self._last_bytes = now = self._app.now()
        size = self._held.add(data)
        if self._kind is _ERROR:
            if size > MAX_ERROR_BODY:
                self._close_stream()
                self._end_error()
        elif size > self._app.max_answer or not (self._held.fits or self._rewritten()):
            self._kind = _RAW
            self.outcome.bytes_out += size
            self._start(now, self._held.take())

    def _rewritten(self) -> bool:
        """Whether the answer must be whole to be put into the route's shape."""
        return self._translation is not None and self._translation.answer is not None

    def _end_held(self) -> None:
        now, outcome, body = self._app.now(), self.outcome, self._held.take()
        translation = self._translation
        if translation is not None and translation.answer is not None:
            try:
                body = translation.answer(body)
            except ValueError as error:
                failure = EngineFailed(f"the engine's answer cannot be read: {error}")
                self._attempt_failed(Verdict.BROKEN, failure, sent=True)
                return
        seen = Seen()
        if len(body) <= 1 << 20:
            self._dialect.read(body, seen)
        self._seen = seen
        self._inbound.pool.succeeded(self._endpoint, now)
        outcome.first_byte = outcome.first_token = outcome.last_token = now
        outcome.status = self._status
        outcome.bytes_out = len(body)
        self._responder.send(self._status, self._head(), body)
        self._settle(_COMPLETED)

    def _end_error(self) -> None:
        """Read an engine's error and decide whose fault it is."""
        body, status = self._held.take(), self._status
        read = self._endpoint.adapter.read_error(status, body)
        error = EngineRefused(read.message or f"the engine answered {status}", param=read.param)
        error.type = read.type
        error.code = read.code or error.code
        if read.verdict is Verdict.NEUTRAL:
            error.status = status
            shaped = self._dialect.shaped(body)
            self._judge(Verdict.NEUTRAL, "")
            self._answer_error(error, body=body if shaped else None, finish=Finish.REJECTED)
            return
        self._attempt_failed(read.verdict, error, sent=True)

    # -- failing ---------------------------------------------------------------------------------

    def _attempt_failed(self, verdict: Verdict, error: ForebayError, *, sent: bool = False) -> None:
        """Decide on a retry: the only place that does."""
        self._close_stream()
        self._held.take()
        now = self._app.now()
        pool = self._inbound.pool
        self._judge(verdict, told(error, self._status))
        self._tries.ended(verdict, sent=sent)
        wider = again(self.request, self._endpoint.name)
        self._release(now)
        if self._settled:
            return
        elsewhere = pool.dispatcher.could_serve(wider, now)
        refused = pool.budget.refused
        if may_retry(
            verdict,
            tries=self._tries,
            attempts=pool.section.retry.attempts,
            begun=False,
            elsewhere=elsewhere,
            deadline=self.request.deadline,
            now=now,
            budget=pool.budget,
        ):
            self._state = advance(self._state, Event.RETRY)
            self._submit(wider, now)
            return
        if pool.budget.refused > refused:
            self._app.observer.retry_refused(pool.name)
        answer = final(verdict, error, pool.name)
        blamed = Finish.REJECTED if isinstance(answer, InvalidRequest) else Finish.ENGINE_ERROR
        self._answer_error(answer, finish=blamed)

    def _judge(self, verdict: Verdict, reason: str) -> None:
        self._inbound.pool.judged(self._endpoint, verdict, reason, self._app.now())

    def _reject(self, error: Rejected) -> None:
        finish = Finish.TIMEOUT if isinstance(error, DeadlineExpired) else Finish.REJECTED
        self._answer_error(error, finish=finish)

    def _answer_error(
        self, error: ForebayError, *, finish: Finish, body: bytes | None = None
    ) -> None:
        """Give an error as the whole answer."""
        if self._settled:
            return
        outcome = self.outcome
        outcome.status, outcome.error = error.status, error.code
        if body is None:
            body = self._dialect.body(error)
        outcome.bytes_out = len(body)
        self._type = b"application/json"
        self._responder.send(error.status, self._head(error), body)
        self._settle(finish)

    # -- time, leaving, draining -----------------------------------------------------------------

    def check(self, now: float) -> None:
        """Hold the call to its time limits."""
        state = self._state
        if state is _QUEUED:
            return  # the pool expires what waits
        limits = self._inbound.timeouts or self._inbound.pool.section.timeouts
        if state is _STREAMING:
            if now - self._sent_at > limits.total:
                self._out_of_time(f"the answer took longer than {limits.total:g} s")
            elif self._responder.slow:
                self._last_bytes = now  # it is the caller that nothing can be sent to
            elif now - self._last_bytes > limits.idle:
                self._out_of_time(f"the engine sent nothing for {limits.idle:g} s")
            elif now - self._last_bytes < COMMENT_AFTER:
                self._endpoint.health.good_bytes(self._last_bytes)
            elif now - self._commented > COMMENT_AFTER:
                self._comment(now)
            return
        self._check_start(now, limits)

    def _check_start(self, now: float, limits: Timeouts) -> None:
        """Hold the call to the limits that count until its first byte."""
        if now > self.request.deadline:
            waited = now - self.request.arrived
            self._reject(DeadlineExpired(f"no answer had begun after {waited:.1f} s"))
        elif self._is_long_connecting(now):
            error = EngineUnreachable(f"no connection within {limits.connect:g} s")
            self._attempt_failed(Verdict.BROKEN, error)
        elif now - self._last_bytes > limits.first_byte:
            error = EngineFailed(f"the engine sent nothing for {limits.first_byte:g} s", status=504)
            self._attempt_failed(Verdict.BROKEN, error, sent=True)

    def _is_long_connecting(self, now: float) -> bool:
        """Whether a class's own time to connect is over; the pool's is kept by its connections.

        A long body may be under way when it looks as if nothing was sent: those are left to the
        pool's limit.
        """
        own, stream = self._inbound.timeouts, self._stream
        return (
            own is not None
            and stream is not None
            and not stream.sent
            and self.request.body_bytes <= _SHORT_BODY
            and now - self._sent_at > own.connect
        )

    def _out_of_time(self, text: str) -> None:
        self._close_stream()
        self._broke_off(EngineFailed(text, status=504, code="engine_timeout"))

    def _comment(self, now: float) -> None:
        events = self._events
        if events is not None and events.scanner.at_boundary:
            self._commented = now
            self._responder.write(COMMENT)

    def caller_left(self) -> None:
        """Stop the engine and settle: nobody is there any more."""
        self.outcome.status = self.outcome.status or 499
        self._settle(Finish.LEFT)

    def caller_slow(self) -> None:
        """See messages.Guest."""
        if self._stream is not None:
            self._stream.pause()

    def caller_ready(self) -> None:
        """See messages.Guest."""
        if self._stream is not None:
            self._stream.resume()

    def drained(self) -> None:
        """End what the drain limit has left."""
        self._stop(shutting_down())

    def revoked(self, error: Rejected) -> None:
        """See meter.Asking."""
        self._stop(error)

    def _stop(self, error: ForebayError) -> None:
        if self._state is _STREAMING:
            self._close_stream()
            self._end_stream(error, b"", Finish.DRAINED)
        else:
            self._answer_error(error, finish=Finish.DRAINED)

    # -- settling --------------------------------------------------------------------------------

    def _head(self, error: ForebayError | None = None) -> list[tuple[bytes, bytes]]:
        head = self._app.response_head(self._inbound, self.outcome, self._type, error)
        head += self.lease.headers()
        return head

    def _close_stream(self) -> None:
        """Stop the engine, its own way where closing the connection is not enough."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
            if stream.sent:
                self._app.abort(self._endpoint, self.request.id)

    def _began(self) -> None:
        if self._inbound.pool.recallable is not None and self._placement is not None:
            self._inbound.pool.began(self._placement)

    def _release(self, now: float, outcome: Outcome | None = None) -> None:
        placement, self._placement = self._placement, None
        if placement is not None:
            self._inbound.pool.release(placement, now, outcome)

    def _settle(self, finish: Finish) -> None:
        """Give everything back and write the outcome: once, whatever happens after."""
        if self._settled:
            return
        self._settled = True
        now, pool, outcome = self._app.now(), self._inbound.pool, self.outcome
        self._close_stream()
        self._held.take()
        if self._state is _QUEUED:
            pool.waiting.pop(self.request.id, None)
            pool.dispatcher.leave(self.request)
        self._state = advance(self._state, last_event(self._state, finish))
        outcome.finish, outcome.ended = finish, now
        seen = self._seen
        if self._events is not None:
            scanner = self._events.scanner
            seen, outcome.events = scanner.seen, scanner.events
        if seen is not None:
            outcome.prompt_tokens = seen.prompt_tokens
            outcome.cached_tokens = seen.cached_tokens
            outcome.output_tokens = seen.output_tokens
            outcome.finish_reason = seen.finish_reason
        self.lease.settle(outcome)
        self._app.settled(self._inbound, outcome, seen)
        self._app.active.discard(self)
        self._release(now, outcome)


def _content_type(headers: Headers) -> bytes:
    for name, value in headers:
        if name == b"content-type":
            return value
    return b"application/octet-stream"
