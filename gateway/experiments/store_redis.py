"""Experiments of many replicas, in the Redis or Valkey that keeps their counters.

Each replica writes its own counts into a field of its own, so nothing is ever counted twice, and a
stamp with them, by which the others see what they have to read again. The state has a version, and
the next one is written only where that version still stands: two that both think they hold the
lease cannot both decide.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from redis.exceptions import RedisError
from xxhash import xxh3_128_digest

from forebay.gateway.quota.redis_store import connect
from forebay.policies.experiments.answers import ShadowTally
from forebay.policies.experiments.ramp import State

from .mirror import SHADOW, Mirror
from .store import ExperimentsAway, Kept, Rows, encode

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from .mirror import Counts, Part

_SCRIPT = files("forebay.gateway.experiments").joinpath("lua/decide.lua")
_TIMEOUT_S = 2.0
"""Nobody waits for it."""
LEASE_S = 5.0
_rows = msgspec.json.Decoder(Rows).decode
_shadow = msgspec.json.Decoder(dict[str, ShadowTally]).decode
_state = msgspec.json.Decoder(State).decode


class RedisExperiments:
    """Hashes for the state, each part's counts, and stamps; all of one experiment on one node."""

    shared = True

    def __init__(self, url: str, *, prefix: str = "forebay", lease_s: float = LEASE_S) -> None:
        self._client: Any = connect(url, _TIMEOUT_S)
        self._prefix = prefix
        self._lease_ms = int(lease_s * 1000)
        self._script = _SCRIPT.read_text()
        self.replica = uuid4().hex
        self._stamps = count(1)  # never the same twice, also where the server has lost everything
        self._written: dict[str, dict[str, bytes]] = {}
        """By experiment and part, the digest of what was written last."""
        self._mirrors: dict[str, Mirror] = {}

    def _key(self, name: str, what: str) -> str:
        return f"{self._prefix}:{{ab:{name}}}:{what}"

    async def _within(self, asked: Coroutine[Any, Any, Any]) -> Any:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await asked
        except (RedisError, OSError, TimeoutError) as error:
            raise ExperimentsAway(str(error) or "no answer in time") from error
        except msgspec.MsgspecError as error:
            raise ExperimentsAway(f"what is kept cannot be read: {error}") from error

    async def load(self, name: str) -> Kept | None:
        """See Store."""
        return await self._within(self._load(name))

    async def _load(self, name: str) -> Kept | None:
        async with self._client.pipeline(transaction=False) as looks:
            looks.hget(self._key(name, "state"), "state")
            looks.hgetall(self._key(name, "stamps"))
            held, told = await looks.execute()
        stamps = {_part(field): stamp for field, stamp in told.items()}
        self._forget_lost(name, stamps)
        if held is None:
            return None
        others = {part: stamp for part, stamp in stamps.items() if part[1] != self.replica}
        mirror = self._mirrors.setdefault(name, Mirror())
        mirror.update(others, await self._read(name, mirror.outdated(others)))
        return Kept(state=_state(held), stages=dict(mirror.stages), shadow=mirror.shadow)

    async def _read(self, name: str, parts: Sequence[Part]) -> dict[Part, Counts]:
        if not parts:
            return {}
        async with self._client.pipeline(transaction=False) as looks:
            for what, replica in parts:
                looks.hget(self._key(name, what), replica)
            found = await looks.execute()
        return {
            part: _shadow(packed) if part[0] == SHADOW else _rows(packed)
            for part, packed in zip(parts, found, strict=True)
            if packed is not None
        }

    def _forget_lost(self, name: str, stamps: Mapping[Part, bytes]) -> None:
        """Write again, at the next save, what was written and is no longer there."""
        written = self._written.get(name, {})
        for what in [what for what in written if (what, self.replica) not in stamps]:
            del written[what]

    async def save(self, name: str, kept: Kept) -> None:
        """See Store."""
        await self._within(self._save(name, kept))

    async def _save(self, name: str, kept: Kept) -> None:
        state = self._key(name, "state")
        if not await self._client.hexists(state, "version"):
            # Both or neither: a version without a state would be nobody's to mend.
            async with self._client.pipeline(transaction=True) as both:
                both.hsetnx(state, "version", kept.state.version)
                both.hsetnx(state, "state", encode(kept.state))
                await both.execute()
        parts: dict[str, bytes] = {what: encode(rows) for what, rows in kept.stages.items() if rows}
        if kept.shadow:
            parts[SHADOW] = encode(kept.shadow)
        written = self._written.setdefault(name, {})
        for what, packed in parts.items():
            digest = xxh3_128_digest(packed)
            if written.get(what) != digest:
                await self._write(name, what, packed)
                written[what] = digest

    async def _write(self, name: str, what: str, packed: bytes) -> None:
        async with self._client.pipeline(transaction=True) as both:
            both.hset(self._key(name, what), self.replica, packed)
            both.hset(self._key(name, "stamps"), f"{what}|{self.replica}", next(self._stamps))
            await both.execute()

    async def decide(self, name: str, state: State) -> bool:
        """See Store."""
        arguments = (1, self._key(name, "state"), state.version, encode(state))
        return bool(await self._within(self._client.eval(self._script, *arguments)))

    async def leads(self) -> bool:
        """See Store."""
        return bool(await self._within(self._lead()))

    async def _lead(self) -> bool:
        key, client = f"{self._prefix}:{{ab}}:lease", self._client
        if await client.set(key, self.replica, nx=True, px=self._lease_ms):
            return True
        holder = await client.get(key)
        if holder is None or holder.decode() != self.replica:
            return False
        return bool(await client.pexpire(key, self._lease_ms))

    async def close(self) -> None:
        """See Store."""
        await self._client.aclose()


def _part(field: bytes) -> Part:
    what, _, replica = field.decode().partition("|")
    return what, replica
