"""One JSON line for each request, from its outcome; encoded and handed over in batches.

A line says names, counts and times, never what was asked or answered: names that the configuration
does not have are `other`, and an error is its code. The names of a line are encoded once and
remembered, since few combinations of them exist: a line costs 3 us so, where a
whole object through the encoder costs 6.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import msgspec

from .codes import code

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import Outcome

    from .labels import LabelSpace

MAX_CACHED = 4096

_LINE = (
    '{"time":"%s","level":"info","event":"request","request_id":"%s",%s,"status":%d,"stream":%s'
    ',"attempts":%d,"queue_wait_s":%s,"ttft_s":%s,"e2e_s":%.6f,"prompt_tokens":%s'
    ',"cached_tokens":%s,"output_tokens":%s,"bytes_in":%d,"bytes_out":%d%s%s}\n'
)
"""Filled in by one call: compiled, an f-string asks str.format for each number."""

_Key = tuple[str, ...]


class Lines(Protocol):
    """Takes whole lines."""

    def put(self, lines: bytes) -> None:
        """Queue one or more whole lines, without waiting."""
        ...


class AccessLog:
    """Collects outcomes on the loop; `flush` writes them.

    Flush every 100 ms and every hundred requests or so: each costs 3 us of the loop.
    """

    def __init__(
        self,
        lines: Lines,
        labels: LabelSpace,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock` is the one that the outcomes' times come from."""
        self._lines = lines
        self._labels = labels
        self._clock = clock
        self._wall = wall
        self._pending: list[Outcome] = []
        self._names: dict[_Key, str] = {}
        self._encoded: list[str] = []
        self._second = (-1, "")
        self._millisecond = (-1, "")
        self.add: Callable[[Outcome], None] = self._pending.append
        """Remember how one request ended, for the next flush."""

    def encode(self) -> None:
        """Encode the outcomes since the last time; `flush` hands the lines over."""
        pending = self._pending
        if not pending:
            return
        offset = self._wall() - self._clock()
        self._encoded.append("".join([self._line(o, offset) for o in pending]))
        pending.clear()

    def flush(self) -> None:
        """Hand all lines to the writer, whose thread wakes up for it."""
        self.encode()
        if self._encoded:
            self._lines.put("".join(self._encoded).encode())
            self._encoded.clear()

    def relabel(self, labels: LabelSpace) -> None:
        """Take a reloaded configuration's names."""
        self._labels = labels
        self._names.clear()

    def _line(self, o: Outcome, offset: float) -> str:
        received, placed, first = o.received, o.placed, o.first_token
        wait = "null" if placed is None else "%.6f" % (placed - received)
        ttft = "null" if first is None else "%.6f" % (first - received)
        millisecond = int((o.ended + offset) * 1000)
        known, date = self._millisecond
        if known != millisecond:
            date = self._date(millisecond)
        key = (
            *(o.pool, o.route, o.endpoint, o.tenant),
            *(o.model, o.finish, o.finish_reason, o.error),
        )
        names = self._names.get(key) or self._encode_names(key, o)
        trace = f',"trace_id":"{trace_id(o.trace)}"' if o.trace else ""
        arm = f',"arm":"{code(o.experiment)}/{code(o.arm)}"' if o.experiment else ""
        if o.moved:
            arm += f',"moved":"{code(o.moved)}"'
        if o.engine_id:
            arm += f',"engine_request_id":"{code(o.engine_id)}"'
        return _LINE % (
            *(date, code(o.request_id), names, o.status, "true" if o.stream else "false"),
            *(o.attempts, wait, ttft, o.ended - received),
            *(_count(o.prompt_tokens), _count(o.cached_tokens), _count(o.output_tokens)),
            *(o.bytes_in, o.bytes_out, arm, trace),
        )

    def _encode_names(self, key: _Key, o: Outcome) -> str:
        names = msgspec.json.encode(self._labels.names(o)._asdict())[1:-1].decode()
        if len(self._names) < MAX_CACHED:
            self._names[key] = names
        return names

    def _date(self, unix_ms: int) -> str:
        second = unix_ms // 1000
        known, prefix = self._second
        if known != second:
            prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            self._second = (second, prefix)
        date = f"{prefix}.{unix_ms % 1000:03d}Z"
        self._millisecond = (unix_ms, date)
        return date


def trace_id(traceparent: str) -> str:
    """Return the trace id of a traceparent that was passed on, or nothing."""
    found = traceparent[3:35]
    return found if len(found) == 32 and found.isalnum() and found.isascii() else ""


def _count(tokens: int | None) -> str:
    return "null" if tokens is None else str(tokens)
