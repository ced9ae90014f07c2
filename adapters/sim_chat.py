"""The embedded engine's /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from .sim_job import Ask, Job, SimError, SimMember, Tool, read_body
from .sim_text import encode, render, token_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .sim_engine import SimEngine
    from .sim_job import Choice, Received, Usage

Json = dict[str, Any]
_encode = msgspec.json.encode


class StreamOptions(msgspec.Struct):
    """What a stream tells besides its tokens."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Sampling(msgspec.Struct, kw_only=True):
    """What chat and completions share."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = 0
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = False
    priority: int | None = 0
    cache_salt: str | None = None
    response_format: Json | None = None
    structured_outputs: Json | None = None
    sim: SimMember | None = None


class FunctionBody(msgspec.Struct):
    """A function as it is offered."""

    name: str
    description: str | None = None
    parameters: Json | None = None


class ToolBody(msgspec.Struct):
    """A tool as it is offered."""

    function: FunctionBody
    type: str = "function"


class Message(msgspec.Struct):
    """One turn of a conversation."""

    role: str
    content: str | list[Any] | None = None
    tool_calls: list[Any] | None = None


class ChatBody(Sampling, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[ToolBody] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = True
    logprobs: bool | None = False
    top_logprobs: int | None = None


class CompletionBody(Sampling, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any] | None = None
    logprobs: int | None = None
    echo: bool | None = False


def chat(engine: SimEngine, received: Received) -> Job:
    """Plan a chat answer."""
    body = read_body(received.body, ChatBody)
    if not body.messages:
        raise SimError("messages must have at least one message", param="messages")
    offered = [Tool(tool.function.name, tool.function.parameters) for tool in body.tools or ()]
    turns, images = read_turns(body.messages)
    if offered:
        turns.insert(0, ("system", _encode(body.tools).decode()))
    ask = _ask(engine, body, [render(turns, images=images)])
    ask.max_tokens = body.max_completion_tokens or body.max_tokens
    ask.tools = choose_tools(offered, body.tool_choice, turns, several=body.parallel_tool_calls)
    ask.schema = read_schema(body.response_format, body.structured_outputs)
    job = engine.plan(ask)
    job.writer = ChatWriter(engine, received, body, job)
    return job


def completions(engine: SimEngine, received: Received) -> Job:
    """Plan a completion for each prompt."""
    body = read_body(received.body, CompletionBody)
    ask = _ask(engine, body, read_prompts(body.prompt, "prompt"))
    ask.max_tokens = body.max_tokens if body.max_tokens is not None else 16
    ask.schema = read_schema(body.response_format, body.structured_outputs)
    job = engine.plan(ask)
    job.writer = CompletionWriter(engine, received, body, job)
    return job


def read_turns(messages: list[Message]) -> tuple[list[tuple[str, str]], int]:
    """Return the (role, text) turns and how many images they show."""
    turns: list[tuple[str, str]] = []
    images = 0
    for message in messages:
        text, shown = read_content(message.content)
        images += shown
        if message.tool_calls:
            text += _encode(message.tool_calls).decode()
        turns.append((message.role, text))
    return turns, images


def read_content(content: str | list[Any] | None) -> tuple[str, int]:
    """Return the text of a message's content, whatever its parts, and how many images it shows."""
    if content is None or isinstance(content, str):
        return content or "", 0
    texts: list[str] = []
    images = 0
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            members = cast("Json", part)
            text = members.get("text")
            images += "image" in str(members.get("type"))
            texts.append(text if isinstance(text, str) else _encode(members).decode())
        else:
            raise SimError("each part of a content must be a string or an object", param="messages")
    return "".join(texts), images


