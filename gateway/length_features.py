"""What a length predictor is told of a request: the caller's words, and what stands around them.

Read off the loop, in the predictor's thread: a long prompt takes a while to decode.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from forebay.policies.contracts import InvalidRequest, Route
from forebay.scheduler.length import LengthFeatures

from .intake import temperature_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.policies.contracts import Request

    from .intake import AnyBody

_CALLERS = frozenset({"user", "human"})
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_MOST_CHARS = 200_000
_MOST_LIMIT = 1 << 30
"""A caller may write any number for a limit; past this one it is none."""


def features_of(request: Request, body: AnyBody, *, answers: int, hour: int) -> LengthFeatures:
    """Return the features of a request; what cannot be read is left out."""
    text, around, turns = _conversation(request.route, body)
    schema = _get(body, "response_format") or _get(body, "guided_json")
    tools = _get(body, "tools")
    return LengthFeatures(
        request.route,
        request.model,
        request.tenant,
        request.prompt_tokens_estimate,
        next((each for each in map(_count, (_get(body, n) for n in _LIMITS)) if each), None),
        answers,
        text=text[:_MOST_CHARS],
        template=blake2b(around.encode("utf-8", "replace"), digest_size=8).hexdigest()
        if around
        else "",
        turns=turns,
        tools=len(tools) if isinstance(tools, list) else 0,  # type: ignore[reportUnknownArgumentType]  # any JSON
        schema=schema not in (None, {"type": "text"}),
        stop=bool(_get(body, "stop") or _get(body, "stop_sequences")),
        temperature=_temperature(body),
        hour=hour,
    )


def _conversation(route: Route, body: AnyBody) -> tuple[str, str, int]:
    """Return the caller's last words, what the template is made of, and the number of turns."""
    if route is Route.COMPLETIONS:
        prompt = _get(body, "prompt")
        if isinstance(prompt, list):
            prompt = prompt[0] if prompt else ""  # type: ignore[reportUnknownVariableType]  # any JSON
        return (prompt if isinstance(prompt, str) else ""), "", 1
    said = _get(body, "input" if route is Route.RESPONSES else "messages")
    around = [_text(_get(body, name)) for name in ("system", "instructions")]
    around += [str(_get(body, "tools") or "")]
    if isinstance(said, str):
        return said, "".join(around), 1
    texts: list[str] = []
    for role, text in _messages(said):
        if role in _CALLERS:
            texts.append(text)
        elif role in ("system", "developer"):
            around.append(text)
    return (texts[-1] if texts else ""), "".join(around), max(1, len(texts))


def _messages(said: Any) -> Iterator[tuple[str, str]]:
    for message in said if isinstance(said, list) else ():  # type: ignore[reportUnknownVariableType]  # any JSON
        if isinstance(message, dict):
            role = message.get("role")  # type: ignore[reportUnknownVariableType, reportUnknownMemberType] - any JSON
            yield str(role or "user"), _text(message.get("content"))  # type: ignore[reportUnknownArgumentType, reportUnknownMemberType] - any JSON


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts: list[str] = []
    for part in content:  # type: ignore[reportUnknownVariableType]  # any JSON
        text = part.get("text") if isinstance(part, dict) else part  # type: ignore[reportUnknownVariableType, reportUnknownMemberType] - any JSON
        if isinstance(text, str):
            parts.append(text)
    return "\n".join(parts)


def _get(body: AnyBody, name: str) -> Any:
    if name not in body.members:
        return None
    try:
        return body.get(name)
    except InvalidRequest:
        return None


def _temperature(body: AnyBody) -> float | None:
    try:
        return temperature_of(body)
    except InvalidRequest:
        return None


def _count(value: Any) -> int | None:
    return min(value, _MOST_LIMIT) if type(value) is int and value > 0 else None
