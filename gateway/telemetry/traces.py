"""W3C trace context, and who is traced. Spans themselves are in `spans`, loaded when asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import Protocol

# Version 00 has exactly these four fields; a later version may add more after another dash.
_TRACEPARENT = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?"
)
MAX_TRACEPARENT = 256
_SAMPLED = 1
_LOW_HALF = 2**64 - 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One step of a trace: ids are numbers, 0 for no parent."""

    trace_id: int
    span_id: int
    parent_id: int
    sampled: bool

    @property
    def traceparent(self) -> str:
        """The header that names this step as the parent."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.sampled else '00'}"

    def child(self, rng: Random) -> TraceContext:
        """Return a step below this one."""
        return TraceContext(self.trace_id, _span_id(rng), self.span_id, self.sampled)


def parse_traceparent(header: bytes) -> TraceContext | None:
    """Read the caller's step; None when it is not valid, and then `tracestate` counts for nothing.

    What comes back is the caller's own span: take `child()` for ours.
    """
    found = _match(header)
    return None if found is None else _context(found)


def _match(header: bytes) -> re.Match[bytes] | None:
    if len(header) > MAX_TRACEPARENT:
        return None
    found = _TRACEPARENT.fullmatch(header)
    if found is None or (found[5] is not None and found[1] == b"00"):
        return None
    return found


def _context(found: re.Match[bytes]) -> TraceContext:
    return TraceContext(int(found[2], 16), int(found[3], 16), 0, _is_sampled(found))


def _is_sampled(found: re.Match[bytes]) -> bool:
    return bool(int(found[4], 16) & _SAMPLED)


@dataclass(slots=True)
class RequestTrace:
    """What of one request's trace is decided at its start."""

    traceparent: str = ""
    """What goes upstream and into `Outcome.trace`; empty: nothing does."""
    request: TraceContext | None = None
    """The request's own span; None when the request is not traced."""
    engine: TraceContext | None = None
    """The call to the engine, below it: the parent of whatever spans the engine has."""


UNTRACED = RequestTrace()


class Tracing(Protocol):
    """Starts each request's trace."""

    def begin(self, header: bytes | None) -> RequestTrace:
        """Read the caller's traceparent, if any, and decide."""
        ...


class PassOn:
    """No tracing of our own: a caller's valid traceparent goes on as it came."""

    def begin(self, header: bytes | None) -> RequestTrace:
        """Pass a valid traceparent on."""
        if not header or _match(header) is None:
            return UNTRACED
        return RequestTrace(header.decode("ascii"))


class Sampler:
    """Traces a share of the requests; the sampled flag of a caller wins over the share."""

    def __init__(self, share: float, *, rng: Random | None = None) -> None:
        self._below = round(share * 2**64)
        # Ids need to be distinct, not secret: one seed from the system is enough.
        self._rng = rng or Random(SystemRandom().getrandbits(128))  # noqa: S311 - see above

    def begin(self, header: bytes | None) -> RequestTrace:
        """Continue the caller's trace or start one, if this request is to be traced.

        An unsampled caller's traceparent goes on as it came; an invalid one goes nowhere.
        """
        caller = _match(header) if header else None
        if caller is None:
            return self._start()
        if not _is_sampled(caller):
            return RequestTrace(caller[0].decode("ascii"))
        return self._trace(_context(caller).child(self._rng))

    def _start(self) -> RequestTrace:
        trace_id = self._rng.getrandbits(128)
        if trace_id & _LOW_HALF >= self._below or not trace_id:
            return UNTRACED
        return self._trace(TraceContext(trace_id, _span_id(self._rng), 0, sampled=True))

    def _trace(self, request: TraceContext) -> RequestTrace:
        engine = request.child(self._rng)
        return RequestTrace(engine.traceparent, request, engine)


def _span_id(rng: Random) -> int:
    return rng.getrandbits(64) or 1
