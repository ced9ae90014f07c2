"""Counters in Redis or Valkey, shared by all replicas; its TIME is the clock.

All that one loop turn asks goes out as one script call. On a cluster it is one call a tenant: a
tenant's keys carry its name as their hash tag, so they live on one node. `redis+sentinel://` finds
the primary through sentinels, `redis+cluster://` a cluster by any of its nodes.

A call that is not answered within `timeout_s` raises StoreAway, and the script does nothing when it
runs later than its asker waits: a server that was frozen does not wake up to old wishes.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from .store import (
    LEASE_S,
    Batch,
    Operation,
    Renew,
    Reply,
    Reserve,
    Reserved,
    StoreAway,
    Used,
    wire_caps,
)
from .store import Usage as UsageOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

T = TypeVar("T")
TIMEOUT_S = 0.04
"""With a late loop a caller waits for less than 50 ms when the server is frozen."""
_DEADLINE_SLACK_S = 0.02
"""The server's clock as we know it lags by half a round trip."""
REPLICA_S = 5
"""A replica that has said nothing for so long is not there."""
_LATE_S = 0.02
_OWN_TIMEOUT_S = 1.0
"""The client's, beyond ours: it cannot tell a slow server from a loop that was held up."""
_SEEN = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]) - 1)
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])
"""
_SCRIPT = files("forebay.gateway.quota").joinpath("lua/quota.lua")
_encode = msgspec.msgpack.encode
_answer = msgspec.msgpack.Decoder(tuple[int, list[list[Any]] | None]).decode


class RedisStore:
    """Keeps all counters in one server, or one cluster."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "forebay",
        lease_s: float = LEASE_S,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`clock` stands for the server's own, in tests."""
        self.client = connect(url, timeout_s)
        self._cluster = isinstance(self.client, RedisCluster)
        self._prefix = prefix
        self._lease_s = lease_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._script = _SCRIPT.read_text()
        self._sha: str | None = None
        self._ahead: float | None = None
        """The server's time less ours."""

    def keys(self, tenant: str) -> tuple[str, str, str, str]:
        """Return a tenant's keys, as the script takes them."""
        tag = f"{self._prefix}:{{{tenant}}}:"
        return tag + "state", tag + "leases", tag + "expiry", tag + "gone"

    async def apply(self, batches: Sequence[Batch]) -> list[list[Reply]]:
        """See Store."""
        return await self._within(self._all(batches))

    async def seen(self, replica: str) -> int:
        """Say that a replica is there; return how many were seen lately, this one included."""
        return await self._within(self._seen(replica))

    async def _within(self, asked: Coroutine[Any, Any, T]) -> T:
        try:
            return await patiently(asked, self._timeout_s)
        except (RedisError, OSError, TimeoutError) as error:
            self._ahead = None  # the next server may not be this one
            raise StoreAway(str(error) or "no answer in time") from error

    async def _all(self, batches: Sequence[Batch]) -> list[list[Reply]]:
        if not self._cluster:
            return await self._call(batches)
        return [(await self._call([batch]))[0] for batch in batches]

    async def _seen(self, replica: str) -> int:
        client: Any = self.client
        key = f"{self._prefix}:{{replicas}}"
        return await client.eval(_SEEN, 1, key, replica, REPLICA_S)

    async def close(self) -> None:
        """See Store."""
        await self.client.aclose()
        if isinstance(self.client, Redis):
            # A client that sentinels gave does not close those it asked.
            manager = getattr(self.client.connection_pool, "sentinel_manager", None)
            for sentinel in manager.sentinels if manager else ():
                await sentinel.aclose()

    async def _call(self, batches: Sequence[Batch]) -> list[list[Reply]]:
        keys = [key for batch in batches for key in self.keys(batch.tenant)]
        deadline = 0.0
        if self._ahead is not None and self._clock is None:
            deadline = monotonic() + self._ahead + self._timeout_s + _DEADLINE_SLACK_S
        asked = [(wire_caps(b.caps), b.dates.day, b.dates.month, b.operations) for b in batches]
        packed = _encode((deadline, self._lease_s, asked))
        now_ms, answers = _answer(await self._run(keys, packed))
        ahead = now_ms / 1000 - monotonic()  # less by what the answer took to get here
        self._ahead = ahead if self._ahead is None else max(ahead, self._ahead)
        if answers is None:
            raise TimeoutError("the server answered too late")
        return [
            [_reply(operation, said) for operation, said in zip(b.operations, replies, strict=True)]
            for b, replies in zip(batches, answers, strict=True)
        ]

    async def _run(self, keys: list[str], packed: bytes) -> bytes:
        client: Any = self.client  # the two kinds of client share no typed base
        arguments = (len(keys), *keys, packed)
        if self._clock is not None:
            arguments = (*arguments, self._clock())
        if self._sha is not None:
            try:
                return await client.evalsha(self._sha, *arguments)
            except NoScriptError:
                pass  # the server was restarted
        self._sha = await client.script_load(self._script)
        return await client.evalsha(self._sha, *arguments)


def _reply(asked: Operation, said: Any) -> Reply:
    if isinstance(asked, Reserve):
        return Reserved(*said)
    if isinstance(asked, Renew):
        return said or []
    return Used(*said) if isinstance(asked, UsageOperation) else said


async def patiently(asked: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Wait for an answer. Raises TimeoutError after `timeout_s`.

    A loop that was held up has read no answer: what is late then is we, so it looks once more.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(asked)
    due = loop.time() + timeout_s
    try:
        done, _ = await asyncio.wait((task,), timeout=timeout_s)
        if not done and loop.time() - due > _LATE_S:
            done, _ = await asyncio.wait((task,), timeout=timeout_s)
        if not done:
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    """Take note of how an abandoned call ended, so that nobody complains of it."""
    if not task.cancelled():
        task.exception()


def connect(url: str, timeout_s: float = TIMEOUT_S) -> Redis | RedisCluster:
    """Make a client for a URL; nothing is connected before it is used.

    `redis://`, `rediss://` and `unix://` as redis-py has them, `redis+cluster://` likewise, and
    `redis+sentinel://[:password@]host:port,host:port/service[/db]`.
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": max(timeout_s, _OWN_TIMEOUT_S),
        "socket_timeout": max(timeout_s, _OWN_TIMEOUT_S),
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # 3 costs a new connection another round trip, for notices nobody reads
    }
    if url.startswith("redis+cluster://"):
        return RedisCluster.from_url(url.replace("redis+cluster", "redis", 1), **options)
    if not url.startswith("redis+sentinel://"):
        return Redis.from_url(url, **options)  # type: ignore[reportUnknownMemberType]  # redis-py's **kwargs
    parts = urlsplit(url)
    service, _, database = parts.path.strip("/").partition("/")
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    sentinels = [_address(host) for host in hosts.split(",")]
    found = Sentinel(sentinels, sentinel_kwargs=dict(options), **options)
    return found.master_for(  # type: ignore[reportUnknownMemberType]  # redis-py's **kwargs
        service or "mymaster",
        db=int(database or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
    )


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    return (name or host, int(port) if name else 26379)
