"""Cuts prompts into tokens off the event loop, a few at a time and each within a budget.

What takes longer, or comes when too many wait, goes on without tokens: a request is never held up
by more than the budget for the sake of where it is placed.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from forebay.policies.contracts import Route
from forebay.prefixcache.blocks import token_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .local import LocalTokens

    Done = Callable[[bytes | None], None]
    Ask = Callable[[Route, bytes], Awaitable[bytes]]
    """Asks an engine; takes the body of its tokenizing route, returns its answer."""

logger = logging.getLogger(__name__)

MOST_WAITING = 64
LONGEST_BODY = 4 << 20
ROUTES = frozenset({Route.CHAT, Route.COMPLETIONS})
"""What engines put into tokens as it comes; of other routes they make chats in their own ways."""
_ASKED = ("messages", "tools", "tool_choice", "chat_template_kwargs", "prompt",
          "add_generation_prompt", "continue_final_message", "add_special_tokens")  # fmt: skip
_read = msgspec.json.Decoder().decode
_read_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Cutter(Protocol):
    """Cuts the prompts of one pool."""

    late: int
    """Prompts that took longer than the budget, or never began."""
    failed: int
    """Prompts that could not be cut."""

    def submit(self, route: Route, raw: bytes, done: Done) -> bool:
        """Have a body's prompt cut; `done` is called once, on the loop, with its tokens or None.

        False, and no call, where too many wait or it is too long.
        """
        ...

    def close(self) -> None:
        """Take no more."""
        ...


class _Within:
    """Calls `done` once: with what comes within the budget, else with None."""

    __slots__ = ("_cutter", "_done", "_timer")

    def __init__(self, cutter: _Budgeted, done: Done) -> None:
        self._cutter = cutter
        self._done: Done | None = done
        self._timer = cutter.loop.call_later(cutter.budget_s, self._late)

    def tell(self, tokens: bytes | None) -> None:
        done, self._done = self._done, None
        self._timer.cancel()
        if done is not None:
            done(tokens)

    def _late(self) -> None:
        self._cutter.late += 1
        self.tell(None)


class _Budgeted:
    """What both kinds share."""

    def __init__(self, budget_s: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.budget_s = budget_s
        self.late = 0
        self.failed = 0
        self._waiting = 0
        self._complained = False

    def submit(self, route: Route, raw: bytes, done: Done) -> bool:
        """See Cutter."""
        if self._waiting >= MOST_WAITING or len(raw) > LONGEST_BODY:
            self.late += 1
            return False
        self._waiting += 1
        self._begin(route, raw, _Within(self, done))
        return True

    def _begin(self, route: Route, raw: bytes, within: _Within) -> None:
        raise NotImplementedError

    def _end(self, within: _Within, tokens: bytes | None, error: BaseException | None) -> None:
        self._waiting -= 1
        if error is not None:
            self.failed += 1
            if not self._complained:
                self._complained = True
                # Never its text: a template's own words may hold a caller's.
                logger.warning(
                    "prompt could not be cut into tokens", extra={"reason": type(error).__name__}
                )
        within.tell(tokens)


class LocalCutter(_Budgeted):
    """Cuts here, in a thread of its own."""

    def __init__(self, load: Callable[[], LocalTokens], *, budget_s: float) -> None:
        """`load` reads the tokenizer, in the thread: a large one takes a second."""
        super().__init__(budget_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forebay-tokens")
        self._loading = self._thread.submit(load)

    def close(self) -> None:
        """See Cutter."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, route: Route, raw: bytes, within: _Within) -> None:
        future = self.loop.run_in_executor(self._thread, self._cut, route, raw)

        def ended(done: asyncio.Future[bytes | None]) -> None:
            if done.cancelled():
                self._end(within, None, None)
                return
            error = done.exception()
            self._end(within, None if error else done.result(), error)

        future.add_done_callback(ended)

    def _cut(self, route: Route, raw: bytes) -> bytes | None:
        return self._loading.result().tokens(route, _read(raw))


class EngineCutter(_Budgeted):
    """Has an engine cut: exact by its nature, at the price of a call for each prompt."""

    def __init__(self, ask: Ask, *, budget_s: float) -> None:
        super().__init__(budget_s)
        self._ask = ask
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """See Cutter."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, route: Route, raw: bytes, within: _Within) -> None:
        task = self.loop.create_task(self._work(route, raw, within))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, route: Route, raw: bytes, within: _Within) -> None:
        tokens: bytes | None = None
        failed: Exception | None = None
        try:
            members = _read_raw(raw)
            asked = {name: members[name] for name in _ASKED if name in members}
            answer = _read(await self._ask(route, msgspec.json.encode(asked)))
            tokens = _tokens_of(answer)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request goes on
            failed = error
        finally:
            self._end(within, tokens, failed)


def _tokens_of(answer: Any) -> bytes:
    """Read an engine's answer. Raises TypeError, ValueError or LookupError for any other."""
    return token_bytes(answer["tokens"])
