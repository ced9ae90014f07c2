"""What caching was worth, as engines say: tokens that hit, by source and kind, and time saved.

A hit of fewer than `PADDING` tokens is *padding*: the head of a chat template and the like, which
every prompt has and which saves nothing worth a placement. The others are *business*.
"""

from __future__ import annotations

PADDING = 128
"""Tokens, two blocks of the usual size: techniques for shared prefixes begin to pay past 100."""


class Numbers:
    """Counts of one pool since start."""

    __slots__ = ("hits", "prompts", "saved_s")

    def __init__(self) -> None:
        self.prompts: dict[str, int] = {}
        """Prompt tokens of answers that told their cached ones, by how holders are known."""
        self.hits: dict[tuple[str, str], int] = {}
        """Cached tokens of these, by source and kind."""
        self.saved_s = 0.0
        """Seconds that the cached tokens would have taken to prefill, where rates are known."""

    def reported(self, source: str, prompt_tokens: int, cached_tokens: int, saved_s: float) -> None:
        """Take in what an engine had cached of a prompt, and what that spared of its prefill."""
        self.prompts[source] = self.prompts.get(source, 0) + prompt_tokens
        if cached_tokens <= 0:
            return
        key = (source, "business" if cached_tokens >= PADDING else "padding")
        self.hits[key] = self.hits.get(key, 0) + cached_tokens
        self.saved_s += saved_s
