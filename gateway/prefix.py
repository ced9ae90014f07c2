"""What a pool knows of prefixes: what its parts know, under one section and one name."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec.structs import replace

from forebay.policies.score_confined import Confined
from forebay.policies.score_hash_ring import HashRing
from forebay.policies.score_least_tokens import LeastTokens
from forebay.policies.score_sticky import StickyUntilSaturated
from forebay.policies.score_weighted import Weighted
from forebay.prefixcache.deltas import blocks_of
from forebay.prefixcache.eviction import EVICTIONS
from forebay.prefixcache.index import Index
from forebay.prefixcache.learned import Learned
from forebay.prefixcache.owners import Owners
from forebay.prefixcache.slots import Source
from forebay.scheduler.avalanche import GuardSettings, HitRateGuard

from .prefix_names import Names
from .prefix_placements import Placements
from .prefix_source import EndpointEvents
from .prompts.service import ROUTES
from .scheduling import Shared
from .warming import Warmer, cut_text, cut_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forebay.adapters.base import Probe
    from forebay.gateway.config.prefix import Guard, Prefix
    from forebay.policies.contracts import Outcome, Placement, Request, Route, Score
    from forebay.prefixcache.blocks import BlockHash
    from forebay.prefixcache.deltas import Delta, Outbox

    from .intake import AnyBody
    from .prompts.service import Cutter
    from .warming import Beginning

logger = logging.getLogger(__name__)

_KNOWN_BY = ("mode", "tokenizer", "tokenize_budget", "block_tokens", "shared")
"""What blocks' names and holders depend on: where one changes, nothing known can be kept."""
_MOST_EARLY = 1000
"""Deltas kept for an endpoint of which nothing is known yet."""
_MOST_UNKNOWN = 64
"""Such endpoints. Some may be gone already: other replicas tell of them a little longer."""


