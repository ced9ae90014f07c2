"""The application: where a request's path begins.

    protocol     reads a message off a connection and asks `App.admit` about its head
    App.admit    route, key, room in memory                                  404 405 401 429
    App.serve    local answers (models, health, metrics), or:
    Preparation  body -> Inbound (model, pool, Request)                      400 403 404 415
    meter        reserve(request) -> lease, now or by callback               429 503
    Relay        queue -> placement -> Attempt: engine -> bytes back         429 502 503 504
    App.settled  the one outcome: metrics, access log, trace

Where a token has to be verified, a long body read or a prompt cut into tokens first, the request
waits as a `Verifying`, a `LongReading` or a `Naming`; they come back to `App.admitted`, `App.whole`
or `App.named`. `process` makes the parts and puts them together here.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from forebay.policies.contracts import (
    Finish,
    Forbidden,
    ForebayError,
    InvalidRequest,
    Outcome,
    Overloaded,
    Rejected,
    Route,
    Unauthorized,
)

from . import routes
from .dialects import dialect_of_path
from .failing import retry_after, shutting_down
from .ids import Ids, callers_id
from .keys import FOREVER
from .long_reading import LongReading
from .messages import Refusal
from .naming import Naming
from .preparation import Preparation
from .relay import Relay
from .telemetry.traces import UNTRACED
from .tokens import Unverified, Verifying
from .wire import LARGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forebay.gateway.config.sections import Config

    from .dialects import Seen
    from .endpoint import Endpoint
    from .intake import Inbound
    from .keys import Grant, Keys
    from .local import LocalAnswers
    from .messages import Guest, Message, Responder
    from .meter import Meter
    from .pools import Pool
    from .telemetry.traces import RequestTrace, Tracing
    from .wire import Body


logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Takes note of what happens; never waits. The telemetry implements it."""

    tracing: Tracing

    def settled(self, outcome: Outcome, trace: RequestTrace) -> None:
        """Note how one call ended."""
        ...

    def stripped(self, pool: str, field: str) -> None:
        """Note a control field taken out of a caller's request."""
        ...

    def retry_refused(self, pool: str) -> None:
        """Note a retry that the budget did not allow."""
        ...

    def moved(self, pool: str, reason: str) -> None:
        """Note a request that went on at another place, and why."""
        ...


