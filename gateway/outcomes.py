"""The log of outcomes that a length predictor can be trained on: only where it is asked for.

JSON lines of features and lengths. A prompt stands as its hash, a tenant as its hash; the text
itself only where the configuration says so. The file has an end: at half of `limit` it is put aside
as NAME.1.jsonl, in the place of the one before. Read by `forebay predictor train`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from forebay.policies.contracts import ConfigError

from .log_file import LogFile

if TYPE_CHECKING:
    from forebay.policies.contracts import Outcome
    from forebay.scheduler.length import LengthFeatures


class OutcomeLog:
    """Writes a line for each outcome."""

    def __init__(self, path: str, *, limit: int, prompts: bool) -> None:
        self._path = Path(path)
        self._half = max(1, limit // 2)
        self._prompts = prompts
        try:
            self._file = LogFile(path, ended="outcomes are no longer written")
        except OSError as error:
            raise ConfigError(f"cannot write outcomes to {path!r}: {error.strerror}") from error
        self.flush = self._file.flush
        """Writes what is buffered: a quiet gateway's lines are not to wait for others."""
        self.close = self._file.close

    def write(self, features: LengthFeatures, outcome: Outcome) -> None:
        """Add an outcome; one that cannot be written is told once, and no more are."""
        file, path = self._file, self._path
        if file.closed:
            return
        line = msgspec.json.encode(self._row(features, outcome)) + b"\n"
        if file.size + len(line) > self._half and file.size:
            file.put_aside(path.with_name(f"{path.stem}.1{path.suffix}"))
        file.write(line)

    def _row(self, features: LengthFeatures, outcome: Outcome) -> dict[str, object]:
        row: dict[str, object] = {
            "pid": _hash(features.text.strip()),
            "model": features.model,
            "tenant": _hash(features.tenant),
            "template": features.template,
            "prompt_tokens": outcome.prompt_tokens or features.prompt_tokens,
            "max_tokens": features.max_tokens,
            "temperature": features.temperature,
            "turns": features.turns,
            "tools": features.tools,
            "schema": features.schema,
            "stop": features.stop,
            "hour": features.hour,
            "answers": features.answers,
            "output_tokens": outcome.output_tokens or outcome.events,
            "finish_reason": outcome.finish_reason or outcome.finish,
        }
        if self._prompts:
            row["prompt"] = features.text
        return row


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
