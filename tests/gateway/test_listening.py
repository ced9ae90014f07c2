"""Addresses that are had, and those that are not."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from forebay.gateway.listening import bind, listen, not_had, stop, url_of
from forebay.policies.contracts import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_port_that_is_taken_is_told_with_what_to_do():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            listen("127.0.0.1", port, hint="--port takes another")
    assert caught.value.message == (
        f"cannot listen on 127.0.0.1:{port}: address already in use; --port takes another"
    )


def test_an_address_that_is_nobodys_is_told_without_a_hint():
    with pytest.raises(ConfigError) as caught:
        listen("192.0.2.1", 0, hint="--port takes another")
    assert caught.value.message == "cannot listen on 192.0.2.1:0: cannot assign requested address"
    with pytest.raises(ConfigError, match="cannot listen on nosuch"):
        listen("nosuch.invalid", 0)


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:  # uvloop's are no asyncio.WriteTransport
        transport.write(b"hello")
        transport.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_stands_in_line_when_listening_ends_is_still_served(
    loop: Callable[[], asyncio.AbstractEventLoop],
):
    async def main() -> None:
        server = await bind(Greeter, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        in_line = [socket.create_connection(address) for _ in range(20)]
        await stop(server, Greeter)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        for each in in_line:
            with each:
                each.setblocking(False)
                async with asyncio.timeout(10):
                    assert await asyncio.get_running_loop().sock_recv(each, 9) == b"hello"

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def test_a_port_that_is_not_for_this_user_is_told_with_what_to_do():
    refused = not_had("127.0.0.1", 80, PermissionError(errno.EACCES, "x"), hint="--port takes more")
    assert refused.message == "cannot listen on 127.0.0.1:80: permission denied; --port takes more"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("gpu-7", "http://gpu-7:80"),
    ],
)
def test_an_address_is_shown_as_a_browser_takes_it(host: str, url: str):
    assert url_of(host, 80) == url
