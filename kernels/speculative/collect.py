"""Keep a sample of an engine's own answers, as tokens, to build stores and train heads from.

Off unless a file is named. It writes what `corpus` reads, JSON lines of token ids, which are as
good as the text to anyone with the tokenizer: whoever names the file has to have the consent of
those whose requests these are. The file can be read by its owner alone, grows up to a size and is
then left as it is, to be moved away by whoever uses it. Writing happens beside the engine's steps;
what cannot be written is dropped, with one log line.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .drafter import History

__all__ = ["Collector"]

logger = logging.getLogger("forebay.speculative")

_DAY_S = 86_400


class Collector:
    """Append a share of the answers to a file, up to so many bytes; answers of `least` tokens on.

    run: hands a write to something beside the caller, as an executor's `submit` does.
    """

    def __init__(  # noqa: PLR0913 - a collector has many knobs
        self,
        path: Path,
        *,
        run: Callable[[Callable[[], None]], object],
        share: float = 0.05,
        most_bytes: int = 1 << 30,
        least: int = 16,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._run = run
        self._share = share
        self._room = most_bytes
        self._least = least
        self._rng = rng or random.Random()  # noqa: S311 - which answers, no secret
        self._clock = clock
        self._failed = False

    def add(self, history: History) -> None:
        """Take in an answer that has ended; most are let go at once."""
        answer = len(history.tokens) - history.prompt_tokens
        if answer < self._least or self._rng.random() >= self._share:
            return
        tokens, start = history.tokens, history.prompt_tokens
        day = int(self._clock() // _DAY_S)

        def write() -> None:
            told = {"tokens": tokens.tolist(), "answer_from": start, "day": day}
            self._append(json.dumps(told, separators=(",", ":")).encode() + b"\n")

        self._run(write)

    def _append(self, line: bytes) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                if os.fstat(file).st_size + len(line) <= self._room:
                    os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            if not self._failed:
                logger.warning("answers are not kept: %s: %s", self._path, error.strerror)
            self._failed = True
