"""The two ways in which an answer's bytes are kept on their way up: held whole, or as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sse import Scanner

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.policies.contracts import ForebayError, Outcome

    from .copies import Copy
    from .dialects import Dialect
    from .intake import Inbound
    from .telemetry.histogram import Histogram


class Held:
    """What has come of a whole answer, or of an error; counted as buffered memory."""

    __slots__ = ("_count", "_parts", "fits", "size")

    def __init__(self, count: Callable[[int], bool]) -> None:
        self._count = count
        self.fits = True
        """What has come may be kept: there was room for it in what all share."""
        self._parts: list[bytes] = []
        self.size = 0

    def add(self, data: bytes) -> int:
        """Keep more; return how much there is now."""
        self._parts.append(data)
        size = len(data)
        self.fits = self._count(size)
        self.size += size
        return self.size

    def take(self) -> bytes:
        """Hand over what has come, and start anew."""
        parts, size = self._parts, self.size
        if not size:
            return b""
        self._count(-size)
        self._parts, self.size = [], 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Events:
    """A stream of events as it passes: what may go on, and when tokens came."""

    __slots__ = ("_dialect", "_itl", "_outcome", "scanner")

    def __init__(
        self, dialect: Dialect, outcome: Outcome, itl: Histogram, *, strip_usage: bool
    ) -> None:
        self._dialect = dialect
        self._outcome = outcome
        self._itl = itl
        self.scanner = Scanner(dialect, strip_usage=strip_usage)

    @property
    def complete(self) -> bool:
        """The route's end mark has come, or nothing can be known of this stream."""
        return self.scanner.seen.done or self.scanner.blind

    def pass_on(self, data: bytes, now: float) -> bytes:
        """Note what came and when; return what may go to the caller."""
        scanner, outcome = self.scanner, self._outcome
        before, last = scanner.events, outcome.last_token
        data = scanner.feed(data)
        if last is not None:
            if scanner.events > before:
                self._itl.observe(now - last, scanner.events - before)
                outcome.last_token = now
        elif scanner.seen.token:
            outcome.first_token = outcome.last_token = now
        outcome.bytes_out += len(data)
        return data

    def last_words(self, error: ForebayError, held: bytes) -> bytes | None:
        """Return what ends a stream that cannot be finished: an error event, once.

        None where no event can be told from the bytes of a broken one.
        """
        scanner = self.scanner
        if scanner.blind:
            return None
        if scanner.seen.error:
            return held
        # A half event cannot be called back; the blank line ends it, so that the error is one.
        gap = b"" if scanner.at_boundary else b"\n\n"
        return gap + self._dialect.event(error)


class CopiedEvents(Events):
    """Events of which a copy is kept."""

    __slots__ = ("_copy",)

    def __init__(
        self, dialect: Dialect, outcome: Outcome, itl: Histogram, *, strip_usage: bool, copy: Copy
    ) -> None:
        super().__init__(dialect, outcome, itl, strip_usage=strip_usage)
        self._copy = copy

    def pass_on(self, data: bytes, now: float) -> bytes:
        """See Events."""
        data = super().pass_on(data, now)
        self._copy.add(data)
        return data


def events_of(inbound: Inbound, dialect: Dialect, outcome: Outcome) -> Events:
    """Return who relays the events of one attempt."""
    itl, strip = inbound.pool.itl, inbound.strip_usage
    if inbound.copy is None:
        return Events(dialect, outcome, itl, strip_usage=strip)
    inbound.copy.clear()  # of an attempt that failed
    return CopiedEvents(dialect, outcome, itl, strip_usage=strip, copy=inbound.copy)
