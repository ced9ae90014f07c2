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
    Overloaded,
    Rejected,
)
from forebay.scheduler.lifecycle import Event, State, advance
from forebay.scheduler.retry import Tries, again, may_retry

from .dialects import Seen, dialect_of
from .sse import Scanner

if TYPE_CHECKING:
    from forebay.adapters.base import Headers, Stream, Translation
    from forebay.policies.contracts import Placement, Request

    from .app import App
    from .intake import Inbound
    from .messages import Responder
    from .meter import Lease
    from .pools import Endpoint

MAX_ERROR_BODY = 64 << 10
COMMENT_AFTER = 15.0
"""Seconds without a byte after which a comment keeps an idle edge open."""
COMMENT = b": keep-alive\n\n"
RETRY_AFTER = 1.0


_ENDS = {
    Finish.COMPLETED: Event.COMPLETE,
    Finish.REJECTED: Event.REJECT,
    Finish.ENGINE_ERROR: Event.FAIL,
    Finish.TRUNCATED: Event.CUT,
    Finish.LEFT: Event.LEAVE,
    Finish.TIMEOUT: Event.EXPIRE,
    Finish.DRAINED: Event.DRAIN,
}


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
        "_held",
        "_held_bytes",
        "_inbound",
        "_itl",
        "_kind",
        "_last_bytes",
        "_placement",
        "_responder",
        "_scanner",
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
        self._scanner: Scanner | None = None
        self._seen: Seen | None = None
        self._kind = _NONE
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._status = 0
        self._type = b""
        self._sent_at = self._last_bytes = self._commented = 0.0
        self._settled = False
        self._itl = inbound.pool.itl
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
            trace=inbound.trace.traceparent,
        )

    # -- the way down ----------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Queue the call, or send it on at once."""
        pool = self._inbound.pool
        pool.budget.request(now)
        self._app.active.add(self)
        self._submit(self.request, now)

    def _submit(self, request: Request, now: float) -> None:
        self.request = request
        pool = self._inbound.pool
        try:
            placement = pool.dispatcher.submit(request, now)
        except Rejected as error:
            self._reject(error)
            return
        if placement is not None:
            self.placed(placement, now)
        else:
            if self._state is not State.QUEUED:  # where a retry stands already
                self._state = advance(self._state, _QUEUE)
            pool.waiting[request.id] = self

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
        try:
            translation = endpoint.adapter.translate(inbound.call)
        except InvalidRequest as error:
            self._attempt_failed(Verdict.MISSING_ROUTE, error)
            return
        self._translation = translation
        body = inbound.body.splice(translation.set, translation.drop)
        if translation.drop:
            self._app.stripped(inbound, translation.drop)
        headers = inbound.headers(translation.headers)
        self._kind, self._scanner = _NONE, None
        self._stream = endpoint.opener.open(
            inbound.call.method, translation.path, headers, body, self
        )

    def expired(self, now: float) -> None:
        """Give up waiting: the deadline has come and nothing could be placed."""
        waited = now - self.request.arrived
        self._reject(
            DeadlineExpired(
                f"no endpoint of pool '{self.request.pool}' could start this in {waited:.1f} s",
                retry_after=RETRY_AFTER,
            )
        )

    def refused(self, error: Rejected) -> None:
        """Give up waiting: a reload took away what it waits for."""
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
        elif content_type.startswith(b"text/event-stream"):
            self._kind = _EVENTS
            self._scanner = Scanner(self._dialect, strip_usage=self._inbound.strip_usage)
        else:
            self._kind = _HELD
            self._state = advance(self._state, _HOLD)

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
            self._broke_off(error)
        else:
            self._attempt_failed(Verdict.BROKEN, error, sent=sent)

    # -- streams ---------------------------------------------------------------------------------

    def _relay_events(self, data: bytes) -> None:
        scanner, outcome, now = self._scanner, self.outcome, self._app.now()
        assert scanner is not None
        before = scanner.events
        had_token = scanner.seen.token
        data = scanner.feed(data)
        if had_token:
            if scanner.events > before:
                self._itl.observe(now - self._last_token(), scanner.events - before)
                outcome.last_token = now
        elif scanner.seen.token:
            outcome.first_token = outcome.last_token = now
        self._last_bytes = now
        if not data:
            return
        outcome.bytes_out += len(data)
        if self._state is _STREAMING:
            self._responder.write(data)
            return
        self._start(now, data)

    def _last_token(self) -> float:
        last = self.outcome.last_token
        return self._last_bytes if last is None else last

    def _start(self, now: float, data: bytes) -> None:
        """Send the head with the first bytes; from here on nothing can be retried."""
        self._state = advance(self._state, _STREAM)
        self.outcome.first_byte = now
        self.outcome.status = self._status
        self._responder.start(self._status, self._head(), data)
        self._responder.forget_body()
        self._inbound.forget_body()
        if self._responder.slow and self._stream is not None:
            self._stream.pause()

    def _end_events(self) -> None:
        scanner, now = self._scanner, self._app.now()
        assert scanner is not None
        held = scanner.flush()
        complete = scanner.seen.done or scanner.blind
        if self._state is not _STREAMING:
            if complete and held:
                self._start(now, held)
                held = b""
            else:
                error = EngineFailed("the engine ended its stream before the first event")
                self._attempt_failed(Verdict.BROKEN, error, sent=True)
                return
        if complete:
            self._inbound.pool.succeeded(self._endpoint, now)
            self.outcome.bytes_out += len(held)
            self._responder.finish(held)
            failed = scanner.seen.error
            self._settle(Finish.ENGINE_ERROR if failed else _COMPLETED)
        else:
            self._broke_off(EngineFailed("the engine ended its stream without the end mark"), held)

    def _broke_off(self, error: ForebayError, held: bytes = b"") -> None:
        """End a stream that has begun and cannot be finished, with an error event of the route."""
        self.outcome.error = error.code
        self._judge(Verdict.BROKEN, error.message)
        self._say_in_stream(error, held)
        self._settle(Finish.TRUNCATED)

    def _say_in_stream(self, error: ForebayError, held: bytes = b"") -> None:
        """Say an error inside a stream, unless the engine has; close what cannot carry one."""
        scanner = self._scanner
        if scanner is None or scanner.blind:
            self._responder.abort()
            return
        if scanner.seen.error:
            self._responder.finish(held)
            return
        # A half event cannot be called back; the blank line ends it, so that the error is one.
        gap = b"" if scanner.at_boundary else b"\n\n"
        self._responder.finish(gap + self._dialect.event(error))

    # -- whole answers ---------------------------------------------------------------------------

    def _hold(self, data: bytes) -> None:
        self._last_bytes = self._app.now()
        self._held.append(data)
        self._held_bytes += len(data)
        self._app.buffered(len(data))
        if self._kind is _ERROR:
            if self._held_bytes > MAX_ERROR_BODY:
                self._close_stream()
                self._end_error()
        elif self._held_bytes > self._app.max_answer:
            self._kind = _RAW
            self.outcome.bytes_out += self._held_bytes
            self._start(self._last_bytes, self._take_held())

    def _take_held(self) -> bytes:
        held = self._held
        self._app.buffered(-self._held_bytes)
        self._held, self._held_bytes = [], 0
        return held[0] if len(held) == 1 else b"".join(held)

    def _end_held(self) -> None:
        now, outcome, body = self._app.now(), self.outcome, self._take_held()
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
        body, status = self._take_held(), self._status
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
        self._take_held()
        now = self._app.now()
        pool = self._inbound.pool
        # An engine's own words may quote the caller; its state and the log hold only the status.
        told = f"it answered {self._status}" if isinstance(error, EngineRefused) else error.message
        self._judge(verdict, told)
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
        final = _final(verdict, error, pool.name)
        blamed = Finish.REJECTED if isinstance(final, InvalidRequest) else Finish.ENGINE_ERROR
        self._answer_error(final, finish=blamed)

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
        limits = self._inbound.pool.section.timeouts
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
        if now > self.request.deadline:
            waited = now - self.request.arrived
            self._reject(DeadlineExpired(f"no answer had begun after {waited:.1f} s"))
        elif now - self._last_bytes > limits.first_byte:
            error = EngineFailed(f"the engine sent nothing for {limits.first_byte:g} s", status=504)
            self._attempt_failed(Verdict.BROKEN, error, sent=True)

    def _out_of_time(self, text: str) -> None:
        self._close_stream()
        self._broke_off(EngineFailed(text, status=504, code="engine_timeout"))

    def _comment(self, now: float) -> None:
        scanner = self._scanner
        if scanner is not None and scanner.at_boundary and not self._responder.slow:
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
        error = Overloaded(
            "the gateway is shutting down; send this again",
            status=503,
            code="draining",
            retry_after=RETRY_AFTER,
        )
        if self._state is _STREAMING:
            self._close_stream()
            self.outcome.error = error.code
            self._say_in_stream(error)
            self._settle(Finish.DRAINED)
        else:
            self._answer_error(error, finish=Finish.DRAINED)

    # -- settling --------------------------------------------------------------------------------

    def _head(self, error: ForebayError | None = None) -> list[tuple[bytes, bytes]]:
        return self._app.response_head(self._inbound, self.outcome, self._type, error)

    def _close_stream(self) -> None:
        """Stop the engine, its own way where closing the connection is not enough."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
            if stream.sent:
                self._app.abort(self._endpoint, self.request.id)

    def _release(self, now: float) -> None:
        placement, self._placement = self._placement, None
        if placement is not None:
            self._inbound.pool.release(placement, now)

    def _last_event(self, finish: Finish) -> Event:
        """Return the step that ends a call which finishes so."""
        if finish is Finish.ENGINE_ERROR and self._state is _STREAMING:
            return Event.CUT  # its own error event came after bytes had gone
        return _ENDS[finish]

    def _settle(self, finish: Finish) -> None:
        """Give everything back and write the outcome: once, whatever happens after."""
        if self._settled:
            return
        self._settled = True
        now, pool, outcome = self._app.now(), self._inbound.pool, self.outcome
        self._close_stream()
        if self._held:
            self._take_held()
        if self._state is _QUEUED:
            pool.waiting.pop(self.request.id, None)
            pool.dispatcher.leave(self.request)
        self._state = advance(self._state, self._last_event(finish))
        outcome.finish, outcome.ended = finish, now
        seen = self._scanner.seen if self._scanner is not None else self._seen
        if seen is not None:
            outcome.prompt_tokens = seen.prompt_tokens
            outcome.cached_tokens = seen.cached_tokens
            outcome.output_tokens = seen.output_tokens
            outcome.finish_reason = seen.finish_reason
        self.lease.settle(outcome)
        self._app.settled(self._inbound, outcome, seen)
        self._app.active.discard(self)
        self._release(now)


def _content_type(headers: Headers) -> bytes:
    for name, value in headers:
        if name == b"content-type":
            return value
    return b"application/octet-stream"


def _final(verdict: Verdict, error: ForebayError, pool: str) -> ForebayError:
    """Turn the last attempt's failure into what the caller is told."""
    if verdict is Verdict.FULL:
        return Overloaded(
            f"all endpoints of pool '{pool}' are full: {error.message}",
            retry_after=RETRY_AFTER,
        )
    if verdict is Verdict.MISSING_ROUTE:
        if isinstance(error, InvalidRequest) and error.status != 404:
            return error  # the adapter says what this engine cannot take
        return InvalidRequest(
            f"no endpoint of pool '{pool}' has this route", status=404, code="route_not_found"
        )
    if verdict is Verdict.MISCONFIGURED:
        return EngineFailed(
            "the engine refused the gateway's key or model; its operator has to look at this",
            code="engine_misconfigured",
        )
    if not isinstance(error, EngineRefused):
        # What went wrong names addresses: that is for the log.
        text = "cannot be reached" if isinstance(error, EngineUnreachable) else "broke off"
        status = 504 if error.status == 504 else 502
        return EngineFailed(f"an engine of pool '{pool}' {text}", status=status, code=error.code)
    return error
