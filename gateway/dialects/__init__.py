"""The ways in which a route speaks: OpenAI, Anthropic Messages, OpenAI Responses.

A dialect knows how an answer ends, where its tokens and usage stand, and how an error is said, as a
body or inside a stream. `base` says what that is, one module has one dialect, `shapes` has the
members that they read, and `by_route` knows which route speaks which. Sources: OpenAI API reference
(2025), Anthropic Messages API 2023-06-01.
"""

from .base import Dialect, Seen
from .by_route import ANTHROPIC, OPENAI, RESPONSES, dialect_of, dialect_of_path
from .shapes import UNREADABLE

__all__ = [
    "ANTHROPIC",
    "OPENAI",
    "RESPONSES",
    "UNREADABLE",
    "Dialect",
    "Seen",
    "dialect_of",
    "dialect_of_path",
]
