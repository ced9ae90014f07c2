"""The embedded engine's /v1/responses: made, streamed, kept, continued, cancelled, deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec

from .sim_job import Ask, Job, Reply, SimError, SimMember, Tool, read_body
from .sim_reading import choose_tools, read_content, read_schema
from .sim_text import render

if TYPE_CHECKING:
    from .sim_engine import SimEngine
    from .sim_job import Choice, Part, Received, Usage

Json = dict[str, Any]
Turns = list[tuple[str, str]]
_encode = msgspec.json.encode


@dataclass(slots=True)
class StoredResponse:
    """One response that was asked to be kept, as it is now."""

    response: Json
    turns: Turns
    """The conversation up to and with it."""
    job: Job | None = None
    """While it is made in the background."""


class TextMember(msgspec.Struct):
    """What form the answer's text has."""

    format: Json | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    """POST /v1/responses."""

    input: str | list[Any]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = False
    background: bool | None = False
    store: bool | None = True
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: TextMember | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = "auto"
    parallel_tool_calls: bool | None = True
    metadata: Json | None = None
    priority: int | None = 0
    cache_salt: str | None = None
    sim: SimMember | None = None


def create(engine: SimEngine, received: Received) -> Job:
    """Plan a response."""
    body = read_body(received.body, ResponsesBody)
    if body.background and (body.stream or not body.store):
        raise SimError("background needs store, and no stream")
    turns = _read_turns(engine, body)
    job = engine.plan(_ask(engine, body, turns))
    job.writer = writer = ResponseWriter(engine, received, body, job)
    if body.store:
        stored = StoredResponse(writer.begun("queued"), turns)
        engine.store(writer.id, stored)
        job.on_end = lambda usage: writer.keep(stored, usage)
        if body.background:
            stored.job = job
            job.early = _encode(stored.response)
    return job


def retrieve(engine: SimEngine, received: Received) -> Reply:
    """Return a stored response."""
    return Reply(_encode(_find(engine, received.path.rpartition("/")[2]).response))


def delete(engine: SimEngine, received: Received) -> Reply:
    """Forget a stored response."""
    response_id = received.path.rpartition("/")[2]
    stored = _find(engine, response_id)
    if stored.job is not None:
        engine.drop(stored.job)
    del engine.responses[response_id]
    return Reply(_encode({"id": response_id, "object": "response.deleted", "deleted": True}))


def cancel(engine: SimEngine, received: Received) -> Reply:
    """Stop a response that is made in the background."""
    stored = _find(engine, received.path.removesuffix("/cancel").rpartition("/")[2])
    if not stored.response["background"]:
        raise SimError("Cannot cancel a synchronous response.", kind="invalid_request_error")
    if stored.job is not None:
        engine.drop(stored.job)
        stored.job = None
        stored.response["status"] = "cancelled"
    return Reply(_encode(stored.response))


def _find(engine: SimEngine, response_id: str) -> StoredResponse:
    stored = engine.responses.get(response_id)
    if stored is None:
        message = f"Response with id '{response_id}' not found."
        raise SimError(message, status=404, kind="invalid_request_error")
    return stored


def _ask(engine: SimEngine, body: ResponsesBody, turns: Turns) -> Ask:
    offered = [
        Tool(str(tool.get("name")), tool.get("parameters"))
        for tool in body.tools or ()
        if tool.get("type") == "function"
    ]
    return Ask(
        prompts=[render(turns)],
        model=engine.check_model(body.model),
        max_tokens=body.max_output_tokens,
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        tools=choose_tools(offered, body.tool_choice, turns, several=body.parallel_tool_calls),
        schema=read_schema(body.text.format if body.text else None, None),
        sim=body.sim,
    )


def _read_turns(engine: SimEngine, body: ResponsesBody) -> Turns:
    turns: Turns = []
    if body.previous_response_id is not None:
        turns += _find(engine, body.previous_response_id).turns
    if body.instructions:
        turns.insert(0, ("system", body.instructions))
    if body.tools:
        turns.insert(0, ("system", _encode(body.tools).decode()))
    if isinstance(body.input, str):
        return [*turns, ("user", body.input)]
    turns += map(_read_item, body.input)
    if not body.input:
        raise SimError("input must not be empty", param="input")
    return turns


def _read_item(item: object) -> tuple[str, str]:
    if not isinstance(item, dict):
        raise SimError("each item of input must be an object", param="input")
    members = cast("Json", item)
    kind = members.get("type", "message")
    if kind == "message":
        return (str(members.get("role", "user")), read_content(members.get("content")))
    if kind == "function_call_output":
        return ("tool", str(members.get("output")))
    return ("assistant", _encode(members).decode())


