"""Runs the control plane on its own port and thread, where it cannot hold up a stream."""

from __future__ import annotations

import asyncio
import logging
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import uvicorn

from .admin import admin_app
from .admin_operations import operations_router
from .listening import listen, url_of

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from starlette.types import ASGIApp

    from forebay.gateway.config.sections import Admin

    from .operations import Operations
    from .telemetry.counts import PoolTotals
    from .telemetry.metrics import Metrics
    from .telemetry.snapshot import Snapshot

logger = logging.getLogger(__name__)

T = TypeVar("T")
_PATIENCE = 2.0


class Watched(Protocol):
    """The process, as much of it as is shown."""

    @property
    def metrics(self) -> Metrics:
        """What is counted; may be read from any thread."""
        ...

    @property
    def operations(self) -> Operations:
        """What an operator may do; for the loop's thread."""
        ...

    def snapshot(self) -> Snapshot:
        """Return what the gateway is now; for the loop's thread."""
        ...


class _State:
    """Reads the process from another thread: what lives on the loop is asked for there."""

    def __init__(self, watched: Watched, loop: asyncio.AbstractEventLoop) -> None:
        self._watched = watched
        self._loop = loop

    def snapshot(self) -> Snapshot:
        """See AdminState."""

        async def take() -> Snapshot:
            return self._watched.snapshot()

        return self.call(take())

    def call(self, work: Coroutine[Any, Any, T], patience_s: float = _PATIENCE) -> T:
        """Run something on the loop and wait for it. Raises TimeoutError."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(patience_s)
        except TimeoutError:
            running.cancel()
            raise

    def totals(self) -> Mapping[str, PoolTotals]:
        """See AdminState."""
        return self._watched.metrics.totals()

    def render_metrics(self, accept: str) -> tuple[str, bytes]:
        """See AdminState."""
        return self._watched.metrics.render(accept, self.snapshot())


class AdminServer:
    """One uvicorn in a thread."""

    def __init__(self, server: uvicorn.Server, thread: Thread, url: str) -> None:
        self._server = server
        self._thread = thread
        self.url = url
        """Where the live page is."""

    @classmethod
    def start(cls, watched: Watched, section: Admin) -> AdminServer:
        """Start to serve. Raises ConfigError when the port cannot be had.

        The app is made in the thread, so that FastAPI's import does not hold up the first requests.
        """
        listening = listen(section.host, section.port, hint="server.admin.port takes another")
        state = _State(watched, asyncio.get_running_loop())
        key = section.key.get_secret_value() if section.key else None

        def build() -> ASGIApp:
            return admin_app(state, key, operations_router(watched.operations, state.call))

        server = uvicorn.Server(
            uvicorn.Config(
                build,
                factory=True,
                loop="asyncio",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
            )
        )

        port = listening.getsockname()[1]
        logger.info("admin listening", extra={"host": section.host, "port": port})
        thread = Thread(target=server.run, args=([listening],), name="forebay-admin", daemon=True)
        thread.start()
        return cls(server, thread, f"{url_of(section.host, port)}/")

    def stop(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._thread.join(_PATIENCE)
