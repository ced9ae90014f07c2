"""What is kept of a request and its answer while it passes, to be looked at when it has ended.

Only of those that were chosen for it: a copy to another arm, or a look at an endpoint's answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from .experiments.reading import MOST

if TYPE_CHECKING:
    from forebay.adapters.base import Call

    from .intake import AnyBody, Inbound


class Copy:
    """What is kept of one request and its answer, to be sent and compared."""

    __slots__ = (
        "body",
        "bound",
        "call",
        "fits",
        "parts",
        "prompt_tokens",
        "shadowed",
        "size",
        "streamed",
    )

    def __init__(self, inbound: Inbound) -> None:
        self.body: AnyBody = inbound.body
        self.call: Call = replace(inbound.call, members=dict(inbound.call.members))
        self.bound = inbound.bound
        self.prompt_tokens = inbound.request.prompt_tokens_estimate
        self.parts: list[bytes] = []
        self.size = 0
        self.shadowed = False
        """It is to go to another arm."""
        self.fits = True
        """All of the answer is kept; else none of it."""
        self.streamed = inbound.request.stream

    @property
    def answer(self) -> bytes:
        """What was answered."""
        return b"".join(self.parts)

    def add(self, data: bytes) -> None:
        """Keep more of the caller's answer."""
        self.size += len(data)
        if self.size > MOST:
            self.fits = False
            self.parts.clear()
        else:
            self.parts.append(data)

    def clear(self) -> None:
        """Forget what was kept of an answer: another attempt begins."""
        self.parts.clear()
        self.size, self.fits = 0, True
