"""What `forebay calibrate` does to an endpoint: short runs, and what they took.

Prompts are random words, other ones each time, so that no prefix is found cached.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import httpx

from forebay.policies.contracts import EngineFailed, EngineRefused, EngineUnreachable
from forebay.scheduler.engine_fit import Decode, Limits, Prefill

from .asking import why_unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

_LETTERS = "bcdfghjklmnprstvwz"
_VOWELS = "aeiou"
_FEW, _MANY = 16, 144
"""Output tokens of the answers whose decoding is compared."""
_NO_KEY = (401, 403)
_SHORT = 16
"""Words of the prompts whose decoding is measured at short context."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer."""

    prompt_tokens: int
    output_tokens: int
    sent: float
    chunks: list[float]
    """When each chunk with text came."""

    @property
    def ttft_s(self) -> float:
        """Seconds to the first chunk."""
        return self.chunks[0] - self.sent


@dataclass(slots=True)
class Measured:
    """All that was measured."""

    model: str
    limits: Limits
    prefills: list[Prefill] = field(default_factory=list[Prefill])
    decodes: list[Decode] = field(default_factory=list[Decode])


class Endpoint:
    """One endpoint, as calibrating needs it. `clock` is in seconds."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        *,
        model: str | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._http = http
        self._clock = clock
        self._rng = Random(seed)  # noqa: S311 - words
        self._per_word = 1.0
        self.model = model or ""
        self.max_model_len = 0

    async def introduce(self) -> Limits:
        """Ask for the model and the engine's size, and send one request to warm it up."""
        cards = self._cards(await self._get("/v1/models"))
        names = [str(card["id"]) for card in cards]
        if self.model and self.model not in names:
            raise EngineRefused(f"there is no model {self.model!r}: {', '.join(names)}")
        self.model = self.model or names[0]
        card = next(card for card in cards if card["id"] == self.model)
        length = card.get("max_model_len")
        self.max_model_len = length if isinstance(length, int) else 4096
        warm = await self.ask(64, 8)
        self._per_word = max(0.1, warm.prompt_tokens / 64)
        return Limits(max_model_len=self.max_model_len, **await self._blocks())

    def _cards(self, told: bytes) -> list[dict[str, Any]]:
        try:
            cards = [card for card in json.loads(told)["data"] if "id" in card]
        except (ValueError, KeyError, TypeError):
            cards = []
        if not cards:
            text = f"{self._http.base_url}: GET /v1/models names no model; is it an endpoint's URL?"
            raise EngineRefused(text)
        return cards

    async def ask(self, prompt_tokens: int, output_tokens: int) -> Answer:
        """Stream one answer of a prompt of about so many tokens."""
        words = max(1, round(prompt_tokens / self._per_word))
        body = {
            "model": self.model,
            "prompt": " ".join(self._word() for _ in range(words)),
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent = self._clock()
        chunks: list[float] = []
        usage: dict[str, Any] = {}
        async for event in self._stream(body):
            if event.get("choices"):
                chunks.append(self._clock())
            usage = event.get("usage") or usage
        if not chunks:
            raise EngineFailed("the endpoint answered without a token")
        return Answer(
            int(usage.get("prompt_tokens", prompt_tokens)),
            int(usage.get("completion_tokens", len(chunks))),
            sent,
            chunks,
        )

    def _word(self) -> str:
        rng = self._rng
        return "".join(rng.choice(_LETTERS) + rng.choice(_VOWELS) for _ in range(2))

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            async with self._http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    raise self._refused("POST /v1/completions", answer.status_code)
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        yield json.loads(line[6:])
        except httpx.HTTPError as error:
            raise self._unreachable("POST /v1/completions", error) from error

    async def _get(self, path: str) -> bytes:
        try:
            answer = await self._http.get(path)
        except httpx.HTTPError as error:
            raise self._unreachable(f"GET {path}", error) from error
        if answer.status_code != 200:
            raise self._refused(f"GET {path}", answer.status_code)
        return answer.content

    def _refused(self, what: str, status: int) -> EngineRefused:
        hint = "; --key-env NAME names the variable with its key" if status in _NO_KEY else ""
        return EngineRefused(f"{self._http.base_url}: {what} was answered {status}{hint}")

    def _unreachable(self, what: str, error: Exception) -> EngineUnreachable:
        """Say which endpoint did not answer, and why as far as that is known."""
        return EngineUnreachable(f"{self._http.base_url}: {what}: {why_unreachable(error)}")

    async def _blocks(self) -> dict[str, int]:
        """Read the KV blocks from vLLM's metrics; nothing where they do not say."""
        try:
            text = await self._get("/metrics")
        except EngineFailed:
            return {}
        return read_blocks(text.decode("utf-8", "replace"))


def read_blocks(text: str) -> dict[str, int]:
    """Find block count and size in a metrics page; empty where it does not say."""
    line = re.search(r"^vllm:cache_config_info\{(.*)\}", text, re.MULTILINE)
    if line is None:
        return {}
    said = {
        name: int(value)
        for name in ("num_gpu_blocks", "block_size")
        for value in re.findall(rf'\b{name}="(\d+)"', line[1])
    }
    if not said.get("num_gpu_blocks") or not said.get("block_size"):
        return {}
    return {"num_blocks": said["num_gpu_blocks"], "block_tokens": said["block_size"]}


async def measure(
    endpoint: Endpoint,
    *,
    lengths: Sequence[int],
    concurrencies: Sequence[int],
    repeats: int,
    progress: Callable[[str], None],
) -> Measured:
    """Make all runs. Raises EngineFailed when the endpoint does not answer as it should."""
    limits = await endpoint.introduce()
    measured = Measured(endpoint.model, limits)
    room = endpoint.max_model_len - _MANY - 16
    for length in sorted({min(length, room) for length in lengths}):
        progress(f"prompts of {length} tokens, alone")
        await endpoint.ask(length, 1)  # what a size costs the first time is not what it costs
        answers = [await endpoint.ask(length, 1) for _ in range(repeats)]
        tokens = round(median(answer.prompt_tokens for answer in answers))
        measured.prefills.append(Prefill(tokens, median(answer.ttft_s for answer in answers)))
    for context in (_SHORT, min(1024, room // 2)):
        for together in concurrencies:
            progress(f"{together} answers at once, {context} prompt tokens each")
            runs = [await _decode(endpoint, together, context) for _ in range(repeats)]
            measured.decodes.append(sorted(runs, key=lambda run: run.step_s)[repeats // 2])
    return measured


async def _decode(endpoint: Endpoint, together: int, context: int) -> Decode:
    """Measure a step as what longer answers take longer.

    Whatever comes before the first token then falls out, and so does what comes in bunches.
    """
    few = await asyncio.gather(*(endpoint.ask(context, _FEW) for _ in range(together)))
    many = await asyncio.gather(*(endpoint.ask(context, _MANY) for _ in range(together)))
    held = sum(answer.prompt_tokens for answer in many) + together * (_FEW + _MANY) / 2
    step = (_mean_end(many) - _mean_end(few)) / (_MANY - _FEW)
    return Decode(together, held, max(step, 1e-6))


def _mean_end(answers: Sequence[Answer]) -> float:
    return fmean(answer.chunks[-1] - answer.sent for answer in answers)
