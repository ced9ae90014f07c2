"""The embedded engine's other routes: embeddings, rerank, score, tokens, speech, metrics."""

from __future__ import annotations

import asyncio
from array import array
from base64 import b64decode
from math import isclose
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CreateEmbeddingResponse
from prometheus_client.parser import text_string_to_metric_families

from forebay.adapters.sim import Embedded
from forebay.adapters.sim_engine import SimEngine, SimSettings

FORM = "multipart/form-data; boundary=cut-here"


def ask(path: str, body: Any = None, method: str = "POST", **settings: Any) -> Any:
    settings.setdefault("profile", "instant")
    return asyncio.run(Embedded(**settings).ask(path, body, method=method))


def say(path: str, body: Any = None, method: str = "POST") -> Any:
    answer = ask(path, body, method)
    assert answer.status == 200
    return msgspec.json.decode(answer.body)


def vectors(**fields: Any) -> list[list[float]]:
    answer = CreateEmbeddingResponse.model_validate(say("/v1/embeddings", fields))
    return [one.embedding for one in answer.data]


def test_embeddings_are_unit_vectors_the_same_for_the_same_text() -> None:
    one, other, again = vectors(model="sim", input=["hello", "world", "hello"])
    assert one == again != other
    assert [len(one), len(vectors(input="x", dimensions=8)[0])] == [384, 8]
    assert isclose(sum(value * value for value in one), 1.0, abs_tol=1e-5)
    assert vectors(input=[[1, 2]]) == vectors(input=[1, 2])


def test_embeddings_in_base64_are_the_same_numbers() -> None:
    body = {"input": "hello", "dimensions": 8}
    coded = say("/v1/embeddings", {**body, "encoding_format": "base64"})["data"][0]["embedding"]
    assert array("f", b64decode(coded)).tolist() == vectors(**body)[0]


def test_embeddings_count_their_prompts() -> None:
    usage = say("/v1/embeddings", {"input": ["hello world", "hello"]})["usage"]
    assert (usage["prompt_tokens"], usage["total_tokens"], usage["completion_tokens"]) == (3, 3, 0)


def test_documents_are_ranked_by_their_words() -> None:
    body = {
        "query": "quiet turbine",
        "documents": ["a dog", {"text": "the quiet turbine"}, "quiet"],
    }
    answer = say("/v1/rerank", body)
    best = say("/rerank", {**body, "top_n": 1})

    assert [result["index"] for result in answer["results"]] == [1, 2, 0]
    assert answer["results"][0]["document"] == {"text": "the quiet turbine"}
    assert len(best["results"]) == 1
    assert answer["usage"]["total_tokens"] > 0


def test_scores_rate_pairs() -> None:
    answer = say("/v1/score", {"text_1": "turbine", "text_2": ["turbine", "a dog"]})
    newer = say("/score", {"queries": ["turbine", "dog"], "documents": ["turbine", "dog"]})

    assert [one["score"] for one in answer["data"]] == [1.0, 0.001]
    assert [one["score"] for one in newer["data"]] == [1.0, 1.0]


@given(st.text(max_size=200))
def test_what_is_tokenized_comes_back(text: str) -> None:
    tokens = say("/tokenize", {"model": "sim", "prompt": text})
    back = say("/detokenize", {"tokens": tokens["tokens"]})

    assert back == {"prompt": text}
    assert tokens["count"] == len(tokens["tokens"])


