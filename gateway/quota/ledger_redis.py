"""The ledger of many replicas, in the Redis that keeps their counters."""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import msgspec
from redis.exceptions import RedisError

from .redis_store import connect
from .usage_rows import Key, Row, Sums, row_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCRIPT = files("forebay.gateway.quota").joinpath("lua/ledger.lua")
_TIMEOUT_S = 2.0
"""Nobody waits for a ledger."""
_decode = msgspec.msgpack.decode


class RedisBook:
    """One hash a tenant, on the same node of a cluster as its counters."""

    def __init__(self, url: str, tenants: Sequence[str], *, prefix: str = "forebay") -> None:
        """`tenants` are those that `rows` tells of when it is not told whom to."""
        self.tenants: Sequence[str] = tenants
        self._client: Any = connect(url, _TIMEOUT_S)
        self._prefix = prefix
        self._script = _SCRIPT.read_text()

    async def write(self, name: str, sums: Mapping[Key, Sums]) -> None:
        """See Book."""
        by_tenant: dict[str, list[tuple[str, Sums]]] = {}
        for (tenant, model, day), values in sums.items():
            by_tenant.setdefault(tenant, []).append((f"{day}|{model}", values))
        try:
            for tenant, entries in by_tenant.items():
                await self._add(tenant, name, msgspec.msgpack.encode(entries))
        except (RedisError, TimeoutError) as error:
            raise OSError(str(error)) from error

    async def _add(self, tenant: str, name: str, packed: bytes) -> None:
        tag = f"{self._prefix}:{{{tenant}}}:"
        async with asyncio.timeout(_TIMEOUT_S):
            await self._client.eval(self._script, 2, f"{tag}usage", f"{tag}batch:{name}", packed)

    async def rows(self, tenants: Sequence[str] | None, since: int, until: int) -> list[Row]:
        """See Book."""
        found: list[tuple[Key, Sums]] = []
        try:
            for tenant in self.tenants if tenants is None else tenants:
                key = f"{self._prefix}:{{{tenant}}}:usage"
                for field, packed in (await self._client.hgetall(key)).items():
                    day, _, model = field.decode().partition("|")
                    if since <= int(day) <= until:
                        found.append(((tenant, model, int(day)), _decode(packed)))
        except (RedisError, TimeoutError) as error:
            raise OSError(str(error)) from error
        found.sort(key=lambda entry: (entry[0][2], entry[0][0], entry[0][1]))
        return [row_of(key, sums) for key, sums in found]

    async def close(self) -> None:
        """See Book."""
        await self._client.aclose()