class PoolPrefix:
    """What one pool knows of prefixes."""

    def __init__(self, section: Prefix, *, pool: str = "", cutter: Cutter | None = None) -> None:
        self.section = section
        self.cutter = cutter
        """Cuts prompts into tokens; None where events are not looked at by them."""
        self.index = Index()
        self.learned = Learned(
            self.index,
            capacity_blocks=section.capacity_blocks,
            eviction=EVICTIONS[section.evict](),
            ttl_s=section.ttl,
        )
        self.names = Names(block_tokens=section.block_tokens, version=section.version)
        self.placements = Placements(self.index, self.learned, block_tokens=section.block_tokens)
        self.placements.guard = _guard(section.guard)
        self.events = self.placements.events
        """By endpoint, where they are read."""
        self._shared = Shared()
        self._endpoints: tuple[str, ...] = ()
        self.score = self._score()
        self.epochs: dict[str, str] = {}
        """What endpoints told of their processes, by name; empty where they do not."""
        self._early: dict[str, list[Delta]] = {}
        self._outbox: Outbox | None = None
        self._pool = pool
        self.warmer = self._make_warmer()
        """Prefills hot prefixes on endpoints that join; None where that is not asked for."""

    @property
    def guard(self) -> HitRateGuard | None:
        """Slows intake when the hit rate collapses; None where that is not asked for."""
        return self.placements.guard

    def attend(self, shared: Shared, endpoints: tuple[str, ...] = ()) -> None:
        """Take what else the file says: who the tenants are, what is promised, who serves."""
        if self.warmer is not None and self._shared.tenants - shared.tenants:
            self.warmer.forget()  # none of it may outlive whose it was
        self._shared, self._endpoints = shared, endpoints
        self._part(len(shared.tenants))
        score = self.score
        if isinstance(score, Confined):
            score.among(endpoints)
            score = score.inner
        if isinstance(score, StickyUntilSaturated):
            share = self.section.ttft_share
            limits = {name: ttft * share for name, ttft in shared.ttfts.items()}
            score.limits = limits if share else {}

    def _part(self, tenants: int) -> None:
        """Hold tenants to their shares from now on, where there are several."""
        section, learned = self.section, self.learned
        if tenants < 2:
            learned.owners = None
            return
        new = section.tenant_new_tokens
        rate = None if new is None else new / section.block_tokens / 60.0
        if learned.owners is None:
            learned.owners = Owners(self.index)
        learned.owners.limit(share=section.tenant_share, new_blocks_per_s=rate)

    def takes(self, section: Prefix) -> bool:
        """Take another section, where what is known can be kept under it; else False.

        Prefixes of another version are not found any more; they fade as they are not used.
        """
        before = self.section
        if any(getattr(before, name) != getattr(section, name) for name in _KNOWN_BY):
            return False
        self.section = section
        self.names.renew(section.version)
        self.learned.configure(
            capacity_blocks=section.capacity_blocks,
            eviction=EVICTIONS[section.evict]() if section.evict != before.evict else None,
            ttl_s=section.ttl,
        )
        self.score = self._score()
        if section.guard != before.guard:
            self.placements.guard = _guard(section.guard)
        if (section.warm, section.version) != (before.warm, before.version):
            self.close()
            self.warmer = self._make_warmer()
        self.attend(self._shared, self._endpoints)
        return True

    def close(self) -> None:
        """Stop what is under way."""
        if self.warmer is not None:
            self.warmer.close()

    def _make_warmer(self) -> Warmer | None:
        warm = self.section.warm
        if warm is None:
            return None
        return Warmer(self._pool, warm, holds=self._holds, warmed=self._warmed)

    def _score(self) -> Score:
        """Make what places; a tenant's flood is kept to some endpoints where there is a limit."""
        section = self.section
        if section.tenant_new_tokens is None:
            return self._placing()
        return Confined(self._placing(), self._floods, section.tenant_share)

    def _floods(self, tenant: str, now: float) -> bool:
        owners = self.learned.owners
        return owners is not None and owners.floods(tenant, now)

    def _placing(self) -> Score:
        section = self.section
        if section.policy == "weighted":
            own = section.weights
            return Weighted(self.index, own.hit, own.load, own.kv)
        if section.policy == "hash_ring":
            return HashRing()
        if section.policy == "least_load":
            return LeastTokens()
        return StickyUntilSaturated(
            self.index,
            section.block_tokens,
            section.stickiness,
            work=self.placements.work,
            prefill=self.placements.prefill,
            stalls=self.placements.stalls,
            residency=self.placements.residency,
        )

    # -- naming ----------------------------------------------------------------------------------

    def wants_tokens(self, route: Route) -> bool:
        """Tell whether a prompt is to be cut into tokens."""
        return self.cutter is not None and route in ROUTES and bool(self.events)

    def blocks(
        self, route: Route, body: AnyBody, *, model: str, salt: bytes
    ) -> tuple[BlockHash, ...]:
        """Return a prompt's block hashes, by its text; none for what is no prompt."""
        return self.names.by_text(route, body, model=model, salt=salt)

    def named(
        self, request: Request, body: AnyBody, tokens: bytes | None, *, salt: bytes
    ) -> Request:
        """Return a request with its prompt's blocks: by its tokens where they are known."""
        if tokens is None:
            prompt = request.prompt_tokens_estimate
            blocks = self.blocks(request.route, body, model=request.model, salt=salt)
        else:
            prompt = len(tokens) // 4 + request.media_tokens
            blocks = self.names.by_tokens(tokens, model=request.model, salt=salt)
        left = prompt - self.longest(blocks, prompt)
        named = replace(
            request,
            blocks=blocks,
            counted=tokens is not None,
            prompt_tokens_estimate=prompt,
            uncached_tokens=left,
        )
        self.met(named, body, salt=salt.hex() or None, tokens=tokens)
        return named

    def met(
        self, request: Request, body: AnyBody, *, salt: str | None, tokens: bytes | None = None
    ) -> None:
        """Take note of what a prompt has in common with others, for whoever warms caches."""
        warmer, blocks = self.warmer, request.blocks
        if warmer is None or not blocks:
            return
        hit = self.index.longest(blocks)

        def cut() -> Beginning | None:
            if tokens is None:
                return cut_text(request, body, hit * self.names.block_bytes, salt)
            return cut_tokens(request, tokens[: hit * 4 * self.section.block_tokens], salt)

        warmer.met(request, hit, request.arrived, cut)

    def _holds(self, endpoint: str, chain: Sequence[BlockHash]) -> bool:
        return self.index.match(chain).get(endpoint, 0) == len(chain)

    def _warmed(self, endpoint: str, chain: Sequence[BlockHash]) -> None:
        """Expect a prefix where it was prefilled; where events tell, they do."""
        if endpoint in self.learned.told:
            return
        self.learned.placed(endpoint, chain)
        if self.learned.share is not None:
            self.learned.share(endpoint, chain, "")

    def share(self, outbox: Outbox | None) -> None:
        """Tell other replicas from now on what is learned here."""
        self._outbox = outbox
        self.learned.share = None if outbox is None else self._share

    def _share(self, endpoint: str, blocks: Sequence[BlockHash], owner: str) -> None:
        assert self._outbox is not None
        epoch = self.epochs.get(endpoint, "")
        self._outbox.add(self._pool, endpoint, epoch, blocks, owner=owner)

    def heard(self, delta: Delta, now: float | None = None) -> None:
        """Take over what another replica tells; what of another epoch it is, is passed over.

        `now`: it has just learned that, so that it is also work that the endpoint has.
        """
        endpoint = delta.endpoint
        epoch = self.epochs.get(endpoint)
        if epoch is None:
            early = self._early.setdefault(endpoint, [])
            if len(self._early) > _MOST_UNKNOWN:
                del self._early[next(iter(self._early))]
            if len(early) < _MOST_EARLY:
                early.append(delta)
        elif delta.forget:
            if delta.epoch == epoch == "":
                self.learned.forget_expected(endpoint)
        elif delta.epoch == epoch:
            blocks: Sequence[BlockHash] = blocks_of(delta)  # type: ignore[assignment]  # hashes of theirs
            new = self.learned.heard(endpoint, blocks, delta.owner, now)
            if now is not None:  # what is new there had to be computed
                self.placements.work.add(endpoint, new * self.section.block_tokens, now)

    def probed(self, endpoint: str, probe: Probe) -> None:
        """Take in which of its models are adapters, by the name that events use, and its size."""
        self.epochs[endpoint] = "" if probe.started is None else f"{probe.started:.0f}"
        for delta in self._early.pop(endpoint, ()):
            self.heard(delta)
        for card in probe.models:
            if card.parent is not None:
                self.names.adapter(card.name, card.name.removeprefix(f"{card.parent}:"))
                self.placements.residency.adapter(card.name)
        self.placements.residency.told(endpoint, probe.adapters, probe.running_adapters)
        if probe.kv_tokens:
            self.learned.limit(endpoint, int(probe.kv_tokens / self.placements.per_block))

    # -- placing ---------------------------------------------------------------------------------

    def longest(self, blocks: tuple[BlockHash, ...], prompt_tokens: int) -> int:
        """Return the tokens of the longest predicted hit anywhere."""
        return self.placements.longest(blocks, prompt_tokens)

    def uncached(self, request: Request) -> int:
        """Return what is left to prefill where most of it lies, as things are now."""
        prompt = request.prompt_tokens_estimate
        return prompt - self.placements.longest(request.blocks, prompt)

    def placed(self, placement: Placement) -> None:
        """Note where a prompt goes, and the hit that is predicted there."""
        self.placements.placed(placement)

    def began(self, placement: Placement, now: float | None = None) -> None:
        """Take in that the first byte of an answer has come; `now` where it goes on as it comes."""
        self.placements.began(placement, now)

    def expected(self, request_id: str) -> int | None:
        """Return the hit that was predicted for a request which is placed."""
        return self.placements.expected(request_id)

    def released(self, placement: Placement, outcome: Outcome | None, now: float) -> None:
        """Learn from what the engine says it had cached, where it says so."""
        self.placements.released(placement, outcome, now)

    # -- endpoints -------------------------------------------------------------------------------

    def listen(self, endpoint: str) -> EndpointEvents:
        """Return who is told of an endpoint's events."""
        listener = self.events[endpoint] = EndpointEvents(
            self._pool,
            endpoint,
            index=self.index,
            learned=self.learned,
            named=self.cutter is not None,
        )
        return listener

    def unlisten(self, endpoint: str) -> None:
        """Look at an endpoint's events no more."""
        if self.events.pop(endpoint, None) is not None:
            self.index.clear(endpoint, Source.EXACT)
            self.learned.told.discard(endpoint)

    def forget(self, endpoint: str) -> None:
        """Expect nothing of an endpoint any more; what its events say is theirs to take back."""
        self.learned.forget_expected(endpoint)
        self.placements.forget(endpoint)
        if self._outbox is not None:
            self._outbox.forget(self._pool, endpoint, self.epochs.get(endpoint, ""))

    def left(self, endpoint: str) -> None:
        """Forget an endpoint that is gone for good."""
        self.learned.forget(endpoint)
        self.learned.told.discard(endpoint)
        self.placements.left(endpoint)
        self.epochs.pop(endpoint, None)
        self._early.pop(endpoint, None)
        if self.warmer is not None:
            self.warmer.end(endpoint)

    def tick_first(self, now: float, *, waiting: bool) -> None:
        """Let time pass for what endpoints' views depend on."""
        if self.warmer is not None:
            self.warmer.tick(now, waiting=waiting)
        guard = self.guard
        if guard is not None and guard.tick(now):
            told = {
                "pool": self._pool,
                "recent": round(guard.recent, 3),
                "usual": round(guard.usual, 3),
            }
            if guard.slowed:
                logger.warning("prefix hit rate has collapsed; intake is slowed", extra=told)
            else:
                logger.info("intake is no longer slowed", extra=told)

    def tick(self, now: float, endpoints: Iterable[str]) -> None:
        """Let time pass."""
        self.learned.tick(now, endpoints)


def _guard(section: Guard | None) -> HitRateGuard | None:
    if section is None:
        return None
    return HitRateGuard(
        GuardSettings(
            below=section.below,
            back=section.back,
            least=section.least,
            floor=section.floor,
            longest=section.longest,
        )
    )