def choose_tools(
    offered: list[Tool],
    choice: str | Json | None,
    turns: list[tuple[str, str]],
    *,
    several: bool | None,
) -> list[Tool]:
    """Say which tools the model calls now.

    With 'auto': after a user's turn, each tool of whose name a word stands in that turn.
    """
    if isinstance(choice, dict):
        wanted = (choice.get("function") or choice).get("name")
        found = [tool for tool in offered if tool.name == wanted]
        if not found:
            raise SimError(f"tool_choice names {wanted!r}, which is not in tools")
        return found
    if choice in ("required", "any"):
        if not offered:
            raise SimError("tool_choice 'required' needs tools")
        return _mentioned(offered, turns)[: None if several else 1] or offered[:1]
    if choice not in (None, "auto", "none"):
        raise SimError(f"tool_choice {choice!r} is none of 'none', 'auto', 'required'")
    if not offered or choice == "none" or turns[-1][0] != "user":
        return []
    return _mentioned(offered, turns)[: None if several else 1]


def _mentioned(offered: list[Tool], turns: list[tuple[str, str]]) -> list[Tool]:
    text = turns[-1][1].lower()
    return [
        tool
        for tool in offered
        if any(
            len(word) > 3 and word in text
            for word in tool.name.lower().replace("-", "_").split("_")
        )
    ]


def read_schema(response_format: Json | None, structured: Json | None) -> object:
    """Return the schema that the answer must validate against, or None for prose."""
    if structured:
        return _read_structured(structured)
    if not response_format:
        return None
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _ANY_OBJECT
    if kind == "json_schema":
        # Chat nests it, Responses does not.
        inner = response_format.get("json_schema", response_format)
        schema = cast("Json", inner).get("schema") if isinstance(inner, dict) else None
        if schema is None:
            raise SimError("response_format json_schema needs a schema", param="response_format")
        return schema
    raise SimError(f"response_format type {kind!r} is not supported", param="response_format")


_ANY_OBJECT: Json = {
    "type": "object",
    "properties": {
        "answer": {"type": "string"},
        "count": {"type": "integer"},
        "sure": {"type": "boolean"},
    },
    "required": ["answer"],
}


def _read_structured(structured: Json) -> object:
    if structured.get("json_object"):
        return _ANY_OBJECT
    schema = structured.get("json")
    if isinstance(schema, str):
        return msgspec.json.decode(schema)
    if schema is not None:
        return schema
    raise SimError("structured_outputs takes json or json_object here", param="structured_outputs")


def read_prompts(prompt: str | list[Any] | None, name: str) -> list[list[int]]:
    """Return the token ids of each prompt: a text, ids, or a list of either."""
    if isinstance(prompt, str):
        return [encode(prompt) or [0]]
    if not prompt:
        raise SimError(f"{name} must not be empty", param=name)
    if all(isinstance(item, int) for item in prompt):
        return [_check_ids(prompt, name)]
    return [
        (encode(item) or [0]) if isinstance(item, str) else _check_ids(item, name)
        for item in prompt
    ]


def _check_ids(ids: Any, name: str) -> list[int]:
    if not isinstance(ids, list) or not ids:
        raise SimError(f"each {name} must be a string or a list of token ids", param=name)
    found = cast("list[int]", ids)
    if not all(type(item) is int and 0 <= item < 1 << 32 for item in found):
        raise SimError("token ids must be numbers from 0", param=name)
    return found


def _ask(engine: SimEngine, body: Sampling, prompts: list[list[int]]) -> Ask:
    if body.temperature is not None and body.temperature < 0:
        raise SimError(f"temperature must be non-negative, got {body.temperature}")
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise SimError(f"top_p must be in (0, 1], got {body.top_p}")
    if body.stream_options is not None and not body.stream:
        raise SimError("stream options can only be defined when `stream=True`")
    if body.cache_salt == "":
        raise SimError("cache_salt must be a non-empty string", param="cache_salt")
    return Ask(
        prompts=prompts,
        model=engine.check_model(body.model),
        n=1 if body.n is None else body.n,
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        stop=read_stop(body.stop),
        seed=body.seed,
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        sim=body.sim,
    )


