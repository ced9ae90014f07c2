# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: PLR0913
# (as many arguments as the op has)
"""What `rejection_sample` means, in plain torch and double precision, a sequence at a time.

Its coins are given, so that the kernel's law can be checked apart from the kernel's generator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["rejection_reference"]


def rejection_reference(
    *,
    logits: torch.Tensor,
    draft: torch.Tensor,
    cu_draft: torch.Tensor,
    temperature: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
    keep_coin: Callable[[int, int], float],
    race: Callable[[int, int, int], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept drafts; returns `out [sequences, K_max + 1]` int32 padded with -1, and how many.

    Shapes as for `rejection_sample`. keep_coin(sequence, place) is uniform; race(sequence, place,
    vocab) are exponential waiting times: the token with the greatest chance over time is drawn.
    """
    sequences = cu_draft.numel() - 1
    most = int((cu_draft[1:] - cu_draft[:-1]).max()) if sequences else 0
    out = torch.full((sequences, most + 1), -1, dtype=torch.int32)
    accepted = torch.zeros(sequences, dtype=torch.int32)
    for b in range(sequences):
        start, end = int(cu_draft[b]), int(cu_draft[b + 1])
        greedy = float(temperature[b]) <= 0
        rows = logits[start + b : end + b + 1].double()
        p = rows if greedy else (rows / float(temperature[b])).softmax(-1)
        kept = 0
        for place in range(end - start):
            token = int(draft[start + place])
            if greedy:
                keep = int(p[place].argmax()) == token
            else:
                q = 1.0 if draft_probs is None else float(draft_probs[start + place, token])
                chance = float(p[place, token])
                keep = chance > 0 and keep_coin(b, place) * q < chance
            if not keep:
                break
            out[b, place] = token
            kept += 1
        accepted[b] = kept
        left = p[kept]
        if greedy:
            out[b, kept] = int(left.argmax())
            continue
        if kept < end - start:
            token = int(draft[start + kept])
            if draft_probs is None:
                left = left.clone()
                left[token] = 0
            else:
                left = (left - draft_probs[start + kept].double()).clamp(min=0)
        out[b, kept] = int((left / race(b, kept, left.numel()).double()).argmax())
    return out, accepted
