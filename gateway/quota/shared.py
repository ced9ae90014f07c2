"""Meters one of many processes: the counters are in a store that answers later.

What one loop turn asks goes out together, and while a call is under way the next one gathers: a
task for each call to the store, none for each request. Nothing of a response waits for the store.

When the store is away, tenants of `fail: closed` are refused and those of `fail: open` are held to
this replica's share of their limits: limit / replicas seen lately, counted here. So in any minute a
tenant has at most its limit and that share of each replica, which together are one limit more. When
the store is back it is told what it missed (what ended, what was used here, what still runs) before
anything new is reserved there; until then the share goes on.

A process that was held up for longer than a lease lives has lost its leases: others may have its
places by now. It ends the calls of tenants whose places are limited, and holds the others anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING
from uuid import uuid4

from forebay.policies.contracts import Overloaded, Rejected
from forebay.policies.quota import (
    NAMES,
    UNLIMITED,
    Caps,
    Shortage,
)

from .breaker import Breaker
from .here import Here
from .outbox import MOST, Outbox
from .shared_lease import FreeLease, SharedLease
from .store import (
    LEASE_S,
    NEVER,
    PERIOD,
    Batch,
    Operation,
    Renew,
    Reply,
    Reserve,
    Reserved,
    SharedStore,
    StoreAway,
    Usage,
    Used,
)
from .tariff import Calendar, Tariff, exceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.gateway.meter import Asking
    from forebay.policies.contracts import Request
    from forebay.policies.quota import Dates

    from .ledger import Ledger
    from .outbox import Answer, Asked

logger = logging.getLogger(__name__)

PROBE_S = 0.25
HEARTBEAT_S = 1.0
RENEW_S = LEASE_S / 4


class SharedMeter:
    """Reserves and settles in a shared store."""

    def __init__(  # noqa: PLR0913 - each is a seam of its own
        self,
        tariffs: Mapping[str, Tariff],
        store: SharedStore,
        *,
        ledger: Ledger,
        now: Callable[[], float],
        calendar: Calendar | None = None,
        probe_s: float = PROBE_S,
    ) -> None:
        """`probe_s` is the pause between attempts to reach a store that is away."""
        self.now = now
        self.ledger = ledger
        self.live: dict[str, SharedLease] = {}
        self.breaker = Breaker(now)
        self.refused = Counter[tuple[str, str]]()
        """By tenant and limit."""
        self.here = Here(now)
        self.replica = uuid4().hex
        self._calendar = Calendar() if calendar is None else calendar
        self._tariffs = dict(tariffs)
        self._store = store
        self._probe_s = probe_s
        self._outbox = Outbox()
        self._owed: list[tuple[Tariff, Operation]] = []
        self._wake = asyncio.Event()
        self._busy = self._closing = False
        self._attempt = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._beat = self._renewed = now()

    @property
    def _here_now(self) -> bool:
        return self.breaker.away and not self._closing

    def today(self, tariff: Tariff) -> Dates:
        """Return the dates by which a tenant's calls are counted now."""
        return self._calendar.of(tariff.zone).dates(self.now())

    def start(self) -> None:
        """Begin to talk to the store."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work()), loop.create_task(self._heartbeat())]

    def configure(self, tariffs: Mapping[str, Tariff]) -> None:
        """Take other limits; what was counted stays."""
        self._tariffs = dict(tariffs)

    # -- what calls ask --------------------------------------------------------------------------

    def reserve(self, request: Request, model: str, asking: Asking) -> SharedLease | FreeLease:
        """See Meter."""
        tariff = self._tariff(request.tenant)
        if not tariff.limited:
            return FreeLease(self, tariff, request)
        asked = tariff.estimate(request, model)
        lease = SharedLease(self, tariff, request, asked, asking)
        if self._here_now:
            lease.take_here()
        else:
            reserve = Reserve(lease.id, asked.requests, asked.tokens, asked.nano)
            self._ask(tariff, reserve, lease.answered)
        return lease

    def tell(self, tariff: Tariff, operation: Operation) -> None:
        """Have something done at the store, now or when it is back."""
        if self._here_now:
            self.owe(tariff, operation)
        else:
            self._ask(tariff, operation, None)

    def owe(self, tariff: Tariff, operation: Operation) -> None:
        """Keep something for when the store is back."""
        self._owed.append((tariff, operation))

    async def used(self, tenant: str) -> Used:
        """Return what is counted for a tenant now. Raises StoreAway."""
        if self._here_now:
            raise StoreAway("the counters are away")
        future = asyncio.get_running_loop().create_future()

        def answer(reply: Reply | None) -> None:
            if not future.done():  # whoever asked may have gone
                future.set_result(reply)

        self._ask(self._tariff(tenant), Usage(), answer)
        reply = await future
        if reply is None:
            raise StoreAway("the counters are away")
        return reply

    def _tariff(self, tenant: str) -> Tariff:
        found = self._tariffs.get(tenant)
        if found is None:
            found = self._tariffs[tenant] = Tariff(tenant, Caps(), {})
        return found

    def _ask(self, tariff: Tariff, operation: Operation, answer: Answer | None) -> None:
        self._outbox.put(tariff, operation, answer)
        self._wake.set()

    def refusal(self, lease: SharedLease, reply: Reserved) -> Rejected:
        """Word and count a refusal of the store's."""
        dates, wait = self.today(lease.tariff), reply.wait_s
        if wait == PERIOD:
            by_day = NAMES[reply.limit].endswith("day")
            wait = dates.day_left_s if by_day else dates.month_left_s
        short = Shortage(reply.limit, None if reply.wait_s == NEVER else wait)
        return self._exceeded(lease, short, reply.requests, reply.tokens)

    def _exceeded(
        self, lease: SharedLease, short: Shortage, requests: int, tokens: int
    ) -> Rejected:
        self.refused[lease.tariff.tenant, NAMES[short.limit]] += 1
        return exceeded(lease.tariff, lease.asked, short, requests=requests, tokens=tokens)

    # -- the share of this replica ---------------------------------------------------------------

    def reserve_here(self, lease: SharedLease) -> None:
        """Reserve in this replica's share while the store is away. Raises Rejected."""
        short = self.here.reserve(lease, self.today(lease.tariff), replicas=self.breaker.replicas)
        if short is not None:
            totals = self.here.account(lease.tariff.tenant).account
            raise self._exceeded(lease, short, totals.requests.total, totals.tokens.total)

    # -- talking to the store --------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            try:
                await self._turn()
            except Exception:
                logger.exception("counting failed")
                await asyncio.sleep(PROBE_S)

    async def _turn(self) -> None:
        if self.breaker.away:
            await asyncio.sleep(self._probe_s)
            await self._catch_up()
        elif self._outbox:
            self._busy = True
            await self._send(self._outbox.take())
            self._busy = False
        else:
            self._wake.clear()
            await self._wake.wait()

    async def _send(self, asked: list[Asked]) -> None:
        batches = [
            Batch(a.tariff.tenant, a.tariff.caps, self.today(a.tariff), a.operations) for a in asked
        ]
        try:
            replies = await self._store.apply(batches)
        except Exception as error:
            if not isinstance(error, StoreAway):
                logger.exception("counting failed")
            self._lost(str(error))
            for a in asked:
                self._answer(a, [None] * len(a.operations))
            return
        for a, said in zip(asked, replies, strict=True):
            self._answer(a, said)

    def _answer(self, asked: Asked, replies: Sequence[Reply | None]) -> None:
        for operation, answer, reply in zip(asked.operations, asked.answers, replies, strict=True):
            if answer is None:
                if reply is None:
                    self.owe(asked.tariff, operation)
                continue
            try:
                answer(reply)
            except Exception:  # one call's trouble must not keep the others waiting
                logger.exception("answering a call failed")

    def _lost(self, reason: str) -> None:
        """Decide here from now on, until the store is back."""
        if self.breaker.lost(reason):
            self._wake.set()
            self._decide_here()

    def _decide_here(self) -> None:
        """Answer what waits to be asked."""
        for asked in self._outbox.take_all():
            self._answer(asked, [None] * len(asked.operations))

    # -- catching up -----------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Tell the store all that it missed, and only then ask it again."""
        self._attempt += 1
        try:
            await self._store.seen(self.replica)  # nothing missed would ask it nothing
            while True:
                leases, owed = self._missed()
                if not leases and not owed:
                    break
                # The last call: what comes meanwhile waits for it, lest there always be some more.
                self._closing = self._closing or len(leases) + len(owed) < MOST
                await self._tell_missed(leases, owed)
        except Exception as error:
            if not isinstance(error, StoreAway):
                logger.exception("counting failed")
            self._closing = False
            self._decide_here()
            return
        self._closing = False
        self.breaker.found()

    def _missed(self) -> tuple[list[SharedLease], list[tuple[Tariff, Operation]]]:
        for tenant, carried in self.here.carried():
            self.owe(self._tariff(tenant), carried)
        owed, self._owed = self._owed[:MOST], self._owed[MOST:]
        unknown = (lease for lease in self.live.values() if lease.attempt != self._attempt)
        return list(islice(unknown, MOST - len(owed))), owed

    async def _tell_missed(
        self, leases: list[SharedLease], owed: list[tuple[Tariff, Operation]]
    ) -> None:
        now = self.now()
        batches: dict[str, Batch] = {}
        for tariff, operation in (*owed, *((x.tariff, x.assertion(now)) for x in leases)):
            batch = batches.get(tariff.tenant)
            if batch is None:
                batch = Batch(tariff.tenant, tariff.caps, self.today(tariff), [])
                batches[tariff.tenant] = batch
            batch.operations.append(operation)
        try:
            await self._store.apply(list(batches.values()))
        except Exception:
            self._owed = owed + self._owed
            raise
        for lease in leases:
            lease.told(self._attempt)

    # -- staying alive ---------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await self.beat()
            except Exception:
                logger.exception("heartbeat failed")

    async def beat(self) -> None:
        """Say that this replica is there, and keep its leases alive."""
        now = self.now()
        gap, self._beat = now - self._beat, now
        if gap > LEASE_S:
            logger.warning("this process was held up", extra={"seconds": round(gap, 1)})
            self._gone([lease for lease in self.live.values() if lease.held])
        due = now - self._renewed >= RENEW_S
        if due:
            self._renewed = now
            self.here.renew()
        if self.breaker.away:
            return
        if due:
            self._renew()
        try:
            self.breaker.counted(await self._store.seen(self.replica))
        except StoreAway as error:
            self._lost(str(error))

    def _renew(self) -> None:
        by_tenant: dict[str, list[SharedLease]] = {}
        for lease in self.live.values():
            by_tenant.setdefault(lease.tariff.tenant, []).append(lease)
        for leases in by_tenant.values():
            for start in range(0, len(leases), MOST):
                names = [lease.id for lease in leases[start : start + MOST]]
                self._ask(leases[0].tariff, Renew(names), self._renewed_but)

    def _renewed_but(self, lost: Reply | None) -> None:
        if isinstance(lost, list):
            self._gone([self.live[name] for name in lost if name in self.live])

    def _gone(self, leases: Sequence[SharedLease]) -> None:
        """End the calls whose places others may have by now; hold the others anew."""
        now = self.now()
        for lease in leases:
            if lease.tariff.caps.concurrent != UNLIMITED:
                lease.asking.revoked(
                    Overloaded(
                        "the gateway was held up for too long and lost this call's place; send it"
                        " again",
                        status=503,
                        code="lease_lost",
                        retry_after=1.0,
                    )
                )
            else:
                self.tell(lease.tariff, lease.assertion(now))

    # -- the end ---------------------------------------------------------------------------------

    async def close(self, limit_s: float = 2.0) -> bool:
        """Tell the store what is left; False when the time was not enough."""
        end = self.now() + limit_s
        while self.waiting and self.now() < end:  # noqa: ASYNC110 - once, when all else has ended
            await asyncio.sleep(0.01)
        left = self.waiting
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()
        return not left

    @property
    def waiting(self) -> int:
        """How much is still to be told."""
        return len(self._outbox) + len(self._owed) + len(self.here) + self._busy