def read_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return the strings that end an answer."""
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in found:
        raise SimError("stop cannot contain an empty string", param="stop")
    return found


class _Writer:
    """What the chunks of chat and of completions share."""

    def __init__(
        self,
        engine: SimEngine,
        received: Received,
        body: Sampling,
        job: Job,
        *,
        names: tuple[str, str, str],
    ) -> None:
        prefix, self._object, chunk = names
        self.stream = bool(body.stream)
        self._job = job
        self._model = engine.check_model(body.model)
        self._id = engine.next_id(prefix, received)
        self._created = engine.created()
        options = body.stream_options
        self._usage = bool(options and options.include_usage)
        self._running_usage = self._usage and bool(options and options.continuous_usage_stats)
        start = self._envelope(chunk)[:-1]
        self._start = b"data: " + start + b',"choices":['
        self._close = b"}]}\n\n"

    def _envelope(self, kind: str) -> bytes:
        return _encode(
            {"id": self._id, "object": kind, "created": self._created, "model": self._model}
        )

    def _end_chunk(self) -> bytes:
        if not self._running_usage:
            return self._close
        return b'}],"usage":' + _encode(self._job.usage().openai) + b"}\n\n"

    def tail(self, usage: Usage) -> bytes:
        """Tell the usage where it was asked for, and end the stream."""
        if not self._usage:
            return b"data: [DONE]\n\n"
        return self._start + b'],"usage":' + _encode(usage.openai) + b"}\n\ndata: [DONE]\n\n"

    def _wrap(self, choices: list[Json], usage: Usage) -> bytes:
        return _encode(
            {
                "id": self._id,
                "object": self._object,
                "created": self._created,
                "model": self._model,
                "choices": choices,
                "usage": usage.openai,
            }
        )


class ChatWriter(_Writer):
    """Writes chat completions and their chunks."""

    def __init__(self, engine: SimEngine, received: Received, body: ChatBody, job: Job) -> None:
        names = ("chatcmpl", "chat.completion", "chat.completion.chunk")
        super().__init__(engine, received, body, job, names=names)
        self._top = (body.top_logprobs or 0) if body.logprobs else -1
        self._before = [
            self._start + b'{"index":%d,"delta":' % choice.index for choice in job.choices
        ]

    def head(self) -> bytes:
        """Begin with each choice's role."""
        delta = b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return b"".join(before + delta + self._end_chunk() for before in self._before)

    def tokens(self, choice: Choice, first: int, end: int) -> bytes:
        """Write a chunk for each token; the last one has the finish reason."""
        if choice.parts or self._top >= 0 or self._running_usage:
            return self._tokens_in_full(choice, first, end)
        before, quoted, last = self._before[choice.index], choice.quoted, len(choice.ids) - 1
        chunks: list[bytes] = []
        for at in range(first, end):
            piece = quoted[at] if quoted else _encode(choice.pieces[at])
            if at < last:
                chunks.append(
                    b'%b{"content":%b},"logprobs":null,"finish_reason":null}]}\n\n'
                    % (before, piece)
                )
            else:
                delta = b'{"content":%b},"logprobs":null' % piece
                chunks.append(before + delta + _finish(choice) + self._close)
        return b"".join(chunks)

    def _tokens_in_full(self, choice: Choice, first: int, end: int) -> bytes:
        last = len(choice.ids) - 1
        chunks: list[bytes] = []
        for at in range(first, end):
            choice.told = at + 1
            delta = _delta(choice, at)
            logprobs = _chat_logprobs(choice, at, at + 1, self._top) if self._top >= 0 else None
            finish = _finish(choice) if at == last else b',"finish_reason":null'
            chunks.append(
                self._before[choice.index]
                + _encode(delta)
                + b',"logprobs":'
                + _encode(logprobs)
                + finish
                + self._end_chunk()
            )
        return b"".join(chunks)

    def whole(self, usage: Usage) -> bytes:
        """Write the whole completion."""
        return self._wrap([self._whole(choice) for choice in self._job.choices], usage)

    def _whole(self, choice: Choice) -> Json:
        calls = [
            {
                "id": part.call_id,
                "type": "function",
                "function": {"name": part.tool, "arguments": "".join(choice.pieces[start:end])},
            }
            for start, end, part in choice.spans()
            if part.tool
        ]
        message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
        if calls:
            message |= {"content": None, "tool_calls": calls}
        size = len(choice.ids)
        return {
            "index": choice.index,
            "message": message,
            "logprobs": _chat_logprobs(choice, 0, size, self._top) if self._top >= 0 else None,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
        }


