"""What a dialect is, and what all three have in common: usage, and an error with a body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .shapes import UNREADABLE, read_error

if TYPE_CHECKING:
    from forebay.policies.contracts import ForebayError

    from .shapes import ErrorBody, Usage


class Seen:
    """What has been learnt from one answer. None: not said."""

    __slots__ = (
        "cached_tokens",
        "done",
        "error",
        "finish_reason",
        "id",
        "output_tokens",
        "prompt_tokens",
        "token",
    )

    def __init__(self) -> None:
        self.done = False
        """The route's end mark has come."""
        self.error = False
        """The engine has sent an error event of its own."""
        self.token = False
        """The first output token has come."""
        self.id = ""
        self.finish_reason = ""
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None


class Dialect(Protocol):
    """How one family of routes speaks."""

    marks: tuple[bytes, ...]
    """An event without any of these tells nothing once the first token has come."""

    def look(self, event: bytes, data: bytes, seen: Seen) -> None:
        """Learn from one event of a stream; `event` is empty when it has no name."""
        ...

    def read(self, answer: bytes, seen: Seen) -> None:
        """Learn from a whole answer."""
        ...

    def shaped(self, body: bytes) -> bool:
        """Tell whether an engine's error body already has this dialect's shape."""
        ...

    def body(self, error: ForebayError) -> bytes:
        """Say an error as a response body."""
        ...

    def event(self, error: ForebayError) -> bytes:
        """Say an error inside a stream."""
        ...


def error_of(body: bytes) -> ErrorBody | None:
    """Return the error that a body says; None when it is no error's body."""
    try:
        return read_error(body)
    except UNREADABLE:
        return None


def learn(usage: Usage, seen: Seen) -> None:
    """Take over what is said; a later event may say only part."""
    if usage.prompt_tokens is not None:
        seen.prompt_tokens = usage.prompt_tokens
    if usage.completion_tokens is not None:
        seen.output_tokens = usage.completion_tokens
    if usage.input_tokens is not None:
        seen.prompt_tokens = (
            usage.input_tokens
            + (usage.cache_read_input_tokens or 0)
            + (usage.cache_creation_input_tokens or 0)
        )
    if usage.output_tokens is not None:
        seen.output_tokens = usage.output_tokens
    details = usage.prompt_tokens_details or usage.input_tokens_details
    if details is not None and details.cached_tokens is not None:
        seen.cached_tokens = details.cached_tokens
    if usage.cache_read_input_tokens is not None:
        seen.cached_tokens = usage.cache_read_input_tokens
