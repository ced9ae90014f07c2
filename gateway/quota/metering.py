"""The whole of metering for one process, from its configuration: meter, ledger, start and end."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import TYPE_CHECKING

from forebay.gateway.meter import Unmetered
from forebay.gateway.telemetry.snapshot import QuotaStatus
from forebay.policies.contracts import ConfigError
from forebay.policies.quota import NANO

from .ledger import Ledger
from .ledger_sqlite import SqliteBook
from .local import LocalMeter
from .store import StoreAway
from .tariff import tariffs_of
from .usage_rows import Row, spent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from forebay.gateway.config.sections import Config
    from forebay.gateway.meter import Meter

    from .shared import SharedMeter
    from .usage_rows import Book

logger = logging.getLogger(__name__)

LEDGER_FILE = "forebay-usage.db"
FLUSH_S = 1.0


def ledger_path(config: Config, file: Path | None) -> Path | None:
    """Return where the SQLite ledger of a configuration lies; None where there is none.

    A relative name counts from the folder of the configuration file. Without `state.ledger` it is
    `forebay-usage.db` beside that file, if there are tenants to count for.
    """
    if config.state.url is not None:
        return None
    if config.state.ledger is None and (file is None or not config.tenants):
        return None
    from pathlib import Path  # noqa: PLC0415 - only here is one made

    folder = Path() if file is None else file.parent
    return folder / (config.state.ledger or LEDGER_FILE)


def book_of(config: Config, file: Path | None) -> Book | None:
    """Open the ledger's book. Raises ConfigError where `state.ledger` cannot be written."""
    if config.state.url is not None:
        from .ledger_redis import RedisBook  # noqa: PLC0415 - the redis client takes 150 ms

        names = [tenant.name for tenant in config.tenants]
        return RedisBook(config.state.url.get_secret_value(), names)
    path = ledger_path(config, file)
    if path is None:
        return None
    book = SqliteBook(path)
    try:
        book.prepare()
    except (OSError, sqlite3.Error) as error:
        if config.state.ledger is not None:
            why = f"state.ledger: '{path}' cannot be written: {error}; name another file"
            raise ConfigError(why) from error
        logger.warning(
            "usage is not kept; set state.ledger to a file that can be written",
            extra={"file": str(path), "reason": str(error)},
        )
        return None
    return book


class Metering:
    """Counts for all tenants. Made before anything listens; `start` once the loop runs."""

    def __init__(self, config: Config, file: Path | None, *, now: Callable[[], float]) -> None:
        self._file = file
        self._now = now
        self.meter: Meter = Unmetered()
        self.ledger = Ledger(book_of(config, file))
        self.local: LocalMeter | None = None
        self.shared: SharedMeter | None = None
        self._flushing: asyncio.Task[None] | None = None
        state = config.state
        if state.url is not None:
            from .redis_store import RedisStore  # noqa: PLC0415 - as above
            from .shared import SharedMeter  # noqa: PLC0415 - likewise

            store = RedisStore(state.url.get_secret_value(), timeout_s=state.timeout)
            tariffs = tariffs_of(config)
            self.meter = self.shared = SharedMeter(tariffs, store, ledger=self.ledger, now=now)
        elif config.tenants or config.state.ledger is not None:
            self.meter = self.local = LocalMeter(tariffs_of(config), ledger=self.ledger, now=now)

    async def start(self) -> None:
        """Take up the day's and the month's sums, and begin to keep usage."""
        if self.shared is not None:
            self.shared.start()
        elif self.local is not None:
            await self._seed(self.local)
        self._keep()

    def _keep(self) -> None:
        if self.ledger.book is not None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _seed(self, meter: LocalMeter) -> None:
        now = meter.now()
        dates = {zone: meter.calendar.of(zone).dates(now) for zone in meter.zones}
        try:
            rows = await self.ledger.rows(since=min(each.month for each in dates.values()) * 100)
        except (OSError, sqlite3.Error) as error:
            logger.warning("usage cannot be read", extra={"reason": str(error)})
            return
        for zone, own in dates.items():
            for tenant, sums in spent(rows, own.day, own.month).items():
                if meter.zone_of(tenant) == zone:
                    meter.seed(tenant, own, sums)

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.ledger.flush()
            except Exception:
                logger.exception("usage could not be written")

    def configure(self, config: Config) -> None:
        """Take other tenants and limits; what was counted stays."""
        tariffs = tariffs_of(config)
        if self.shared is not None:
            self.shared.configure(tariffs)
        elif self.local is not None:
            self.local.configure(tariffs)
        elif config.tenants:
            self._begin(config)
        self.ledger.rename([tenant.name for tenant in config.tenants])

    def _begin(self, config: Config) -> None:
        """Meter from the first tenants on that a reload brings."""
        self.ledger.book = book_of(config, self._file)
        tariffs = tariffs_of(config)
        self.meter = self.local = LocalMeter(tariffs, ledger=self.ledger, now=self._now)
        self._keep()

    async def used(self, tenant: str) -> tuple[float, ...] | None:
        """Return what a tenant has used, in the order of `policies.quota.NAMES`.

        None where nothing is metered. Raises StoreAway.
        """
        if self.shared is not None:
            used = await self.shared.used(tenant)
        elif self.local is not None:
            used = self.local.used(tenant)
        else:
            return None
        money = used.day_nano / NANO, used.month_nano / NANO
        tokens = used.day_tokens, used.month_tokens
        return (used.requests, used.tokens, used.concurrent, *tokens, *money)

    async def usage(self, tenants: Sequence[str] | None, since: int) -> Sequence[Row] | None:
        """Return who used what from a day on; None where nothing is kept. Raises StoreAway."""
        if self.ledger.book is None:
            return None
        try:
            return await self.ledger.rows(tenants, since=since)
        except (OSError, sqlite3.Error) as error:
            raise StoreAway(str(error)) from error

    def status(self, tenants: Collection[str]) -> QuotaStatus:
        """Return what is counted of these tenants' refusals, and how the store is."""
        meter = self.shared or self.local
        if meter is None:
            return QuotaStatus()
        refused = {key: n for key, n in meter.refused.items() if key[0] in tenants}
        if self.shared is None:
            return QuotaStatus(refused=refused, usage_lost=self.ledger.lost)
        breaker, here = self.shared.breaker, self.shared.here.admitted
        return QuotaStatus(
            refused=refused,
            admitted_here={name: n for name, n in here.items() if name in tenants},
            away=breaker.away,
            times_away=breaker.times_away,
            replicas=breaker.replicas,
            waiting=self.shared.waiting,
            usage_lost=self.ledger.lost,
        )

    async def close(self) -> bool:
        """Tell the store and the ledger what is left; False when that failed."""
        told = True
        if self.shared is not None:
            told = await self.shared.close()
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)
        written = await self.ledger.close()
        return told and written