class CompletionWriter(_Writer):
    """Writes text completions and their chunks."""

    def __init__(
        self, engine: SimEngine, received: Received, body: CompletionBody, job: Job
    ) -> None:
        names = ("cmpl", "text_completion", "text_completion")
        super().__init__(engine, received, body, job, names=names)
        self._logprobs = body.logprobs
        self._echo = bool(body.echo)

    def head(self) -> bytes:
        """Completions begin with their first token."""
        return b""

    def tokens(self, choice: Choice, first: int, end: int) -> bytes:
        """Write a chunk for each token; the last one has the finish reason."""
        before = self._start + b'{"index":%d,"text":' % choice.index
        last = len(choice.ids) - 1
        chunks: list[bytes] = []
        for at in range(first, end):
            choice.told = at + 1
            logprobs = b"null"
            if self._logprobs is not None:
                logprobs = _encode(_text_logprobs(choice, at, at + 1, self._logprobs))
            finish = _finish(choice) if at == last else b',"finish_reason":null,"stop_reason":null'
            chunks.append(
                before + choice.quote(at) + b',"logprobs":' + logprobs + finish + self._end_chunk()
            )
        return b"".join(chunks)

    def whole(self, usage: Usage) -> bytes:
        """Write the whole completion."""
        return self._wrap([self._whole(choice) for choice in self._job.choices], usage)

    def _whole(self, choice: Choice) -> Json:
        size, wanted = len(choice.ids), self._logprobs
        return {
            "index": choice.index,
            "text": choice.text,
            "logprobs": None if wanted is None else _text_logprobs(choice, 0, size, wanted),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
        }


def _finish(choice: Choice) -> bytes:
    reason = _encode(choice.stop_reason)
    return b',"finish_reason":"%b","stop_reason":%b' % (choice.finish.encode(), reason)


def _delta(choice: Choice, at: int) -> Json:
    """Return what one token adds: text, or a piece of a tool call, which its first one opens."""
    calls = -1
    for start, end, part in choice.spans():
        calls += part.tool is not None
        if at >= end:
            continue
        if part.tool is None:
            return {"content": choice.pieces[at]}
        function: Json = {"arguments": choice.pieces[at]}
        if at > start:
            return {"tool_calls": [{"index": calls, "function": function}]}
        function["name"] = part.tool
        opened = {"index": calls, "id": part.call_id, "type": "function", "function": function}
        return {"tool_calls": [opened]}
    return {}


def _logprob(choice: Choice, at: int) -> float:
    return -((choice.ids[at] * 2654435761 + at) % 1000) / 500


def _alternatives(choice: Choice, at: int, count: int) -> list[tuple[str, float]]:
    """Return the token itself and less likely ones, `count` in all."""
    first = _logprob(choice, at)
    found = [(choice.pieces[at], first)]
    found += [(f" {word}", first - 0.5 * rank) for rank, word in enumerate(_OTHERS, 1)]
    return found[:count]


_OTHERS: Sequence[str] = [
    "a", "of", "to", "in", "is", "it", "you", "that", "he", "was",
    "for", "on", "are", "with", "as", "his", "they", "be", "at", "one",
]  # fmt: skip


def _chat_logprobs(choice: Choice, first: int, end: int, top: int) -> Json:
    return {
        "content": [
            {
                "token": choice.pieces[at],
                "logprob": _logprob(choice, at),
                "bytes": list(token_bytes(choice.ids[at])),
                "top_logprobs": [
                    {"token": token, "logprob": value, "bytes": list(token.encode())}
                    for token, value in _alternatives(choice, at, top)
                ],
            }
            for at in range(first, end)
        ]
    }


def _text_logprobs(choice: Choice, first: int, end: int, top: int) -> Json:
    offset = len("".join(choice.pieces[:first]))
    offsets: list[int] = []
    for at in range(first, end):
        offsets.append(offset)
        offset += len(choice.pieces[at])
    return {
        "text_offset": offsets,
        "token_logprobs": [_logprob(choice, at) for at in range(first, end)],
        "tokens": choice.pieces[first:end],
        "top_logprobs": [dict(_alternatives(choice, at, top)) for at in range(first, end)],
    }
