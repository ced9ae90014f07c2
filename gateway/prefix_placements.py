"""What is predicted of prompts that are placed, and what their answers teach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.prefill_rate import PrefillRate
from forebay.policies.residency import Residency
from forebay.policies.score_sticky import RecentWork
from forebay.policies.stalls import Stalls
from forebay.prefixcache.slots import Source

from .prefix_numbers import Numbers

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome, Placement
    from forebay.policies.prefill_rate import Mark
    from forebay.prefixcache.blocks import BlockHash
    from forebay.prefixcache.index import Index
    from forebay.prefixcache.learned import Learned
    from forebay.scheduler.avalanche import HitRateGuard

    from .prefix_source import EndpointEvents

_WEIGHT = 0.02
"""Of one prompt's true tokens a block in their running mean."""


class Expected:
    """What was predicted for a request that is placed."""

    __slots__ = ("endpoint", "mark", "sure", "tokens", "whole")

    def __init__(self, endpoint: str, tokens: int, *, sure: float, whole: int, mark: Mark) -> None:
        self.endpoint = endpoint
        self.tokens = tokens
        """Of the hit, hopes included."""
        self.sure = sure
        """The hit without hopes, as a share of the prompt."""
        self.whole = whole
        """Whole blocks of the prompt."""
        self.mark = mark
        """Where it stands in what its endpoint has to prefill."""


