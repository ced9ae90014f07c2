"""Render a chat template as engines do: Jinja, sandboxed, with what Hugging Face adds to it.

Engines do not hand a caller's messages to the template as they are. What vLLM (0.32) and SGLang
(0.5.23) change first is done here, too: contents become lists of parts or texts as the template
wants them, a call's arguments become an object, absent members of tools are null or left out.
Whatever holds more than text has no rendering (`None`): engines put their own placeholders there.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from forebay.gateway.extras import needs
from forebay.policies.contracts import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template

Dialect = Literal["vllm", "sglang"]
Json = dict[str, Any]

_WRITTEN = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_FUNCTION = ("name", "description", "parameters")
_SGLANG_FUNCTION = ("description", "name", "parameters")
_OPTIONAL = ("strict", "defer_loading")
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
_ITERATES = re.compile(
    r"for\s+\w+\s+in\s+(?:\w+\.content|\w+\[['\"]content['\"]\]|content)(?!\w)", re.ASCII
)


class ChatTemplate:
    """One model's template. Raises ConfigError where it cannot be compiled."""

    def __init__(
        self, source: str, *, names: Mapping[str, str] | None = None, dialect: Dialect = "vllm"
    ) -> None:
        """`names` are the special tokens that the template may speak of, as `bos_token`."""
        self._names = dict(names or {})
        self._dialect = dialect
        self._parts = _ITERATES.search(source) is not None
        self._template = _compile(source)

    def render(self, body: Mapping[str, Any]) -> str | None:
        """Return a chat's text; None where that cannot be known.

        Raises whatever a template raises on what it does not like.
        """
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            return None
        written: list[Json] = []
        for message in cast("list[Any]", messages):
            one = self._message(message)
            if one is None:
                return None
            written.append(one)
        return self._template.render(
            messages=written,
            tools=self._tools(body),
            documents=body.get("documents"),
            add_generation_prompt=body.get("add_generation_prompt", True),
            **self._arguments(body),
        )

    def _arguments(self, body: Mapping[str, Any]) -> Json:
        """Return what else a template may look at: special tokens, and the caller's own."""
        arguments: Json = dict(self._names)
        if body.get("reasoning_effort") is not None:
            arguments["reasoning_effort"] = body["reasoning_effort"]
        own = body.get("chat_template_kwargs")
        if isinstance(own, dict):
            arguments |= {k: v for k, v in cast("Json", own).items() if k not in _WRITTEN}
        return arguments

    def _message(self, message: Any) -> Json | None:
        if not isinstance(message, dict):
            return None
        said = cast("Json", message)
        content = self._content(said)
        if content is None:
            return None
        written: Json = {"role": said.get("role"), "content": content}
        if said.get("role") == "assistant":
            written |= _calls(said)
            thought = said.get("reasoning") or said.get("reasoning_content")
            if thought is not None:
                written["reasoning"] = written["reasoning_content"] = thought
        for name in ("name", "tool_call_id"):
            if isinstance(said.get(name), str):
                written[name] = said[name]
        return written

    def _content(self, said: Json) -> str | list[Json] | None:
        content = said.get("content")
        parts: Any = [] if content is None else content
        if isinstance(parts, str):
            parts = [{"type": "text", "text": parts}]
        texts = _texts(parts)
        if texts is None:
            return None
        if self._parts and said.get("role") != "tool":
            if self._dialect == "sglang" and not isinstance(content, list):
                return content or ""
            return [{"type": "text", "text": text} for text in texts]
        return (" " if self._dialect == "sglang" else "\n").join(texts)

    def _tools(self, body: Mapping[str, Any]) -> list[Json] | None:
        tools = body.get("tools")
        if not isinstance(tools, list) or not tools:
            return None
        if self._dialect == "sglang" and body.get("tool_choice") == "none":
            return None
        return [self._tool(tool) for tool in cast("list[Any]", tools)]

    def _tool(self, tool: Any) -> Json:
        """Write a tool as the engine's own types do: their order, null where nothing was said."""
        said = cast("Json", tool)
        function = cast("Json", said.get("function") or {})
        kept = {k: function[k] for k in _OPTIONAL if function.get(k) is not None}
        whole: Json = {**{k: function.get(k) for k in _FUNCTION}, **kept}
        if self._dialect != "sglang":
            return {"type": "function", "function": whole}
        ordered = {k: whole[k] for k in (*function, *_SGLANG_FUNCTION) if k in whole}
        later = said.get("defer_loading")
        return {"type": said.get("type", "function"), "function": ordered, "defer_loading": later}


def _texts(parts: Any) -> list[str] | None:
    """Return the texts of a content; None where there is something else in it."""
    if not isinstance(parts, list):
        return None
    texts: list[str] = []
    for part in cast("list[Any]", parts):
        text = part if isinstance(part, str) else None
        if isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text"):  # type: ignore[reportUnknownMemberType]  # any JSON
            text = part.get("text")  # type: ignore[reportUnknownVariableType, reportUnknownMemberType] - likewise
        if not isinstance(text, str):
            return None
        texts.append(text)
    return texts


def _calls(said: Json) -> Json:
    calls = said.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return {}
    written: list[Any] = []
    for call in cast("list[Any]", calls):
        function: Any = cast("Json", call).get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            own = cast("Json", function)
            arguments = own.get("arguments")
            if isinstance(arguments, str):
                arguments = _object(arguments)
            written.append({**call, "function": {**own, "arguments": arguments or {}}})
        else:
            written.append(call)
    return {"tool_calls": written}


def _object(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return {}


def _compile(source: str) -> Template:
    try:
        from jinja2 import TemplateError  # noqa: PLC0415 - an extra
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise ConfigError(needs("a chat template", "tokenizer")) from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    names = cast("dict[str, Any]", environment.globals)
    names |= {"raise_exception": _raise, "strftime_now": _now}
    try:
        return environment.from_string(_GENERATION.sub("", source))
    except TemplateError as error:
        raise ConfigError(f"the chat template cannot be read: {error}") from error


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - local time, as engines say it


def _raise(message: str) -> NoReturn:
    raise ValueError(message)
