# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Chains that were drawn at random, judged by the rejection kernel: all of a step in one go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from forebay.kernels.sampling.rejection import rejection_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .draft import Draft

__all__ = ["reject_chains"]


def reject_chains(
    drafts: Sequence[Draft],
    chances: Sequence[Callable[[int], torch.Tensor]],
    *,
    seeds: Sequence[int],
    places: Sequence[int],
) -> list[tuple[list[int], int]]:
    """Return each chain's kept rows and the token after them.

    chances: the target's distribution after a row of each draft, as it is sampled from (temperature
    and filters applied); places: of each draft's first guess in its text.
    """
    p = torch.stack(
        [each(row) for each, d in zip(chances, drafts, strict=True) for row in range(len(d))]
    )
    device = p.device
    counts = [len(draft) - 1 for draft in drafts]
    out, accepted = rejection_sample(
        logits=p.log().float(),  # temperature and filters are in p already
        draft=torch.tensor([t for d in drafts for t in d.tokens[1:]], device=device).int(),
        cu_draft=torch.tensor([0, *counts], device=device).cumsum(0).int(),
        most=max(counts),
        temperature=torch.ones(len(drafts), device=device),
        seeds=torch.tensor(seeds, device=device),
        places=torch.tensor(places, device=device),
        draft_probs=torch.cat([draft.chances for draft in drafts]).float(),
    )
    kept = accepted.tolist()
    return [
        (list(range(1, count + 1)), tokens[count])
        for count, tokens in zip(kept, out.tolist(), strict=True)
    ]