class App:
    """Answers messages; the host of the server protocol."""

    def __init__(  # noqa: PLR0913 - the one place where everything meets
        self,
        config: Config,
        *,
        keys: Keys,
        pools: dict[str, Pool],
        meter: Meter,
        observer: Observer,
        local: LocalAnswers,
        now: Callable[[], float],
        abort: Callable[[Endpoint, str], None],
    ) -> None:
        self.now = now
        """Loop time."""
        self.active: set[Relay] = set()
        """Calls that are not settled."""
        self.buffered_bytes = 0
        """Of bodies and held answers, all connections together."""
        self.abort = abort
        """Tell an engine to stop, off the path of the call."""
        self.observer = observer
        self.meter = meter
        """Whom calls are reserved with; a reload may bring another."""
        self._local = local
        self._ids = Ids()
        self.preparation = Preparation(now=now, tracing=observer.tracing)
        """Who makes calls of messages."""
        self.paused = set[str]()
        """Tenants that an operator lets wait outside."""
        self._clock = time.time
        self._verifies = False
        self.configure(config, keys=keys, pools=pools)

    def configure(self, config: Config, *, keys: Keys, pools: dict[str, Pool]) -> None:
        """Take a configuration, all of it in one step."""
        self.config = config
        self.pools = pools
        self.max_answer = config.server.max_answer
        self._max_buffered = config.server.max_buffered
        self._keys = keys
        # A request whose token is being verified outlives the reload that takes the issuer away.
        self._verifies = self._verifies or config.auth.jwt is not None
        self.preparation.configure(config, pools)

    # -- messages.Host ---------------------------------------------------------------------------

    def buffered(self, change: int) -> bool:
        """See messages.Host."""
        self.buffered_bytes += change
        return self.buffered_bytes <= self._max_buffered

    def admit(self, message: Message) -> Refusal | None:
        """Look at a request's head: does the route exist, is the key good, is there room."""
        path, method = message.path, message.method
        try:
            if not routes.check(method, path, self._local.methods):
                return None
            headers = message.headers
            grant = self._keys.find(headers.get(b"authorization"), headers.get(b"x-api-key"))
            if grant is None:
                raise _no_key()
            if isinstance(grant, Unverified):
                self._admit_unverified(grant, message)
                return None
            message.tenant = grant.tenant
            if grant.until is not FOREVER:
                message.until = self.now() + grant.until - self._clock()
            if self.paused and grant.tenant.name in self.paused:
                raise _is_paused()
            self._check_room(message)
        except Rejected as error:
            return self._refusal(error, path, message)
        return None

    def _check_room(self, message: Message) -> None:
        if self.buffered_bytes + (message.length or 0) > self._max_buffered:
            raise Overloaded("too much is buffered; try again later", retry_after=1.0)

    def _admit_unverified(self, token: Unverified, message: Message) -> None:
        """Have a token verified, off the loop, while the body is read."""
        self._check_room(message)
        message.tenant = verifying = Verifying(self, message)
        message.until = 0.0  # its head says nothing yet
        token.verify(verifying.verified)

    def refuse(self, status: int, message: str, path: str) -> Refusal:
        """See messages.Host."""
        if status == 429:
            return self._refusal(Overloaded(message, retry_after=1.0), path)
        if status == 500:
            return self._refusal(ForebayError(message), path)
        if status == 503:
            return self._refusal(shutting_down(), path)
        code = "request_too_large" if status == 413 else "invalid_request"
        return self._refusal(InvalidRequest(message, status=status, code=code), path)

    def _refusal(self, error: ForebayError, path: str, message: Message | None = None) -> Refusal:
        """Word and note an answer to what never became a call."""
        theirs = None if message is None else callers_id(message.headers.get(b"x-request-id"))
        request_id = theirs or self._ids.next()
        now = self.now()
        outcome = Outcome(
            request_id=request_id,
            pool="",
            route=routes.template(path),
            tenant="" if message is None else getattr(message.tenant, "name", ""),
            status=error.status,
            finish=Finish.REJECTED,
            error=error.code,
            received=now,
            ended=now,
        )
        self.observer.settled(outcome, UNTRACED)
        headers = list[tuple[bytes, bytes]]()
        headers += retry_after(error)
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        headers += error.headers
        headers.append((b"x-request-id", request_id.encode()))
        return Refusal(error.status, dialect_of_path(path).body(error), tuple(headers))

    def serve(self, message: Message, responder: Responder) -> Guest | None:
        """Answer a whole request."""
        route = routes.ROUTES.get(message.path)
        if self._verifies and isinstance(message.tenant, Verifying):
            return message.tenant.begin(responder)
        if route is not None and len(message.body) > LARGE and message.read is None:
            return LongReading(self, message, responder, route).begin()
        try:
            if route is not None:
                inbound = self.preparation.read(message, route)
            elif routes.stored_name(message.path) is not None:
                inbound = self.preparation.read_stored(message)
            else:
                tenant = message.tenant
                return self._local.answer(message, responder, tenant, self)  # type: ignore[arg-type]  # set by admit
        except Rejected as error:
            self.turn_away(error, message, responder)
            return None
        if inbound.salt is not None:  # its prefix is named by tokens, which takes a thread a while
            cutter = None if inbound.pool.prefix is None else inbound.pool.prefix.cutter
            if cutter is not None:
                return Naming(self, inbound, message, responder).begin(cutter)
        return self._begin(inbound, message, responder)

    def _begin(self, inbound: Inbound, message: Message, responder: Responder) -> Guest | None:
        """Make a call of what has been read."""
        try:
            relay = Relay(self, inbound, responder)
            if inbound.call.method != "POST" or message.path not in routes.ROUTES:
                relay.outcome.route = routes.template(message.path)
            relay.lease = lease = self.meter.reserve(inbound.request, inbound.model, relay)
        except Rejected as error:
            self.turn_away(error, message, responder)
            return None
        if not lease.pending:
            relay.granted()
        return relay

    def wants_text(self, route: Route, body: Body) -> bool:
        """Tell whether the prompt of a body will be wanted as a text."""
        return self.preparation.wants_text(route, body)

    def named(
        self, inbound: Inbound, tokens: bytes | None, message: Message, responder: Responder
    ) -> Guest | None:
        """Go on with a request whose prompt has been cut into tokens, or could not be."""
        prefix, salt = inbound.pool.prefix, inbound.salt
        try:
            if prefix is not None and salt is not None:
                inbound.request = prefix.named(inbound.request, inbound.body, tokens, salt=salt)
            return self._begin(inbound, message, responder)
        except Exception as error:  # noqa: BLE001 - nobody else would answer
            self.failed(error, message, responder)
            return None

    def admitted(self, grant: Grant, message: Message, responder: Responder) -> Guest | None:
        """Answer a request that was let in late: its token has been verified."""
        message.tenant = grant.tenant
        if grant.tenant.name in self.paused:
            self.turn_away(_is_paused(), message, responder)
            return None
        return self.whole(message, responder)

    def whole(self, message: Message, responder: Responder) -> Guest | None:
        """Answer a request that had to wait until it could be read."""
        try:
            return self.serve(message, responder)
        except Exception as error:  # noqa: BLE001 - nobody else would answer
            self.failed(error, message, responder)
            return None

    def failed(self, error: Exception, message: Message, responder: Responder) -> None:
        """Answer a request that a fault of the gateway's own keeps from becoming a call."""
        logger.error("request failed", exc_info=error)
        self.turn_away(ForebayError("the gateway failed"), message, responder)

    def refusal_of(self, error: Rejected, message: Message) -> Refusal:
        """Word an answer to a request that is not read to its end."""
        return self._refusal(error, message.path, message)

    def turn_away(self, error: ForebayError, message: Message, responder: Responder) -> None:
        """Answer a whole request with an error that keeps it from becoming a call."""
        refusal = self._refusal(error, message.path, message)
        json = (b"content-type", b"application/json")
        responder.send(refusal.status, (json, *refusal.headers), refusal.body)

    # -- what relays ask for ---------------------------------------------------------------------

    def stripped(self, inbound: Inbound, fields: Iterable[str]) -> None:
        """Count control fields that a caller sent and that went no further."""
        sent = inbound.body.names
        for field in fields:
            if field in sent:
                self.observer.stripped(inbound.pool.name, field)

    def moved(self, inbound: Inbound, reason: str) -> None:
        """Take note that a request goes on at another place than was meant for it."""
        part = self.preparation.participation
        if part is not None:
            part.moved(inbound, reason)
        self.observer.moved(inbound.pool.name, reason)

    def settled(self, inbound: Inbound, outcome: Outcome, seen: Seen | None) -> None:
        """Take the one outcome of a call."""
        part = self.preparation.participation
        if part is not None:
            part.settled(inbound, outcome)
        if seen is not None and seen.id and outcome.route == Route.RESPONSES:
            self.preparation.remember(inbound, outcome, seen)
        self.observer.settled(outcome, inbound.trace)


def _no_key() -> Unauthorized:
    return Unauthorized("no valid API key; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'")


def _is_paused() -> Forbidden:
    text = "this tenant is paused; ask whoever operates the gateway"
    return Forbidden(text, code="tenant_paused")
