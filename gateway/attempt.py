"""One attempt at a call: a placement, what was sent to its engine, and the answer as it comes.

The engine's stream pushes into it (`adapters.base.Sink`), and it tells its relay what became of
the answer: it began, it is whole, it failed, it broke off. What follows from that (another
attempt, an error, settling) is the relay's to decide; an attempt knows nothing of others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from forebay.adapters.base import Verdict
from forebay.policies.contracts import EngineFailed, EngineRefused, Finish, ForebayError, NotSent
from forebay.policies.experiments.answers import is_repeated

from .answer import Events, Held, events_of
from .answer_head import media_type
from .dialects import Seen
from .experiments.reading import said_in
from .failing import engines_retry_after, final
from .places import BAD_ANSWER, TOO_LONG, is_too_long
from .trials import GENERATING

if TYPE_CHECKING:
    from forebay.adapters.base import Headers, Stream, Translation
    from forebay.policies.contracts import Outcome, Placement

    from .app import App
    from .dialects import Dialect
    from .intake import Inbound
    from .messages import Responder
    from .pools import Endpoint
    from .relay import Relay

MAX_ERROR_BODY = 64 << 10
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
_COMPLETED = Finish.COMPLETED


class Attempt:
    """Carries one answer from an engine to the caller."""

    __slots__ = (
        "_app",
        "_commented",
        "_dialect",
        "_held",
        "_inbound",
        "_kind",
        "_relay",
        "_responder",
        "_retry_after",
        "_status",
        "_translation",
        "_type",
        "endpoint",
        "events",
        "last_bytes",
        "placement",
        "seen",
        "sent_at",
        "started",
        "stream",
    )

    def __init__(  # noqa: PLR0913 - what an attempt is of, and between whom
        self,
        app: App,
        relay: Relay,
        *,
        inbound: Inbound,
        responder: Responder,
        dialect: Dialect,
        placement: Placement,
        now: float,
    ) -> None:
        self._app = app
        self._relay = relay
        self._inbound = inbound
        self._responder = responder
        self._dialect = dialect
        self.placement = placement
        self.endpoint: Endpoint = inbound.pool.endpoints[placement.endpoint]
        self.stream: Stream | None = None
        """None before it is open, and when it has ended."""
        self.events: Events | None = None
        self.seen: Seen | None = None
        """What a whole answer said."""
        self.started = False
        """Bytes of it have gone to the caller."""
        self.sent_at = self.last_bytes = now
        self._commented = 0.0
        self._held = Held(app.buffered)
        self._kind = _NONE
        self._status = 0
        self._type = b""
        self._retry_after: float | None = None
        self._translation: Translation

    def open(self) -> None:
        """Send the request. Raises InvalidRequest where this engine cannot take it."""
        inbound, endpoint = self._inbound, self.endpoint
        self._translation = translation = endpoint.adapter.translate(inbound.call)
        members = translation.set
        if inbound.bound is not None:
            members = {**inbound.bound, **members}
        body = inbound.body.splice(members, translation.drop)
        if translation.drop and self._relay.outcome.attempts == 1:
            self._app.stripped(inbound, translation.drop)
        headers = inbound.headers(translation.headers)
        self.stream = endpoint.opener.open(
            inbound.call.method, translation.path, headers, body, self
        )

    @property
    def status(self) -> int:
        """What the engine answered; 0 before it has."""
        return self._status

    @property
    def sent(self) -> bool:
        """The whole request has gone out, and no end of the answer has come."""
        return self.stream is not None and self.stream.sent

    def close(self) -> None:
        """Stop the engine and let go of what it has sent."""
        self._held.take()
        self.stop()

    def stop(self) -> None:
        """Stop the engine, its own way where closing the connection is not enough."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()
            if stream.sent:
                self._app.abort(self.endpoint, self._inbound.call.request_id)

    def told(self, outcome: Outcome) -> Seen | None:
        """Write into the outcome what the answer said of itself, and return it."""
        seen = self.seen
        if self.events is not None:
            scanner = self.events.scanner
            seen, outcome.events = scanner.seen, scanner.events
        if seen is not None:
            outcome.prompt_tokens = seen.prompt_tokens
            outcome.cached_tokens = seen.cached_tokens
            outcome.output_tokens = seen.output_tokens
            outcome.finish_reason = seen.finish_reason
        return seen

    def _judge(self, verdict: Verdict, reason: str) -> None:
        self._inbound.pool.upkeep.judged(self.endpoint, verdict, reason, self._app.now())

    # -- adapters.base.Sink ----------------------------------------------------------------------

    def on_head(self, status: int, headers: Headers) -> None:
        """Decide what is done with the bytes that follow."""
        try:
            self._begin(status, headers)
        except Exception as error:  # noqa: BLE001 - see on_data
            self._relay.broke(error)

    def _begin(self, status: int, headers: Headers) -> None:
        self.last_bytes = self._app.now()
        self._status = status
        self._type = media = media_type(headers)
        if not 200 <= status < 300:
            self._kind = _ERROR
            self._retry_after = engines_retry_after(headers)
            self._relay.holding(self)
        elif media.startswith(b"text/event-stream"):
            self._kind = _EVENTS
            self.events = events_of(self._inbound, self._dialect, self._relay.outcome)
        else:
            self._kind = _HELD
            self._relay.holding(self)

    def on_data(self, data: bytes) -> None:
        """Relay, hold, or gather what came."""
        try:
            if self._kind is _EVENTS:
                self._relay_events(data)
            elif self._kind is _RAW:
                self.last_bytes = self._app.now()
                self._relay.outcome.bytes_out += len(data)
                self._responder.write(data)
            else:
                self._hold(data)
        except Exception as error:  # noqa: BLE001 - no engine's fault, and this caller's alone
            self._relay.broke(error)

    def on_end(self) -> None:
        """Finish the answer, or find out that it is none."""
        self.stream = None
        try:
            self._end()
        except Exception as error:  # noqa: BLE001 - see on_data
            self._relay.broke(error)

    def _end(self) -> None:
        kind = self._kind
        if kind is _EVENTS:
            self._end_events()
        elif kind is _HELD:
            self._end_held()
        elif kind is _RAW:
            self._inbound.pool.upkeep.succeeded(self.endpoint, self._app.now())
            self._responder.finish()
            self._relay.settle(_COMPLETED)
        else:
            self._end_error()

    def on_failure(self, error: EngineFailed) -> None:
        """Say that nothing came of it, or that the answer broke off."""
        try:
            self._fail(error)
        except Exception as fault:  # noqa: BLE001 - see on_data
            self._relay.broke(fault)

    def _fail(self, error: EngineFailed) -> None:
        sent = self.sent
        self.stream = None
        if isinstance(error, NotSent):
            self._relay.answer_error(error, finish=Finish.REJECTED)
        elif self.started:
            self._judge(Verdict.BROKEN, error.message)
            said = final(Verdict.BROKEN, error, self._inbound.pool.name)  # without the address
            self.end_with(said, Finish.TRUNCATED)
        else:
            self._relay.failed(self, Verdict.BROKEN, error, sent=sent)

    # -- streams ---------------------------------------------------------------------------------

    def _relay_events(self, data: bytes) -> None:
        events = self.events
        assert events is not None
        self.last_bytes = now = self._app.now()
        data = events.pass_on(data, now)
        if not data:
            return
        if self.started:
            self._responder.write(data)
        elif self._inbound.guarded and not events.scanner.seen.token:
            self._held.add(data)  # an answer without a token would go on elsewhere
        else:
            self._start(now, self._held.take() + data if self._held.size else data)

    def _start(self, now: float, data: bytes) -> None:
        """Send the head with the first bytes."""
        self._relay.starting(self, now)
        self._relay.outcome.status = self._status
        self._responder.start(self._status, self._relay.head(self._type), data)
        self.started = True
        self._responder.forget_body()
        self._inbound.forget_body()
        if self._responder.slow and self.stream is not None:
            self.stream.pause()

    def _end_events(self) -> None:
        events, now = self.events, self._app.now()
        assert events is not None
        held = events.scanner.flush()
        self._relay.outcome.bytes_out += len(held)
        if self._inbound.guarded and not self.started:
            held = self._held.take() + held
            if events.complete and not events.scanner.seen.error and self._relay.leave(BAD_ANSWER):
                return
        if not self.started:
            if not (events.complete and held):
                error = EngineFailed("the engine ended its stream before the first event")
                self._relay.failed(self, Verdict.BROKEN, error, sent=True)
                return
            self._start(now, held)
            held = b""
        if not events.complete:
            self.break_off(EngineFailed("the engine ended its stream without the end mark"), held)
            return
        self._inbound.pool.upkeep.succeeded(self.endpoint, now)
        self._responder.finish(held)
        self._relay.settle(Finish.ENGINE_ERROR if events.scanner.seen.error else _COMPLETED)

    def break_off(self, error: ForebayError, held: bytes = b"") -> None:
        """End a stream that has begun and cannot be finished, with an error event of the route."""
        self._judge(Verdict.BROKEN, error.message)
        self.end_with(error, Finish.TRUNCATED, held)

    def end_with(self, error: ForebayError, finish: Finish, held: bytes = b"") -> None:
        """Say an error inside a stream, or break off where none can be said."""
        self._relay.outcome.error = error.code
        words = None if self.events is None else self.events.last_words(error, held)
        if words is None:
            self._responder.abort()
        else:
            self._responder.finish(words)
        self._relay.settle(finish)

    def comment(self, now: float) -> None:
        """Keep an idle edge open, where a comment can stand."""
        if now - self._commented <= COMMENT_AFTER:
            return
        if self.events is not None and self.events.scanner.at_boundary:
            self._commented = now
            self._responder.write(COMMENT)

    # -- whole answers ---------------------------------------------------------------------------

    def _hold(self, data: bytes) -> None:
        self.last_bytes = now = self._app.now()
        size = self._held.add(data)
        if self._kind is _ERROR:
            if size > MAX_ERROR_BODY:
                self.stop()
                self._end_error()
        elif size > self._app.max_answer or not (self._held.fits or self._rewritten()):
            self._kind = _RAW
            self._relay.outcome.bytes_out += size
            self._start(now, self._held.take())

    def _rewritten(self) -> bool:
        """Whether the answer must be whole to be put into the route's shape."""
        return self._translation.answer is not None

    def _end_held(self) -> None:
        now, outcome, body = self._app.now(), self._relay.outcome, self._held.take()
        rewrite = self._translation.answer
        if rewrite is not None:
            try:
                body = rewrite(body)
            except ValueError as error:
                failure = EngineFailed(f"the engine's answer cannot be read: {error}")
                self._relay.failed(self, Verdict.BROKEN, failure, sent=True)
                return
        self.seen = seen = Seen()
        if len(body) <= 1 << 20:
            self._dialect.read(body, seen)
        else:
            seen.token = True  # or not: nobody looked
        self._inbound.pool.upkeep.succeeded(self.endpoint, now)
        if self._inbound.guarded and self._is_bad(body, seen) and self._relay.leave(BAD_ANSWER):
            return
        if self._inbound.copy is not None:
            self._inbound.copy.clear()
            self._inbound.copy.add(body)
        outcome.first_byte = outcome.first_token = outcome.last_token = now
        outcome.status = self._status
        outcome.bytes_out = len(body)
        self._responder.send(self._status, self._relay.head(self._type), body)
        self._relay.settle(_COMPLETED)

    def _is_bad(self, body: bytes, seen: Seen) -> bool:
        """Whether a whole answer is none: empty, or one token over and over."""
        route = self._inbound.call.route
        if not seen.token:
            return route in GENERATING
        return is_repeated(said_in(route, body, streamed=False).text)

    def _end_error(self) -> None:
        """Read an engine's error and decide whose fault it is."""
        body, status = self._held.take(), self._status
        read = self.endpoint.adapter.read_error(status, body)
        error = EngineRefused(
            read.message or f"the engine answered {status}",
            param=read.param,
            retry_after=self._retry_after,
        )
        error.type = read.type
        error.code = read.code or error.code
        if read.verdict is not Verdict.NEUTRAL:
            self._relay.failed(self, read.verdict, error, sent=True)
            return
        error.status = status
        shaped = self._dialect.shaped(body)
        self._judge(Verdict.NEUTRAL, "")
        if self._inbound.places and is_too_long(read.message) and self._relay.leave(TOO_LONG):
            return
        self._relay.answer_error(error, body=body if shaped else None, finish=Finish.REJECTED)
