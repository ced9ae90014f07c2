"""Build, add to and prune a store: what is worth keeping, once, of whom, and for how long."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from .store import answers_of, identity, open_store, write_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .corpus import Text
    from .store import Head

__all__ = ["Keep", "Kept", "add_to_store", "answers_by_tenant", "keep_answers", "write_anew"]

_LOOP = 0.1  # of an answer's tokens distinct: below it, it turns in a circle


@dataclass(frozen=True, slots=True)
class Keep:
    """What a store keeps; ages in days before `today`, sizes in tokens, 0 for no limit."""

    min_tokens: int = 16
    max_tokens: int = 0
    max_age: int = 0
    today: int = 0


@dataclass(slots=True)
class Kept:
    """How many answers were kept, and why others were not."""

    kept: int = 0
    short: int = 0
    loops: int = 0
    twice: int = 0
    old: int = 0
    over: int = 0


def answers_by_tenant(
    texts: Iterable[Text], *, tenant: str | None, by_tenant: bool, shared: bool
) -> dict[str, list[tuple[int, list[int]]]]:
    """Part answers by tenant; `""` holds those of a store that is not one tenant's.

    Raises ValueError when several tenants' answers would come into one store unasked, and when a
    tenant is named that has none: a misspelt name must not empty a store.
    """
    found: dict[str, list[tuple[int, list[int]]]] = {}
    others: set[str] = set()
    for text in texts:
        if tenant is not None and text.tenant != tenant:
            others.add(text.tenant)
            continue
        answer = text.tokens[text.answer_from :].tolist()
        found.setdefault(text.tenant, []).append((text.day, answer))
    if tenant is not None and not found:
        names = ", ".join(repr(name) for name in sorted(others)[:5]) or "no texts"
        raise ValueError(f"no text is of tenant {tenant!r}; the data has {names}")
    if by_tenant:
        return found
    if len(found) > 1 and not shared:
        names = ", ".join(sorted(found)[:3])
        raise ValueError(
            f"the data is of several tenants ({names}): give --tenant NAME, --by-tenant, or"
            " --shared where they share their answers"
        )
    return {"": [answer for answers in found.values() for answer in answers]}


def keep_answers(
    answers: Iterable[tuple[int, list[int]]], keep: Keep
) -> tuple[list[tuple[int, list[int]]], Kept]:
    """Leave out what is short, circles, is there already or is too old; oldest first."""
    told, seen = Kept(), set[bytes]()
    kept: list[tuple[int, list[int]]] = []
    size = 0
    # Newest first, so that of twins the newer one stays and the oldest go when it gets too large.
    for day, tokens in sorted(answers, key=lambda each: each[0], reverse=True):
        mark = blake2b(array("I", tokens).tobytes(), digest_size=16).digest()
        if keep.max_age and day < keep.today - keep.max_age:
            told.old += 1
        elif len(tokens) < keep.min_tokens:
            told.short += 1
        elif len(set(tokens)) < _LOOP * len(tokens):
            told.loops += 1
        elif mark in seen:
            told.twice += 1
        elif keep.max_tokens and size + len(tokens) > keep.max_tokens:
            told.over += 1
        else:
            seen.add(mark)
            size += len(tokens)
            kept.append((day, tokens))
    told.kept = len(kept)
    return kept[::-1], told


def write_anew(
    path: Path, answers: Iterable[tuple[int, list[int]]], keep: Keep, *, tokenizer: str
) -> tuple[Head, Kept]:
    """Write a store of these answers alone; one that is there serves until the new one is done."""
    kept, told = keep_answers(answers, keep)
    return write_store(path, kept, tokenizer=tokenizer), told


def add_to_store(
    path: Path, answers: Iterable[tuple[int, list[int]]], keep: Keep, *, tokenizer: str
) -> tuple[Head, Kept]:
    """Write what a store holds and some more, as `keep` has it; makes one that is not there.

    Raises ValueError when the store's tokens are another tokenizer's.
    """
    before: Iterator[tuple[int, list[int]]] = iter(())
    instead = identity(path)
    if instead is not None:
        head, _, text = open_store(path)
        if tokenizer and head.tokenizer and tokenizer != head.tokenizer:
            raise ValueError(f"{path} holds tokens of '{head.tokenizer}', not of '{tokenizer}'")
        tokenizer = tokenizer or head.tokenizer
        before = answers_of(head, text, path)
    kept, told = keep_answers([*before, *answers], keep)
    return write_store(path, kept, tokenizer=tokenizer, instead=instead), told
