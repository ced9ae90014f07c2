"""The embedded engine's log probabilities: made up, and always the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .sim_text import token_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .sim_job import Choice

Json = dict[str, Any]


def _logprob(choice: Choice, at: int) -> float:
    return -((choice.ids[at] * 2654435761 + at) % 1000) / 500


def _alternatives(choice: Choice, at: int, count: int) -> list[tuple[str, float]]:
    """Return the token itself and less likely ones, `count` in all."""
    first = _logprob(choice, at)
    found = [(choice.pieces[at], first)]
    found += [(f" {word}", first - 0.5 * rank) for rank, word in enumerate(_OTHERS, 1)]
    return found[:count]


_OTHERS: Sequence[str] = [
    "a", "of", "to", "in", "is", "it", "you", "that", "he", "was",
    "for", "on", "are", "with", "as", "his", "they", "be", "at", "one",
]  # fmt: skip


def chat_logprobs(choice: Choice, first: int, end: int, top: int) -> Json:
    """Return them for tokens `first` up to `end`, as chat tells them."""
    return {
        "content": [
            {
                "token": choice.pieces[at],
                "logprob": _logprob(choice, at),
                "bytes": list(token_bytes(choice.ids[at])),
                "top_logprobs": [
                    {"token": token, "logprob": value, "bytes": list(token.encode())}
                    for token, value in _alternatives(choice, at, top)
                ],
            }
            for at in range(first, end)
        ]
    }


def text_logprobs(choice: Choice, first: int, end: int, top: int) -> Json:
    """Return them for tokens `first` up to `end`, as completions tell them."""
    offset = len("".join(choice.pieces[:first]))
    offsets: list[int] = []
    for at in range(first, end):
        offsets.append(offset)
        offset += len(choice.pieces[at])
    return {
        "text_offset": offsets,
        "token_logprobs": [_logprob(choice, at) for at in range(first, end)],
        "tokens": choice.pieces[first:end],
        "top_logprobs": [dict(_alternatives(choice, at, top)) for at in range(first, end)],
    }
