"""Which LoRA adapters endpoints have loaded, so that a request goes where its own is.

An engine runs only so many adapters at once; a request for another waits until one of them is idle
and its own is fetched. Which are loaded no engine tells outright: it is taken to be those that were
last sent there, as many as it has places for, and those that it says it is running.

To fetch an adapter counts as so many tokens to prefill, and as half of that where a place is free:
so adapters spread over the endpoints while there is room, and then stay where they are.

Weakness: what other gateways send there is known only while it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FETCH_TOKENS = 512.0
"""What an adapter that has to be fetched counts, in tokens to prefill."""
PLACES = 4
"""Adapters at once, where an engine does not say how many."""
_MOST_PLACES = 256


class Residency:
    """The adapters of one pool's endpoints."""

    __slots__ = ("_adapters", "_loaded", "_places")

    def __init__(self) -> None:
        self._adapters: set[str] = set()
        self._loaded: dict[str, dict[str, None]] = {}
        """By endpoint, the last used last."""
        self._places: dict[str, int] = {}

    def adapter(self, model: str) -> None:
        """Take in that a model is an adapter."""
        self._adapters.add(model)

    def told(self, endpoint: str, places: int | None, running: Iterable[str] = ()) -> None:
        """Take in how many adapters an endpoint can run at once, and which it is running."""
        if places is not None:
            self._places[endpoint] = max(1, min(_MOST_PLACES, places))
        for model in running:
            self.placed(endpoint, model)

    def placed(self, endpoint: str, model: str) -> None:
        """Note a request that goes to an endpoint."""
        if model not in self._adapters:
            return
        loaded = self._loaded.setdefault(endpoint, {})
        loaded.pop(model, None)
        loaded[model] = None
        while len(loaded) > self._places.get(endpoint, PLACES):
            del loaded[next(iter(loaded))]

    def tokens(self, endpoint: str, model: str) -> float:
        """Return what it costs there that the model's adapter is not loaded; mostly 0."""
        if model not in self._adapters:
            return 0.0
        loaded = self._loaded.get(endpoint)
        if loaded is None:
            return 0.5 * FETCH_TOKENS
        if model in loaded:
            return 0.0
        free = len(loaded) < self._places.get(endpoint, PLACES)
        return 0.5 * FETCH_TOKENS if free else FETCH_TOKENS

    def restarted(self, endpoint: str) -> None:
        """Take in that an endpoint has loaded nothing yet; how many it can run stays."""
        self._loaded.pop(endpoint, None)

    def forget(self, endpoint: str) -> None:
        """Forget an endpoint that left."""
        self._loaded.pop(endpoint, None)
        self._places.pop(endpoint, None)
