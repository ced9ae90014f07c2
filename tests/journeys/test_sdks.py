"""The official SDKs, with retries off, against what `forebay demo` serves."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anthropic.types import ToolParam
    from openai.types.chat import ChatCompletionToolParam
    from tests.journeys.conftest import Go

HI = "hello there"
BRIEF = {"sim": {"output_tokens": 3}}
"""The embedded engine takes its time, as a real one does: short answers keep the tests quick."""
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


class Person(BaseModel):
    name: str
    age: int


def tool() -> ChatCompletionToolParam:
    return {"type": "function", "function": {"name": "weather", "parameters": dict(WEATHER)}}


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """Run the demo and read its address from the text that greets."""
    process = subprocess.Popen(
        [sys.executable, "-m", "forebay", "demo", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    address = re.search(r"http://[\d.]+:\d+", line)
    assert address is not None, line
    try:
        yield address[0]
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(20) == 0


@pytest.fixture
def client(demo: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(demo: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=demo, api_key="unused", max_retries=0) as made:
        yield made


# -- openai ----------------------------------------------------------------------------------------


def test_chat_answers_and_streams(client: openai.OpenAI):
    whole = client.chat.completions.create(
        model="sim", messages=[{"role": "user", "content": HI}], extra_body=BRIEF
    )
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    stream = client.chat.completions.create(
        model="sim",
        messages=[{"role": "user", "content": HI}],
        stream=True,
        extra_body=BRIEF,
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks)
    assert all(chunk.choices for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_caller_that_asks_for_usage_gets_it(client: openai.OpenAI):
    chunks = list(
        client.chat.completions.create(
            model="sim",
            messages=[{"role": "user", "content": HI}],
            stream=True,
            stream_options={"include_usage": True},
            extra_body=BRIEF,
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    assert chunks[-1].usage.prompt_tokens_details is not None


def test_several_choices_with_logprobs(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model="sim",
        messages=[{"role": "user", "content": HI}],
        n=3,
        max_tokens=5,
        logprobs=True,
        top_logprobs=2,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content
        assert len(choice.logprobs.content[0].top_logprobs) == 2
    streamed = client.chat.completions.create(
        model="sim",
        messages=[{"role": "user", "content": HI}],
        n=3,
        max_tokens=5,
        stream=True,
    )
    seen = {choice.index for chunk in streamed for choice in chunk.choices}
    assert seen == {0, 1, 2}


def test_tools_are_called(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model="sim",
        messages=[{"role": "user", "content": HI}],
        tools=[tool()],
        tool_choice="required",
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "weather"
    with client.chat.completions.stream(
        model="sim",
        messages=[{"role": "user", "content": HI}],
        tools=[tool()],
        tool_choice="required",
    ) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.name == "weather"


def test_structured_output_is_parsed(client: openai.OpenAI):
    answer = client.chat.completions.parse(
        model="sim", messages=[{"role": "user", "content": HI}], response_format=Person
    )
    assert isinstance(answer.choices[0].message.parsed, Person)
    with client.chat.completions.stream(
        model="sim", messages=[{"role": "user", "content": HI}], response_format=Person
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)


def test_completions_answer_and_stream(client: openai.OpenAI):
    whole = client.completions.create(model="sim", prompt=["a", "b"], max_tokens=4, n=2)
    assert len(whole.choices) == 4
    chunks = list(client.completions.create(model="sim", prompt="a", max_tokens=4, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings(client: openai.OpenAI, encoding: Any):
    answer = client.embeddings.create(model="sim", input=["a", "b"], encoding_format=encoding)
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.data[0].embedding != answer.data[1].embedding
    assert answer.usage.prompt_tokens > 0


def test_models_are_listed(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == ["sim"]
    assert client.models.retrieve("sim").id == "sim"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_responses_are_created_retrieved_continued_and_deleted(client: openai.OpenAI):
    for _ in range(3):  # of three endpoints, each response is found where it is
        made = client.responses.create(model="sim", input=HI, extra_body=BRIEF)
        assert made.status == "completed"
        assert made.output_text
        assert client.responses.retrieve(made.id).output_text == made.output_text
        more = client.responses.create(
            model="sim", input="more", previous_response_id=made.id, extra_body=BRIEF
        )
        assert more.previous_response_id == made.id
        client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)


def test_responses_stream_and_are_found_after(client: openai.OpenAI):
    events = list(client.responses.create(model="sim", input=HI, stream=True, extra_body=BRIEF))
    assert events[0].type == "response.created"
    last = events[-1]
    assert last.type == "response.completed"
    assert client.responses.retrieve(last.response.id).id == last.response.id
    parsed = client.responses.parse(model="sim", input=HI, text_format=Person)
    assert isinstance(parsed.output_parsed, Person)


def test_a_response_in_the_background_is_cancelled(client: openai.OpenAI):
    made = client.responses.create(model="sim", input=HI, background=True)
    assert client.responses.cancel(made.id).status in ("cancelled", "completed")


def test_audio_is_transcribed(client: openai.OpenAI):
    answer = client.audio.transcriptions.create(model="sim", file=("a.wav", b"RIFF" * 1000))
    assert answer.text


def test_openais_errors_are_raised_as_their_kind(client: openai.OpenAI, demo: str):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="no", messages=[{"role": "user", "content": HI}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model="sim", messages=[{"role": "user", "content": HI}], max_tokens=-1
        )
    with (
        pytest.raises(openai.APIError),
        client.chat.completions.stream(
            model="sim",
            messages=[{"role": "user", "content": HI}],
            extra_body={"sim": {"fault": "cut", "output_tokens": 10}},
        ) as stream,
    ):
        stream.until_done()
    assert demo


# -- anthropic -------------------------------------------------------------------------------------


def claude_tool() -> ToolParam:
    return {"name": "weather", "input_schema": {**WEATHER}}


def test_messages_answer_and_stream(claude: anthropic.Anthropic):
    answer = claude.messages.create(
        model="sim", max_tokens=20, messages=[{"role": "user", "content": HI}]
    )
    assert answer.content[0].type == "text"
    assert answer.usage.output_tokens > 0
    with claude.messages.stream(
        model="sim", max_tokens=20, messages=[{"role": "user", "content": HI}]
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text
    assert final.stop_reason in ("end_turn", "max_tokens")


def test_messages_call_tools_and_count_tokens(claude: anthropic.Anthropic):
    answer = claude.messages.create(
        model="sim",
        max_tokens=200,
        messages=[{"role": "user", "content": HI}],
        tools=[claude_tool()],
        tool_choice={"type": "any"},
    )
    assert answer.stop_reason == "tool_use"
    assert [block.name for block in answer.content if block.type == "tool_use"] == ["weather"]
    with claude.messages.stream(
        model="sim",
        max_tokens=200,
        messages=[{"role": "user", "content": HI}],
        tools=[claude_tool()],
        tool_choice={"type": "any"},
    ) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    counted = claude.messages.count_tokens(model="sim", messages=[{"role": "user", "content": HI}])
    assert counted.input_tokens > 0


def test_anthropics_errors_are_raised_as_their_kind(claude: anthropic.Anthropic):
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="no", max_tokens=5, messages=[{"role": "user", "content": HI}])
    assert "there is no model" in str(missing.value)
    with (
        pytest.raises(anthropic.APIStatusError),
        claude.messages.stream(
            model="sim",
            max_tokens=50,
            messages=[{"role": "user", "content": HI}],
            extra_body={"sim": {"fault": "cut", "output_tokens": 10}},
        ) as stream,
    ):
        stream.until_done()


# -- both, not blocking ----------------------------------------------------------------------------


def test_async_clients(go: Go, demo: str):
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{demo}/v1", api_key="x", max_retries=0) as client:
            whole = await client.chat.completions.create(
                model="sim", messages=[{"role": "user", "content": HI}], max_tokens=5
            )
            assert whole.choices[0].message.content
            text = ""
            async for chunk in await client.chat.completions.create(
                model="sim",
                messages=[{"role": "user", "content": HI}],
                max_tokens=5,
                stream=True,
            ):
                text += chunk.choices[0].delta.content or ""
            assert text
            parsed = await client.chat.completions.parse(
                model="sim", messages=[{"role": "user", "content": HI}], response_format=Person
            )
            assert isinstance(parsed.choices[0].message.parsed, Person)
            made = await client.responses.create(model="sim", input=HI, extra_body=BRIEF)
            assert (await client.responses.retrieve(made.id)).id == made.id
            vectors = await client.embeddings.create(model="sim", input="a")
            assert len(vectors.data) == 1
            assert [model.id async for model in client.models.list()] == ["sim"]

    go(main())


def test_async_anthropic(go: Go, demo: str):
    async def main() -> None:
        async with anthropic.AsyncAnthropic(base_url=demo, api_key="x", max_retries=0) as claude:
            answer = await claude.messages.create(
                model="sim", max_tokens=5, messages=[{"role": "user", "content": HI}]
            )
            assert answer.content
            async with claude.messages.stream(
                model="sim",
                max_tokens=50,
                messages=[{"role": "user", "content": HI}],
                tools=[claude_tool()],
                tool_choice={"type": "any"},
            ) as stream:
                final = await stream.get_final_message()
            assert final.stop_reason in ("tool_use", "max_tokens")

    go(main())
