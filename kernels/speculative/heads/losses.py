# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""What each kind of head is trained for, on one batch of windows.

Each loss gets the target's states and logits for the same windows, and returns the loss with the
share of places at which the head's first choice is the target's, one for each step ahead: given
that the steps before were right, that is the acceptance at temperature 0 on this text.

EAGLE goes on from its own output for several unrolls, as it will when drafting (training-time
test). In unroll j the query of place t sees the first unroll's keys up to t and, of the later ones,
only those of its own place: a diagonal, so keys and values are not kept n-fold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

from forebay.kernels.speculative.llama import causal

if TYPE_CHECKING:
    from forebay.kernels.speculative.llama import Llama

    from .eagle import Eagle1Head, Eagle3Head
    from .medusa import MedusaHeads

__all__ = ["Batch", "Unrolled", "eagle1_loss", "eagle3_loss", "medusa_loss"]

_FADE = 0.8  # weight of each step ahead against the one before
_NOISE = 0.2  # amplitude of the noise on EAGLE-1's features while it learns


@dataclass(frozen=True, slots=True)
class Batch:
    """Windows and what the target made of them.

    tokens, learnt `[rows, length]`; states: of each wanted layer, or the last normed ones, `[rows,
    length, hidden]`; logits `[rows, length, vocab]`.
    """

    tokens: torch.Tensor
    learnt: torch.Tensor
    states: list[torch.Tensor]
    logits: torch.Tensor


class Unrolled:
    """Attention over unrolls; call once an unroll, with that unroll's query, key and value."""

    def __init__(self) -> None:
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend; rows, tokens, heads, dim in this order."""
        group = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(group, 2) for x in (k, v))
        self._keys.append(k)
        self._values.append(v)
        if len(self._keys) == 1:
            return causal(q, k, v)
        scale = q.shape[3] ** -0.5
        first = torch.einsum("bthd,bshd->bhts", q, self._keys[0]) * scale
        hidden = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
        first = first.masked_fill(hidden, float("-inf"))
        own = [(q * key).sum(-1).transpose(1, 2)[..., None] * scale for key in self._keys[1:]]
        weights = torch.cat([first, *own], -1).float().softmax(-1).to(q.dtype)
        length = q.shape[1]
        out = torch.einsum("bhts,bshd->bthd", weights[..., :length], self._values[0])
        for step, value in enumerate(self._values[1:]):
            out = out + weights[..., length + step].transpose(1, 2)[..., None] * value
        return out


def _shift(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Move dim 1 forward, so that place t holds what t + steps held; the end repeats."""
    return torch.cat((x[:, steps:], x[:, -1:].expand(-1, steps, *x.shape[2:])), 1) if steps else x


def _soft(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of logits with a wanted distribution, one a place."""
    wide = logits.float()
    return wide.logsumexp(-1) - (wanted * wide).sum(-1)


def _mean(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return (x * keep).sum() / keep.sum().clamp(min=1)


class _Course:
    """One batch's course: what is wanted of each place some steps ahead, and what has been right.

    From place t, step j guesses token t + j + 2; places from which that lies past the window's end
    are left out, not masked: the vocabulary is wide. right: for each step judged, the share of
    first choices that hit, where all steps before did.
    """

    def __init__(self, batch: Batch, law: torch.Tensor) -> None:
        self.right: list[torch.Tensor] = []
        self._batch = batch
        self._law = law.to(batch.logits.dtype)
        self._first = batch.logits.argmax(-1)
        self._so_far = torch.ones_like(batch.learnt)

    def reach(self, step: int) -> int:
        """How many places, from the first on, have their guess in the window."""
        return self._batch.tokens.shape[1] - step - 2

    def best(self, step: int) -> torch.Tensor:
        """Return the target's own choices there, `[rows, places]`."""
        return self._first[:, step + 1 : step + 1 + self.reach(step)]

    def judge(
        self, step: int, guessed: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return soft cross-entropies of a step's logits, and which places are learnt from."""
        count, best, batch = self.reach(step), self.best(step), self._batch
        ahead = slice(step + 2, step + 2 + count)
        room, hit = batch.learnt[:, ahead], chosen == best
        self.right.append(_mean(hit.float(), room & self._so_far[:, :count]))
        # The text must be the target's own choice too, or the next step drafts from another text.
        self._so_far = self._so_far[:, :count] & hit & (batch.tokens[:, ahead] == best)
        return _soft(guessed, self._law[:, step + 1 : step + 1 + count]), room


def eagle3_loss(
    head: Eagle3Head, target: Llama, batch: Batch, *, unrolls: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Soft cross-entropy with the target over the draft vocabulary, over unrolls that fade."""
    tokens = batch.tokens
    places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    kept_ids = head.to_target(torch.arange(len(head.d2t), device=tokens.device))
    course = _Course(batch, batch.logits[..., kept_ids].float().softmax(-1))
    embeds, feature = target.embed_tokens(tokens), head.first_features(batch.states)
    loss, attend = tokens.new_zeros((), dtype=torch.float32), Unrolled()
    for step in range(unrolls):
        feature = head(_shift(embeds, step + 1), feature, places + step, attend)
        guessed = head.logits(feature[:, : course.reach(step)])
        soft, room = course.judge(step, guessed, head.to_target(guessed.argmax(-1)))
        loss = loss + _FADE**step * _mean(soft, room & head.t2d[course.best(step)])
    return loss, course.right


def eagle1_loss(
    head: Eagle1Head, target: Llama, batch: Batch, *, unrolls: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Smooth L1 between next states and a tenth of soft cross-entropy, over unrolls that fade.

    The paper trains one step ahead; what a head is to go on from when drafting is its own output,
    so that is practised here as EAGLE-3 does (HASS has the same idea).
    """
    tokens = batch.tokens
    places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    course = _Course(batch, batch.logits.float().softmax(-1))
    embeds, states = target.embed_tokens(tokens), head.first_features(batch.states)
    feature, attend = states, Unrolled()
    if head.training:
        noise = torch.rand_like(states) - 0.5
        feature = states + noise * _NOISE * 512 / tokens.shape[1]
    loss = tokens.new_zeros((), dtype=torch.float32)
    for step in range(unrolls):
        feature = head(_shift(embeds, step + 1), feature, places + step, attend)
        count = course.reach(step)
        guessed = head.logits(feature[:, :count], target)
        soft, room = course.judge(step, guessed, guessed.argmax(-1))
        wanted = states[:, step + 1 : step + 1 + count]
        apart = F.smooth_l1_loss(feature[:, :count].float(), wanted.float(), reduction="none")
        loss = loss + _FADE**step * (_mean(apart.mean(-1), room) + 0.1 * _mean(soft, room))
    return loss, course.right


def medusa_loss(
    head: MedusaHeads, target: Llama, batch: Batch, *, unrolls: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Soft cross-entropy of each head with the target at the place that the head guesses for."""
    del target, unrolls
    course = _Course(batch, batch.logits.float().softmax(-1))
    loss = batch.tokens.new_zeros((), dtype=torch.float32)
    for step, all_guessed in enumerate(head(batch.states[-1])):
        guessed = all_guessed[:, : course.reach(step)]
        soft, room = course.judge(step, guessed, guessed.argmax(-1))
        loss = loss + _FADE**step * _mean(soft, room)
    return loss, course.right
