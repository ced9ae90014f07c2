# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""The loop: draft, verify in one run of the target, accept, learn."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .cache import Cache
from .draft import Draft
from .laws import Sampling, coins, coupled, probabilities, rejection, typical

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forebay.kernels.speculative.llama import Llama

    Adjust = Callable[[list[int], torch.Tensor], torch.Tensor]

__all__ = ["Counts", "Engine", "Method", "Plain", "Request", "Row", "Verified"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how to go on from it.

    stop: sequences of tokens that end the answer, kept in it; end: a token that ends it; adjust:
    changes logits given all tokens before (penalties, a grammar's mask), at every place of a draft.
    """

    prompt: tuple[int, ...]
    most: int
    sampling: Sampling = field(default_factory=Sampling)
    end: int | None = None
    stop: tuple[tuple[int, ...], ...] = ()
    adjust: Adjust | None = None


@dataclass(slots=True)
class Row:
    """One request under way: its tokens, the root last, and what its method keeps of it."""

    request: Request
    tokens: list[int]
    state: Any = None
    done: bool = False

    @property
    def answer(self) -> list[int]:
        """Tokens beyond the prompt."""
        return self.tokens[len(self.request.prompt) :]


@dataclass(frozen=True, slots=True)
class Verified:
    """What one run told of one row: its draft, logits and states by row, what was kept.

    logits `[rows, vocab]`, hidden `[rows, hidden]`, features: of each wanted layer likewise; kept:
    rows of accepted guesses; in a prompt's run the draft is a chain of the prompt, all kept.
    """

    draft: Draft
    logits: torch.Tensor
    hidden: torch.Tensor
    features: list[torch.Tensor]
    kept: list[int]


class Method(Protocol):
    """A way of speculation. `features` are layers whose states it wants to see."""

    name: str
    features: tuple[int, ...]
    lossless: bool

    def start(self, row: Row, told: Verified) -> None:
        """Take in a prompt that was run; row.tokens ends with the first token of the answer."""
        ...

    def propose(self, row: Row, room: int) -> Draft:
        """Draft from row.tokens, at most `room` places deep."""
        ...

    def observe(self, row: Row, told: Verified) -> None:
        """Take in what came of a draft; row.tokens has grown by it."""
        ...


class Plain:
    """No speculation."""

    name = "plain"
    features: tuple[int, ...] = ()
    lossless = True

    def start(self, row: Row, told: Verified) -> None:
        """Nothing to keep."""

    def propose(self, row: Row, room: int) -> Draft:
        """Draft the root alone."""
        del room
        return Draft.of(row.tokens[-1])

    def observe(self, row: Row, told: Verified) -> None:
        """Nothing to learn."""


@dataclass(slots=True)
class Counts:
    """What a run of the engine came to; by_depth[d]: drafts that reached d + 1 kept guesses."""

    runs: int = 0
    drafts: int = 0
    guesses: int = 0
    accepted: int = 0
    emitted: int = 0
    by_depth: list[int] = field(default_factory=list[int])
    draft_s: float = 0.0
    verify_s: float = 0.0
    accept_s: float = 0.0


class Engine:
    """Runs requests in one batch with one method.

    lossy: allow methods that change the output. kernel: judge drawn chains by the rejection kernel,
    a step's in one go, with other random numbers than `laws` has; None: where there is a GPU.
    """

    def __init__(
        self, target: Llama, method: Method, *, lossy: bool = False, kernel: bool | None = None
    ) -> None:
        if not method.lossless and not lossy:
            raise ValueError(f"{method.name} changes the output: make the engine with lossy=True")
        self.target = target
        self.method = method
        self.counts = Counts()
        self._device = target.embed_tokens.weight.device
        self._kernel = self._device.type == "cuda" if kernel is None else kernel

    @torch.no_grad()
    def run(self, requests: Sequence[Request]) -> list[list[int]]:
        """Answer all requests, in one batch from first to last."""
        slots = max(len(r.prompt) + r.most for r in requests) + 80
        cache = Cache.empty(
            self.target.config,
            layers=self.target.config.num_hidden_layers,
            rows=len(requests),
            slots=slots,
            like=self.target.embed_tokens.weight,
        )
        rows = [self._prefill(request, number, cache) for number, request in enumerate(requests)]
        while not all(row.done for row in rows):
            self._step(rows, cache)
        return [row.answer for row in rows]

    def _prefill(self, request: Request, number: int, cache: Cache) -> Row:
        """Run one prompt by itself: rows must not depend on each other."""
        prompt = list(request.prompt)
        row = Row(request, prompt)
        last = len(prompt) - 1
        draft = Draft(prompt[:], list(range(-1, last)), list(range(last + 1)), [])
        lone = cache.alone(number)
        logits, hidden, features = self._forward([draft], lone)
        told = Verified(
            draft, logits[0], hidden[0], [f[0] for f in features], list(range(1, last + 1))
        )
        lone.keep(0, told.kept)
        cache.lengths[number] = lone.lengths[0]
        lone_root = Draft.of(prompt[-1])
        p = self._chances(row, lone_root, logits[0, last:])
        _, token = coupled(lone_root, p, place=len(prompt), coin=coins(request.sampling.seed))
        self._take(row, [token])
        self.method.start(row, told)
        return row

    def _step(self, rows: list[Row], cache: Cache) -> None:
        started = time.perf_counter()
        drafts = [self._draft(row) for row in rows]
        drafted = time.perf_counter()
        logits, hidden, features = self._forward(drafts, cache)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        verified = time.perf_counter()
        judged = self._reject(rows, drafts, logits) if self._kernel else {}
        for number, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            if row.done:
                continue
            kept, token = judged.get(number) or self._accept(row, draft, logits[number])
            taken = self._take(row, [*(draft.tokens[each] for each in kept), token])
            kept = kept[:taken]
            cache.keep(number, kept)
            self._count(draft, len(kept), min(taken, len(kept) + 1))
            if not row.done:
                told = Verified(
                    draft, logits[number], hidden[number], [f[number] for f in features], kept
                )
                self.method.observe(row, told)
        self.counts.runs += 1
        self.counts.draft_s += drafted - started
        self.counts.verify_s += verified - drafted
        self.counts.accept_s += time.perf_counter() - verified

    def _draft(self, row: Row) -> Draft:
        if row.done:
            return Draft.of(row.tokens[-1])
        # The token after the draft is one more, so that many guesses would be for nothing.
        room = row.request.most - len(row.answer) - 1
        return self.method.propose(row, room) if room > 0 else Draft.of(row.tokens[-1])

    def _forward(
        self, drafts: list[Draft], cache: Cache
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        count = max(map(len, drafts))
        tokens, depths, sees = [], [], []
        for draft in drafts:
            pad = count - len(draft)
            tokens.append(draft.tokens + [0] * pad)
            depths.append(draft.depths + [0] * pad)
            sees.append(draft.sees + [1 << at for at in range(len(draft), count)])
        bits = sees if all(draft.sees for draft in drafts) else None
        ids = torch.tensor(tokens, device=self._device)
        starts = torch.tensor(cache.lengths, device=self._device)[:, None]
        places = starts + torch.tensor(depths, device=self._device)
        hidden, features = self.target(
            ids, places, cache.window(bits, count), features=self.method.features
        )
        return self.target.logits(hidden), hidden, features

    def _chances(
        self, row: Row, draft: Draft, logits: torch.Tensor
    ) -> Callable[[int], torch.Tensor]:
        request = row.request

        def p(at: int) -> torch.Tensor:
            own = logits[at]
            if request.adjust is not None:
                own = request.adjust(row.tokens + draft.path(at), own)
            return probabilities(own, request.sampling)

        return p

    def _accept(self, row: Row, draft: Draft, logits: torch.Tensor) -> tuple[list[int], int]:
        law = coupled if draft.chances is None else rejection
        if not self.method.lossless:
            law = typical
        p, coin = self._chances(row, draft, logits), coins(row.request.sampling.seed)
        return law(draft, p, place=len(row.tokens), coin=coin)

    def _reject(
        self, rows: list[Row], drafts: list[Draft], logits: torch.Tensor
    ) -> dict[int, tuple[list[int], int]]:
        """Judge the chains that were drawn at random, by row's number."""
        drawn = [
            n
            for n, (row, draft) in enumerate(zip(rows, drafts, strict=True))
            if draft.chances is not None and not row.done
        ]
        if not drawn:
            return {}
        from .rejection import reject_chains  # noqa: PLC0415 - needs triton

        chances = [self._chances(rows[n], drafts[n], logits[n]) for n in drawn]
        seeds = [rows[n].request.sampling.seed for n in drawn]
        places = [len(rows[n].tokens) for n in drawn]
        found = reject_chains([drafts[n] for n in drawn], chances, seeds=seeds, places=places)
        return dict(zip(drawn, found, strict=True))

    @staticmethod
    def _take(row: Row, tokens: list[int]) -> int:
        """Add tokens up to where the answer ends; returns how many were taken."""
        request = row.request
        for taken, token in enumerate(tokens, 1):
            row.tokens.append(token)
            answer = row.answer
            ends = token == request.end or len(answer) >= request.most
            if ends or any(tuple(answer[-len(s) :]) == s for s in request.stop):
                row.done = True
                return taken
        return len(tokens)

    def _count(self, draft: Draft, kept: int, emitted: int) -> None:
        counts = self.counts
        counts.emitted += emitted
        if guesses := draft.guesses():
            counts.drafts += 1
            counts.guesses += guesses
            counts.accepted += kept
        counts.by_depth += [0] * (kept - len(counts.by_depth))
        for depth in range(kept):
            counts.by_depth[depth] += 1
