"""Guesses what endpoints hold from what was sent to them, and corrects itself by what they report.

Works with every engine, since it needs no events: a prompt that went to an endpoint is expected to
be in its cache. At first that is a *hope*, which counts when requests are placed and fades after
`HOPE_S`; the first byte of the answer makes it an expectation, an answer that never comes ends it.

What the endpoint reports as cached tokens shows how far expectations are true. A predicted hit that
did not happen means that the engine forgets sooner than was thought, so the endpoint's capacity
shrinks and its oldest expectations go; one that did happen lets it grow again slowly (additive
increase, multiplicative decrease, as for congestion windows: Chiu and Jain, 1989). Several in a row
of which nothing at all happened mean that the cache is another one: all is forgotten.

Where an engine tells by events what it holds, hopes only bridge the time until it does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

from .eviction import Hybrid, victims
from .slots import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .blocks import BlockHash
    from .eviction import Eviction
    from .index import Index
    from .owners import Owners

SHRINK = 0.9
GROW_BLOCKS = 16
LEAST_BLOCKS = 64
FULL = 0.9
"""Of its capacity that an endpoint holds when what is used is told to other replicas, too."""
GHOST_SHARE = 0.5
"""Of a predicted hit that must come true for it not to count as a ghost."""
LEAST_PREDICTED = 128
"""Tokens of a predicted hit below which nothing is concluded: engines keep whole blocks only, and
never the last token."""
CLEARED_AFTER = 3
"""Predicted hits in a row with nothing cached at all that tell of an emptied cache."""
HOPE_S = 5.0
TTL_S = 3600.0
_AHEAD = 256
"""Blocks that go beyond what must, at most, and one in so many: to find the oldest takes longer
than to take them out."""
_FORGETFUL_AHEAD = LEAST_BLOCKS // 2
"""Where hits that did not happen have taken the capacity down to the least: what hardly anything is
expected of would be searched for each prompt."""
_SWEPT = 4096
"""Blocks that one step takes out at most: some milliseconds."""


class _Hope:
    """A prompt whose answer has not begun."""

    __slots__ = ("blocks", "endpoint", "length", "owner", "told", "until")

    def __init__(
        self, endpoint: str, blocks: Sequence[BlockHash], *, until: float, told: bool
    ) -> None:
        self.endpoint = endpoint
        self.blocks = blocks
        """Those that are new there."""
        self.until = until
        self.told = told
        """Events will tell of them."""
        self.owner = ""
        """Whose they are, where tenants are held to shares."""
        self.length = 0
        """How many of the prompt's blocks were entered."""