class ResponseWriter:
    """Writes responses and their events."""

    def __init__(
        self, engine: SimEngine, received: Received, body: ResponsesBody, job: Job
    ) -> None:
        self.stream = bool(body.stream)
        self.id = engine.next_id("resp", received).replace("-", "_", 1)
        self._job = job
        self._body = body
        self._model = engine.check_model(body.model)
        self._created = engine.created()
        self._sequence = 0

    def head(self) -> bytes:
        """Begin the response."""
        response = {"response": self.begun("in_progress")}
        return self._event("response.created", response) + self._event(
            "response.in_progress", response
        )

    def tokens(self, choice: Choice, first: int, end: int) -> bytes:
        """Write a delta for each token, and where items begin and end."""
        chunks: list[bytes] = []
        for index, (start, stop, part) in enumerate(choice.spans()):
            if end <= start or first >= stop:
                continue
            if first <= start:
                chunks += self._open(choice, index, part)
            text = part.tool is None
            name = (
                "response.output_text.delta" if text else "response.function_call_arguments.delta"
            )
            place = self._place(index, part)
            if text:
                place["logprobs"] = []
            chunks += [
                self._event(name, {**place, "delta": choice.pieces[at]})
                for at in range(max(first, start), min(end, stop))
            ]
            if end >= stop:
                chunks += self._close(choice, index, part)
        return b"".join(chunks)

    def tail(self, usage: Usage) -> bytes:
        """End the response."""
        response = self._ended(usage)
        return self._event(f"response.{response['status']}", {"response": response})

    def whole(self, usage: Usage) -> bytes:
        """Write the whole response."""
        return _encode(self._ended(usage))

    def keep(self, stored: StoredResponse, usage: Usage) -> None:
        """Keep the response now that it has ended."""
        stored.response, stored.job = self._ended(usage), None
        choice = self._job.choices[0]
        stored.turns = [*stored.turns, ("assistant", "".join(choice.pieces))]

    def begun(self, status: str) -> Json:
        """Return the response before there is anything in it."""
        body = self._body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": bool(body.store),
            "temperature": body.temperature,
            "text": {"format": (body.text and body.text.format) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _ended(self, usage: Usage) -> Json:
        choice = self._job.choices[0]
        cut = choice.finish == "length"
        items = [
            self._item(choice, index, part) for index, (_, _, part) in enumerate(choice.spans())
        ]
        return self.begun("incomplete" if cut else "completed") | {
            "output": items,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt_tokens + usage.output_tokens,
            },
        }

    def _open(self, choice: Choice, index: int, part: Part) -> list[bytes]:
        item = self._item(choice, index, part) | {"status": "in_progress"}
        item |= {"content": []} if part.tool is None else {"arguments": ""}
        added = [self._event("response.output_item.added", {"output_index": index, "item": item})]
        if part.tool is None:
            content = {**self._place(index, part), "part": _text_part("")}
            added.append(self._event("response.content_part.added", content))
        return added

    def _close(self, choice: Choice, index: int, part: Part) -> list[bytes]:
        item, place = self._item(choice, index, part), self._place(index, part)
        if part.tool is None:
            text = _part_text(choice, index)
            ended = [
                self._event("response.output_text.done", {**place, "text": text, "logprobs": []}),
                self._event("response.content_part.done", {**place, "part": _text_part(text)}),
            ]
        else:
            done = {**place, "name": part.tool, "arguments": item["arguments"]}
            ended = [self._event("response.function_call_arguments.done", done)]
        done = {"output_index": index, "item": item}
        return [*ended, self._event("response.output_item.done", done)]

    def _item(self, choice: Choice, index: int, part: Part) -> Json:
        status = "incomplete" if choice.finish == "length" else "completed"
        text = _part_text(choice, index)
        item: Json = {"id": self._item_id(index, part), "status": status}
        if part.tool is None:
            return item | {"type": "message", "role": "assistant", "content": [_text_part(text)]}
        return item | {
            "type": "function_call",
            "call_id": part.call_id,
            "name": part.tool,
            "arguments": text,
        }

    def _item_id(self, index: int, part: Part) -> str:
        kind = "msg" if part.tool is None else "fc"
        return f"{kind}_{self.id.removeprefix('resp_')}_{index}"

    def _place(self, index: int, part: Part) -> Json:
        place: Json = {"item_id": self._item_id(index, part), "output_index": index}
        return place | {"content_index": 0} if part.tool is None else place

    def _event(self, name: str, members: Json) -> bytes:
        data = _encode({"type": name, "sequence_number": self._sequence, **members})
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _part_text(choice: Choice, index: int) -> str:
    start, end, _ = choice.spans()[index]
    return "".join(choice.pieces[start:end])


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
