"""Helpers that several ops share.

`jit` holds device functions (page addressing, split arithmetic, one online softmax step) and needs
triton; `host` holds launch-side helpers (device facts, configuration tables) and needs torch.
"""

__all__: list[str] = []
