"""What a request costs an engine, in one number that can be shared out fairly.

Prefill reads many tokens in one step, decode makes one a step: an output token weighs more than a
prompt token, and a prompt token that is already cached weighs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """a * uncached prompt tokens + b * output tokens, predicted before and counted after."""

    a: float = 1.0
    b: float = 2.0

    def __call__(self, *, uncached_tokens: int, output_tokens: int) -> float:
        """Return the cost of one request."""
        return self.a * uncached_tokens + self.b * output_tokens
