"""Where serving begins: event loop, sockets and signals, around one `process.Process`.

    serve         a configuration file, watched
    serve_config  a configuration that was made in memory (the demo)
    serve_engine  one embedded engine on a port

SIGTERM and SIGINT drain: readiness goes, answers say `connection: close`, and after
`drain.notice` nobody new is let in; what runs has `drain.limit` to end. SIGHUP, or a changed file,
reloads.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from forebay.gateway.config import load
from forebay.gateway.config.errors import ConfigErrors

from .connections import Connections
from .engine_host import EngineHost
from .messages import Limits
from .process import Process, bind
from .writable import find_unwritable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forebay.adapters.sim import Embedded
    from forebay.gateway.config.sections import Config

logger = logging.getLogger(__name__)


def serve(path: Path, *, host: str | None = None, port: int | None = None) -> int:
    """Serve a configuration file until told to stop; `host` and `port` override the file's.

    Raises ConfigErrors, before anything starts, for what is wrong with it, and for what it names to
    be written and cannot be.
    """
    _prepare()
    content = path.read_bytes()
    config, tree = load.read_with_lines(content)
    unwritable = [tree.fault(*each) for each in find_unwritable(config, path)]
    if unwritable:
        raise ConfigErrors(tuple(sorted(unwritable)))

    def read(text: bytes) -> Config:
        return _overridden(load.read(text), host, port)

    config = _overridden(config, host, port)
    process = Process(config, path=path, read=read, loaded=content)
    return uvloop.run(process.run())


def serve_config(config: Config, *, banner: Callable[[str, str | None], None] | None = None) -> int:
    """Serve a configuration until told to stop.

    `banner` is given the callers' address, and the live page's where there is one, when it listens.
    """
    _prepare()
    return uvloop.run(Process(config, banner=banner).run())


def serve_engine(embedded: Embedded, *, host: str, port: int) -> int:
    """Serve one embedded engine until told to stop."""
    _prepare()
    return uvloop.run(_run_engine(embedded, host, port))


def _prepare() -> None:
    _open_standard_files()
    # A stream takes two files, and the usual soft limit of 1,024 is there for select(2) alone.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_standard_files() -> None:
    """Open what is closed of input, output and errors.

    Else a socket would get its number, and the log be written into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, so this one
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def _overridden(config: Config, host: str | None, port: int | None) -> Config:
    changes = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    if not changes:
        return config
    return config.model_copy(update={"server": config.server.model_copy(update=changes)})


async def _run_engine(embedded: Embedded, host: str, port: int) -> int:
    loop = asyncio.get_running_loop()
    connections = Connections(EngineHost(embedded), Limits(), time.monotonic)
    listener = await bind(connections.accept, host, port)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    address = listener.sockets[0].getsockname()
    print(f"engine sim: http://{host}:{address[1]}", file=sys.stderr, flush=True)  # noqa: T201 - a server says where it is
    gc.freeze()
    while not stop.is_set():
        connections.sweep(time.monotonic())
        try:
            async with asyncio.timeout(1.0):
                await stop.wait()
        except TimeoutError:
            continue
    listener.close()
    return 0
