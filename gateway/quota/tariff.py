"""What a request is estimated at and charged, and what its caller is told: the same for any store.

Charged is what the engine said it used. Where it said nothing: the estimate of the prompt as soon
as an engine had begun to answer, or had the request when its caller left, and one output token for
each event that was relayed; nothing where an engine failed before that, or none had it.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, time, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from forebay.policies.contracts import Finish, Overloaded, QuotaExceeded
from forebay.policies.quota import (
    FREE,
    NAMES,
    UNLIMITED,
    WINDOW_S,
    Caps,
    Dates,
    Estimate,
    Limits,
    Price,
    estimate,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import date

    from forebay.gateway.config.sections import Config
    from forebay.gateway.meter import Headers
    from forebay.policies.contracts import Outcome, Request
    from forebay.policies.quota import Shortage

_COMPLETED, _LEFT = Finish.COMPLETED, Finish.LEFT
RESET = b"%ds" % (WINDOW_S + 1)
NOTHING = Estimate(0, 0, 0)
UTC_NAME = "UTC"


class Tariff:
    """What one tenant may use, and at what price."""

    __slots__ = ("caps", "fail_open", "limited", "prices", "tenant", "zone")

    def __init__(
        self,
        tenant: str,
        caps: Caps,
        prices: Mapping[str, Price],
        *,
        fail_open: bool = True,
        zone: str = UTC_NAME,
    ) -> None:
        self.tenant = tenant
        self.caps = caps
        self.prices = prices
        self.fail_open = fail_open
        self.limited = caps != Caps()
        self.zone = zone
        """Whose days and months count."""

    def estimate(self, request: Request, model: str) -> Estimate:
        """Return what a request takes before it is known what it will use."""
        prompt, output = request.prompt_tokens_estimate, request.output_tokens_estimate
        return estimate(self.prices.get(model, FREE), prompt, output)


def tariffs_of(config: Config) -> dict[str, Tariff]:
    """Return the tariff of each tenant, by its name."""
    prices = {name: Price(**price.model_dump()) for name, price in config.prices.items()}
    return {
        tenant.name: Tariff(
            tenant.name,
            caps_of(tenant.limits),
            prices,
            fail_open=tenant.fail == "open",
            zone=tenant.timezone,
        )
        for tenant in config.tenants
    }


def caps_of(limits: object) -> Caps:
    """Return what is counted of a tenant's limits, its section or `policies.quota.Limits`."""
    return Caps.of(Limits(**{name: getattr(limits, name) for name in NAMES}))


class Charge:
    """What one call used."""

    __slots__ = ("cached", "nano", "output", "prompt")

    def __init__(self, prompt: int, cached: int, output: int, nano: int) -> None:
        self.prompt = prompt
        self.cached = cached
        self.output = output
        self.nano = nano

    @property
    def used(self) -> Estimate:
        """Put it as counters take it."""
        return Estimate(1, self.prompt + self.output, self.nano)


def charge_of(outcome: Outcome, prompt_estimate: int, prices: Mapping[str, Price]) -> Charge | None:
    """Return what a call is charged; None when it is charged nothing."""
    prompt, output = outcome.prompt_tokens, outcome.output_tokens
    cached = outcome.cached_tokens or 0
    if prompt is None and output is None:
        if not _was_served(outcome):
            return None
        prompt, output = prompt_estimate, outcome.events
    prompt = prompt_estimate if prompt is None else prompt
    output = output or 0
    cached = min(cached, prompt)
    nano = prices.get(outcome.model, FREE).nano(prompt, cached, output) if prices else 0
    return Charge(prompt, cached, output, nano)


def _was_served(outcome: Outcome) -> bool:
    finish = outcome.finish
    return (
        outcome.first_token is not None
        or finish is _COMPLETED
        or (finish is _LEFT and outcome.placed is not None)
    )


def headers_of(caps: Caps, requests: int, tokens: int) -> Headers:
    """Tell the limits of the minute, and what is left of them."""
    found: list[tuple[bytes, bytes]] = []
    if caps.requests != UNLIMITED:
        found += (
            (b"x-ratelimit-limit-requests", b"%d" % caps.requests),
            (b"x-ratelimit-remaining-requests", b"%d" % max(0, caps.requests - requests)),
            (b"x-ratelimit-reset-requests", RESET if requests else b"0s"),
        )
    if caps.tokens != UNLIMITED:
        found += (
            (b"x-ratelimit-limit-tokens", b"%d" % caps.tokens),
            (b"x-ratelimit-remaining-tokens", b"%d" % max(0, caps.tokens - tokens)),
            (b"x-ratelimit-reset-tokens", RESET if tokens else b"0s"),
        )
    return tuple(found)


def exceeded(
    tariff: Tariff, asked: Estimate, short: Shortage, *, requests: int, tokens: int
) -> QuotaExceeded:
    """Word a refusal: which limit, and when to come back."""
    name, cap = NAMES[short.limit], tariff.caps.numbers()[short.limit]
    limit = f"{cap / 1e9:g}" if name.startswith("money") else f"{cap:.0f}"
    if short.retry_after is None:
        need = asked.nano / 1e9 if name.startswith("money") else asked.tokens
        text = f"this request alone is estimated at {need:g}, more than {name} allows: {limit}"
        error = QuotaExceeded(text, code="request_too_large")
    else:
        seconds = max(1.0, math.ceil(short.retry_after))
        text = f"the limit {name} of {limit} is reached; try again in {seconds:.0f} s"
        error = QuotaExceeded(text, retry_after=seconds)
    error.headers = headers_of(tariff.caps, requests, tokens)
    return error


def unavailable(tariff: Tariff) -> Overloaded:
    """Word the refusal of a tenant that is not to be served uncounted."""
    return Overloaded(
        f"the counters of tenant '{tariff.tenant}' cannot be reached; try again later",
        status=503,
        code="quota_unavailable",
        retry_after=1.0,
    )


class Calendar:
    """The day and month of one time zone, looked at once a second and at midnight.

    `now` tells the time in UTC. One of another zone is kept for as long as this one.
    """

    def __init__(
        self, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, zone: str = UTC_NAME
    ) -> None:
        self._now = now
        self._zone = UTC if zone == UTC_NAME else ZoneInfo(zone)
        self._others: dict[str, Calendar] = {}
        self._until = -math.inf
        self._dates: Dates

    def of(self, zone: str) -> Calendar:
        """Return the calendar of a zone, by the same clock."""
        if zone == UTC_NAME:
            return self
        found = self._others.get(zone)
        if found is None:
            found = self._others[zone] = Calendar(self._now, zone=zone)
        return found

    def dates(self, now: float) -> Dates:
        """Return the dates; `now` is of any clock that goes forward."""
        if now >= self._until:
            self._turn(now)
        return self._dates

    def _turn(self, now: float) -> None:
        moment = self._now()
        today = moment.astimezone(self._zone).date()
        left = self._until_midnight(moment, today + timedelta(days=1))
        next_month = (today.replace(day=1) + timedelta(days=32)).replace(day=1)
        month = today.year * 100 + today.month
        self._dates = Dates(
            month * 100 + today.day, month, left, self._until_midnight(moment, next_month)
        )
        self._until = now + min(1.0, left)

    def _until_midnight(self, moment: datetime, day: date) -> float:
        """Return the seconds from a moment until a day begins, on days of 23 and 25 hours too."""
        begins = datetime.combine(day, time(), tzinfo=self._zone)
        return (begins.astimezone(UTC) - moment.astimezone(UTC)).total_seconds()