class Placements:
    """Follows the requests of one pool from their placement to their outcome."""

    def __init__(self, index: Index, learned: Learned, *, block_tokens: int) -> None:
        self.events: dict[str, EndpointEvents] = {}
        """By endpoint, where they are read."""
        self.guard: HitRateGuard | None = None
        """Slows intake when the hit rate collapses; None where that is not asked for."""
        self.work = RecentWork()
        self.prefill = PrefillRate()
        self.stalls = Stalls(self.prefill)
        self.residency = Residency()
        self.numbers = Numbers()
        self.predicted_tokens = 0
        """Of predicted hits, where requests were placed."""
        self.miscounted = 0
        """Prompts that an engine counted other tokens of than were cut here."""
        self.counted = 0
        """Prompts of which it counted as many."""
        self.per_block = float(block_tokens)
        """Tokens, as engines count them, of a block of text."""
        self._per_token = 1.0
        """Tokens that engines count for each that is estimated here."""
        self._index = index
        self._learned = learned
        self._block_tokens = block_tokens
        self._expected: dict[str, Expected] = {}

    def longest(self, blocks: tuple[BlockHash, ...], prompt_tokens: int) -> int:
        """Return the tokens of the longest predicted hit anywhere."""
        return self._tokens(self._index.longest(blocks), prompt_tokens)

    def placed(self, placement: Placement) -> None:
        """Note where a prompt goes, and the hit that is predicted there."""
        request, endpoint = placement.request, placement.endpoint
        chain = request.blocks
        self.residency.placed(endpoint, request.model)
        if not chain:
            return
        index, learned, now = self._index, self._learned, placement.placed
        held = index.depth(endpoint, chain, Source.EXPECTED)
        sure = learned.sure(endpoint, chain, held)
        if endpoint in self.events:
            exact = index.depth(endpoint, chain, Source.EXACT)
            held, sure = max(held, exact), max(sure, exact)
        prompt = request.prompt_tokens_estimate
        hit = self._tokens(held, prompt)
        self.work.add(endpoint, prompt - hit, now)
        mark = self.prefill.placed(endpoint, prompt - hit, now)
        if request.stream:
            self.stalls.placed(endpoint, request.id, now)
        self._expected[request.id] = Expected(
            endpoint,
            hit,
            sure=sure / len(chain),
            whole=min(prompt // self._block_tokens, len(chain)),
            mark=mark,
        )
        self.predicted_tokens += hit
        if self.guard is not None:
            self.guard.placed(prompt, hit, now)
        learned.placed(
            endpoint,
            chain,
            request=request.id,
            now=now,
            by_tokens=request.counted,
            owner=request.tenant,
        )

    def began(self, placement: Placement, now: float | None = None) -> None:
        """Take in that the first byte of an answer has come; `now` where it goes on as it comes."""
        request = placement.request
        expected = self._expected.get(request.id)
        if expected is None:  # no prompt, or its endpoint has left
            return
        self._learned.began(request.id, placement.endpoint, request.blocks)
        if now is not None and request.stream:
            self.stalls.ended(placement.endpoint, request.id)
            self.prefill.began(placement.endpoint, expected.mark, now)

    def expected(self, request_id: str) -> int | None:
        """Return the hit that was predicted for a request which is placed."""
        found = self._expected.get(request_id)
        return None if found is None else found.tokens

    def released(self, placement: Placement, outcome: Outcome | None, now: float) -> None:
        """Learn from what the engine says it had cached, where it says so."""
        request, endpoint = placement.request, placement.endpoint
        expected = self._expected.pop(request.id, None)
        if expected is None:
            return
        if request.stream:
            self.stalls.ended(endpoint, request.id)
        if outcome is not None and outcome.first_byte is not None and outcome.status == 200:
            self._answered(placement, outcome, now)
        self._learned.ended(request.id)
        if outcome is not None and outcome.cached_tokens is not None:
            self._reported(placement, expected, outcome, now)

    def prefill_rate(self, endpoint: str) -> float | None:
        """Return the prompt tokens a second, as engines count them, that an endpoint prefills."""
        rate = self.prefill.rate(endpoint)
        return None if rate is None else rate * self._per_token

    def forget(self, endpoint: str) -> None:
        """Forget what an endpoint has to do: it has restarted."""
        self.work.forget(endpoint)
        self.prefill.restarted(endpoint)
        self.residency.restarted(endpoint)

    def left(self, endpoint: str) -> None:
        """Forget an endpoint that is gone for good; what still runs there teaches nothing."""
        for request in [r for r, each in self._expected.items() if each.endpoint == endpoint]:
            del self._expected[request]
        self.events.pop(endpoint, None)
        self.work.forget(endpoint)
        self.prefill.forget(endpoint)
        self.stalls.forget(endpoint)
        self.residency.forget(endpoint)

    def _reported(
        self, placement: Placement, expected: Expected, outcome: Outcome, now: float
    ) -> None:
        """Hold what an engine had cached of a prompt against what was predicted."""
        request, endpoint, learned = placement.request, placement.endpoint, self._learned
        cached = outcome.cached_tokens or 0
        prompt = outcome.prompt_tokens or request.prompt_tokens_estimate
        self._count(placement, expected, prompt, cached, now)
        predicted = expected.sure * prompt
        learned.reported(endpoint, predicted_tokens=predicted, cached_tokens=cached)
        if request.counted and endpoint in learned.told:
            self._correct(placement, expected, cached)

    def _count(
        self, placement: Placement, expected: Expected, prompt: int, cached: int, now: float
    ) -> None:
        """Count what an engine had cached; rates and the guard go by tokens as estimated here."""
        endpoint, estimate = placement.endpoint, placement.request.prompt_tokens_estimate
        estimated = cached * estimate / prompt if prompt else 0.0
        self._per_token += _WEIGHT * ((prompt / estimate if estimate else 1.0) - self._per_token)
        rate = self.prefill.rate(endpoint)
        source = "exact" if endpoint in self._learned.told else "learned"
        saved_s = estimated / rate if rate else 0.0
        self.numbers.reported(source, prompt, cached, saved_s)
        if self.guard is not None:
            self.guard.reported(expected.tokens, round(estimated), now)

    def _answered(self, placement: Placement, outcome: Outcome, now: float) -> None:
        request, endpoint = placement.request, placement.endpoint
        self._learned.began(request.id, endpoint, request.blocks)
        self._learned.answered(endpoint, request.blocks, request.tenant)
        if outcome.prompt_tokens and not request.counted:
            told = outcome.prompt_tokens / len(request.blocks)
            self.per_block += _WEIGHT * (told - self.per_block)
        if request.counted and outcome.prompt_tokens is not None and not request.media:
            same = request.prompt_tokens_estimate == outcome.prompt_tokens
            self.counted += same
            self.miscounted += not same
        events = self.events.get(endpoint)
        if events is not None:
            cached = outcome.cached_tokens or 0
            new = (outcome.prompt_tokens or 0) - cached - 2 * self._block_tokens
            if new > 0:
                events.answered(now)

    def _correct(self, placement: Placement, expected: Expected, cached: int) -> None:
        """Take in what an engine had that its events did not say, or said and did not have."""
        chain, endpoint = placement.request.blocks, placement.endpoint
        blocks = min(cached // self._block_tokens, expected.whole)
        if blocks > self._index.depth(endpoint, chain, Source.EXACT):
            self._learned.confirmed_by(placement.request.id)
            self._learned.placed(endpoint, chain[:blocks])
        elif cached == 0:
            self._index.remove(endpoint, chain)

    def _tokens(self, blocks: int, prompt_tokens: int) -> int:
        return min(blocks * self._block_tokens, prompt_tokens)
