"""Control calls (probes, load readings, aborts) by httpx over connections of our own kind.

httpx gives adapters its request API and its test transports; its connection pool costs four times
as much as what it carries, and with a reading a second from each endpoint that is felt.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx

from forebay.policies.contracts import EngineUnreachable

if TYPE_CHECKING:
    from forebay.adapters.base import Headers, Opener, Stream
    from forebay.policies.contracts import EngineFailed

MAX_ANSWER = 16 << 20
_ADDED = frozenset({"host", "content-length", "authorization", "connection", "accept-encoding"})
"""Headers that the connection writes itself, or that would ask for what it cannot read."""


class EngineTransport(httpx.AsyncBaseTransport):
    """Carries an httpx client's requests to one endpoint."""

    def __init__(self, opener: Opener, prefix: str) -> None:
        """`prefix` is the path of the endpoint's url, which the opener adds itself."""
        self._opener = opener
        self._prefix = prefix

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request and gather its answer."""
        path = request.url.raw_path.decode("ascii").removeprefix(self._prefix)
        headers = [(k, v) for k, v in request.headers.items() if k not in _ADDED]
        answer = _Answer(request)
        body = await request.aread()
        answer.stream = self._opener.open(request.method, path, headers, body, answer)
        try:
            return await answer.done
        finally:
            answer.stream.close()

    async def aclose(self) -> None:
        """Close idle connections."""
        self._opener.close()


class _Answer:
    """Gathers one answer (a `Sink`)."""

    def __init__(self, request: httpx.Request) -> None:
        self.done: asyncio.Future[httpx.Response] = asyncio.get_running_loop().create_future()
        self.stream: Stream
        self._request = request
        self._status = 0
        self._headers: Headers = []
        self._parts: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: Headers) -> None:
        """See Sink."""
        self._status, self._headers = status, headers

    def on_data(self, data: bytes) -> None:
        """See Sink."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > MAX_ANSWER:
            self.stream.close()
            self._fail(httpx.ReadError("the answer is too long", request=self._request))

    def on_end(self) -> None:
        """See Sink."""
        if not self.done.done():
            content = b"".join(self._parts)
            # As it is on the wire: no encoding was asked for.
            headers = [(k, v) for k, v in self._headers if k != b"content-encoding"]
            self.done.set_result(
                httpx.Response(
                    self._status, headers=headers, content=content, request=self._request
                )
            )

    def on_failure(self, error: EngineFailed) -> None:
        """See Sink."""
        unreachable = isinstance(error, EngineUnreachable)
        kind = httpx.ConnectError if unreachable else httpx.ReadError
        self._fail(kind(error.message, request=self._request))

    def _fail(self, error: httpx.HTTPError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def control_client(opener: Opener, url: str) -> httpx.AsyncClient:
    """Return a client for the control routes of the endpoint at `url`; it closes `opener`, too."""
    prefix = httpx.URL(url).path.rstrip("/")
    return httpx.AsyncClient(
        transport=EngineTransport(opener, prefix), trust_env=False, follow_redirects=False
    )
