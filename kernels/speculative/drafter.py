"""One drafter of three sources: this answer, this prompt, and answers of the past.

The source whose match with the end of the history is longest wins; on a tie the nearer one, in that
order. How many of its tokens are drafted follows from the match's length and from what such drafts
have come to (`draft_length`). Engines call it through kernels/plugins; nothing here knows an
engine. A long prompt is sorted beside the engine's steps, and drafted from once that is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from .automaton import SuffixAutomaton
from .contexts import DEPTH, Contexts, Guess, pack
from .draft_length import DraftLength

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    Background = Callable[[Callable[[], Contexts]], Future[Contexts]]

__all__ = ["ANSWER", "PROMPT", "SOURCES", "STORE", "Counts", "Drafter", "History"]

ANSWER, PROMPT, STORE = range(3)
SOURCES = ("answer", "prompt", "store")
_GENERATION = 8192  # tokens of an answer in one automaton
_AT_ONCE = 2048  # tokens of a prompt that are sorted in about a millisecond
_NOTHING = Guess([], [], 0)


@dataclass(slots=True)
class Counts:
    """What drafting came to, per source: drafts, guessed tokens, accepted tokens."""

    drafts: list[int]
    drafted: list[int]
    accepted: list[int]

    @classmethod
    def zero(cls) -> Counts:
        """Nothing counted yet."""
        return cls([0] * len(SOURCES), [0] * len(SOURCES), [0] * len(SOURCES))


class History:
    """One request's tokens so far, and what is known of them; of use to one thread at a time.

    Holds 4 bytes a token, 8 more a token of the prompt, and up to 7 MB for the answer's last
    16,384 tokens.
    """

    __slots__ = ("_newer", "_older", "_prompt", "_sorting", "pending", "prompt_tokens", "tokens")

    def __init__(self, prompt: array[int]) -> None:
        self.tokens = prompt
        self.prompt_tokens = len(prompt)
        self._prompt: Contexts | None = None
        self._sorting: Future[Contexts] | None = None
        self._newer = SuffixAutomaton()
        self._older: SuffixAutomaton | None = None
        self.pending: tuple[int, int, list[int]] | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in tokens of the answer."""
        self.tokens.extend(tokens)
        for token in tokens:
            self._newer.add(token)
            if self._older is not None:
                self._older.follow(token)
        if len(self._newer) >= _GENERATION:
            # A full automaton goes on answering while the next one fills up.
            self._older, self._newer = self._newer, SuffixAutomaton()

    def answer_guess(self, most: int) -> Guess:
        """Draft from the longest earlier match within the answer."""
        newer, older = self._newer, self._older
        best = newer if older is None or newer.match >= older.match else older
        if not best.match:
            return _NOTHING
        tokens = best.following(most)
        return Guess(tokens, [1.0] * len(tokens), best.match)

    def prompt_contexts(self, background: Background | None = None) -> Contexts | None:
        """Sort the prompt's contexts, once; None while a long prompt is being sorted elsewhere."""
        if self._prompt is None and self._sorting is None:
            sort = partial(Contexts.of, self.tokens[: self.prompt_tokens])
            if background is not None and self.prompt_tokens > _AT_ONCE:
                self._sorting = background(sort)
            else:
                self._prompt = sort()
        if self._sorting is not None and self._sorting.done():
            self._prompt, self._sorting = self._sorting.result(), None
        return self._prompt


class Drafter:
    """Draft for any number of histories; safe for many threads that bring different histories.

    most: tokens of a draft at most; row_budget: guessed tokens of one step's whole batch, since
    rows past what the target reads its weights for are no longer free; worth: least chance at
    which a token is guessed; vocab: ids from there on are no tokens of the target, whatever a store
    holds, 0 for no limit; store: gives the contexts of past answers, or None; background: runs
    something beside the caller, as an executor's `submit` does, without it prompts are sorted by
    whoever asks first.
    """

    def __init__(  # noqa: PLR0913 - a drafter has many knobs
        self,
        *,
        most: int,
        row_budget: int = 256,
        worth: float = 0.25,
        min_match: int = 2,
        vocab: int = 0,
        store: Callable[[], Contexts | None] | None = None,
        background: Background | None = None,
    ) -> None:
        self.most = most
        self.row_budget = row_budget
        self.min_match = min_match
        self.vocab = vocab
        self.counts = Counts.zero()
        self._store = store
        self._background = background
        self._length = DraftLength(len(SOURCES), worth=worth)

    def settle(self, history: History, accepted: Sequence[int]) -> None:
        """Learn from the tokens of the target's last step, bonus included."""
        pending, history.pending = history.pending, None
        if pending is None:
            return
        source, match, draft = pending
        kept = 0
        for guessed, real in zip(draft, accepted, strict=False):
            if guessed != real:
                break
            kept += 1
        self.counts.drafts[source] += 1
        self.counts.drafted[source] += len(draft)
        self.counts.accepted[source] += kept
        self._length.learn(source, match, drafted=len(draft), accepted=kept)

    def propose(self, history: History, *, rows: int = 1, room: int | None = None) -> list[int]:
        """Guess the next tokens of one of `rows` histories, with room for so many; maybe none."""
        most = min(self.most, self.row_budget // max(rows, 1))
        if room is not None:
            most = min(most, room)
        if most <= 0:
            return []
        source, guess = self._best(history, most)
        if guess.match < self.min_match:
            return []
        load = rows * self.most / self.row_budget
        count = self._length.cut(source, guess.match, guess.shares[:most], load=load)
        draft = guess.tokens[:count]
        if self.vocab and draft and max(draft) >= self.vocab:
            # Of another tokenizer; the target would read past its table of embeddings.
            draft = draft[: next(at for at, token in enumerate(draft) if token >= self.vocab)]
        if draft:
            history.pending = (source, guess.match, draft)
        return draft

    def _best(self, history: History, most: int) -> tuple[int, Guess]:
        guess = history.answer_guess(most)
        if guess.match >= DEPTH:
            return ANSWER, guess
        recent = pack(history.tokens[-DEPTH:])
        found = [
            (*contexts.find(recent), source, contexts) for source, contexts in self._others(history)
        ]
        # Of equals the first, which is the nearer one; only the winner is followed.
        rank, match, source, contexts = max(found, key=itemgetter(1), default=(0, 0, ANSWER, None))
        if contexts is None or match <= guess.match:
            return ANSWER, guess
        return source, contexts.follow(rank, recent[: match * 4], most)

    def _others(self, history: History) -> list[tuple[int, Contexts]]:
        kept = self._store() if self._store is not None else None
        found = ((PROMPT, history.prompt_contexts(self._background)), (STORE, kept))
        return [(source, contexts) for source, contexts in found if contexts is not None]