def test_messages_are_tokenized_as_a_chat_counts_them() -> None:
    body = {"messages": [{"role": "user", "content": "hello world"}]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    for fields in (body, {**body, "tools": tools}):
        counted = say("/tokenize", {**fields, "return_token_strs": True})
        used = say("/v1/chat/completions", fields)["usage"]["prompt_tokens"]
        assert counted["count"] == used
    assert "<|user|>" in counted["token_strs"]
    assert say("/tokenize", {"prompt": "<|user|>"})["count"] > 1


def form(*parts: tuple[str, bytes]) -> bytes:
    written = b"".join(
        b'--cut-here\r\nContent-Disposition: form-data; name="%b"; filename="f"\r\n\r\n%b\r\n'
        % (name.encode(), content)
        for name, content in parts
    )
    return written + b"--cut-here--\r\n"


def speak(*parts: tuple[str, bytes], content_type: str = FORM) -> Any:
    headers = [("content-type", content_type)]
    path = "/v1/audio/transcriptions"
    return asyncio.run(Embedded(profile="instant").ask(path, form(*parts), headers=headers))


def test_any_file_has_a_text_and_always_the_same() -> None:
    sound = b"RIFF\r\n\r\n--cut-her" * 1000
    first, again, other = (speak(("model", b"sim"), ("file", it)) for it in (sound, sound, b"x"))

    answer = msgspec.json.decode(first.body)
    assert answer == msgspec.json.decode(again.body)
    assert answer["text"].startswith("The ")
    assert answer["text"] != msgspec.json.decode(other.body)["text"]
    assert answer["usage"] == {"type": "duration", "seconds": 1}


def test_a_transcript_comes_in_the_form_asked_for() -> None:
    text = speak(("file", b"x"), ("response_format", b"text"))
    verbose = msgspec.json.decode(speak(("file", b"x"), ("response_format", b"verbose_json")).body)
    events = speak(("file", b"x"), ("stream", b"true")).body.split(b"\n\n")

    assert text.headers[b"content-type"] == b"text/plain; charset=utf-8"
    assert verbose["text"] == text.body.decode()
    assert events[-2:] == [b"data: [DONE]", b""]
    chunks = [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events[:-2]]
    told = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert told == verbose["text"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {"input": []}, 400),
        ("/v1/embeddings", {"input": "x", "dimensions": 0}, 400),
        ("/v1/embeddings", {"input": "x", "encoding_format": "nope"}, 400),
        ("/v1/embeddings", {"input": "x", "model": "nope"}, 404),
        ("/v1/rerank", {"query": "x", "documents": []}, 400),
        ("/v1/score", {"text_1": "x"}, 400),
        ("/v1/score", {"text_1": ["x", "y"], "text_2": ["x", "y", "z"]}, 400),
        ("/tokenize", {}, 400),
        ("/detokenize", {"tokens": [32_000]}, 400),
        ("/v1/audio/transcriptions", {"file": "x"}, 400),
        ("/v1/nope", {}, 404),
        ("/v1/responses/", None, 404),
    ],
)
def test_a_wrong_request_is_refused(path: str, body: Any, status: int) -> None:
    assert ask(path, body).status == status


def test_a_wrong_form_is_refused() -> None:
    assert speak(("model", b"sim")).status == 400
    assert speak(("file", b"x"), content_type="multipart/form-data").status == 400
    assert speak(("file", b"x"), ("model", b"nope")).status == 404
    assert speak(("file", b"x"), ("response_format", b"nope")).status == 400


def test_a_wrong_method_is_refused_as_the_web_framework_does() -> None:
    answer = ask("/v1/chat/completions", None, "GET")
    assert (answer.status, answer.body) == (405, b'{"detail":"Method Not Allowed"}')
    assert ask("/nope", None, "GET").body == b'{"detail":"Not Found"}'


def test_it_says_what_it_is() -> None:
    engine = Embedded(SimEngine(SimSettings(models=("a", "b")), clock=lambda: 5.0))

    async def main() -> list[Any]:
        paths = ("/health", "/ping", "/version", "/v1/models", "/load")
        return [await engine.ask(path, method="GET") for path in paths]

    health, ping, version, models, load = asyncio.run(main())
    assert (health.status, health.body, ping.status) == (200, b"", 200)
    assert msgspec.json.decode(version.body) == {"version": "0.33.0+sim"}
    assert [card["id"] for card in msgspec.json.decode(models.body)["data"]] == ["a", "b"]
    assert msgspec.json.decode(load.body) == {"server_load": 0}


def test_the_metrics_are_vllms_and_count() -> None:
    engine = Embedded(SimEngine(SimSettings(profile="instant"), clock=lambda: 5.0))
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "the turbine " * 20}]}

    async def main() -> str:
        for fields in ({"max_tokens": 3}, {"sim": {"output_tokens": 4}}):
            await engine.ask("/v1/chat/completions", {**chat, **fields})
        return (await engine.ask("/metrics", method="GET")).body.decode()

    found = {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in text_string_to_metric_families(asyncio.run(main()))
        for sample in family.samples
    }
    # 40 words, the space that ends them, and three marks of the template; twice.
    assert found.pop(("vllm:cache_config_info", None)) == 1
    assert found == {
        ("process_start_time_seconds", None): 5.0,
        ("vllm:num_requests_running", None): 0.0,
        ("vllm:num_requests_waiting", None): 0.0,
        ("vllm:kv_cache_usage_perc", None): 0.0,
        ("vllm:prefix_cache_queries_total", None): 88.0,
        ("vllm:prefix_cache_hits_total", None): 32.0,
        ("vllm:num_preemptions_total", None): 0.0,
        ("vllm:prompt_tokens_total", None): 88.0,
        ("vllm:generation_tokens_total", None): 7.0,
        ("vllm:request_success_total", "stop"): 1.0,
        ("vllm:request_success_total", "length"): 1.0,
        ("vllm:request_success_total", "abort"): 0.0,
        ("vllm:request_success_total", "error"): 0.0,
    }
