"""Asks an endpoint for its events, where an engine tells of them only when it is asked.

What an answer tells is told once, so one replica asks and hands the answers on to the others; whose
turn it is, is for a `Turn` to say.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from forebay.policies.contracts import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

logger = logging.getLogger(__name__)

_PATIENCE = 10
"""How many times longer to wait before asking again what did not answer."""
_NOTHING = (b"", b"[]", b"null")


class Turn(Protocol):
    """Says who asks. Never raises."""

    async def is_mine(self) -> bool:
        """Tell whether this replica is to ask now."""
        ...

    async def hear(self) -> Sequence[bytes]:
        """Return the answers that another replica had since the last time."""
        ...

    async def tell(self, answer: bytes) -> None:
        """Hand an answer on to the others."""
        ...

    async def give_up(self) -> None:
        """Let another ask from now on."""
        ...


class Alone:
    """There is no other replica."""

    async def is_mine(self) -> bool:
        """See Turn."""
        return True

    async def hear(self) -> Sequence[bytes]:
        """See Turn."""
        return ()

    async def tell(self, answer: bytes) -> None:
        """See Turn."""

    async def give_up(self) -> None:
        """See Turn."""


class Poller:
    """Asks one endpoint, over and over."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[bytes | None]],
        take: Callable[[bytes], None],
        *,
        endpoint: str,
        every_s: float,
        turn: Turn,
    ) -> None:
        self._ask = ask
        self._take = take
        self._endpoint = endpoint
        self._every_s = every_s
        self._turn = turn
        self._failing = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop asking; another replica may begin at once."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._turn.give_up()

    async def _run(self) -> None:
        while True:
            try:
                await self._once()
            except EngineFailed as error:
                self._failed(str(error))
                await asyncio.sleep(_PATIENCE * self._every_s)
            except Exception:
                logger.exception("asking for KV events failed")
                await asyncio.sleep(_PATIENCE * self._every_s)
            await asyncio.sleep(self._every_s)

    async def _once(self) -> None:
        mine = await self._turn.is_mine()
        for answer in await self._turn.hear():
            self._take(answer)
        if not mine:
            return
        answer = await self._ask()
        if answer is None:
            raise EngineFailed(
                f"endpoint {self._endpoint} has no /kv_cache_events;"
                " set kv_cache_config.event_buffer_max_size there, or leave out 'events'"
            )
        self._failing = False
        if answer.strip() not in _NOTHING:
            self._take(answer)
            await self._turn.tell(answer)

    def _failed(self, reason: str) -> None:
        if not self._failing:
            self._failing = True
            told = {"endpoint": self._endpoint, "reason": reason}
            logger.warning("KV events cannot be asked for", extra=told)
