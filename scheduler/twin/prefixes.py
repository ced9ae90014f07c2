"""Replays a trace with known blocks over several prefix caches: what each placement policy hits.

Pure. Each endpoint is an LRU cache of blocks; a request is in flight for as long as its uncached
tokens take to prefill and its output tokens to decode, which is what the policies see as load. The
index that `sticky` asks is the one that runs live, learning from placements. Several gateways take
requests by turns: each sees its own load alone, and hears `LAG_S` later what the others learn.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, cast
from zlib import crc32

from forebay.policies.contracts import EndpointView, Request, Route
from forebay.policies.pick import Seeded
from forebay.policies.score_least_tokens import LeastTokens
from forebay.policies.score_sticky import RecentWork, StickyUntilSaturated
from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import Learned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from forebay.prefixcache.blocks import BlockHash
    from forebay.scheduler.traces import TraceRequest

POLICIES = ("sticky_until_saturated", "least_load", "round_robin", "session_hash")
WINDOW_S = 60.0
LEAST_IN_WINDOW = 20
LAG_S = 0.1
"""Until what one gateway learns is known to the others: how often they tell each other."""
_PLACES = 64


@dataclass(frozen=True, slots=True)
class Speed:
    """How long a request occupies its endpoint."""

    prefill_tokens_per_s: float = 20_000.0
    tpot_s: float = 0.02


@dataclass(frozen=True, slots=True)
class PrefixRun:
    """What one policy made of one trace."""

    policy: str
    endpoints: int
    blocks_per_endpoint: int
    hit_token_share: float
    infinite_shared_share: float
    """What one endless cache, shared by all, would have hit."""
    one_cache_share: float
    """What one LRU cache of the size of all of them together would have hit."""
    load_p95_max_over_mean: float
    """Uncached prompt tokens: the busiest endpoint's over the mean one's, in windows of a minute
    with twenty requests or more; the 95th percentile of the windows."""


class LruCache:
    """Blocks of one cache, the least recently used first.

    The end of a prompt counts as used before its beginning, as engines free them.
    """

    __slots__ = ("_blocks", "_most")

    def __init__(self, most: int | None) -> None:
        self._blocks: dict[int, None] = {}
        self._most = most

    def use(self, chain: Sequence[int]) -> int:
        """Return how many leading blocks are held, and hold all of them from now on."""
        blocks = self._blocks
        hit = next((n for n, block in enumerate(chain) if block not in blocks), len(chain))
        for block in reversed(chain):
            blocks.pop(block, None)
            blocks[block] = None
        if self._most is not None:
            for _ in range(len(blocks) - self._most):
                del blocks[next(iter(blocks))]
        return hit


def working_set(requests: Iterable[TraceRequest]) -> int:
    """Count the distinct blocks of a trace."""
    return len({block for request in requests for block in request.hashes})


def replay(  # noqa: PLR0913 - one run's settings, by name
    requests: Sequence[TraceRequest],
    policy: str,
    *,
    endpoints: int,
    blocks_per_endpoint: int,
    stickiness: float = 16.0,
    speed: Speed | None = None,
    seed: int = 0,
    replicas: int = 1,
) -> PrefixRun:
    """Replay a trace under one of POLICIES."""
    names = [f"e{number}" for number in range(endpoints)]
    gateways = [_Gateway(names, blocks_per_endpoint) for _ in range(replicas)]
    block_tokens, rng = requests[0].block_tokens if requests else 1, Random(seed)  # noqa: S311 - spreads ties
    for gateway in gateways:
        gateway.choose = _chooser(
            policy, gateway, stickiness=stickiness, block_tokens=block_tokens, rng=rng
        )
    station = _Station(names, blocks_per_endpoint, gateways, speed or Speed())
    for request in requests:
        station.take(request)
    prompts = sum(request.prompt_tokens for request in requests) or 1
    endless, one = LruCache(None), LruCache(endpoints * blocks_per_endpoint)
    return PrefixRun(
        policy=policy,
        endpoints=endpoints,
        blocks_per_endpoint=blocks_per_endpoint,
        hit_token_share=station.hit_tokens / prompts,
        infinite_shared_share=sum(_hit(r, endless) for r in requests) / prompts,
        one_cache_share=sum(_hit(r, one) for r in requests) / prompts,
        load_p95_max_over_mean=station.imbalance(),
    )


def _hit(request: TraceRequest, cache: LruCache) -> int:
    return min(cache.use(request.hashes) * request.block_tokens, request.prompt_tokens)


class _Gateway:
    """What one gateway knows."""

    choose: Callable[[TraceRequest], EndpointView]

    def __init__(self, names: Sequence[str], blocks: int) -> None:
        self.views = [EndpointView(name=name, engine="twin", limit=_PLACES) for name in names]
        self.index = Index()
        self.learned = Learned(self.index, capacity_blocks=blocks)
        self.work = RecentWork()
        self.to_hear: deque[tuple[float, str, Sequence[BlockHash], int]] = deque()

    def hear(self, now: float) -> None:
        """Take in what others learnt long enough ago."""
        while self.to_hear and self.to_hear[0][0] <= now:
            _, endpoint, blocks, block_tokens = self.to_hear.popleft()
            new = self.learned.heard(endpoint, blocks)
            self.work.add(endpoint, new * block_tokens, now)  # as the gateway does


class _Station:
    """The endpoints, their caches, and what is under way at them."""

    def __init__(
        self, names: Sequence[str], blocks: int, gateways: Sequence[_Gateway], speed: Speed
    ) -> None:
        self.hit_tokens = 0
        self._gateways = gateways
        self._caches = {name: LruCache(blocks) for name in names}
        self._under_way: list[tuple[float, int, EndpointView, int]] = []
        self._windows: dict[int, tuple[list[float], dict[str, int]]] = {}
        self._speed = speed
        self._count = 0

    def take(self, request: TraceRequest) -> None:
        """Place one request and run it."""
        now = request.arrival_s
        while self._under_way and self._under_way[0][0] <= now:
            _, _, view, tokens = heappop(self._under_way)
            view.in_flight -= 1
            view.in_flight_tokens -= tokens
        gateway = self._gateways[self._count % len(self._gateways)]
        gateway.hear(now)
        view = gateway.choose(request)
        uncached = self._run(gateway, view, request)
        self._note(view, now, uncached)
        self._count += 1
        busy = uncached / self._speed.prefill_tokens_per_s
        ends = now + busy + request.output_tokens * self._speed.tpot_s
        heappush(self._under_way, (ends, self._count, view, uncached))
        view.in_flight += 1
        view.in_flight_tokens += uncached

    def _run(self, gateway: _Gateway, view: EndpointView, request: TraceRequest) -> int:
        """Note a placement, and what came of it; return what was left to prefill."""
        chain, now = cast("tuple[BlockHash, ...]", request.hashes), request.arrival_s
        held = gateway.index.match(chain).get(view.name, 0)
        tokens = min(held * request.block_tokens, request.prompt_tokens)
        gateway.learned.placed(view.name, chain)
        told = [chain[held:]] if held < len(chain) else []
        gateway.learned.share = lambda _, blocks, __: told.append(tuple(blocks))
        gateway.learned.answered(view.name, chain)
        for other in self._gateways:
            if other is not gateway:
                due, size = now + LAG_S, request.block_tokens
                other.to_hear.extend((due, view.name, blocks, size) for blocks in told)
        gateway.work.add(view.name, request.prompt_tokens - tokens, now)
        hit = _hit(request, self._caches[view.name])
        gateway.learned.reported(view.name, predicted_tokens=tokens, cached_tokens=hit)
        self.hit_tokens += hit
        return request.prompt_tokens - hit

    def _note(self, view: EndpointView, now: float, uncached: int) -> None:
        requests, load = self._windows.setdefault(int(now // WINDOW_S), ([], {}))
        requests.append(now)
        load[view.name] = load.get(view.name, 0) + uncached

    def imbalance(self) -> float:
        """Return the 95th percentile of the windows' greatest load over their mean."""
        shares = sorted(
            max(load.values()) * len(self._caches) / sum(load.values())
            for requests, load in self._windows.values()
            if len(requests) >= LEAST_IN_WINDOW and sum(load.values())
        )
        return shares[min(len(shares) - 1, int(len(shares) * 0.95))] if shares else 1.0


