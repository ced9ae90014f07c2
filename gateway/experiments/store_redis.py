"""Experiments of many replicas, in the Redis or Valkey that keeps their counters.

Each replica writes its own counts into a field of its own, so nothing is ever counted twice; the
one that holds the lease reads them all. The state has a version, and the next one is written only
where that version still stands: two that both think they hold the lease cannot both decide.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from redis.exceptions import RedisError

from forebay.gateway.quota.redis_store import connect
from forebay.policies.experiments.answers import ShadowTally
from forebay.policies.experiments.ramp import State
from forebay.policies.experiments.tallies import Tallies

from .store import ExperimentsAway, Kept, Rows, encode

if TYPE_CHECKING:
    from collections.abc import Coroutine

_SCRIPT = files("forebay.gateway.experiments").joinpath("lua/decide.lua")
_TIMEOUT_S = 2.0
"""Nobody waits for it."""
LEASE_S = 5.0
_rows = msgspec.json.Decoder(Rows).decode
_shadow = msgspec.json.Decoder(dict[str, ShadowTally]).decode
_state = msgspec.json.Decoder(State).decode


class RedisExperiments:
    """One hash for the state, one for each stage's counts; all of one experiment on one node."""

    shared = True

    def __init__(self, url: str, *, prefix: str = "forebay", lease_s: float = LEASE_S) -> None:
        self._client: Any = connect(url, _TIMEOUT_S)
        self._prefix = prefix
        self._lease_ms = int(lease_s * 1000)
        self._script = _SCRIPT.read_text()
        self.replica = uuid4().hex

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
        held = await self._client.hget(self._key(name, "state"), "state")
        if held is None:
            return None
        stages: dict[str, Rows] = {}
        for stage in await self._client.smembers(self._key(name, "stages")):
            key = stage.decode()
            stages[key] = await self._others(name, key)
        return Kept(state=_state(held), stages=stages, shadow=await self._others_shadow(name))

    async def _others(self, name: str, stage: str) -> Rows:
        whole = Tallies()
        fields = await self._client.hgetall(self._key(name, stage))
        for replica, rows in fields.items():
            if replica.decode() != self.replica:
                whole.merge(Tallies.from_rows(_rows(rows)))
        return whole.as_rows()

    async def _others_shadow(self, name: str) -> dict[str, ShadowTally]:
        whole: dict[str, ShadowTally] = {}
        for replica, packed in (await self._client.hgetall(self._key(name, "shadow"))).items():
            if replica.decode() != self.replica:
                for bucket, tally in _shadow(packed).items():
                    whole.setdefault(bucket, ShadowTally()).merge(tally)
        return whole

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
        for stage, rows in kept.stages.items():
            if rows:
                await self._client.sadd(self._key(name, "stages"), stage)
                await self._client.hset(self._key(name, stage), self.replica, encode(rows))
        if kept.shadow:
            await self._client.hset(self._key(name, "shadow"), self.replica, encode(kept.shadow))

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
