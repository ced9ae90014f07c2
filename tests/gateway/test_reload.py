import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from forebay.gateway.config import load
from forebay.gateway.config.sections import Config
from forebay.gateway.reload import Settling, Watcher
from forebay.policies.contracts import ConfigError

TEXT = """\
version: 1
pools: [{{name: {name}, models: [m], endpoints: [{{name: e, engine: sim}}]}}]
"""


REASONS = ["line 1: pools: is missing", "line 2: pool: is no known key; did you mean 'pools'?"]


def text(name: str) -> str:
    return TEXT.format(name=name)


def put(path: Path, content: str) -> None:
    """Replace a file in one step: half of it is never seen, however slow the machine."""
    fresh = path.with_name("fresh")
    fresh.write_text(content)
    fresh.rename(path)


def remove(path: Path) -> None:
    path.unlink()


class Gateway:
    """What the watcher tells, in order: names of applied pools, and refusals."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._more = asyncio.Event()
        self.refuse: Exception | None = None

    def apply(self, config: Config) -> None:
        if self.refuse is not None:
            self._more.set()
            raise self.refuse
        self.told.append(config.pools[0].name)
        self._more.set()

    def on_error(self, error: ConfigError) -> None:
        self.told.append(f"refused: {error.message}")
        self._more.set()

    async def more(self) -> None:
        """Wait for the next thing told."""
        async with asyncio.timeout(20):
            await self._more.wait()
        self._more.clear()


Play = Callable[[Watcher, Gateway], Awaitable[None]]


def watch(path: Path, play: Play, loaded: str | None = None):
    """Run a watcher with short intervals beside a play."""

    async def main() -> None:
        gateway = Gateway()
        watcher = Watcher(
            path,
            apply=gateway.apply,
            on_error=gateway.on_error,
            loaded=None if loaded is None else loaded.encode(),
            interval_s=0.01,
            quiet_s=0.01,
        )
        task = asyncio.create_task(watcher.run())
        try:
            await play(watcher, gateway)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "forebay.yaml"
    file.write_text(text("one"))
    return file


def test_a_changed_file_is_applied(path: Path):
    async def play(watcher: Watcher, gateway: Gateway) -> None:
        put(path, text("two"))
        await gateway.more()
        assert (gateway.told, watcher.ok) == (["two"], True)

    watch(path, play, loaded=text("one"))


def test_a_change_between_loading_and_watching_is_seen(path: Path):
    async def play(watcher: Watcher, gateway: Gateway) -> None:
        await gateway.more()
        assert (gateway.told, watcher.ok) == (["one"], True)

    watch(path, play, loaded=text("zero"))


def test_a_refused_reload_changes_nothing_says_why_once_and_recovers(
    path: Path, caplog: pytest.LogCaptureFixture
):
    async def play(watcher: Watcher, gateway: Gateway) -> None:
        put(path, text("one").replace("pools", "pool"))
        await gateway.more()
        assert not watcher.ok
        watcher.poke()
        watcher.poke()
        put(path, text("two"))
        await gateway.more()
        assert watcher.ok
        assert gateway.told == [
            f"refused: {'; '.join(REASONS)}",
            "two",
        ]

    with caplog.at_level(logging.WARNING):
        watch(path, play, loaded=text("one"))
    [record] = caplog.records
    assert record.getMessage() == "configuration refused; the former one stays in force"
    assert record.__dict__["errors"] == REASONS


def test_going_back_to_what_is_in_force_recovers_too(path: Path):
    async def play(watcher: Watcher, gateway: Gateway) -> None:
        put(path, "no")
        await gateway.more()
        put(path, text("one"))
        await gateway.more()
        assert (gateway.told[1:], watcher.ok) == (["one"], True)

    watch(path, play, loaded=text("one"))


def test_a_poke_applies_even_an_unchanged_file(path: Path):
    async def play(watcher: Watcher, gateway: Gateway) -> None:
        watcher.poke()
        await gateway.more()
        assert gateway.told == ["one"]

    watch(path, play, loaded=text("one"))


def test_a_link_swapped_as_kubernetes_does_is_seen(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "forebay.yaml").write_text(text(name))
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "forebay.yaml").symlink_to("..data/forebay.yaml")

    def swap() -> None:
        (tmp_path / "..data_tmp").symlink_to("two")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    async def play(watcher: Watcher, gateway: Gateway) -> None:
        swap()
        await gateway.more()
        assert (gateway.told, watcher.ok) == (["two"], True)

    watch(tmp_path / "forebay.yaml", play, loaded=text("one"))


def test_a_file_that_goes_away_is_a_refusal_until_it_returns(path: Path):
    async def play(watcher: Watcher, gateway: Gateway) -> None:
        remove(path)
        await gateway.more()
        assert not watcher.ok
        put(path, text("one"))
        await gateway.more()
        assert watcher.ok
        assert gateway.told == [
            "refused: cannot be read any more: No such file or directory",
            "one",
        ]

    watch(path, play, loaded=text("one"))


def test_a_file_written_in_place_is_seen(path: Path):
    async def play(_: Watcher, gateway: Gateway) -> None:
        with path.open("r+") as file:
            file.write(text("two"))
        await gateway.more()
        assert gateway.told == ["two"]

    watch(path, play, loaded=text("one"))


def test_apply_may_refuse(path: Path):
    async def play(watcher: Watcher, gateway: Gateway) -> None:
        gateway.refuse = ConfigError("the address cannot change while running")
        watcher.poke()
        await gateway.more()
        assert not watcher.ok
        assert gateway.told == ["refused: the address cannot change while running"]

    watch(path, play)


def test_a_bug_in_apply_does_not_end_the_watching(path: Path, caplog: pytest.LogCaptureFixture):
    async def play(watcher: Watcher, gateway: Gateway) -> None:
        gateway.refuse = RuntimeError("oops")
        watcher.poke()
        await gateway.more()
        gateway.refuse = None
        watcher.poke()
        await gateway.more()
        assert (gateway.told, watcher.ok) == (["one"], True)

    watch(path, play, loaded=text("one"))
    assert [record.getMessage() for record in caplog.records] == [
        "configuration could not be applied"
    ]


def test_reading_runs_off_the_loop(path: Path):
    import threading

    async def main() -> None:
        done = asyncio.Event()
        threads: list[bool] = []

        def read(content: bytes) -> Config:
            threads.append(threading.current_thread() is threading.main_thread())
            return load.read(content)

        watcher = Watcher(path, apply=lambda _: done.set(), read=read, interval_s=9)
        watcher.poke()
        task = asyncio.create_task(watcher.run())
        async with asyncio.timeout(20):
            await done.wait()
        task.cancel()
        assert threads == [False]

    asyncio.run(main())


# when a change counts: no clock but the argument


def test_a_change_counts_once_it_has_stood_still():
    settling = Settling(0.3, judged=b"a")
    assert not settling.due(b"b", 10.0)
    assert not settling.due(b"b", 10.2)
    assert settling.due(b"b", 10.3)


def test_a_file_that_goes_on_changing_waits():
    settling = Settling(0.3, judged=b"a")
    assert [
        settling.due(d, t) for d, t in ((b"b", 0.0), (b"c", 0.2), (b"c", 0.4), (b"c", 0.5))
    ] == [
        False,
        False,
        False,
        True,
    ]


def test_a_change_taken_back_in_time_is_none():
    settling = Settling(0.3, judged=b"a")
    assert not settling.due(b"b", 0.0)
    assert settling.waits
    assert not settling.due(b"a", 0.1)
    assert not settling.waits
    assert not settling.due(b"b", 0.4)


def test_a_judged_content_is_not_due_again():
    settling = Settling(0.0, judged=b"a")
    assert settling.due(b"b", 0.0)
    settling.judge(b"b")
    assert not settling.due(b"b", 9.0)


def test_what_is_prepared_slowly_does_not_come_over_what_is_newer(path: Path):
    async def main() -> None:
        gateway, begun, go_on = Gateway(), asyncio.Event(), asyncio.Event()

        async def prepare(config: Config) -> None:
            if config.pools[0].name == "slow":
                begun.set()
                await go_on.wait()

        watcher = Watcher(path, apply=gateway.apply, prepare=prepare)
        put(path, text("slow"))
        first = asyncio.create_task(watcher.reload())
        await begun.wait()
        put(path, text("newer"))
        second = asyncio.create_task(watcher.reload())
        await asyncio.wait({second}, timeout=0.2)  # were it let by, it would be done
        go_on.set()
        await asyncio.gather(first, second)
        assert gateway.told == ["slow", "newer"]

    asyncio.run(main())
