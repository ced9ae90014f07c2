"""Which way of speculation to use, by what answers look like: they are drafted again, and counted.

An answer that is known can be drafted for as if it were being written: a guess is right if it is
what came. That tells, without an engine, what lookup, suffix matching and a store would have come
to at temperature 0. Heads cannot be judged so; they are advised by elimination, in the order of
what they cost to have: lookahead and lookup (nothing), a store (kept answers), Medusa (heads),
EAGLE (a head).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from .contexts import SEPARATOR, Contexts
from .drafter import Drafter, History
from .store_edit import Keep, keep_answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .corpus import Text

__all__ = ["Findings", "Verdict", "advise", "decide", "examine", "replay"]

_SHORT = 50
_PAYS = 1.5  # tokens a step from which drafts surely outweigh their rows
_TRAINS = 1_000_000  # tokens of answers to train a head on


@dataclass(frozen=True, slots=True)
class Findings:
    """What answers look like, and tokens a step that each source would have yielded."""

    texts: int
    answer_tokens: int
    median_answer: float
    short_share: float
    lookup: float
    store: float | None
    from_store: str
    """Which store: `given`, or `own`: the older half of the answers, tried on the newer."""

    @property
    def store_gains(self) -> bool:
        """Whether a store pays, and yields a tenth more than prompt and answer alone."""
        return self.store is not None and self.store >= max(_PAYS, self.lookup * 1.1)

    def trains(self, *, has_head: bool) -> bool:
        """Whether a head is there or can be trained."""
        return has_head or self.answer_tokens >= _TRAINS


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the decision table: a way, tokens a step that were seen, and what speaks."""

    way: str
    seen: float | None
    use: bool
    why: str


def examine(texts: Sequence[Text], *, store: Contexts | None, most: int = 8) -> Findings:
    """Draft for known answers; raises ValueError when there are none."""
    if not texts:
        raise ValueError("there are no texts to look at")
    lengths = [len(text.tokens) - text.answer_from for text in texts]
    tried, from_store, given = texts, "given", store
    if store is None and len(texts) > 1:
        ordered = sorted(texts, key=lambda text: text.day)
        half = len(ordered) // 2
        tried, from_store, given = ordered[half:], "own", _contexts(ordered[:half])
    return Findings(
        texts=len(texts),
        answer_tokens=sum(lengths),
        median_answer=median(lengths),
        short_share=sum(n < _SHORT for n in lengths) / len(lengths),
        lookup=replay(tried, None, most=most),
        store=None if given is None else replay(tried, given, most=most),
        from_store=from_store,
    )


def _contexts(texts: Sequence[Text]) -> Contexts | None:
    answers = [(text.day, text.tokens[text.answer_from :].tolist()) for text in texts]
    kept, _ = keep_answers(answers, Keep())
    joined = array("I", [SEPARATOR])
    for _, tokens in kept:
        joined.extend(tokens)
        joined.append(SEPARATOR)
    return Contexts.of(joined) if kept else None


def replay(texts: Sequence[Text], store: Contexts | None, *, most: int) -> float:
    """Return how many tokens a step of the target would have yielded, over all answers."""
    drafter = Drafter(most=most, store=None if store is None else lambda: store)
    steps = tokens = 0
    for text in texts:
        answer = text.tokens[text.answer_from :].tolist()
        if len(answer) < 2:
            continue
        history = History(text.tokens[: text.answer_from])
        history.extend(answer[:1])
        at = 1
        while at < len(answer):
            draft = drafter.propose(history)
            kept = 0
            while (
                kept < len(draft)
                and at + kept < len(answer) - 1
                and draft[kept] == answer[at + kept]
            ):
                kept += 1
            new = answer[at : at + kept + 1]
            drafter.settle(history, new)
            history.extend(new)
            at += len(new)
            steps += 1
            tokens += len(new)
    return tokens / steps if steps else 1.0


def advise(found: Findings, *, has_head: bool = False) -> list[str]:
    """Say what to use, first choice first, each with its reason and its number."""
    said: list[str] = []
    if found.median_answer < _SHORT:
        said.append(
            f"none: half of the answers have under {found.median_answer + 1:.0f} tokens, and drafts"
            f" pay from about {_SHORT}"
        )
        return said
    if found.store_gains:
        said.append(
            f"rest: {found.store:.2f} tokens a step with a store, {found.lookup:.2f} without"
        )
    if found.lookup >= _PAYS:
        said.append(f"suffix: {found.lookup:.2f} tokens a step from prompt and answer alone")
    if has_head:
        said.append("eagle3: you have a head; it reaches further than what repeats")
    elif found.trains(has_head=has_head):
        said.append(
            f"eagle3: {found.answer_tokens} tokens of answers are enough to train a head on"
            " (medusa where the engine has no EAGLE)"
        )
    if not said:
        said.append(
            f"lookahead or none: text repeats little ({found.lookup:.2f} tokens a step), and"
            f" {found.answer_tokens} tokens are too few to train a head on"
        )
    return said


def decide(found: Findings, *, has_head: bool = False) -> list[Verdict]:
    """Judge every way, in the order of what it costs to have, by the numbers that were seen.

    Lookahead's and a head's cannot be seen in answers: they are judged by what else there is.
    """
    long = found.median_answer >= _SHORT
    trains = found.trains(has_head=has_head)
    head = "you have a head" if has_head else f"{found.answer_tokens} tokens of answers"
    much = "are enough to train one" if trains else f"are under {_TRAINS} to train one"
    told = head if has_head else f"{head} {much}"
    rows = [
        Verdict(
            "lookahead", None, not trains and found.lookup < _PAYS, "small batches; needs nothing"
        ),
        Verdict("suffix", found.lookup, found.lookup >= _PAYS, f"pays from {_PAYS}; needs nothing"),
        Verdict(
            "rest", found.store, found.store_gains, f"pays from {_PAYS} and a tenth over suffix"
        ),
        Verdict("medusa", None, trains and not has_head, f"where the engine has no EAGLE; {told}"),
        Verdict("eagle3", None, trains, told),
    ]
    short = f"half of the answers have under {_SHORT} tokens"
    return rows if long else [Verdict(row.way, row.seen, False, short) for row in rows]
