"""From a whole message to a call: all that must be known of it before it is reserved and queued.

Who it is from is known; here it is found which pool serves it, on which terms, in which arm of an
experiment, how long its answer will be, and which of its prefix is cached. What a configuration
does not ask for costs a request one look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.adapters.base import Call
from forebay.policies.contracts import InvalidRequest, Request, Route
from forebay.scheduler.length import LengthFeatures

from . import intake
from .ids import Ids, callers_id
from .media import media_of
from .places import BAD_ANSWER
from .prefix_names import tenant_salt
from .routes import plain_target, stored_name
from .stored import StoredResponses
from .terms import PLAIN, terms_of
from .trials import fallbacks_of
from .wire import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay.gateway.config.sections import Config, Tenant
    from forebay.policies.contracts import Outcome
    from forebay.prefixcache.blocks import BlockHash

    from .dialects import Seen
    from .intake import Inbound
    from .messages import Message
    from .participation import Participation
    from .pools import Pool
    from .prefix import PoolPrefix
    from .telemetry.traces import Tracing
    from .terms import Standing
    from .wire import Body

_LENGTHY = frozenset({Route.CHAT, Route.COMPLETIONS, Route.MESSAGES})
"""Routes whose long requests may go to another pool: nothing is stored there for a later one."""
_NOBODY = frozenset[str]()
_MAX_ACCEPT = 256
_MAX_TRACESTATE = 512
"""A longer one is dropped (W3C asks for no more): engines refuse heads of 8 KB."""
_MAX_SESSION = 256


class Preparation:
    """Makes calls of messages. For the loop's thread."""

    def __init__(self, *, now: Callable[[], float], tracing: Tracing) -> None:
        self.participation: Participation | None = None
        """Experiments, copies and looks at answers, where there are any."""
        self._now = now
        self._tracing = tracing
        self._ids = Ids()
        self._sequence = 0
        self._stored = StoredResponses()

    def configure(self, config: Config, pools: dict[str, Pool]) -> None:
        """Take a configuration, all of it in one step."""
        self._config = config
        self._pools = pools
        self._terms = terms_of(config)
        self._salts: dict[str, bytes] = {}
        self._models = {model: pool for pool in pools.values() for model in pool.models}
        self._fallbacks = fallbacks_of(config, pools)

    def read(self, message: Message, route: Route) -> Inbound:
        """Make a call of a request on a plain route. Raises Rejected."""
        tenant: Tenant = message.tenant  # type: ignore[assignment]  # set by admit
        body = message.read or intake.read_body(message, route)
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
        if call.stream and route in intake.USAGE_ROUTES and not intake.asks_usage(body):
            call.meter_usage = inbound.strip_usage = True
        endpoint = None
        if route is Route.RESPONSES and "previous_response_id" in body.members:
            endpoint = self._continue(inbound)
        self._fill_in(inbound, message, endpoint)
        prefix = inbound.pool.prefix
        if prefix is not None and prefix.warmer is not None:
            prefix.met(inbound.request, body, salt=call.cache_salt)
        return inbound

    def wants_text(self, route: Route, body: Body) -> bool:
        """Tell whether the prompt of such a body will be wanted as a text."""
        model = body.get("model")
        pool = self._models.get(model) if isinstance(model, str) else None
        prefix = None if pool is None else pool.prefix
        return prefix is not None and not prefix.wants_tokens(route)

    def read_stored(self, message: Message) -> Inbound:
        """Make a call of a request about a stored response. Raises Rejected."""
        tenant: Tenant = message.tenant  # type: ignore[assignment]  # set by admit
        name = stored_name(message.path) or ""
        stored = self._stored.find(name, tenant.name, self._now())
        pool = None if stored is None else self._pools.get(stored.pool)
        if stored is None or pool is None or stored.model not in self._models:
            raise _no_response(name, None)
        call = Call(
            request_id=self._ids.next(),
            route=Route.RESPONSES,
            method=message.method,
            path=plain_target(message),
            model=stored.engine_model,
            members={},
        )
        inbound = intake.Inbound(pool, tenant, EMPTY, call)
        inbound.model = stored.model
        self._fill_in(inbound, message, stored.endpoint)
        return inbound

    def remember(self, inbound: Inbound, outcome: Outcome, seen: Seen) -> None:
        """Remember where a response lies, for those that continue it."""
        self._stored.add(
            seen.id,
            tenant=outcome.tenant,
            pool=outcome.pool,
            endpoint=outcome.endpoint,
            model=inbound.model,
            engine_model=inbound.call.model,
            now=outcome.ended,
        )

    def _continue(self, inbound: Inbound) -> str | None:
        """Return the endpoint that holds the response which this one continues.

        Where an arm of an experiment put it into another pool, that becomes the request's.
        """
        previous = inbound.body.get("previous_response_id")
        if previous is None:
            return None
        stored = self._stored.find(str(previous), inbound.tenant.name, self._now())
        pool = None if stored is None else self._pools.get(stored.pool)
        if stored is None or pool is None:
            raise _no_response(str(previous), "previous_response_id")
        if pool is not inbound.pool and stored.model == inbound.model:
            call = inbound.call
            inbound.pool, call.model, call.allow = pool, stored.engine_model, pool.allow
        return stored.endpoint

    def _fill_in(self, inbound: Inbound, message: Message, endpoint: str | None) -> None:
        """Fill in the Request, the trace and the ids; `endpoint` is the only one it may go to."""
        body, call, headers = inbound.body, inbound.call, message.headers
        self._take_headers(inbound, headers)
        session = headers.get(b"x-forebay-session")
        media = media_of(body, call.route)
        media_tokens = round(media.number * inbound.pool.arrangement.media.tokens)
        prompt = (len(message.body) - media.size) // intake.BYTES_PER_TOKEN + media_tokens
        standing, asked = self._bind(inbound, headers, prompt)
        without = _NOBODY
        if endpoint is None:
            if self._fallbacks:
                self._let_fall_back(inbound)
            if self.participation is not None:
                without = self.participation.join(inbound, session, standing.sla)
        pool = inbound.pool
        model = call.model or pool.engine_model(inbound.model)
        predicted = pool.arrangement.length.estimate(
            LengthFeatures(
                call.route, model, inbound.tenant.name, prompt, asked, intake.answers(body)
            )
        )
        if pool.section.scheduling.long_pool is not None and endpoint is None:
            pool = self._by_length(inbound, model, prompt + 2 * predicted)
        speculates, kind = True, ""
        if pool.speculation is not None:
            speculates, kind = pool.speculation.judge(body, predicted, call.route)
        uncached = prompt
        blocks: tuple[BlockHash, ...] = ()
        if pool.prefix is not None:
            blocks = self._name_prefix(inbound, pool.prefix, model)
            uncached = prompt - pool.prefix.longest(blocks, prompt)
        if standing.timeouts is not None:
            inbound.timeouts = standing.timeouts.get(pool.name)
        self._sequence += 1
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
            media=media.number,
            media_tokens=media_tokens,
            stream=call.stream,
            session=None if session is None else session[:_MAX_SESSION].decode("latin-1"),
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
        if self.participation is not None:
            self.participation.choose(inbound)

    def _bind(
        self, inbound: Inbound, headers: Mapping[bytes, bytes], prompt: int
    ) -> tuple[Standing, int | None]:
        """Return the terms that a request goes on, and the most tokens its answer may have."""
        body = inbound.body
        terms = self._terms.get(inbound.tenant.name) if self._terms else None
        if terms is None:
            return PLAIN, intake.output_limit(body)
        standing = terms.standing(headers.get(b"x-forebay-sla"))
        inbound.bound = terms.bound(body, inbound.call.route, prompt)
        if inbound.bound is not None:
            return standing, terms.max_output
        return standing, intake.output_limit(body)

    def _by_length(self, inbound: Inbound, model: str, cost: int) -> Pool:
        """Return the pool for a request of this predicted cost: another one where it is long."""
        pool, call = inbound.pool, inbound.call
        long = pool.section.scheduling.long_pool
        assert long is not None
        other = self._pools.get(long.pool)
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
        inbound.trace = self._tracing.begin(headers.get(b"traceparent"))
        inbound.shown_id = callers_id(headers.get(b"x-request-id")) or inbound.call.request_id
        inbound.accept = headers.get(b"accept", b"*/*")[:_MAX_ACCEPT].decode("latin-1")
        if inbound.trace.traceparent:
            state = headers.get(b"tracestate", b"")
            inbound.tracestate = state if len(state) <= _MAX_TRACESTATE else None
        if inbound.call.route is Route.TRANSCRIPTIONS:
            inbound.content_type = headers[b"content-type"].decode("latin-1")

    def _let_fall_back(self, inbound: Inbound) -> None:
        """Name the pools that may take over, where the tenant lets them."""
        consents = inbound.tenant.fallback or not self._config.tenants
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
        if not self._config.tenants:
            return b""
        salt = self._salts.get(tenant)
        if salt is None:
            secret = self._config.state.secret if self._config.state else None
            key = b"" if secret is None else secret.get_secret_value().encode()
            salt = self._salts[tenant] = tenant_salt(tenant, key)
        return salt


def _no_response(name: str, param: str | None) -> InvalidRequest:
    return InvalidRequest(
        f"there is no response '{intake.shown(name)}'",
        status=404,
        code="response_not_found",
        param=param,
    )
