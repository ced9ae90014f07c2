"""Who holds which block: one table per pool, looked up along a prompt's chain.

Theory of operation. The table maps a block's hash to a small number that stands for the *set* of
its holders. Sets are interned, since few different ones exist, and steps between them (one endpoint
more or less) are remembered. Python's garbage collector does not track a dict of integers, so a
full table adds nothing to its pauses.

A prefix cache holds a block only while it holds the one before it, or soon loses it, so along a
chain the holders only become fewer. Where two positions have the same holders, all between have
them, too: a lookup gallops and bisects instead of walking, in O(changes x log length). An index
that was told otherwise (a removal out of order) answers with too long a hit at worst, which the
next report corrects.

Each endpoint's blocks are kept in the order of their last use, for eviction and for forgetting all
of an endpoint at once.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .blocks import BlockHash

_EMPTY = 0


class HolderSets:
    """Interned sets of endpoints, named by small integers; 0 is the empty set."""

    __slots__ = ("_added", "_ids", "_removed", "_sets")

    def __init__(self) -> None:
        self._sets: list[tuple[str, ...]] = [()]
        self._ids: dict[tuple[str, ...], int] = {(): _EMPTY}
        self._added: dict[tuple[int, str], int] = {}
        self._removed: dict[tuple[int, str], int] = {}

    def __getitem__(self, number: int) -> tuple[str, ...]:
        """Return a set's endpoints, sorted."""
        return self._sets[number]

    def add(self, number: int, endpoint: str) -> int:
        """Return the set with one endpoint more."""
        key = (number, endpoint)
        found = self._added.get(key)
        if found is None:
            found = self._added[key] = self._intern({*self._sets[number], endpoint})
        return found

    def remove(self, number: int, endpoint: str) -> int:
        """Return the set with one endpoint less."""
        key = (number, endpoint)
        found = self._removed.get(key)
        if found is None:
            found = self._removed[key] = self._intern({*self._sets[number]} - {endpoint})
        return found

    def _intern(self, endpoints: Iterable[str]) -> int:
        key = tuple(sorted(endpoints))
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self._sets)
            self._sets.append(key)
        return number


class Index:
    """Blocks and their holders. Not thread-safe: it lives on one loop."""

    __slots__ = ("_blocks", "_holders", "_sets")

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._blocks: dict[str, dict[BlockHash, None]] = {}
        self._sets = HolderSets()

    def __len__(self) -> int:
        """Return how many distinct blocks are held somewhere."""
        return len(self._holders)

    def held(self, endpoint: str) -> int:
        """Return how many blocks an endpoint holds."""
        return len(self._blocks.get(endpoint, ()))

    def holders(self, block: BlockHash) -> tuple[str, ...]:
        """Return who holds one block, sorted."""
        return self._sets[self._holders.get(block, _EMPTY)]

    def store(self, endpoint: str, blocks: Iterable[BlockHash]) -> None:
        """Note that an endpoint holds blocks, used just now."""
        own = self._blocks.setdefault(endpoint, {})
        holders, add = self._holders, self._sets.add
        for block in blocks:
            if block in own:
                del own[block]  # to the end of the order
            else:
                holders[block] = add(holders.get(block, _EMPTY), endpoint)
            own[block] = None

    def remove(self, endpoint: str, blocks: Iterable[BlockHash]) -> int:
        """Note that an endpoint no longer holds blocks; return how many it did hold."""
        own = self._blocks.get(endpoint)
        if own is None:
            return 0
        removed = 0
        for block in blocks:
            if block in own:
                del own[block]
                self._drop(endpoint, block)
                removed += 1
        return removed

    def clear(self, endpoint: str) -> int:
        """Forget all that an endpoint holds: it restarted, or left. Return how much it was."""
        own = self._blocks.pop(endpoint, {})
        for block in own:
            self._drop(endpoint, block)
        return len(own)

    def oldest(self, endpoint: str, count: int) -> list[BlockHash]:
        """Return an endpoint's least recently used blocks."""
        return list(islice(self._blocks.get(endpoint, ()), count))

    def _drop(self, endpoint: str, block: int) -> None:
        left = self._sets.remove(self._holders[block], endpoint)
        if left == _EMPTY:
            del self._holders[block]
        else:
            self._holders[block] = left

    def match(self, chain: Sequence[BlockHash]) -> dict[str, int]:
        """Return how many leading blocks of the chain each endpoint holds, where any."""
        if not chain:
            return {}
        get = self._holders.get
        first = get(chain[0], _EMPTY)
        if first == _EMPTY:
            return {}
        hits: dict[str, int] = {}
        for number, length in self._steps(chain, first):
            for endpoint in self._sets[number]:
                hits[endpoint] = length
        return hits

    def _steps(self, chain: Sequence[BlockHash], first: int) -> Iterator[tuple[int, int]]:
        """Yield each set of holders along the chain with how far it reaches, shortest first."""
        get, position, current, size = self._holders.get, 0, first, len(chain)
        while current != _EMPTY:
            low, step = position, 1
            while low + step < size and get(chain[low + step], _EMPTY) == current:
                low += step
                step *= 2
            high = min(low + step, size)
            while high - low > 1:  # chain[low] has `current`, chain[high] has not
                middle = (low + high) // 2
                if get(chain[middle], _EMPTY) == current:
                    low = middle
                else:
                    high = middle
            yield current, high
            if high == size:
                return
            position, current = high, get(chain[high], _EMPTY)
