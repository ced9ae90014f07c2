"""The application: where a request's path begins.

    protocol   reads a message off a connection and asks `App.admit` about its head
    App.admit  route, key, room in memory                                    404 405 401 429
    App.serve  local answers (models, health, metrics), or:
    intake     body -> Inbound (model, pool, Request)                        400 403 404 415
    meter      reserve(request) -> lease, now or by callback                 429 503
    Relay      queue -> placement -> Attempt: engine -> bytes back           429 502 503 504
    App.settled  the one outcome: lease, metrics, access log, trace

`process` makes the parts and puts them together here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from forebay.adapters.base import Call
from forebay.policies.contracts import (
    Finish,
    ForebayError,
    InvalidRequest,
    Outcome,
    Overloaded,
    Rejected,
    Request,
    Route,
    Unauthorized,
)
from forebay.scheduler.length import LengthFeatures

from . import intake
from .dialects import dialect_of_path
from .failing import retry_after
from .ids import Ids, callers_id
from .keys import FOREVER
from .messages import Refusal
from .naming import Naming
from .places import BAD_ANSWER, ROLLED_BACK
from .prefix import tenant_salt
from .relay import Relay
from .speculation import judge
from .stored import StoredResponses
from .telemetry.labels import OTHER
from .telemetry.traces import UNTRACED
from .terms import PLAIN, terms_of
from .tokens import Unverified, Verifying
from .trials import fallbacks_of
from .wire import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from forebay.gateway.config.sections import Config, Tenant
    from forebay.prefixcache.blocks import BlockHash

    from .dialects import Seen
    from .endpoint import Endpoint
    from .intake import Inbound
    from .keeper import Keeper
    from .keys import Grant, Keys
    from .local import LocalAnswers
    from .messages import Guest, Message, Responder
    from .meter import Meter
    from .pools import Pool
    from .prefix import PoolPrefix
    from .quality import Quality
    from .shadow import Shadow
    from .telemetry.traces import RequestTrace, Tracing
    from .trials import Trials

_ROUTES: dict[str, Route] = {route.value: route for route in Route}
_LENGTHY = {Route.CHAT, Route.COMPLETIONS, Route.MESSAGES}
"""Routes whose long requests may go to another pool: nothing is stored there for a later one."""
_STORED = Route.RESPONSES.value + "/"
_STORED_METHODS = {"": ("GET", "DELETE"), "cancel": ("POST",), "input_items": ("GET",)}
_NO_CACHE = (b"cache-control", b"no-cache")
_NOBODY = frozenset[str]()
_MAX_ACCEPT = 256
_MAX_TRACESTATE = 512
"""A longer one is dropped (W3C asks for no more): engines refuse heads of 8 KB."""


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
        self._sequence = 0
        self._stored = StoredResponses()
        self.trials: Trials | None = None
        """The experiments that requests may take part in."""
        self.keeper: Keeper | None = None
        """Who counts and decides for them."""
        self.shadow: Shadow | None = None
        """Who copies requests to other arms."""
        self.quality: Quality | None = None
        """Who looks at answers."""
        self.paused = set[str]()
        """Tenants that an operator lets wait outside."""
        self._clock = time.time
        self._signed = False
        self.configure(config, keys=keys, pools=pools)

    def configure(self, config: Config, *, keys: Keys, pools: dict[str, Pool]) -> None:
        """Take a configuration, all of it in one step."""
        self.config = config
        self.pools = pools
        self.max_answer = config.server.max_answer
        self._max_buffered = config.server.max_buffered
        self._keys = keys
        self._terms = terms_of(config)
        # A request whose token is being verified outlives the reload that takes the issuer away.
        self._signed = self._signed or config.auth.jwt is not None
        self._salts: dict[str, bytes] = {}
        self._models = {model: pool for pool in pools.values() for model in pool.models}
        self._fallbacks = fallbacks_of(config, pools)

    # -- messages.Host ---------------------------------------------------------------------------

    def buffered(self, change: int) -> bool:
        """See messages.Host."""
        self.buffered_bytes += change
        return self.buffered_bytes <= self._max_buffered

    def admit(self, message: Message) -> Refusal | None:
        """Look at a request's head: does the route exist, is the key good, is there room."""
        path, method = message.path, message.method
        try:
            if path in _ROUTES:
                if method != "POST":
                    raise _wrong_method(path, ("POST",))
            elif not self._admit_other(method, path):
                return None
            headers = message.headers
            grant = self._keys.find(headers.get(b"authorization"), headers.get(b"x-api-key"))
            if grant is None:
                raise _no_key()
            if isinstance(grant, Unverified):
                return self._admit_unverified(grant, message)
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

    def _admit_other(self, method: str, path: str) -> bool:
        """Check what is no plain route; True when it needs a key."""
        if path.startswith(_STORED):
            _, _, action = path.removeprefix(_STORED).partition("/")
            methods = _STORED_METHODS.get(action)
        else:
            methods = self._local.methods(path)
        if methods is None:
            raise InvalidRequest(
                f"there is no route {intake.shown(path)}", status=404, code="not_found"
            )
        if method not in methods:
            raise _wrong_method(path, methods)
        return path.startswith("/v1/")

    def refuse(self, status: int, message: str, path: str) -> Refusal:
        """See messages.Host."""
        if status == 429:
            return self._refusal(Overloaded(message, retry_after=1.0), path)
        if status == 500:
            return self._refusal(ForebayError(message), path)
        code = "request_too_large" if status == 413 else "invalid_request"
        return self._refusal(InvalidRequest(message, status=status, code=code), path)

    def _refusal(self, error: ForebayError, path: str, message: Message | None = None) -> Refusal:
        """Word and note an answer to what never became a call."""
        request_id = self._ids.next()
        now = self.now()
        outcome = Outcome(
            request_id=request_id,
            pool="",
            route=_template(path),
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
        theirs = None if message is None else callers_id(message.headers.get(b"x-request-id"))
        headers.append((b"x-request-id", (theirs or request_id).encode()))
        return Refusal(error.status, dialect_of_path(path).body(error), tuple(headers))

    def serve(self, message: Message, responder: Responder) -> Guest | None:
        """Answer a whole request."""
        route = _ROUTES.get(message.path)
        if self._signed and isinstance(message.tenant, Verifying):
            return message.tenant.begin(responder)
        try:
            if route is not None:
                inbound = self._read(message, route)
            elif message.path.startswith(_STORED):
                inbound = self._read_stored(message)
            else:
                tenant = message.tenant
                return self._local.answer(message, responder, tenant, self)  # type: ignore[arg-type] - set by admit
        except Rejected as error:
            self.turn_away(error, message, responder)
            return None
        if inbound.salt is not None:
            cutter = None if inbound.pool.prefix is None else inbound.pool.prefix.cutter
            if cutter is not None:
                return Naming(self, inbound, message, responder).begin(cutter)
        return self._begin(inbound, message, responder)

    def _begin(self, inbound: Inbound, message: Message, responder: Responder) -> Guest | None:
        """Make a call of what has been read."""
        try:
            relay = Relay(self, inbound, responder)
            if inbound.call.method != "POST" or message.path not in _ROUTES:
                relay.outcome.route = _template(message.path)
            relay.lease = lease = self.meter.reserve(inbound.request, inbound.model, relay)
        except Rejected as error:
            self.turn_away(error, message, responder)
            return None
        if not lease.pending:
            relay.begin(self.now())
        return relay

    def named(
        self, inbound: Inbound, tokens: bytes | None, message: Message, responder: Responder
    ) -> Guest | None:
        """Go on with a request whose prompt has been cut into tokens, or could not be."""
        prefix, salt = inbound.pool.prefix, inbound.salt
        if prefix is not None and salt is not None:
            inbound.request = prefix.named(inbound.request, inbound.body, tokens, salt=salt)
        return self._begin(inbound, message, responder)

    def granted(self, grant: Grant, message: Message, responder: Responder) -> Guest | None:
        """Answer a request whose token has been verified."""
        message.tenant = grant.tenant
        if grant.tenant.name in self.paused:
            self.turn_away(_is_paused(), message, responder)
            return None
        return self.serve(message, responder)

    def refusal_of(self, error: Rejected, message: Message) -> Refusal:
        """Word an answer to a request that is not read to its end."""
        return self._refusal(error, message.path, message)

    def turn_away(self, error: Rejected, message: Message, responder: Responder) -> None:
        """Answer a whole request with an error that keeps it from becoming a call."""
        refusal = self._refusal(error, message.path, message)
        json = (b"content-type", b"application/json")
        responder.send(refusal.status, (json, *refusal.headers), refusal.body)

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, message: Message, route: Route) -> Inbound:
        tenant: Tenant = message.tenant  # type: ignore[assignment] - set by admit
        body = intake.read_body(message, route)
        pool, model = intake.choose_pool(intake.model_of(body), self._models, tenant)
        call = Call(
            request_id=self._ids.next(),
            route=route,
            method="POST",
            path=message.path,
            model=pool.engine_model(model),
            members=body.members,
            stream=intake.read_stream_flag(body),
            allow=pool.allow,
        )
        inbound = intake.Inbound(pool, tenant, body, call)
        inbound.model = model
        if route in intake.USAGE_ROUTES and call.stream and not intake.asks_usage(body):
            call.meter_usage = inbound.strip_usage = True
        endpoint = self._pinned(route, body, tenant)
        self._complete(inbound, message, endpoint)
        return inbound

    def _pinned(self, route: Route, body: intake.AnyBody, tenant: Tenant) -> str | None:
        """Return the endpoint that holds the response which this one continues."""
        if route is not Route.RESPONSES or "previous_response_id" not in body.members:
            return None
        previous = body.get("previous_response_id")
        if previous is None:
            return None
        stored = self._stored.find(str(previous), tenant.name, self.now())
        if stored is None:
            raise _no_response(str(previous), "previous_response_id")
        return stored.endpoint

    def _read_stored(self, message: Message) -> Inbound:
        tenant: Tenant = message.tenant  # type: ignore[assignment] - set by admit
        name = message.path.removeprefix(_STORED).partition("/")[0]
        stored = self._stored.find(name, tenant.name, self.now())
        pool = None if stored is None else self.pools.get(stored.pool)
        if stored is None or pool is None or stored.model not in pool.models:
            raise _no_response(name, None)
        call = Call(
            request_id=self._ids.next(),
            route=Route.RESPONSES,
            method=message.method,
            path=_plain_target(message),
            model="",
            members={},
        )
        inbound = intake.Inbound(pool, tenant, EMPTY, call)
        inbound.model = stored.model
        self._complete(inbound, message, stored.endpoint)
        return inbound

    def _complete(self, inbound: Inbound, message: Message, endpoint: str | None) -> None:
        """Fill in the Request, the trace and the ids."""
        body, call, headers, pool = inbound.body, inbound.call, message.headers, inbound.pool
        self._sequence += 1
        self._take_headers(inbound, headers)
        prompt = len(message.body) // intake.BYTES_PER_TOKEN
        asked, standing = intake.output_limit(body), PLAIN
        terms = self._terms.get(inbound.tenant.name) if self._terms else None
        if terms is not None:
            standing = terms.standing(headers.get(b"x-forebay-sla"))
            inbound.bound = terms.bound(body, call.route, prompt)
            if inbound.bound is not None:
                asked = terms.max_output
        without = _NOBODY
        if self._fallbacks and endpoint is None:
            self._let_fall_back(inbound)
        if self.trials is not None and endpoint is None:
            session = headers.get(b"x-forebay-session")
            without = self.trials.join(inbound, session, standing.sla)
            pool = inbound.pool
        model = call.model or pool.engine_model(inbound.model)
        features = LengthFeatures(
            call.route,
            model,
            inbound.tenant.name,
            prompt,
            asked,
            intake.answers(body),
        )
        predicted = pool.length.estimate(features)
        if pool.section.scheduling.long_pool is not None and endpoint is None:
            pool = self._by_length(inbound, model, prompt + 2 * predicted)
        speculates, kind = judge(pool.speculation, body, predicted, call.route)
        uncached, blocks = prompt, ()
        if pool.prefix is not None:
            blocks = self._name_prefix(inbound, pool.prefix, model)
            uncached = prompt - pool.prefix.longest(blocks, prompt)
        session = headers.get(b"x-forebay-session")
        if standing.timeouts is not None:
            inbound.timeouts = standing.timeouts.get(pool.name)
        inbound.request = Request(
            id=call.request_id,
            pool=pool.name,
            route=call.route,
            model=model,
            tenant=inbound.tenant.name,
            sequence=self._sequence,
            arrived=message.received,
            deadline=message.received + (standing.deadline or pool.section.queue.deadline),
            prompt_tokens_estimate=prompt,
            output_tokens_estimate=predicted,
            uncached_tokens=uncached,
            body_bytes=len(message.body),
            stream=call.stream,
            session=None if session is None else session[:256].decode("latin-1"),
            blocks=blocks,
            endpoint=endpoint,
            without=without,
            weight=standing.weight,
            sla=standing.sla,
            sla_rank=standing.rank,
            longest_wait=standing.longest_wait,
            reserve=standing.reserve,
            queue_share=standing.queue_share,
            speculates=speculates,
            kind=kind,
        )
        if inbound.trial is not None and self.shadow is not None:
            self.shadow.choose(inbound)
        if self.quality is not None:
            self.quality.choose(inbound)

    def _by_length(self, inbound: Inbound, model: str, cost: int) -> Pool:
        """Return the pool for a request of this predicted cost: another one where it is long."""
        pool, call = inbound.pool, inbound.call
        long = pool.section.scheduling.long_pool
        assert long is not None
        other = self.pools.get(long.pool)
        if cost < long.tokens or other is None or call.route not in _LENGTHY:
            return pool
        if inbound.trial is not None:  # its arm has said where
            return pool
        if not other.takes(model):
            return pool
        inbound.pool, call.allow = other, other.allow
        return other

    def _take_headers(self, inbound: Inbound, headers: Mapping[bytes, bytes]) -> None:
        """Take over what goes on of a caller's headers."""
        inbound.trace = self.observer.tracing.begin(headers.get(b"traceparent"))
        inbound.shown_id = callers_id(headers.get(b"x-request-id")) or inbound.call.request_id
        inbound.accept = headers.get(b"accept", b"*/*")[:_MAX_ACCEPT].decode("latin-1")
        if inbound.trace.traceparent:
            state = headers.get(b"tracestate", b"")
            inbound.tracestate = state if len(state) <= _MAX_TRACESTATE else None
        if inbound.call.route is Route.TRANSCRIPTIONS:
            inbound.content_type = headers[b"content-type"].decode("latin-1")

    def _let_fall_back(self, inbound: Inbound) -> None:
        """Name the pools that may take over, where the tenant lets them."""
        consents = inbound.tenant.fallback or not self.config.tenants
        if consents and inbound.call.route is not Route.RESPONSES:
            inbound.places = self._fallbacks.get(inbound.pool.name, ())
            inbound.guarded = any(BAD_ANSWER in place.reasons for place in inbound.places)

    def _name_prefix(
        self, inbound: Inbound, prefix: PoolPrefix, model: str
    ) -> tuple[BlockHash, ...]:
        """Return the hashes of a prompt's blocks, and salt the engine's own."""
        salt = b"" if prefix.section.shared else self._salt(inbound.tenant.name)
        inbound.call.cache_salt = salt.hex() or None
        if prefix.wants_tokens(inbound.call.route):
            inbound.salt = salt
            return ()
        return prefix.blocks(inbound.call.route, inbound.body, model=model, salt=salt)

    def _salt(self, tenant: str) -> bytes:
        """Return what keeps a tenant's prefixes apart; without tenants there is nothing to part."""
        if not self.config.tenants:
            return b""
        salt = self._salts.get(tenant)
        if salt is None:
            secret = self.config.state.secret if self.config.state else None
            key = b"" if secret is None else secret.get_secret_value().encode()
            salt = self._salts[tenant] = tenant_salt(tenant, key)
        return salt

    # -- what relays ask for ---------------------------------------------------------------------

    def response_head(
        self, inbound: Inbound, outcome: Outcome, content_type: bytes, error: ForebayError | None
    ) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer but for its length."""
        head = [(b"content-type", content_type), (b"x-request-id", inbound.shown_id.encode())]
        if content_type.startswith(b"text/event-stream"):
            head.append(_NO_CACHE)
        if error is not None:
            head += retry_after(error)
        if inbound.tenant.debug_headers:
            head.append((b"x-forebay-pool", outcome.pool.encode()))
            if outcome.endpoint:
                head.append((b"x-forebay-endpoint", outcome.endpoint.encode()))
            if outcome.placed is not None:
                waited = (outcome.placed - outcome.received) * 1000
                head.append((b"x-forebay-queue-ms", b"%.1f" % waited))
            if inbound.pool.predicts:
                head.append((b"x-forebay-predicted-tokens", b"%d" % outcome.predicted_tokens))
            hit = (
                None
                if inbound.pool.prefix is None
                else inbound.pool.prefix.expected(outcome.request_id)
            )
            if hit is not None:
                head.append((b"x-forebay-prefix-hit-tokens", b"%d" % hit))
            if inbound.trial is not None:
                trial = inbound.trial
                head.append((b"x-forebay-arm", f"{trial.trial.name}/{trial.arm}".encode()))
            if outcome.moved:
                head.append((b"x-forebay-moved", outcome.moved.encode()))
        return head

    def stripped(self, inbound: Inbound, fields: Iterable[str]) -> None:
        """Count control fields that a caller sent and that went no further."""
        sent = inbound.body.names
        for field in fields:
            if field in sent:
                self.observer.stripped(inbound.pool.name, field)

    def moved(self, inbound: Inbound, reason: str) -> None:
        """Take note that a request goes on at another place than was meant for it."""
        if inbound.trial is not None and self.keeper is not None:
            request = inbound.request
            if reason == ROLLED_BACK:
                inbound.trial.done = True  # what was decided is no more said of the arm
            self.keeper.failed(inbound.trial, request.sla, request.prompt_tokens_estimate)
        self.observer.moved(inbound.pool.name, reason)

    def settled(self, inbound: Inbound, outcome: Outcome, seen: Seen | None) -> None:
        """Take the one outcome of a call."""
        if inbound.trial is not None and self.keeper is not None:
            outcome.experiment, outcome.arm = inbound.trial.trial.name, inbound.trial.arm
            self.keeper.settled(inbound, outcome)
            if inbound.copy is not None and self.shadow is not None:
                self.shadow.settled(inbound, outcome)
        if inbound.copy is not None and self.quality is not None:
            self.quality.settled(inbound, outcome)
        if seen is not None and seen.id and outcome.route == Route.RESPONSES:
            self._stored.add(
                seen.id,
                tenant=outcome.tenant,
                pool=outcome.pool,
                endpoint=outcome.endpoint,
                model=inbound.model,
                now=outcome.ended,
            )
        self.observer.settled(outcome, inbound.trace)


def _no_key() -> Unauthorized:
    return Unauthorized("no valid API key; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'")


def _is_paused() -> Unauthorized:
    text = "this tenant is paused; ask whoever operates the gateway"
    return Unauthorized(text, status=403, code="tenant_paused")


def _wrong_method(path: str, methods: Iterable[str]) -> InvalidRequest:
    allowed = ", ".join(methods)
    text = f"{intake.shown(path)} takes {allowed}"
    error = InvalidRequest(text, status=405, code="method_not_allowed")
    error.headers = ((b"allow", allowed.encode()),)
    return error


def _template(path: str) -> str:
    """Return the route that a path counts as: never a caller's own words, which have no end."""
    if path in _ROUTES:
        return path
    if not path.startswith(_STORED):
        return OTHER
    _, slash, action = path.removeprefix(_STORED).partition("/")
    return f"{_STORED}{{id}}{slash}{action}" if action in _STORED_METHODS else OTHER


def _no_response(name: str, param: str | None) -> InvalidRequest:
    return InvalidRequest(
        f"there is no response '{intake.shown(name)}'",
        status=404,
        code="response_not_found",
        param=param,
    )


def _plain_target(message: Message) -> str:
    """Write a target anew, in origin form and visible ASCII, however the caller wrote it."""
    query = quote(message.query, safe="!$%&'()*+,-./:;=?@_~")
    return quote(message.path) + (f"?{query}" if query else "")
