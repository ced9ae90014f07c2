"""Meters a single process: the counters are here, so every answer is given at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from forebay.policies.quota import NAMES, Caps

from .memory import MemoryStore
from .tariff import NOTHING, Calendar, Tariff, charge_of, exceeded, headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay.gateway.meter import Asking, Headers
    from forebay.policies.contracts import Outcome, Request
    from forebay.policies.quota import Dates

    from .ledger import Ledger
    from .memory import TenantAccount
    from .store import Used

_RENEW_S = 20.0


class LocalLease:
    """What one call has reserved."""

    __slots__ = ("_account", "_id", "_meter", "_prompt", "_tariff")

    pending = False

    def __init__(
        self, meter: LocalMeter, tariff: Tariff, account: TenantAccount, request: Request
    ) -> None:
        self._meter = meter
        self._tariff = tariff
        self._account = account
        self._id = request.id
        self._prompt = request.prompt_tokens_estimate

    def settle(self, outcome: Outcome) -> None:
        """See Lease."""
        meter = self._meter
        charge = charge_of(outcome, self._prompt, self._tariff.prices)
        now = meter.now()
        dates = meter.calendar.dates(now)
        used = NOTHING if charge is None else charge.used
        self._account.settle(self._id, used, now, dates)
        if charge is not None:
            meter.ledger.add(outcome.tenant, outcome.model, dates.day, charge)

    def headers(self) -> Headers:
        """See Lease."""
        account = self._account.account
        return headers_of(self._tariff.caps, account.requests.total, account.tokens.total)


class LocalMeter:
    """Reserves and settles in memory. `renew` has to be called every `LEASE_S` or oftener."""

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
        self._store = MemoryStore(now)
        self._renewed = now()
        self.configure(tariffs)

    def configure(self, tariffs: Mapping[str, Tariff]) -> None:
        """Take other limits; what was counted stays."""
        accounts = {name: self._store.account(name) for name in tariffs}
        self._tenants = {name: (tariff, accounts[name]) for name, tariff in tariffs.items()}

    def reserve(self, request: Request, model: str, asking: Asking) -> LocalLease:  # noqa: ARG002 - the protocol's signature
        """See Meter."""
        found = self._tenants.get(request.tenant)
        tariff, account = self._strange(request.tenant) if found is None else found
        asked = tariff.estimate(request, model)
        now = self.now()
        dates = self.calendar.dates(now)
        short = account.reserve(request.id, asked, tariff.caps, now, dates)
        if short is None:
            return LocalLease(self, tariff, account, request)
        self.refused[request.tenant, NAMES[short.limit]] += 1
        counted = account.account
        raise exceeded(
            tariff,
            asked,
            short,
            requests=counted.requests.total,
            tokens=counted.tokens.total,
        )

    def _strange(self, tenant: str) -> tuple[Tariff, TenantAccount]:
        """Return the terms of a tenant that the configuration does not limit."""
        found = Tariff(tenant, Caps(), {}), self._store.account(tenant)
        self._tenants[tenant] = found
        return found

    def renew(self, now: float) -> None:
        """Keep the leases of running calls alive, a few times in the life of one."""
        if now - self._renewed < _RENEW_S:
            return
        self._renewed = now
        for account in self._store.accounts.values():
            account.renew(list(account.leases), now)

    def used(self, tenant: str) -> Used:
        """Return what is counted for a tenant now."""
        now = self.now()
        return self._store.account(tenant).used(now, self.calendar.dates(now))

    def seed(self, tenant: str, dates: Dates, sums: tuple[int, int, int, int]) -> None:
        """Begin with what the ledger has for this day and month: tokens, money, tokens, money."""
        account = self._store.account(tenant).account
        account.advance(self.now(), dates)
        account.day.tokens, account.day.nano = sums[0], sums[1]
        account.month.tokens, account.month.nano = sums[2], sums[3]
