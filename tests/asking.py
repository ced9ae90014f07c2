"""A request as the core has it, for tests that care for a few of its fields."""

from __future__ import annotations

from typing import Any

from forebay.policies.contracts import Request, Route


def a_request(number: int = 1, **fields: Any) -> Request:
    """Make request `r<number>`, the `number`th to come; nothing of it is cached unless told."""
    plain: dict[str, Any] = {
        "id": f"r{number}",
        "pool": "p",
        "route": Route.CHAT,
        "model": "m",
        "tenant": "acme",
        "sequence": number,
        "arrived": 0.0,
        "deadline": 60.0,
        "prompt_tokens_estimate": 100,
        "output_tokens_estimate": 10,
    }
    plain |= fields
    plain.setdefault("uncached_tokens", plain["prompt_tokens_estimate"])
    return Request(**plain)
