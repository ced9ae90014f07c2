# pyright: basic, reportMissingImports=false
# (TensorRT-LLM and torch are not installed where types are checked)
"""TensorRT-LLM's user-provided drafter: prompt lookup, suffix automaton and store in one.

Its Python API only, since a drafter is an object and no YAML holds one:

    from forebay.kernels.plugins.trtllm_drafter import make_drafter
    config = UserProvidedDecodingConfig(max_draft_len=8, drafter=make_drafter(8, vocab=128256))

`vocab` is the model's: guesses of a store that are none of its tokens are not made.

Tried with stand-ins for its requests alone; no TensorRT-LLM was at hand.
"""

from __future__ import annotations

from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from forebay.kernels.speculative.drafter import Drafter, History
from forebay.kernels.speculative.store import StoreReader

__all__ = ["Drafts", "make_drafter"]


class Drafts:
    """Sets `py_draft_tokens` of generation requests; keeps a history for each by its id."""

    def __init__(self, most: int, *, store: str | None = None, **settings: Any) -> None:
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
        for request in requests:
            history = self._bring_up(before.get(request.py_request_id), request)
            self._histories[request.py_request_id] = history
            draft = self._drafter.propose(history, rows=len(requests))
            # All requests of a step must bring equally many: what is missing is padded.
            request.py_draft_tokens = (draft + [0] * self._most)[: self._most] if draft else []

    def _bring_up(self, history: History | None, request: Any) -> History:
        tokens = request.get_tokens(0)
        if history is None or len(history.tokens) > len(tokens):
            prompt = int(request.py_prompt_len)
            history = History(array("I", tokens[:prompt]))
        new = list(tokens[len(history.tokens) :])
        self._drafter.settle(history, new)
        history.extend(new)
        return history


def make_drafter(most: int, *, store: str | None = None, **settings: Any) -> Any:
    """Make an instance of TensorRT-LLM's own Drafter class; call it where that is installed."""
    from tensorrt_llm._torch.speculative.drafter import Drafter as Base  # noqa: PLC0415 - only where it is needed

    return type("ForebayDrafter", (Drafts, Base), {})(most, store=store, **settings)
