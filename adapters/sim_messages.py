"""The embedded engine's /v1/messages and /v1/messages/count_tokens, in Anthropic's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .sim_job import Ask, Job, Reply, SimError, SimMember, Tool, read_body
from .sim_reading import choose_tools, read_content, read_stop
from .sim_text import render

if TYPE_CHECKING:
    from .sim_engine import SimEngine
    from .sim_job import Choice, Received, Usage

Json = dict[str, Any]
_encode = msgspec.json.encode


class MessageTurn(msgspec.Struct):
    """One turn of a conversation."""

    role: str
    content: str | list[Any]


class MessagesTool(msgspec.Struct):
    """A tool as it is offered."""

    name: str
    input_schema: Json | None = None
    description: str | None = None


class CountBody(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens."""

    messages: list[MessageTurn]
    model: str | None = None
    system: str | list[Any] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: Json | None = None


class MessagesBody(CountBody, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    stream: bool | None = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    priority: int | None = 0
    cache_salt: str | None = None
    sim: SimMember | None = None


def messages(engine: SimEngine, received: Received) -> Job:
    """Plan a message."""
    body = read_body(received.body, MessagesBody)
    prompt, turns = _read_prompt(body)
    offered = [Tool(tool.name, tool.input_schema) for tool in body.tools or ()]
    choice = body.tool_choice or {"type": "auto"}
    kind = choice.get("type")
    ask = Ask(
        prompts=[prompt],
        model=engine.check_model(body.model),
        max_tokens=body.max_tokens,
        stop=read_stop(body.stop_sequences),
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        sim=body.sim,
        tools=choose_tools(
            offered,
            choice if kind == "tool" else kind,
            turns,
            several=not choice.get("disable_parallel_tool_use"),
        ),
    )
    job = engine.plan(ask)
    job.writer = MessageWriter(engine, received, body, job)
    return job


def count_tokens(engine: SimEngine, received: Received) -> Reply:
    """Count a prompt's tokens."""
    body = read_body(received.body, CountBody)
    engine.check_model(body.model)
    return Reply(b'{"input_tokens":%d}' % len(_read_prompt(body)[0]))


def error_body(error: SimError) -> bytes:
    """Render an error in Anthropic's shape."""
    kind = "not_found_error" if error.status == 404 else "invalid_request_error"
    return _encode({"type": "error", "error": {"type": kind, "message": error.message}})


def _read_prompt(body: CountBody) -> tuple[list[int], list[tuple[str, str]]]:
    if not body.messages:
        raise SimError("messages must have at least one message")
    turns: list[tuple[str, str]] = []
    if body.system:
        turns.append(("system", read_content(body.system)))
    if body.tools:
        turns.append(("system", _encode(body.tools).decode()))
    turns += [(_role(message), read_content(message.content)) for message in body.messages]
    return render(turns), turns


def _role(message: MessageTurn) -> str:
    """Return the turn's role; a turn that brings a tool's result is the tool's."""
    if isinstance(message.content, list) and any(
        isinstance(part, dict) and "tool_result" in part.values() for part in message.content
    ):
        return "tool"
    return message.role


class MessageWriter:
    """Writes messages and their events."""

    def __init__(self, engine: SimEngine, received: Received, body: MessagesBody, job: Job) -> None:
        self.stream = bool(body.stream)
        self._job = job
        self._model = engine.check_model(body.model)
        self._id = engine.next_id("msg", received)

    def head(self) -> bytes:
        """Begin the message."""
        usage = self._job.usage()
        message = self._message([], None, None, _usage(usage, 0))
        return _event("message_start", {"message": message}) + _event("ping", {})

    def tokens(self, choice: Choice, first: int, end: int) -> bytes:
        """Write a delta for each token, and where blocks begin and end."""
        chunks: list[bytes] = []
        for index, (start, stop, part) in enumerate(choice.spans()):
            if end <= start or first >= stop:
                continue
            if first <= start:
                block = _block(part.tool, part.call_id, {})
                chunks.append(
                    _event("content_block_start", {"index": index, "content_block": block})
                )
            before, after = (_TEXT if part.tool is None else _JSON), b"}}\n\n"
            chunks += [
                b"".join((before[0], b"%d" % index, before[1], choice.quote(at), after))
                for at in range(max(first, start), min(end, stop))
            ]
            if end >= stop:
                chunks.append(_event("content_block_stop", {"index": index}))
        return b"".join(chunks)

    def tail(self, usage: Usage) -> bytes:
        """Say why it stopped and what it used."""
        reason, stop = _stop_reason(self._job.choices[0])
        delta = {"stop_reason": reason, "stop_sequence": stop}
        used = _usage(usage, usage.output_tokens)
        return _event("message_delta", {"delta": delta, "usage": used}) + _event("message_stop", {})

    def whole(self, usage: Usage) -> bytes:
        """Write the whole message."""
        choice = self._job.choices[0]
        blocks: list[Json] = []
        for start, end, part in choice.spans():
            text = "".join(choice.pieces[start:end])
            if part.tool is None:
                blocks.append({"type": "text", "text": text})
            else:
                blocks.append(_block(part.tool, part.call_id, _arguments(text)))
        used = _usage(usage, usage.output_tokens)
        return _encode(self._message(blocks, *_stop_reason(choice), used))

    def _message(
        self, blocks: list[Json], reason: str | None, stop: str | None, usage: Json
    ) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": blocks,
            "model": self._model,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        }


_TEXT = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":',
    b',"delta":{"type":"text_delta","text":',
)
_JSON = (_TEXT[0], b',"delta":{"type":"input_json_delta","partial_json":')


def _event(name: str, members: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **members}))


def _block(tool: str | None, call_id: str, arguments: Json) -> Json:
    if tool is None:
        return {"type": "text", "text": ""}
    return {"type": "tool_use", "id": call_id, "name": tool, "input": arguments}


def _arguments(text: str) -> Json:
    """Return a call's arguments; those that were cut short by the token limit are lost."""
    try:
        return msgspec.json.decode(text, type=Json)
    except msgspec.MsgspecError:
        return {}


def _usage(usage: Usage, output_tokens: int) -> Json:
    """Count as Anthropic does: cached tokens are not in the input tokens."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }


def _stop_reason(choice: Choice) -> tuple[str, str | None]:
    if choice.stop_reason is not None:
        return "stop_sequence", choice.stop_reason
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    return reasons[choice.finish], None
