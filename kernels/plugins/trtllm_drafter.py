# pyright: basic, reportMissingImports=false
# (TensorRT-LLM and torch are not installed where types are checked)
"""TensorRT-LLM's user-provided drafter: prompt lookup, suffix automaton and store in one.

Its Python API only, since a drafter is an object and no YAML holds one:

    from forebay.kernels.plugins.trtllm_drafter import make_drafter
    config = UserProvidedDecodingConfig(max_draft_len=8, drafter=make_drafter(8, vocab=128256))

`vocab` is the model's: guesses of a store that are none of its tokens are not made. With
`max_concurrency` the engine does not ask for guesses while it runs more requests than that.

Tried with stand-ins for its requests and for its Drafter class as two of its versions have it; no
TensorRT-LLM was at hand.
"""

from __future__ import annotations

import inspect
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from forebay.kernels.speculative.drafter import Drafter, History
from forebay.kernels.speculative.store import StoreReader

__all__ = ["Drafts", "drafter_on", "make_drafter"]


class Drafts:
    """Sets `py_draft_tokens` of generation requests; keeps a history for each by its id."""

    def __init__(
        self,
        most: int,
        *,
        store: str | None = None,
        max_concurrency: int | None = None,
        **settings: Any,
    ) -> None:
        # Read by the engine's class in every step; its versions ask for more or for less.
        told = {"max_draft_len": most, "max_total_draft_tokens": most}
        told |= {"max_concurrency": max_concurrency}
        asked = inspect.signature(super().__init__).parameters
        super().__init__(**{name: value for name, value in told.items() if name in asked})
        self._beside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forebay-drafter")
        reader = StoreReader(store, background=self._beside.submit) if store else None
        self._most = most
        self._drafter = Drafter(
            most=most,
            store=reader.contexts if reader else None,
            background=self._beside.submit,
            **settings,
        )
        self._histories: dict[int, History] = {}

    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None:
        """Guess for every generation request of a step."""
        del resource_manager
        requests = list(scheduled_requests.generation_requests)
        before, self._histories = self._histories, {}
        most = self._most_now()
        for request in requests:
            history = self._bring_up(before.get(request.py_request_id), request)
            self._histories[request.py_request_id] = history
            room = min(most, _room(request, len(history.tokens)))
            draft = self._drafter.propose(history, rows=len(requests), room=room)
            request.py_draft_tokens = self._padded(draft, room)

    def _most_now(self) -> int:
        """Tokens of a draft at present: the engine lowers it where its schedule says so."""
        now = getattr(self, "max_total_draft_tokens", None)
        return self._most if now is None else min(self._most, int(now))

    def _padded(self, draft: list[int], room: int) -> list[int]:
        """Fill a draft up where the engine does not: equally many a request, but near its end."""
        if not draft or hasattr(self, "pad_draft_tokens_for_cuda_graph"):
            return draft
        return draft + [0] * (room - len(draft))

    def _bring_up(self, history: History | None, request: Any) -> History:
        tokens = request.get_tokens(0)
        if history is None or len(history.tokens) > len(tokens):
            history = History(array("I", tokens[: _prompt_length(request)]))
        new = list(tokens[len(history.tokens) :])
        self._drafter.settle(history, new)
        history.extend(new)
        return history


def _prompt_length(request: Any) -> int:
    """Tokens of the prompt: a request that was paused counts its answer so far as prompt too."""
    return int(getattr(request, "py_orig_prompt_len", request.py_prompt_len))


def _room(request: Any, done: int) -> int:
    """How many guesses may follow: those and the engine's own next token must fit the answer."""
    return max(0, _prompt_length(request) + int(request.py_max_new_tokens) - 1 - done)


def drafter_on(base: type) -> type:
    """Make a class of TensorRT-LLM's own Drafter class."""
    return type("ForebayDrafter", (Drafts, base), {})


def make_drafter(most: int, *, store: str | None = None, **settings: Any) -> Any:
    """Make an instance of TensorRT-LLM's own Drafter class; call it where that is installed."""
    from tensorrt_llm._torch.speculative.drafter import Drafter as Base  # noqa: PLC0415 - only where it is needed

    return drafter_on(Base)(most, store=store, **settings)
