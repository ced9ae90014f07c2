"""Replicas divide what endpoints take: `max_in_flight` is of all of them together.

    PREFIX:{limits}:POOL:ENDPOINT:URL    who uses an endpoint, with what each claims and needs

Every `EVERY_S`, and sooner while somebody waits who might have more, a replica says what it has in
flight and waiting, and is told what it may have now (`shared_limits.lua`, one step for all). While
the store is away each keeps what it was last granted; one that has never been told has the whole.
Limits that are found (`auto`) are left alone: what an engine slows down by is felt by all.
"""

from __future__ import annotations

import logging
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis.exceptions import NoScriptError

from .quota.redis_store import connect, patiently
from .store_task import GONE, StoreTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .endpoint import Endpoint
    from .pools import Pool

    Asked = Sequence[tuple[Pool, Endpoint, int]]
    """Endpoints, each with how many more requests it would get if it could."""

logger = logging.getLogger(__name__)

EVERY_S = 0.25
SOON_S = 0.05
"""While requests wait that may have more than this replica's part."""
BELIEVED_S = 5
"""A replica that has said nothing for so long is not there."""
TIMEOUT_S = 0.5
_AT_ONCE = 100
"""Endpoints of a call: the store does nothing else meanwhile."""
_SCRIPT = files("forebay.gateway").joinpath("shared_limits.lua")


class SharedLimits:
    """Divides limits with other replicas. For the loop's thread."""

    def __init__(
        self,
        url: str,
        pools: Callable[[], Iterable[Pool]],
        *,
        now: Callable[[], float],
        prefix: str = "forebay",
    ) -> None:
        self._pools = pools
        self._now = now
        self._client: Any = connect(url, TIMEOUT_S)
        self._keys = f"{prefix}:{{limits}}"
        self._replica = uuid4().hex
        self._script = _SCRIPT.read_text()
        self._sha: str | None = None
        self._claimed: set[str] = set()
        """Keys to give up at the end; what is asked for no more is given up by saying nothing."""
        self._task = StoreTask(
            self._turn,
            lost="limits are not divided anew: the store is away",
            back="limits are divided again",
        )

    @property
    def away(self) -> bool:
        """The store does not answer: parts are what they were."""
        return self._task.away

    def start(self) -> None:
        """Begin."""
        self._task.start()

    async def close(self) -> None:
        """Give up what is claimed, and end."""
        await self._task.stop()
        if not self.away:
            try:
                for key in self._claimed:
                    await self._within("HDEL", key, self._replica)
            except GONE:
                logger.warning("places are given up late: the store is away")
        await self._client.aclose()

    async def _turn(self) -> float:
        """Divide all limits; return the pause until they are divided anew."""
        asked = self._asked()
        self._claimed &= {self._key(pool, endpoint) for pool, endpoint, _ in asked}
        for start in range(0, len(asked), _AT_ONCE):
            await self.divide(asked[start : start + _AT_ONCE])
        wants_more = any(more and endpoint.part_is_less for _, endpoint, more in asked)
        return SOON_S if wants_more else EVERY_S

    def _asked(self) -> Asked:
        asked: list[tuple[Pool, Endpoint, int]] = []
        for pool in self._pools():
            shared = [each for each in pool.endpoints.values() if each.is_shared]
            more = -(-len(pool.waiting) // len(shared)) if shared else 0
            asked += [(pool, endpoint, more) for endpoint in shared]
        return asked

    def _key(self, pool: Pool, endpoint: Endpoint) -> str:
        return f"{self._keys}:{pool.name}:{endpoint.name}:{endpoint.section.url}"

    async def divide(self, asked: Asked) -> None:
        """Say what is had and wanted, and take what is granted."""
        if not asked:
            return
        keys = [self._key(pool, endpoint) for pool, endpoint, _ in asked]
        numbers = [n for _, e, more in asked for n in (e.total, e.view.in_flight, more)]
        self._claimed.update(keys)
        answers = await self._evaluate(keys, (self._replica, BELIEVED_S, *numbers))
        grown: set[Pool] = set()
        for (pool, endpoint, _), granted, replicas in zip(
            asked, answers[::2], answers[1::2], strict=True
        ):
            before = endpoint.view.limit
            endpoint.take_part(granted if replicas > 1 else None)
            if endpoint.view.limit > before:
                grown.add(pool)
        for pool in grown:
            pool.wake(self._now())

    async def _evaluate(self, keys: list[str], arguments: tuple[Any, ...]) -> list[int]:
        call = (len(keys), *keys, *arguments)
        if self._sha is not None:
            try:
                return await self._within("EVALSHA", self._sha, *call)
            except NoScriptError:
                pass  # the server was restarted
        self._sha = await patiently(self._client.script_load(self._script), TIMEOUT_S)
        return await self._within("EVALSHA", self._sha, *call)

    async def _within(self, *command: object) -> Any:
        return await patiently(self._client.execute_command(*command), TIMEOUT_S)
