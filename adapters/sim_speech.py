"""The embedded engine's /v1/audio/transcriptions: any file has a text, and always the same."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from .sim_job import Ask, SimError, SimMember

if TYPE_CHECKING:
    from .sim_engine import SimEngine
    from .sim_job import Choice, Job, Received, Usage

_encode = msgspec.json.encode
_BYTES_A_TOKEN = 640
_BYTES_A_SECOND = 32_000
_TOKENS_MOST = 1500


def transcribe(engine: SimEngine, received: Received) -> Job:
    """Plan a transcription."""
    fields = read_form(received)
    file = fields.get("file")
    if file is None:
        raise SimError("file: field required", kind="Bad Request", param="file")
    form = fields.get("response_format", b"json").decode("utf-8", "replace")
    if form not in ("json", "text", "verbose_json"):
        raise SimError(f"response_format {form!r} is none of json, text, verbose_json")
    name = fields["model"].decode("utf-8", "replace") if "model" in fields else None
    tokens = min(_TOKENS_MOST, 1 + len(file) // _BYTES_A_TOKEN)
    digest = blake2b(file, digest_size=8).digest()
    prompt = [int.from_bytes(digest[:4], "big"), *range(1, tokens)]
    sim = SimMember(output_tokens=max(3, min(200, len(file) // 6400)))
    ask = Ask(prompts=[prompt], model=engine.check_model(name), sim=sim)
    job = engine.plan(ask)
    if form == "text":
        job.content_type = b"text/plain; charset=utf-8"
    stream = fields.get("stream", b"false").lower() in (b"true", b"1")
    job.writer = _Transcript(engine, received, job, (form, stream, len(file)))
    return job


def read_form(received: Received) -> dict[str, bytes]:
    """Read the fields of a multipart form; the last of a name counts."""
    kind = received.header("content-type") or ""
    boundary = kind.partition("boundary=")[2].partition(";")[0].strip().strip('"')
    if not kind.startswith("multipart/form-data") or not boundary:
        raise SimError("the body must be multipart/form-data with a boundary", kind="Bad Request")
    fields: dict[str, bytes] = {}
    parts = (b"\r\n" + received.body).split(b"\r\n--" + boundary.encode())
    for part in parts[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode("utf-8", "replace")
        if name:
            fields[name] = content
    return fields


class _Transcript:
    """Writes transcriptions and their chunks."""

    def __init__(
        self, engine: SimEngine, received: Received, job: Job, form: tuple[str, bool, int]
    ) -> None:
        self._form, self.stream, self._size = form
        self._job = job
        head: dict[str, Any] = {
            "id": engine.next_id("trsc", received),
            "object": "transcription.chunk",
            "created": engine.created(),
            "model": engine.settings.models[0],
        }
        self._start = b"data: " + _encode(head)[:-1] + b',"choices":['

    def head(self) -> bytes:
        """Begin: a transcript does with its first word."""
        return b""

    def tokens(self, choice: Choice, first: int, end: int) -> bytes:
        """Write a chunk for each token."""
        last = len(choice.ids) - 1
        return b"".join(
            self._start
            + b'{"delta":{"content":%b},"finish_reason":%b}]}\n\n'
            % (choice.quote(at), b'"stop"' if at == last else b"null")
            for at in range(first, end)
        )

    def tail(self, usage: Usage) -> bytes:  # noqa: ARG002 - as Writer
        """End the stream."""
        return b"data: [DONE]\n\n"

    def whole(self, usage: Usage) -> bytes:  # noqa: ARG002 - as Writer
        """Write the text in the form asked for."""
        text = self._job.choices[0].text
        if self._form == "text":
            return text.encode()
        seconds = self._size / _BYTES_A_SECOND
        answer: dict[str, Any] = {"text": text}
        if self._form == "verbose_json":
            answer |= {"language": "en", "duration": seconds, "segments": []}
        else:
            answer["usage"] = {"type": "duration", "seconds": int(seconds) + 1}
        return _encode(answer)
