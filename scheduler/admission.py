"""Watermarks: how much is let in while the engines' KV cache or the queue fills.

A table of rows, each in force from its share of use on. KV use and queue use each stand at a row
of their own, and what is stricter counts. A row is left only `gap` below its mark, so that use that
swings about a mark does not switch it on and off.

KV use of a pool is the mean over its usable endpoints. One that reports nothing, or nothing for
`stale_after` seconds, counts with the declared `stale_as`, never as empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forebay.policies.contracts import EndpointView, Request


@dataclass(frozen=True, slots=True)
class Watermark:
    """What holds from a share of use on."""

    at: float
    queue: float = 1.0
    """Of the queue's limits that may be filled, where it is KV use that stands here."""
    max_prompt: int | None = None
    """Longest prompt let in, in tokens."""
    short_first: bool = False
    admit: bool = True
    """False: nothing new is let in."""
    alarm: bool = False
    """Once reached, its `max_prompt` holds until use is below the first row again."""


TABLE = (
    Watermark(0.6, queue=0.5, max_prompt=32_768),
    Watermark(0.8, queue=0.5, max_prompt=32_768, short_first=True),
    Watermark(0.9, queue=0.5, max_prompt=32_768, short_first=True, admit=False),
    Watermark(0.95, queue=0.5, max_prompt=8192, short_first=True, admit=False, alarm=True),
)
"""The usual four marks."""

_OPEN = Watermark(0.0)


@dataclass(frozen=True, slots=True)
class WatermarkSettings:
    """A table, and how it is read."""

    rows: tuple[Watermark, ...] = TABLE
    gap: float = 0.05
    stale_as: float = 0.7
    stale_after: float = 10.0


class Admission:
    """Says what may be let in; `update` when readings or time have moved."""

    def __init__(self, settings: WatermarkSettings) -> None:
        self.kv_use = 0.0
        self._settings = settings
        self._kv = 0
        self._queue = 0
        self._degraded: int | None = None

    @property
    def level(self) -> int:
        """How many rows are in force: 0 is none."""
        return max(self._kv, self._queue)

    @property
    def alarm(self) -> bool:
        """Whether a row with an alarm is in force."""
        return self._row(self._kv).alarm or self._row(self._queue).alarm

    @property
    def short_first(self) -> bool:
        """Whether short requests go first within their tenant's turn."""
        return self._row(self._kv).short_first or self._row(self._queue).short_first

    @property
    def queue_share(self) -> float:
        """How much of the queue's limits may be filled."""
        return self._row(self._kv).queue

    @property
    def max_prompt(self) -> int | None:
        """The longest prompt that is let in, in tokens; None for any."""
        rows = (self._row(self._kv).max_prompt, self._row(self._queue).max_prompt, self._degraded)
        return min((limit for limit in rows if limit is not None), default=None)

    def update(self, views: Iterable[EndpointView], queue_use: float, now: float) -> None:
        """Take in what the endpoints say and how full the queue is."""
        uses = [self._use(view, now) for view in views if view.usable]
        self.kv_use = sum(uses) / len(uses) if uses else 0.0
        self._kv = self._step(self._kv, self.kv_use)
        self.fill(queue_use)

    def fill(self, queue_use: float) -> None:
        """Take in how full the queue is."""
        self._queue = self._step(self._queue, queue_use)
        if self.alarm:
            limits = [r.max_prompt for r in self._settings.rows if r.alarm and r.max_prompt]
            self._degraded = min(limits, default=None)
        elif not self.level:
            self._degraded = None

    def refusal(self, request: Request) -> str | None:
        """Say why a new request is not let in; None when it is."""
        for use, level, what in (
            (self.kv_use, self._kv, "the engines' KV cache"),
            (None, self._queue, "the queue"),
        ):
            row = self._row(level)
            if not row.admit:
                full = f" ({use:.0%})" if use is not None else ""
                return f"{what} is past {row.at:.0%}{full}"
        limit = self.max_prompt
        if limit is not None and request.prompt_tokens_estimate > limit:
            asked = request.prompt_tokens_estimate
            return (
                f"prompts over {limit} tokens wait for a quieter hour, and this has about {asked}"
            )
        return None

    def _use(self, view: EndpointView, now: float) -> float:
        settings = self._settings
        if view.kv_use is None or view.load_at is None or now - view.load_at > settings.stale_after:
            return settings.stale_as
        return view.kv_use

    def _row(self, level: int) -> Watermark:
        return self._settings.rows[level - 1] if level else _OPEN

    def _step(self, level: int, use: float) -> int:
        rows, gap = self._settings.rows, self._settings.gap
        while level < len(rows) and use >= rows[level].at:
            level += 1
        while level and use < rows[level - 1].at - gap:
            level -= 1
        return level