class Learned:
    """Expectations of one pool, kept in its index."""

    def __init__(
        self,
        index: Index,
        *,
        capacity_blocks: int,
        eviction: Eviction | None = None,
        ttl_s: float = TTL_S,
    ) -> None:
        """`capacity_blocks` is the most that an endpoint is expected to hold."""
        self._index = index
        self._most = capacity_blocks
        self._eviction: Eviction = eviction or Hybrid()
        self._ttl_s = ttl_s
        self._mosts: dict[str, int] = {}
        self._capacity: dict[str, int] = {}
        self._hopes: dict[str, _Hope] = {}
        """By request."""
        self._hoped: dict[str, dict[BlockHash, int]] = {}
        self._given_up: dict[str, _Hope] = {}
        """By request whose answer has not begun in time."""
        self._in_a_row: dict[str, int] = {}
        self._marks: deque[tuple[float, int]] = deque()
        self.owners: Owners | None = None
        """Whose the blocks are, where tenants are held to shares."""
        self.told: set[str] = set()
        """Endpoints that tell by events what they hold."""
        self.share: Callable[[str, Sequence[BlockHash], str], None] | None = None
        """Is told of what an endpoint came to be expected to hold, and whose it is."""
        self.ghosts = 0
        """Predicted hits that did not happen."""
        self.confirmed = 0
        """Predicted hits that did."""
        self.evicted = 0
        """Blocks that gave way to others."""
        self.emptied = 0
        """Caches found to be empty by what was reported."""

    def configure(self, *, capacity_blocks: int, eviction: Eviction | None, ttl_s: float) -> None:
        """Take other settings (`eviction` None: the same); what is expected stays."""
        self._most, self._ttl_s = capacity_blocks, ttl_s
        if eviction is not None:
            self._eviction = eviction
        for endpoint, most in self._mosts.items():
            self._mosts[endpoint] = min(most, capacity_blocks)
        for endpoint, capacity in self._capacity.items():
            self._capacity[endpoint] = min(capacity, capacity_blocks)

    def oldest_s(self, endpoint: str, now: float) -> float | None:
        """Return for how long an endpoint's least recently used block was not; None without any.

        To a second, and to `ttl` at most.
        """
        used = self._index.first_used(endpoint)
        if used is None:
            return None
        at = bisect_left(self._marks, used, key=lambda mark: mark[1])
        return max(0.0, now - self._marks[at][0]) if at < len(self._marks) else 0.0

    def capacity(self, endpoint: str) -> int:
        """Return how many blocks an endpoint is expected to hold at most."""
        return self._capacity.get(endpoint, self._mosts.get(endpoint, self._most))

    def heard(
        self, endpoint: str, blocks: Sequence[BlockHash], owner: str = "", now: float | None = None
    ) -> int:
        """Take over what another replica expects; where events tell, they know better.

        Returns how many blocks are new here. With `now` they have just come, and count as their
        owner's new ones here, too.
        """
        if endpoint in self.told:
            return 0
        owners = self.owners if owner else None
        if owners is not None and now is not None:
            owners.spend(owner, blocks, now)
        new = self._index.store(endpoint, blocks)
        if owners is not None:
            owners.add(endpoint, owner, new)
        self._trim(endpoint)
        return len(new)

    def answered(self, endpoint: str, chain: Sequence[BlockHash], owner: str = "") -> None:
        """Take in that a prompt was answered.

        Where blocks give way, other replicas are told of all that was used: else theirs would go in
        another order than the engine's. Of a tenant's, only what was entered here.
        """
        if self.share is None or endpoint in self.told:
            return
        if self._index.held(endpoint) >= FULL * self.capacity(endpoint):
            if owner and self.owners is not None:
                chain = chain[: self._index.depth(endpoint, chain, Source.EXPECTED)]
            if chain:
                self.share(endpoint, chain[::-1], owner)

    def limit(self, endpoint: str, blocks: int) -> None:
        """Take in how much an endpoint's cache can hold."""
        most = max(LEAST_BLOCKS, min(self._most, blocks))
        self._mosts[endpoint] = most
        if self._capacity.get(endpoint, most) > most:
            self._capacity[endpoint] = most
        self._trim(endpoint)

    def sure(self, endpoint: str, chain: Sequence[BlockHash], length: int) -> int:
        """Return how much of a hit of `length` blocks is more than a hope."""
        hoped = self._hoped.get(endpoint)
        if hoped:
            while length and chain[length - 1] in hoped:
                length -= 1
        return length

    def placed(  # noqa: PLR0913 - what is placed where, and what is known of it
        self,
        endpoint: str,
        chain: Sequence[BlockHash],
        *,
        request: str = "",
        now: float = 0.0,
        by_tokens: bool = False,
        owner: str = "",
    ) -> None:
        """Hope that an endpoint will hold a prompt's blocks; without a `request`, expect it.

        `by_tokens`: events speak of these blocks, where the endpoint tells any. `owner` is the
        tenant whose they are; empty: nobody's. The first blocks are touched last: a prefix outlives
        what hangs on it.
        """
        owners = self.owners if owner else None
        if owners is not None:
            chain = owners.admit(owner, chain, now)
        new = self._enter(endpoint, chain, owner)
        if not new:
            return
        if request:
            told = by_tokens and endpoint in self.told
            self._hopes[request] = hope = _Hope(endpoint, new, until=now + HOPE_S, told=told)
            hope.owner, hope.length = owner, len(chain)
            hoped = self._hoped.setdefault(endpoint, {})
            for block in new:
                hoped[block] = hoped.get(block, 0) + 1
        self._trim(endpoint)

    def _enter(self, endpoint: str, chain: Sequence[BlockHash], owner: str) -> list[BlockHash]:
        if self._eviction.learns and chain:
            self._learn(endpoint, chain)
        new = self._index.store(endpoint, reversed(chain))
        if owner and self.owners is not None:
            self.owners.add(endpoint, owner, new)
        return new

    def _learn(self, endpoint: str, chain: Sequence[BlockHash]) -> None:
        """Tell the eviction of blocks that come again: the first and the last of a hit."""
        depth = self._index.depth(endpoint, chain, Source.EXPECTED)
        for block in {chain[0], chain[depth - 1]} if depth else ():
            used = self._index.used(endpoint, block)
            if used is not None:
                self._eviction.learn(*used, reused=True)

    def began(self, request: str, endpoint: str, chain: Sequence[BlockHash]) -> None:
        """Take in that an answer has begun: its prompt is in the cache."""
        hope = self._hopes.get(request)
        if hope is not None:
            if hope.told:
                return
            del self._hopes[request]
            self._settle(hope)
            if self.share is not None:
                self.share(endpoint, hope.blocks, hope.owner)
        elif self._given_up:
            given_up = self._given_up.pop(request, None)
            if given_up is not None:
                self._enter(endpoint, chain[: given_up.length], given_up.owner)
                self._trim(endpoint)

    def confirmed_by(self, request: str) -> None:
        """Take in that an engine has told what it had of a prompt: its hope is over."""
        hope = self._hopes.pop(request, None)
        if hope is not None:
            self._settle(hope)

    def ended(self, request: str) -> None:
        """Take in that a request is over; what no answer has begun of was a vain hope."""
        self._given_up.pop(request, None)
        hope = self._hopes.get(request)
        if hope is not None and not hope.told:
            self._end(request)

    def reported(self, endpoint: str, *, predicted_tokens: float, cached_tokens: int) -> None:
        """Compare a predicted hit with what the engine says."""
        if predicted_tokens < LEAST_PREDICTED:
            return
        capacity = self.capacity(endpoint)
        if cached_tokens >= predicted_tokens * GHOST_SHARE:
            self.confirmed += 1
            self._in_a_row.pop(endpoint, None)
            most = self._mosts.get(endpoint, self._most)
            self._capacity[endpoint] = min(most, capacity + GROW_BLOCKS)
            return
        self.ghosts += 1
        if endpoint in self.told or (cached_tokens == 0 and self._is_emptied(endpoint)):
            return
        held = min(capacity, self._index.held(endpoint))
        self._capacity[endpoint] = max(LEAST_BLOCKS, int(held * SHRINK))
        self._trim(endpoint)

    def forget(self, endpoint: str) -> int:
        """Forget an endpoint that left. Return how much was expected or known of it."""
        self._mosts.pop(endpoint, None)
        for request in [r for r, hope in self._given_up.items() if hope.endpoint == endpoint]:
            del self._given_up[request]
        return self.forget_expected(endpoint) + self._index.clear(endpoint)

    def cleared(self, endpoint: str) -> None:
        """Take in that an endpoint's events say that its cache was emptied.

        They say so with the first prompt that comes after, so what was placed in the last second or
        two stays expected.
        """
        since = self._marks[-2][1] if len(self._marks) > 1 else 0
        recent = self._index.recent(endpoint, since)
        self._index.clear(endpoint, Source.EXPECTED)
        if self.owners is not None:
            self.owners.clear(endpoint)
        self._index.store(endpoint, recent)

    def forget_expected(self, endpoint: str) -> int:
        """Forget what is not known from the endpoint's own events."""
        self._capacity.pop(endpoint, None)
        self._in_a_row.pop(endpoint, None)
        self._hoped.pop(endpoint, None)
        for request in [r for r, hope in self._hopes.items() if hope.endpoint == endpoint]:
            del self._hopes[request]
        if self.owners is not None:
            self.owners.clear(endpoint)
        return self._index.clear(endpoint, Source.EXPECTED)

    def tick(self, now: float, endpoints: Iterable[str]) -> None:
        """Let time pass: hopes end, what was not used for long goes. Bounded work."""
        for request in [r for r, hope in self._hopes.items() if hope.until <= now]:
            hope = self._end(request)
            if not hope.told:
                self._given_up[request] = hope
        if not self._marks or now - self._marks[-1][0] >= 1.0:
            self._marks.append((now, self._index.clock))
        passed = 0
        while self._marks and self._marks[0][0] <= now - self._ttl_s:
            passed = self._marks.popleft()[1]
        for endpoint in endpoints if passed else ():
            self._index.expire(endpoint, passed, _SWEPT)
        self._index.sweep(_SWEPT)

    def _is_emptied(self, endpoint: str) -> bool:
        in_a_row = self._in_a_row[endpoint] = self._in_a_row.get(endpoint, 0) + 1
        if in_a_row < CLEARED_AFTER:
            return False
        capacity = self.capacity(endpoint)
        self.forget_expected(endpoint)
        self._capacity[endpoint] = capacity
        self.emptied += 1
        return True

    def _end(self, request: str) -> _Hope:
        """Give up a hope: it was vain, or events say by now what is held."""
        hope = self._hopes.pop(request)
        self._index.remove(hope.endpoint, self._settle(hope))
        return hope

    def _settle(self, hope: _Hope) -> list[BlockHash]:
        """Hope no more for blocks; return those that nobody else hopes for."""
        hoped = self._hoped.get(hope.endpoint, {})
        last: list[BlockHash] = []
        for block in hope.blocks:
            left = hoped.get(block, 1) - 1
            if left:
                hoped[block] = left
            else:
                hoped.pop(block, None)
                last.append(block)
        return last

    def _trim(self, endpoint: str) -> None:
        capacity = self.capacity(endpoint)
        over = self._index.held(endpoint) - capacity
        if over <= 0:
            return
        ahead = min(_AHEAD, capacity // _AHEAD)
        if capacity <= LEAST_BLOCKS < self._mosts.get(endpoint, self._most):
            ahead = _FORGETFUL_AHEAD
        over = min(_SWEPT, over + ahead)
        if self.owners is not None:
            greedy = self.owners.greedy(endpoint, over, capacity)
            removed = self._index.remove(endpoint, greedy)
            self.evicted += removed
            over -= removed
        if over > 0:
            oldest = self._index.oldest(endpoint, over * self._eviction.widen)
            going = victims(self._eviction, oldest, over)
            self.evicted += self._index.remove(endpoint, going)
