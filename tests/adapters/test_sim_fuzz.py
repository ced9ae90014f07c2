"""Whatever the embedded engine is sent, it answers, and never by a fault of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.adapters.sim import Embedded
from forebay.adapters.sim_engine import SimEngine, SimSettings

if TYPE_CHECKING:
    import pytest

    from forebay.adapters.sim_job import Ask, Job

USER: list[Any] = [{"role": "user", "content": "the weather"}]
RIGHT: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/v1/messages": {"messages": USER, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": USER},
    "/v1/responses": {"input": "hello"},
    "/v1/rerank": {"query": "a", "documents": ["a", "b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [1, 2]},
    "/v1/audio/transcriptions": {},
    "/v1/responses/x": {},
    "/v1/responses/x/cancel": {},
}
ROUTES = tuple(RIGHT)
FIELDS = (
    "cache_salt dimensions documents echo encoding_format ignore_eos input instructions logprobs"
    " max_completion_tokens max_output_tokens max_tokens messages metadata min_tokens model n"
    " parallel_tool_calls previous_response_id priority prompt queries query response_format seed"
    " sim stop stop_sequences stream stream_options structured_outputs system temperature text"
    " text_1 text_2 tokens tool_choice tools top_logprobs top_n top_p"
)
WORDS = (
    "sim user assistant tool function text json_schema json_object auto required any none type"
    " role content name function parameters input_schema schema json format properties items"
    " $ref # anyOf allOf required object array string integer number enum image_url tool_result"
)
words = st.sampled_from(WORDS.split())
scalars = (
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | words | st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
turn = st.fixed_dictionaries({"role": words, "content": values})
likely: dict[str, st.SearchStrategy[Any]] = {
    "messages": st.lists(turn, max_size=2) | values,
    "model": st.just("sim") | values,
    "max_tokens": st.integers(-1, 9) | values,
    "stream": st.booleans(),
    "n": st.integers(-1, 3) | values,
    "tools": st.lists(
        st.fixed_dictionaries({"name": words, "input_schema": values, "parameters": values})
        | st.fixed_dictionaries(
            {"function": st.fixed_dictionaries({"name": words, "parameters": values})}
        ),
        max_size=2,
    )
    | values,
    "response_format": st.fixed_dictionaries(
        {"type": words, "json_schema": st.fixed_dictionaries({"schema": values})}
    )
    | values,
}
changes = st.lists(st.sampled_from(FIELDS.split()), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: likely.get(name, values) for name in names})
)


class Broken(SimEngine):
    """Fails as a fault of our own would."""

    def plan(self, ask: Ask) -> Job:
        raise LookupError(str(ask.prompts))


def test_a_fault_of_our_own_is_a_500_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    engine = Embedded(Broken(SimSettings()))
    answer = asyncio.run(engine.ask("/v1/completions", {"prompt": [424242]}))

    assert (answer.status, msgspec.json.decode(answer.body)["error"]["code"]) == (500, 500)
    assert [record.getMessage() for record in caplog.records] == ["embedded engine failed"]
    assert "424242" not in caplog.text + answer.body.decode()


def answered(path: str, body: bytes) -> int:
    async def main() -> int:
        engine = Embedded(profile="instant")
        answer = await asyncio.wait_for(engine.ask(path, body), 10)
        load = engine.load()
        assert answer.error is None
        assert (load.running, load.waiting, load.kv_use) == (0, 0, 0.0)
        return answer.status

    return asyncio.run(main())


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ROUTES), changes)
def test_any_object_is_answered(path: str, changed: dict[str, Any]) -> None:
    body = RIGHT[path] | changed
    if isinstance(body.get("sim"), dict):
        body["sim"] = {"output_tokens": 3}
    assert answered(path, msgspec.json.encode(body)) in (200, 400, 404, 405)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(ROUTES), st.binary(max_size=60))
def test_any_bytes_are_answered(path: str, body: bytes) -> None:
    assert answered(path, body) in (400, 404, 405)


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60), st.sampled_from(["GET", "POST", "DELETE", "HEAD", "x"]))
def test_any_path_is_answered(path: str, method: str) -> None:
    answer = asyncio.run(Embedded(profile="instant").ask("/" + path, b"{}", method=method))
    assert answer.status in (200, 400, 404, 405)
