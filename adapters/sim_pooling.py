"""The embedded engine's routes that read and do not write: embeddings, rerank, score."""

from __future__ import annotations

from array import array
from base64 import b64encode
from hashlib import shake_128
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .sim_job import Ask, SimError, SimMember, read_body
from .sim_reading import read_prompts
from .sim_text import encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from .sim_engine import SimEngine
    from .sim_job import Choice, Job, Received, Usage

Json = dict[str, Any]
DIMENSIONS = 384
_DIMENSIONS_MOST = 4096
_encode = msgspec.json.encode


class Pooling(msgspec.Struct, kw_only=True):
    """What these routes share."""

    model: str | None = None
    priority: int | None = 0
    cache_salt: str | None = None
    sim: SimMember | None = None


class EmbeddingsBody(Pooling, kw_only=True):
    """POST /v1/embeddings."""

    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = None


class RerankBody(Pooling, kw_only=True):
    """POST /v1/rerank."""

    query: str
    documents: list[str | Json]
    top_n: int | None = 0


class ScoreBody(Pooling, kw_only=True):
    """POST /v1/score, in its older and its newer words."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None


def embeddings(engine: SimEngine, received: Received) -> Job:
    """Plan a vector for each input."""
    body = read_body(received.body, EmbeddingsBody)
    size = DIMENSIONS if body.dimensions is None else body.dimensions
    if not 1 <= size <= _DIMENSIONS_MOST:
        raise SimError(f"dimensions must be from 1 to {_DIMENSIONS_MOST}, got {size}")
    prompts = read_prompts(body.input, "input")

    def write(head: Json, usage: Usage) -> Json:
        vectors = [embed(prompt, size, engine.settings.seed) for prompt in prompts]
        data = [
            {"index": index, "object": "embedding", "embedding": _shape(vector, body)}
            for index, vector in enumerate(vectors)
        ]
        return {**head, "object": "list", "data": data, "usage": usage.openai}

    return _plan(engine, received, body, prompts, _PooledWriter("embd", write))


def rerank(engine: SimEngine, received: Received) -> Job:
    """Plan a ranking of documents."""
    body = read_body(received.body, RerankBody)
    texts = [_document(document) for document in body.documents]
    if not texts:
        raise SimError("documents must not be empty", param="documents")

    def write(head: Json, usage: Usage) -> Json:
        results: list[Json] = [
            {
                "index": index,
                "document": {"text": text},
                "relevance_score": relevance(body.query, text),
            }
            for index, text in enumerate(texts)
        ]
        results.sort(key=lambda result: -result["relevance_score"])
        used = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
        return {**head, "usage": used, "results": results[: body.top_n or None]}

    prompts = [encode(f"{body.query}\n{text}") for text in texts]
    return _plan(engine, received, body, prompts, _PooledWriter("rerank", write))


def score(engine: SimEngine, received: Received) -> Job:
    """Plan a score for each pair of texts."""
    body = read_body(received.body, ScoreBody)
    pairs = _pairs(body.text_1 or body.queries, body.text_2 or body.documents)

    def write(head: Json, usage: Usage) -> Json:
        data = [
            {"index": index, "object": "score", "score": relevance(*pair)}
            for index, pair in enumerate(pairs)
        ]
        return {**head, "object": "list", "data": data, "usage": usage.openai}

    prompts = [encode(f"{first}\n{second}") for first, second in pairs]
    return _plan(engine, received, body, prompts, _PooledWriter("score", write))


def embed(tokens: list[int], size: int, seed: int) -> array[float]:
    """Return a vector of length 1, the same for the same tokens, size and seed."""
    data = shake_128(seed.to_bytes(8, "big", signed=True) + array("L", tokens).tobytes())
    numbers = array("i", data.digest(4 * size))
    length = sqrt(sum(number * number for number in numbers)) or 1.0
    return array("f", [number / length for number in numbers])


def relevance(query: str, text: str) -> float:
    """Rate a text by how much of the query's words it has, and how much else; 0 to 1."""
    wanted, words = set(query.lower().split()), text.lower().split()
    found = wanted.intersection(words)
    if not found:
        return 0.001
    return round(0.9 * len(found) / len(wanted) + 0.1 / (1 + len(words) - len(found)), 6)


def _shape(vector: array[float], body: EmbeddingsBody) -> object:
    if body.encoding_format == "base64":
        return b64encode(vector.tobytes()).decode()
    return vector.tolist()


def _document(document: str | Json) -> str:
    return document if isinstance(document, str) else str(document.get("text", ""))


def _pairs(first: str | list[str] | None, second: str | list[str] | None) -> list[tuple[str, str]]:
    ones = [first] if isinstance(first, str) else list(first or ())
    twos = [second] if isinstance(second, str) else list(second or ())
    if not ones or not twos:
        raise SimError("a score needs two texts: text_1 and text_2, or queries and documents")
    if len(ones) == 1:
        ones *= len(twos)
    if len(ones) != len(twos):
        raise SimError("there must be one first text, or as many as second ones")
    return list(zip(ones, twos, strict=True))


def _plan(
    engine: SimEngine,
    received: Received,
    body: Pooling,
    prompts: list[list[int]],
    writer: _PooledWriter,
) -> Job:
    model = engine.check_model(body.model)
    ask = Ask(
        prompts=prompts,
        model=model,
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        sim=body.sim,
        reads_only=True,
    )
    job = engine.plan(ask)
    answer_id = engine.next_id(writer.prefix, received)
    writer.start = {"id": answer_id, "created": engine.created(), "model": model}
    job.writer = writer
    return job


class _PooledWriter:
    """Writes an answer that is never streamed."""

    stream = False

    def __init__(self, prefix: str, write: Callable[[Json, Usage], Json]) -> None:
        self.prefix = prefix
        self.start: Json = {}
        self._write = write

    def head(self) -> bytes:
        """Never asked for."""
        return b""

    def tokens(self, choice: Choice, first: int, end: int) -> bytes:  # noqa: ARG002 - as Writer
        """Never asked for."""
        return b""

    def tail(self, usage: Usage) -> bytes:  # noqa: ARG002 - as Writer
        """Never asked for."""
        return b""

    def whole(self, usage: Usage) -> bytes:
        """Write the answer."""
        return _encode(self._write(self.start, usage))
