"""This replica's share of the limits, for as long as the shared store is away."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import TYPE_CHECKING
from uuid import uuid4

from .memory import MemoryStore
from .store import Carry
from .tariff import unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.policies.quota import Dates, Estimate, Shortage

    from .memory import TenantAccount
    from .shared_lease import SharedLease


class Here:
    """Counts what is let in here, in accounts of its own that outlive an outage.

    They go on after it, so that outages in quick succession have one share between them, not one
    each.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.admitted = Counter[str]()
        """By tenant."""
        self._now = now
        self._store = MemoryStore(now)
        self._used: dict[tuple[str, int, int], list[int]] = {}
        self._name = uuid4().hex
        self._names = count()

    def __len__(self) -> int:
        """Return how much of what was used the store is still to be told."""
        return len(self._used)

    def account(self, tenant: str) -> TenantAccount:
        """Return a tenant's account."""
        return self._store.account(tenant)

    def reserve(self, lease: SharedLease, dates: Dates, *, replicas: int) -> Shortage | None:
        """Reserve in this replica's share; return why not. Raises Overloaded for `fail: closed`."""
        tariff = lease.tariff
        if not tariff.fail_open:
            raise unavailable(tariff)
        caps = tariff.caps.share(replicas)
        account = self.account(tariff.tenant)
        short = account.reserve(lease.id, lease.asked, caps, self._now(), dates)
        if short is None:
            self.admitted[tariff.tenant] += 1
        return short

    def settle(self, lease: SharedLease, used: Estimate, dates: Dates) -> None:
        """Settle here, and keep what was used for the store."""
        self.account(lease.tariff.tenant).settle(lease.id, used, self._now(), dates)
        key = (lease.tariff.tenant, int(lease.taken), lease.day)
        sums = self._used.setdefault(key, [0, 0, 0])
        sums[0] += used.requests
        sums[1] += used.tokens
        sums[2] += used.nano

    def forget(self, lease: SharedLease, dates: Dates) -> None:
        """End the place that a call took here, if it did; the store knows what it used."""
        account = self._store.accounts.get(lease.tariff.tenant)
        held = None if account is None else account.leases.get(lease.id)
        if account is not None and held is not None:
            account.settle(lease.id, held.asked, self._now(), dates)

    def renew(self) -> None:
        """Keep the leases of running calls alive."""
        for account in self._store.accounts.values():
            account.renew(list(account.leases), self._now())

    def carried(self) -> Iterator[tuple[str, Carry]]:
        """Hand over what was used here: the tenant, and what its store is to count."""
        used, self._used = self._used, {}
        now = self._now()
        for (tenant, second, day), sums in used.items():
            # By the end of its second: it must not leave the minute too early.
            age_s = max(0.0, now - second - 1)
            yield tenant, Carry(f"{self._name}{next(self._names)}", age_s, day, *sums)
