"""The store's counters in memory: a replica's own share while the shared ones are away.

A process that needs no leases counts with `policies.quota.Account` alone; see `local`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.quota import Account, Estimate, Shortage

from .store import (
    LEASE_S,
    NEVER,
    PERIOD,
    Assert,
    Batch,
    Carry,
    Operation,
    Renew,
    Reply,
    Reserve,
    Reserved,
    Settle,
    Used,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.policies.quota import Caps, Dates

_FORGET_S = 3600.0


class Held:
    """What one lease has taken."""

    __slots__ = ("asked", "day", "expired", "expires", "second")

    def __init__(self, asked: Estimate, second: int, day: int, expires: float) -> None:
        self.asked = asked
        self.second = second
        self.day = day
        self.expires = expires
        self.expired = False


class TenantAccount:
    """One tenant's counters and leases."""

    __slots__ = ("_lease_s", "account", "carried", "leases")

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.account = Account()
        self.leases: dict[str, Held] = {}
        self.carried: dict[str, float] = {}
        self._lease_s = lease_s

    def reserve(
        self, lease: str, asked: Estimate, caps: Caps, now: float, dates: Dates
    ) -> Shortage | None:
        """Take an estimate, all of it or nothing; return why not."""
        account = self.account
        account.advance(now, dates)
        if not account.fits(caps, asked):
            self.expire(now)  # nobody looks for dead leases while there is room
            if not account.fits(caps, asked):
                return account.shortage(caps, asked, now, dates)
        account.take(asked)
        self.leases[lease] = Held(
            asked, account.requests.second, account.day.name, now + self._lease_s
        )
        return None

    def settle(self, lease: str, used: Estimate, now: float, dates: Dates) -> bool:
        """Put what was used in a lease's place; False when there is none of that name."""
        held = self.leases.pop(lease, None)
        if held is None:
            return False
        account, asked = self.account, held.asked
        account.advance(now, dates)
        if not held.expired and held.expires <= now:
            self._expire(held)
        if held.expired:  # its place is free since then, and its tokens and money given back
            account.concurrent += 1
            self._to_periods(held, 1)
        account.settle(asked, used, held.second, held.day)
        return True

    def renew(self, leases: Sequence[str], now: float) -> list[str]:
        """Keep leases alive; return those that are gone."""
        self.expire(now)
        lost: list[str] = []
        for lease in leases:
            held = self.leases.get(lease)
            if held is None or held.expired:
                lost.append(lease)
            else:
                held.expires = now + self._lease_s
        self._forget(now)
        return lost

    def expire(self, now: float) -> None:
        """End the leases that nobody has renewed."""
        for held in self.leases.values():
            if not held.expired and held.expires <= now:
                self._expire(held)

    def _expire(self, held: Held) -> None:
        held.expired = True
        self.account.concurrent -= 1
        self._to_periods(held, -1)

    def _to_periods(self, held: Held, sign: int) -> None:
        tokens, nano = sign * held.asked.tokens, sign * held.asked.nano
        self.account.day.add(held.day, tokens, nano)
        self.account.month.add(held.day // 100, tokens, nano)

    def _forget(self, now: float) -> None:
        old = [k for k, h in self.leases.items() if h.expired and h.expires <= now - _FORGET_S]
        for lease in old:
            del self.leases[lease]
        for name in [k for k, at in self.carried.items() if at <= now - _FORGET_S]:
            del self.carried[name]

    def hold(self, asserted: Assert, now: float) -> None:
        """Hold a lease that was granted before, whatever the limits say."""
        self.expire(now)
        held = self.leases.get(asserted.lease)
        if held is None:
            asked = Estimate(asserted.requests, asserted.tokens, asserted.nano)
            second = int(now - asserted.age_s)
            self._count(asked, second, asserted.day)
            held = self.leases[asserted.lease] = Held(asked, second, asserted.day, 0.0)
            self.account.concurrent += 1
        elif held.expired:
            held.expired = False
            self.account.concurrent += 1
            self._to_periods(held, 1)
        held.expires = now + self._lease_s

    def carry(self, carried: Carry, now: float) -> bool:
        """Count what was used elsewhere; False when it has been counted."""
        if carried.name in self.carried:
            return False
        self.carried[carried.name] = now
        asked = Estimate(carried.requests, carried.tokens, carried.nano)
        self._count(asked, int(now - carried.age_s), carried.day)
        return True

    def _count(self, asked: Estimate, second: int, day: int) -> None:
        account = self.account
        account.requests.give_back(second, -asked.requests)
        account.tokens.give_back(second, -asked.tokens)
        account.day.add(day, asked.tokens, asked.nano)
        account.month.add(day // 100, asked.tokens, asked.nano)

    def used(self, now: float, dates: Dates) -> Used:
        """Return all that is counted now."""
        self.account.advance(now, dates)
        self.expire(now)
        return used_of(self.account)


class MemoryStore:
    """The accounts of all tenants."""

    def __init__(self, clock: Callable[[], float], *, lease_s: float = LEASE_S) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self.accounts: dict[str, TenantAccount] = {}

    def account(self, tenant: str) -> TenantAccount:
        """Return a tenant's account, which is kept until the process ends."""
        found = self.accounts.get(tenant)
        if found is None:
            found = self.accounts[tenant] = TenantAccount(self._lease_s)
        return found

    async def apply(self, batches: Sequence[Batch]) -> list[list[Reply]]:
        """See Store."""
        now = self._clock()
        return [self._apply(batch, now) for batch in batches]

    async def close(self) -> None:
        """See Store."""

    def _apply(self, batch: Batch, now: float) -> list[Reply]:
        account = self.account(batch.tenant)
        account.account.advance(now, batch.dates)
        return [_act(account, operation, batch, now) for operation in batch.operations]


def _act(account: TenantAccount, asked: Operation, batch: Batch, now: float) -> Reply:
    match asked:
        case Reserve():
            wanted = Estimate(asked.requests, asked.tokens, asked.nano)
            short = account.reserve(asked.lease, wanted, batch.caps, now, batch.dates)
            return reserved(account, short)
        case Settle():
            used = Estimate(asked.requests, asked.tokens, asked.nano)
            return int(account.settle(asked.lease, used, now, batch.dates))
        case Renew():
            return account.renew(asked.leases, now)
        case Assert():
            account.hold(asked, now)
            return 1
        case Carry():
            return int(account.carry(asked, now))
        case _:
            return account.used(now, batch.dates)


def used_of(account: Account) -> Used:
    """Return all that an account counts."""
    return Used(
        account.requests.total,
        account.tokens.total,
        account.concurrent,
        account.day.tokens,
        account.month.tokens,
        account.day.nano,
        account.month.nano,
    )


def reserved(account: TenantAccount, short: Shortage | None) -> Reserved:
    """Word what a reservation came to as a store's answer."""
    requests, tokens = account.account.requests.total, account.account.tokens.total
    if short is None:
        return Reserved(True, 0, 0, requests, tokens)
    if short.retry_after is None:
        return Reserved(False, short.limit, NEVER, requests, tokens)
    wait = PERIOD if short.limit >= 3 else short.retry_after
    return Reserved(False, short.limit, wait, requests, tokens)
