"""One gateway process: assembles the application, keeps time, reloads, drains."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING

from forebay import __version__
from forebay.policies.contracts import ConfigError

from .app import App
from .assembly import Assembly
from .chores import Chores
from .connections import Connections, limits_of
from .discovery import Discovery, resolve
from .draining import Drain
from .experimenting import Experiments
from .keys import Keys
from .listening import bind, stop, url_of
from .local import LocalAnswers, Scrape
from .operations import Operations
from .prefix_status import sharing_status
from .quota.metering import Metering
from .reload import Watcher, refuse_fixed
from .status import take_snapshot
from .telemetry import logs
from .telemetry.access_log import AccessLog
from .telemetry.labels import LabelSpace
from .telemetry.loop_watch import LoopWatch
from .telemetry.metrics import Metrics
from .telemetry.observer import Telemetry
from .telemetry.writer import LineWriter
from .tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forebay.gateway.config.sections import Config

    from .admin_server import AdminServer
    from .discovery import Resolve
    from .telemetry.snapshot import Snapshot
    from .telemetry.spans import Spans

logger = logging.getLogger(__name__)

TICK = 0.1
"""Seconds between folds of the telemetry."""
CHECKS = 0.25
"""Seconds between looks at time limits; they may be late by as much."""
SWEEP = 1.0


class Process:
    """Runs until told to stop."""

    def __init__(  # noqa: PLR0913 - each is a seam of its own
        self,
        config: Config,
        *,
        path: Path | None = None,
        read: Callable[[bytes], Config] | None = None,
        loaded: bytes | None = None,
        banner: Callable[[str, str | None], None] | None = None,
        resolve: Resolve = resolve,
    ) -> None:
        self.config = config
        self._path = path
        self._read = read
        self._loaded = loaded
        self._banner = banner
        self._discovery = Discovery(self.apply, resolve=resolve)
        self._started = time.time()
        self._draining = False
        self._listening = False
        self.watcher: Watcher | None = None
        """Reads the configuration again; None without a file."""
        self.operations = Operations(self)
        self._tokens: Tokens | None = None

    async def run(self) -> int:
        """Serve; return the exit code."""
        self._writer = LineWriter(sys.stderr.fileno())
        logs.configure(self._writer, level=self.config.telemetry.log_level)
        try:
            await self._start()
        except ConfigError as error:
            logger.error("cannot start", extra={"reason": error.message})  # noqa: TRY400 - our words say it
            self._writer.close()
            return 1
        await self._stopped.wait()
        await self._drain()
        self._writer.close()
        return 0

    # -- starting --------------------------------------------------------------------------------

    async def _start(self) -> None:
        # The first, since a ledger that cannot be opened is to be told before anything starts.
        self.metering = Metering(self.config, self._path, now=time.monotonic)
        server, loop = self.config.server, asyncio.get_running_loop()
        self._stopped, self._hurry = asyncio.Event(), asyncio.Event()
        self._chores = Chores()
        said = self.config
        await self._discovery.prepare(said)
        self.config = self._discovery.expand(said)
        self._observe(loop)
        await self._assemble()
        self.connections = Connections(self.app, limits_of(self.config), time.monotonic)
        try:
            self._listener = await bind(self.connections.accept, server.host, server.port)
        except ConfigError:
            await self._assembly.close()  # replicas would miss its places for a while
            await self.experiments.close()
            await self.metering.close()
            raise
        self._listening = True
        self._discovery.attend(said)
        self._handle_signals(loop)
        self._watch.start()
        self._ticking = loop.create_task(self._tick())
        self._watching = self._start_watcher(loop)
        self._admin = self._start_admin()
        gc.collect()
        gc.freeze()
        self._announce()

    def _observe(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the telemetry."""
        config = self.config
        labels = LabelSpace.from_config(config)
        metrics = Metrics(labels)
        self.telemetry = Telemetry(
            metrics, self._access_log(labels), self._spans(labels), sample=config.telemetry.sample
        )
        self._watch = LoopWatch(loop, metrics.loop_pause)

    async def _assemble(self) -> None:
        """Make the pools and the application, and begin to count."""
        config = self.config
        self._assembly = Assembly(
            now=time.monotonic,
            metrics=self.metrics,
            changed=self.telemetry.transition,
            control=self._chores.put,
        )
        self._assembly.take(self._assembly.build(config))
        self._tokens = self._tokens_of(config)
        await self.metering.start()
        self.app = App(
            config,
            keys=self._keys_of(config, self._tokens),
            pools=self._assembly.pools,
            meter=self.metering.meter,
            observer=self.telemetry,
            local=LocalAnswers(
                snapshot=self.snapshot,
                scrape=self._scrape if config.server.metrics == "main" else None,
                created=int(self._started),
            ),
            now=time.monotonic,
            abort=self._assembly.abort,
        )
        self.experiments = Experiments(config, self._path, now=time.monotonic)
        await self.experiments.start(self.app)

    def _access_log(self, labels: LabelSpace) -> AccessLog | None:
        return AccessLog(self._writer, labels) if self.config.telemetry.log_requests else None

    def _spans(self, labels: LabelSpace) -> Spans | None:
        if self.config.telemetry.otlp is None:
            return None
        # The SDK takes 100 ms to import, so only who traces pays for it.
        from .telemetry.spans import otlp_spans  # noqa: PLC0415 - see above

        return otlp_spans(self.config.telemetry.otlp, labels, version=__version__)

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)

    def stop(self) -> None:
        """Drain; told twice, hurry."""
        if self._stopped.is_set():
            self._hurry.set()
        self._stopped.set()

    def _reload(self) -> None:
        if self.watcher is not None:
            self.watcher.poke()

    def _start_watcher(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
        if self._path is None or self._read is None:
            return None
        take, prepare = self.apply, self._discovery.prepare
        self.watcher = Watcher(
            self._path, apply=take, prepare=prepare, read=self._read, loaded=self._loaded
        )
        return loop.create_task(self.watcher.run())

    def _start_admin(self) -> AdminServer | None:
        section = self.config.server.admin
        if section is None:
            return None
        from .admin_server import AdminServer  # noqa: PLC0415 - uvicorn and FastAPI take 400 ms

        try:
            return AdminServer.start(self, section)
        except ConfigError as error:
            # The callers' port is what counts.
            logger.error("admin port is not served", extra={"reason": error.message})  # noqa: TRY400 - our words say it
            return None

    @property
    def metrics(self) -> Metrics:
        """What is counted."""
        return self.telemetry.metrics

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._listener.sockets[0].getsockname()[1]

    def _announce(self) -> None:
        host, port = self.config.server.host, self.port
        logger.info("listening", extra={"host": host, "port": port, "version": __version__})
        if self._banner is not None:
            self._banner(url_of(host, port), None if self._admin is None else self._admin.url)

    # -- running ---------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Do what is done by the clock: nothing on the data plane has a timer of its own."""
        checked = swept = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            self._try(self.telemetry.flush)
            self.experiments.tick(now)
            if now - checked >= CHECKS:
                checked = now
                self._check(now)
            if now - swept >= SWEEP:
                swept = now
                self._try(self.connections.sweep, now)

    @staticmethod
    def _try(step: Callable[..., None], *arguments: object) -> None:
        """Do one of many things: a fault in it is no reason to leave out the others."""
        try:
            step(*arguments)
        except Exception:
            logger.exception("tick failed")

    def _check(self, now: float) -> None:
        for pool in tuple(self._assembly.pools.values()):
            self._try(pool.tick, now)
        for relay in tuple(self.app.active):
            try:
                relay.check(now)
            except Exception as error:  # noqa: BLE001 - the others are still to be looked at
                relay.broke(error)

    def snapshot(self) -> Snapshot:
        """Return what the gateway is now; for the loop's thread."""
        return take_snapshot(
            self._assembly.pools.values(),
            now=time.monotonic(),
            client_connections=len(self.connections.open) if self._listening else 0,
            buffered_bytes=self.app.buffered_bytes,
            buffered_limit_bytes=self.config.server.max_buffered,
            settlements_waiting=self._chores.waiting,
            config_ok=self.watcher is None or self.watcher.ok,
            listening=self._listening,
            draining=self._draining,
            loop_pause_max_s=self._watch.longest,
            chores_dropped=self._chores.dropped,
            log_lines_dropped=self._writer.dropped,
            traces_dropped=self.telemetry.spans.dropped if self.telemetry.spans else 0,
            quota=self.metering.status({tenant.name for tenant in self.config.tenants}),
            experiments=self.experiments.status(),
            experiments_away=self.experiments.away,
            prefix_sharing=sharing_status(self._assembly.sharing),
            hosts_failing=self._discovery.failing,
            limits_away=self._assembly.limits is not None and self._assembly.limits.away,
            version=__version__,
            started_unix_s=self._started,
        )

    def _scrape(self, accept: str, scrape: Scrape) -> None:
        """Render in a thread, and answer on the loop."""
        snapshot = self.snapshot()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, self.telemetry.metrics.render, accept, snapshot)

        def done(rendered: asyncio.Future[tuple[str, bytes]]) -> None:
            if rendered.cancelled():
                return
            error = rendered.exception()
            if error is not None:
                logger.error("metrics cannot be rendered", exc_info=error)
                scrape.failed()
            else:
                scrape.rendered(*rendered.result())

        future.add_done_callback(done)

    def apply(self, config: Config) -> None:
        """Take a new configuration into force, or raise ConfigError and change nothing."""
        refuse_fixed(self.config, config)
        said, config = config, self._discovery.expand(config)
        built = self._assembly.build(config)
        tokens = self._tokens_of(config)
        self._assembly.take(built)
        self.config = config
        self._discovery.attend(said)
        self.connections.limits = limits_of(config)
        self.connections.heads.clear()
        self.telemetry.relabel(LabelSpace.from_config(config))
        if self._tokens is not None and self._tokens is not tokens:
            self._chores.put(self._tokens.close)
        self._tokens = tokens
        keys = self._keys_of(config, tokens)
        self.metering.configure(config)
        self.app.meter = self.metering.meter
        self.app.configure(config, keys=keys, pools=self._assembly.pools)
        self.experiments.configure(config)
        self._assembly.recheck()

    def _tokens_of(self, config: Config) -> Tokens | None:
        """Return what knows an issuer's tokens: the one there is, unless its section changed."""
        section, old = config.auth.jwt, self._tokens
        if section is None or (old is not None and old.section == section):
            return None if section is None else old
        return Tokens(section, rotated=self._forget_heads)

    def _forget_heads(self) -> None:
        self.connections.heads.clear()

    @staticmethod
    def _keys_of(config: Config, tokens: Tokens | None) -> Keys:
        if tokens is not None:
            tokens.configure(config.tenants)
        return Keys(config.tenants, tokens=tokens)

    # -- stopping --------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Stop as SIGTERM asks: notice, no more connections, running calls, the rest."""
        self._draining = True
        drain = Drain(self.connections, self.config.server.drain, self._hurry)
        await drain.notice()
        self._listening = False
        await stop(self._listener, self.connections.accept)
        await drain.finish()
        for relay in tuple(self.app.active):
            relay.drained()
        self.connections.refuse_unread()
        await self._end()

    async def _end(self) -> None:
        if self._admin is not None:
            self._admin.stop()
        tasks = [task for task in (self._ticking, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await self._discovery.close()
        self._watch.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not await self._chores.flush(5.0):
            logger.warning("not all settled", extra={"waiting": self._chores.waiting})
        await self._chores.close()
        if self._tokens is not None:
            await self._tokens.close()
        await self._assembly.close()
        for connection in tuple(self.connections.open):
            connection.transport.close()
        for _ in range(10):  # for the last bytes to go out
            if self.connections.open:
                await asyncio.sleep(0.01)
        await self.experiments.close()
        if not await self.metering.close():
            logger.warning("not all usage is told")
        self.telemetry.close()
        logger.info("stopped", extra={"unsettled": len(self.app.active)})
