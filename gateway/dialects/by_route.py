"""Which route speaks which dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.policies.contracts import Route

from .anthropic import Anthropic
from .openai import OpenAI
from .responses import Responses

if TYPE_CHECKING:
    from .base import Dialect

OPENAI = OpenAI()
ANTHROPIC = Anthropic()
RESPONSES = Responses()

_DIALECTS: dict[Route, Dialect] = {
    Route.MESSAGES: ANTHROPIC,
    Route.COUNT_TOKENS: ANTHROPIC,
    Route.RESPONSES: RESPONSES,
}


def dialect_of(route: Route) -> Dialect:
    """Return how a route speaks."""
    return _DIALECTS.get(route, OPENAI)


def dialect_of_path(path: str) -> Dialect:
    """Return how a path speaks that may be no route at all: errors are said in it."""
    if path.startswith(Route.MESSAGES):
        return ANTHROPIC
    return RESPONSES if path.startswith(Route.RESPONSES) else OPENAI
