"""Sampling over logits: lossless acceptance of drafts.

Words: a *row* is one position's logits; a sequence with K drafted tokens has K + 1 rows; a
*residual* is what is left of the target's distribution once a rejected guess is taken out.
"""

__all__: list[str] = []