def _chooser(
    policy: str, gateway: _Gateway, *, stickiness: float, block_tokens: int, rng: Random
) -> Callable[[TraceRequest], EndpointView]:
    views = gateway.views
    if policy == "round_robin":
        turns = iter(range(1 << 62))
        return lambda _: views[next(turns) % len(views)]
    if policy == "session_hash":
        return lambda request: views[crc32(_session(request)) % len(views)]
    least = LeastTokens()
    sticky = StickyUntilSaturated(gateway.index, block_tokens, stickiness, work=gateway.work)
    score = least if policy == "least_load" else sticky
    pick = Seeded()

    def choose(request: TraceRequest) -> EndpointView:
        asked = _asked(request)
        return views[pick(views, score(asked, views, request.arrival_s), rng)]

    return choose


def _session(request: TraceRequest) -> bytes:
    """Return what keeps a session together; a trace without sessions has its first block."""
    return (request.session or str(request.hashes[:1])).encode()


def _asked(request: TraceRequest) -> Request:
    return Request(
        id="",
        pool="twin",
        route=Route.CHAT,
        model="",
        tenant=request.tenant,
        sequence=0,
        arrived=request.arrival_s,
        deadline=request.arrival_s,
        prompt_tokens_estimate=request.prompt_tokens,
        output_tokens_estimate=request.output_tokens,
        uncached_tokens=request.prompt_tokens,
        blocks=cast("tuple[BlockHash, ...]", request.hashes),
    )
