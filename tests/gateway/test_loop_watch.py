"""How long the event loop was held up."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from forebay.gateway.telemetry.histogram import PAUSE_BOUNDS, Histogram
from forebay.gateway.telemetry.loop_watch import INTERVAL, WINDOW, LoopWatch

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeLoop:
    """A loop that the test turns, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.next: Callable[[], object] | None = None

    def call_later(self, delay: float, callback: Callable[[], object], /) -> FakeLoop:
        assert delay == INTERVAL
        self.next = callback
        return self

    def cancel(self) -> None:
        self.next = None

    def turn(self, seconds: float) -> None:
        self.now += seconds
        callback, self.next = self.next, None
        assert callback is not None
        callback()


def watched() -> tuple[FakeLoop, Histogram, LoopWatch]:
    loop, pauses = FakeLoop(), Histogram(PAUSE_BOUNDS)
    watch = LoopWatch(loop, pauses, clock=lambda: loop.now)
    watch.start()
    return loop, pauses, watch


def test_a_late_turn_is_a_pause():
    loop, pauses, watch = watched()
    for seconds in (INTERVAL, INTERVAL + 0.25, INTERVAL):
        loop.turn(seconds)
    assert round(watch.longest, 6) == 0.25
    assert pauses.copy().count == 3


def test_a_clock_that_stands_still_is_no_pause():
    loop, pauses, watch = watched()
    loop.turn(0.0)
    assert (watch.longest, pauses.copy().total) == (0.0, 0.0)


def test_a_pause_is_forgotten_after_two_windows_and_not_before_one():
    loop, _, watch = watched()
    loop.turn(INTERVAL + 0.5)
    seen: list[bool] = []
    for _ in range(2):
        for _ in range(round(WINDOW / INTERVAL) - 20):
            loop.turn(INTERVAL)
        seen.append(watch.longest > 0.4)
    for _ in range(40):
        loop.turn(INTERVAL)
    assert [*seen, watch.longest > 0.4] == [True, True, False]


def test_a_watch_that_is_stopped_turns_no_more():
    loop, _, watch = watched()
    watch.stop()
    assert loop.next is None


@pytest.mark.interpreted
def test_a_real_loop_that_is_held_up_is_noticed():
    class Noted(Histogram):
        """Says when something was observed."""

        def __init__(self) -> None:
            super().__init__(PAUSE_BOUNDS)
            self.told = asyncio.Event()

        def observe(self, value: float, events: int = 1) -> None:
            super().observe(value, events)
            self.told.set()

    async def held_up() -> float:
        pauses = Noted()
        watch = LoopWatch(asyncio.get_running_loop(), pauses)
        watch.start()
        # What the test is about: something holds the loop up.
        time.sleep(3 * INTERVAL)  # noqa: ASYNC251 - to block the loop is the point
        await pauses.told.wait()
        watch.stop()
        return watch.longest

    assert asyncio.run(held_up()) > INTERVAL
