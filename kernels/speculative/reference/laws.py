# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Which guesses are kept, so that the output follows the target's own law exactly.

`coupled` serves guesses that were not drawn at random (retrieval, top-k trees, n-grams). The token
of each place is drawn from the target's distribution with that place's own random number, as it
would be without a draft; a guess is kept if it is that token. A guess x is so kept with chance
p(x), which is what rejection with q = 1 at x comes to, and the output is, number for number, that
of no speculation at all. At temperature 0 the distribution is one token's.

`rejection` serves a chain drawn from a draft model (Leviathan et al.): x, drawn from q, is kept
with chance min(1, p(x) / q(x)); at the first that is not, the token is drawn from the positive part
of p - q. `branching` is the same for several guesses of one place, drawn independently from q: each
in turn is tried against what the ones before have left of p. `without_return` serves guesses drawn
from q without return: q loses what was drawn.

`typical` (Medusa's) keeps what is likely enough; it changes the output, and is refused unless
lossy.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .draft import Draft

    Coins = Callable[[int, str], float]

__all__ = [
    "Sampling",
    "branching",
    "coins",
    "coupled",
    "draw",
    "probabilities",
    "rejection",
    "typical",
    "without_return",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a request samples; temperature 0 takes the likeliest token, the lowest id on a tie."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


def coins(seed: int) -> Coins:
    """Give uniform numbers in [0, 1) by place and use: the same whatever else is in the batch."""

    def coin(place: int, use: str) -> float:
        told = hashlib.blake2b(f"{seed}/{place}/{use}".encode(), digest_size=8).digest()
        return (int.from_bytes(told, "big") >> 11) / (1 << 53)

    return coin


def probabilities(logits: torch.Tensor, how: Sampling) -> torch.Tensor:
    """Turn logits `[..., vocab]` into the distribution that is really sampled from, float64."""
    if how.temperature <= 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(-1, best, 1.0)
    p = (logits.double() / how.temperature).softmax(-1)
    if not how.top_k and how.top_p >= 1:
        return p
    ranked, order = p.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if how.top_k:
        keep[..., how.top_k :] = False
    # A token stays while those before it have not reached top_p, and the likeliest always does.
    keep &= (ranked.cumsum(-1) - ranked) < how.top_p
    keep[..., 0] = True
    ranked = ranked * keep
    return torch.zeros_like(p).scatter_(-1, order, ranked / ranked.sum(-1, keepdim=True))


def draw(p: torch.Tensor, coin: float) -> int:
    """Take the token at which p's running sum passes the coin; p need not sum to 1."""
    running = p.cumsum(-1)
    total = float(running[-1])
    at = int(
        torch.searchsorted(
            running, torch.tensor(coin * total, dtype=p.dtype, device=p.device), right=True
        )
    )
    # Rounding may step past the end: the last token with any chance then.
    return at if at < len(p) and float(p[at]) > 0 else int(p.nonzero()[-1])


def coupled(
    draft: Draft, p: Callable[[int], torch.Tensor], *, place: int, coin: Coins
) -> tuple[list[int], int]:
    """Keep guesses that are the target's own draws; returns the kept rows and the token after.

    p gives the target's distribution after a row; place is that of the first guess.
    """
    row, kept = 0, list[int]()
    while True:
        token = draw(p(row), coin(place + len(kept), "token"))
        row = next((child for child in draft.children[row] if draft.tokens[child] == token), -1)
        if row < 0:
            return kept, token
        kept.append(row)


def rejection(
    draft: Draft, p: Callable[[int], torch.Tensor], *, place: int, coin: Coins
) -> tuple[list[int], int]:
    """Keep guesses of a chain that was drawn from `draft.chances`."""
    kept: list[int] = []
    for row in range(1, len(draft)):
        token, now, q = draft.tokens[row], p(row - 1), draft.chances[row - 1].double()
        chance = float(now[token])
        if chance <= 0 or coin(place, "keep") * float(q[token]) >= chance:
            return kept, draw(_left(now, q), coin(place, "token"))
        kept.append(row)
        place += 1
    return kept, draw(p(len(draft) - 1), coin(place, "token"))


def branching(
    tokens: Sequence[int], p: torch.Tensor, q: torch.Tensor, *, coin: Callable[[str], float]
) -> tuple[int, int]:
    """Try guesses of one place, each drawn independently from q.

    Returns which was kept, or -1, and the token that the place then has.
    """
    return _one_of(tokens, p, [q] * len(tokens), coin)


def without_return(
    tokens: Sequence[int], p: torch.Tensor, q: torch.Tensor, *, coin: Callable[[str], float]
) -> tuple[int, int]:
    """Like `branching`, for guesses drawn from q one after another, none twice."""
    laws = [q]
    for token in tokens[:-1]:
        rest = laws[-1].clone()
        rest[token] = 0
        laws.append(rest / rest.sum() if float(rest.sum()) > 0 else rest)
    return _one_of(tokens, p, laws, coin)


def _one_of(
    tokens: Sequence[int],
    p: torch.Tensor,
    laws: Sequence[torch.Tensor],
    coin: Callable[[str], float],
) -> tuple[int, int]:
    """Try guesses in turn, each against what the laws of those before have left of p."""
    for number, (token, q) in enumerate(zip(tokens, laws, strict=False)):
        chance = float(p[token])
        if chance > 0 and coin(f"keep{number}") * float(q[token]) < chance:
            return number, token
        p = _left(p, q)
    return -1, draw(p, coin("token"))


def _left(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    left = (p - q).clamp(min=0)
    total = float(left.sum())
    # p = q rejects nothing, so nothing is drawn from what would be left of it but rounding.
    return left / total if total > 1e-12 else p


def typical(
    draft: Draft, p: Callable[[int], torch.Tensor], *, place: int, coin: Coins
) -> tuple[list[int], int]:
    """Keep the longest path of likely enough guesses. Not the target's law."""
    best: list[int] = []
    queue: list[tuple[int, list[int]]] = [(0, [])]
    while queue:
        row, kept = queue.pop()
        best = kept if len(kept) > len(best) else best
        now = p(row)
        entropy = float(-(now * now.clamp(min=1e-30).log()).sum())
        bar = min(0.3, 0.09 * math.exp(-entropy))
        queue += [(c, [*kept, c]) for c in draft.children[row] if float(now[draft.tokens[c]]) > bar]
    last = best[-1] if best else 0
    return best, draw(p(last), coin(place + len(best), "token"))
