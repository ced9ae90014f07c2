"""Meters a single process: the counters are here, so every answer is given at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from forebay.policies.quota import NAMES, Account, Caps

from .memory import used_of
from .tariff import NOTHING, UTC_NAME, Calendar, Tariff, charge_of, exceeded, headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay.gateway.meter import Asking, Headers
    from forebay.policies.contracts import Outcome, QuotaExceeded, Request
    from forebay.policies.quota import Dates, Estimate, Shortage

    from .ledger import Ledger
    from .store import Used


class LocalLease:
    """What one call has reserved. It cannot be lost: the counters go when this process goes."""

    __slots__ = ("_account", "_asked", "_day", "_meter", "_prompt", "_second", "_tariff")

    pending = False

    def __init__(
        self, meter: LocalMeter, tariff: Tariff, account: Account, asked: Estimate, prompt: int
    ) -> None:
        self._meter = meter
        self._tariff = tariff
        self._account = account
        self._asked: Estimate | None = asked
        """None once it is settled."""
        self._second = account.requests.second
        self._day = account.day.name
        self._prompt = prompt

    def settle(self, outcome: Outcome) -> None:
        """See Lease."""
        meter, account, asked = self._meter, self._account, self._asked
        if asked is None:
            return
        self._asked = None
        charge = charge_of(outcome, self._prompt, self._tariff.prices)
        now = meter.now()
        account.advance(now, meter.calendar.of(self._tariff.zone).dates(now))
        used = NOTHING if charge is None else charge.used
        account.settle(asked, used, self._second, self._day)
        if charge is not None:
            meter.ledger.add(outcome.tenant, outcome.model, self._day, charge)

    def headers(self) -> Headers:
        """See Lease."""
        if not self._tariff.limited:
            return ()
        account = self._account
        return headers_of(self._tariff.caps, account.requests.total, account.tokens.total)


class LocalMeter:
    """Reserves and settles in memory."""

    def __init__(
        self,
        tariffs: Mapping[str, Tariff],
        *,
        ledger: Ledger,
        now: Callable[[], float],
        calendar: Calendar | None = None,
    ) -> None:
        self.now = now
        self.ledger = ledger
        self.calendar = Calendar() if calendar is None else calendar
        self.refused = Counter[tuple[str, str]]()
        """By tenant and limit."""
        self._accounts: dict[str, Account] = {}
        """Of every tenant that was ever here: what was counted outlives a reload."""
        self.configure(tariffs)

    def configure(self, tariffs: Mapping[str, Tariff]) -> None:
        """Take other limits; what was counted stays."""
        self._tenants = {name: (tariff, self._account(name)) for name, tariff in tariffs.items()}

    def _account(self, tenant: str) -> Account:
        found = self._accounts.get(tenant)
        if found is None:
            found = self._accounts[tenant] = Account()
        return found

    def reserve(self, request: Request, model: str, asking: Asking) -> LocalLease:  # noqa: ARG002 - the protocol's signature
        """See Meter."""
        found = self._tenants.get(request.tenant)
        tariff, account = self._strange(request.tenant) if found is None else found
        asked = tariff.estimate(request, model)
        now = self.now()
        dates = self.calendar.of(tariff.zone).dates(now)
        account.advance(now, dates)
        if tariff.limited and not account.fits(tariff.caps, asked):
            raise self._refusal(
                tariff, account, asked, account.shortage(tariff.caps, asked, now, dates)
            )
        account.take(asked)
        return LocalLease(self, tariff, account, asked, request.prompt_tokens_estimate)

    def _refusal(
        self, tariff: Tariff, account: Account, asked: Estimate, short: Shortage
    ) -> QuotaExceeded:
        self.refused[tariff.tenant, NAMES[short.limit]] += 1
        requests, tokens = account.requests.total, account.tokens.total
        return exceeded(tariff, asked, short, requests=requests, tokens=tokens)

    def _strange(self, tenant: str) -> tuple[Tariff, Account]:
        """Return the terms of a tenant that the configuration does not limit."""
        found = Tariff(tenant, Caps(), {}), self._account(tenant)
        self._tenants[tenant] = found
        return found

    def used(self, tenant: str) -> Used:
        """Return what is counted for a tenant now."""
        now, account = self.now(), self._account(tenant)
        account.advance(now, self.calendar.of(self.zone_of(tenant)).dates(now))
        return used_of(account)

    def zone_of(self, tenant: str) -> str:
        """Return whose days and months count for a tenant."""
        found = self._tenants.get(tenant)
        return UTC_NAME if found is None else found[0].zone

    @property
    def zones(self) -> set[str]:
        """The time zones of all tenants."""
        return {UTC_NAME, *(tariff.zone for tariff, _ in self._tenants.values())}

    def seed(self, tenant: str, dates: Dates, sums: tuple[int, int, int, int]) -> None:
        """Begin with what the ledger has for this day and month: tokens, money, tokens, money."""
        account = self._account(tenant)
        account.advance(self.now(), dates)
        account.day.tokens, account.day.nano = sums[0], sums[1]
        account.month.tokens, account.month.nano = sums[2], sums[3]
