"""Takes an address to listen on, or says in plain words why it cannot be had."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

from forebay.policies.contracts import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACKLOG = 2048
_ANOTHER_PORT = (errno.EADDRINUSE, errno.EACCES)


def listen(host: str, port: int, *, hint: str = "") -> socket.socket:
    """Listen; port 0 lets the system choose. Raises ConfigError.

    `hint` is what to do where somebody listens there already, or the port is the system's.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise not_had(host, port, error, hint=hint) from error


async def bind(factory: Callable[[], asyncio.Protocol], host: str, port: int) -> asyncio.Server:
    """Serve on an address by this loop. Raises ConfigError."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(factory, host, port, backlog=BACKLOG)
    except OSError as error:
        raise not_had(host, port, error, hint="--port takes another") from error


async def stop(server: asyncio.Server, factory: Callable[[], asyncio.Protocol]) -> None:
    """Listen no more, and serve who is connected and was not accepted yet.

    The system resets those that still stand in line when a listening socket is closed.
    """
    line = [socket.socket(fileno=os.dup(each.fileno())) for each in server.sockets]
    server.close()
    accepted: list[socket.socket] = []
    for listening in line:
        with listening:
            accepted += _waiting(listening)
    for connection in accepted:
        await asyncio.get_running_loop().connect_accepted_socket(factory, connection)


def _waiting(listening: socket.socket) -> Iterator[socket.socket]:
    listening.setblocking(False)
    with contextlib.suppress(OSError):  # BlockingIOError: that was all
        while True:
            connection, _ = listening.accept()
            connection.setblocking(False)
            yield connection


def not_had(host: str, port: int, error: OSError, *, hint: str = "") -> ConfigError:
    """Return the error for an address that cannot be had."""
    # The loops word it differently, and say the address again.
    known = isinstance(error.errno, int) and error.errno > 0
    why = os.strerror(error.errno or 0).lower() if known else error.strerror or str(error)
    then = f"; {hint}" if hint and error.errno in _ANOTHER_PORT else ""
    return ConfigError(f"cannot listen on {host}:{port}: {why}{then}")


def url_of(host: str, port: int) -> str:
    """Return the address to write into a browser on this machine."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - to be shown
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
