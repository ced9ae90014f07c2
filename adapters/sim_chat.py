"""The embedded engine's /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .sim_job import Ask, Job, SimError, SimMember, Tool, read_body
from .sim_logprobs import chat_logprobs, text_logprobs
from .sim_reading import (
    Message,
    ToolBody,
    choose_tools,
    read_prompts,
    read_schema,
    read_stop,
    read_turns,
)
from .sim_text import render

if TYPE_CHECKING:
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
    turns = read_turns(body.messages)
    if offered:
        turns.insert(0, ("system", _encode(body.tools).decode()))
    ask = _ask(engine, body, [render(turns)])
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
            logprobs = chat_logprobs(choice, at, at + 1, self._top) if self._top >= 0 else None
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
            for start, end, part in (choice.spans() if choice.parts else ())
            if part.tool
        ]
        message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
        if calls:
            message |= {"content": None, "tool_calls": calls}
        size = len(choice.ids)
        return {
            "index": choice.index,
            "message": message,
            "logprobs": chat_logprobs(choice, 0, size, self._top) if self._top >= 0 else None,
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
                logprobs = _encode(text_logprobs(choice, at, at + 1, self._logprobs))
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
            "logprobs": None if wanted is None else text_logprobs(choice, 0, size, wanted),
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
