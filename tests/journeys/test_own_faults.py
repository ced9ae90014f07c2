"""What becomes of a request when the gateway itself has a fault: an error, and nothing is held."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from forebay.adapters.openai import OpenAI
from forebay.gateway import pools
from forebay.policies.contracts import Finish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Peer
    from tests.journeys.conftest import Answer, Gateway, Go, Kit

interpreted = pytest.mark.skipif(
    not str(pools.__file__).endswith(".py"), reason="compiled, an attribute takes its class alone"
)
OK: dict[str, Any] = {"id": "c", "object": "chat.completion", "choices": []}


class Faulty(OpenAI):
    """An adapter with a bug."""

    def __init__(self, where: str) -> None:
        self.where = where

    def translate(self, call: Any) -> Any:
        if self.where == "translate":
            raise KeyError("translate")
        translation = super().translate(call)
        if self.where == "answer":
            translation.answer = self.rewrite
        return translation

    def rewrite(self, _body: bytes) -> bytes:
        raise RuntimeError("answer")

    def read_error(self, status: int, body: bytes) -> Any:  # noqa: ARG002 - the adapter's
        raise TypeError("read_error")


class Once:
    """A clock that fails once when it is told to."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.failing = False

    def __call__(self) -> float:
        if self.failing:
            self.failing = False
            raise ZeroDivisionError("clock")
        return self.clock()


class Broken:
    """Stands before some part and fails in one of its methods, the first time or always."""

    def __init__(self, inner: Any, name: str, *, once: bool = False) -> None:
        self.inner = inner
        self.name = name
        self.once = once

    def __getattr__(self, name: str) -> Any:
        if name != self.name:
            return getattr(self.inner, name)
        if self.once:
            self.name = ""
        return self.fail

    def fail(self, *_: Any, **__: Any) -> Any:
        raise LookupError("broken")


class Deaf:
    """An observer with a bug."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def settled(self, *_: Any) -> None:
        raise OSError("settled")


def assert_told(gateway: Gateway, answer: Answer, fault: str) -> None:
    assert answer.status == 500
    assert answer.json["error"]["message"] == "the gateway failed"
    assert [(o.finish, o.status) for o in gateway.outcomes] == [(Finish.ENGINE_ERROR, 500)]
    (line,) = gateway.records.errors
    assert fault in line


@pytest.mark.parametrize(("where", "status"), [("translate", 200), ("answer", 200), ("read", 400)])
def test_a_fault_while_an_answer_is_fetched_is_a_500(go: Go, kit: Kit, where: str, status: int):
    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK, status=status)) as engine,
            kit.running(kit.config([engine.section()]), errors=True) as gateway,
        ):
            gateway.pool.endpoints["e0"].adapter = Faulty(where)  # type: ignore[assignment] - a seam, but for the class's name
            answer = await gateway.ask(kit.post(kit.chat()))
            assert_told(gateway, answer, where)
            await gateway.quiet()
            assert gateway.pool.endpoints["e0"].view.usable

    go(main())


def test_a_fault_in_a_stream_ends_it_with_an_error_event(go: Go, kit: Kit):
    async def main() -> None:
        more = asyncio.Event()

        async def script(peer: Peer, _request: bytes, _number: int) -> None:
            peer.send(kit.events_head() + kit.chunk(kit.delta("one")))
            await more.wait()
            peer.send(kit.chunk(kit.delta("two")))
            await peer.request()

        async with (
            kit.engine(script) as engine,
            kit.running(kit.config([engine.section()]), errors=True) as gateway,
            await gateway.caller() as caller,
        ):
            caller.send(kit.post(kit.chat(stream=True)))
            assert (await caller.head())[0] == 200
            assert await caller.chunk() == kit.delta("one")
            gateway.app.now = clock = Once(gateway.app.now)
            clock.failing = True
            more.set()
            last = await caller.chunk()
            assert b"the gateway failed" in last
            assert b"two" not in last
            assert await caller.chunk() == b""
            await kit.until(lambda: engine.left)
            assert [o.finish for o in gateway.outcomes] == [Finish.ENGINE_ERROR]
            assert len(gateway.records.errors) == 1

    go(main())


def test_a_fault_of_whoever_takes_note_holds_no_place(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK)) as engine,
            kit.running(kit.config([engine.section(max_in_flight=1)]), errors=True) as gateway,
        ):
            gateway.app.observer = Deaf(gateway.app.observer)  # type: ignore[assignment] - a seam
            for _ in range(3):
                assert (await gateway.ask(kit.post(kit.chat()))).json == OK
            await gateway.quiet()
            assert ["settled" in line for line in gateway.records.errors] == [True] * 3

    go(main())


async def three_in_line(kit: Kit, put_in: Callable[[Gateway], None], **settings: Any) -> list[int]:
    """Ask for one place three times; `put_in` a fault while two wait. Return the statuses."""
    free = asyncio.Event()
    async with kit.engine(kit.first_waits(free, kit.whole(OK))) as engine:
        config = kit.config([engine.section(max_in_flight=1)], **settings)
        async with kit.running(config, errors=True) as gateway:
            callers = [await gateway.caller() for _ in range(3)]
            callers[0].send(kit.post(kit.chat()))
            await kit.until(lambda: engine.requests)
            put_in(gateway)
            for caller in callers[1:]:
                caller.send(kit.post(kit.chat()))
            await kit.until(lambda: gateway.pool.dispatcher.queued == 2)
            free.set()
            answers = [await caller.answer() for caller in callers]
            for caller in callers:
                caller.leave()
            await gateway.quiet()
    return [answer.status for answer in answers]


def test_a_fault_in_one_call_leaves_the_next_in_line_its_place(go: Go, kit: Kit):
    class Second(Faulty):
        asked = 0

        def translate(self, call: Any) -> Any:
            self.asked += 1
            self.where = "translate" if self.asked == 1 else ""
            return super().translate(call)

    def put_in(gateway: Gateway) -> None:
        gateway.pool.endpoints["e0"].adapter = Second("")  # type: ignore[assignment] - a seam, but for the class's name

    assert go(three_in_line(kit, put_in)) == [200, 500, 200]


def test_a_fault_while_one_is_held_to_its_limits_leaves_the_others_held(go: Go, kit: Kit):
    async def main() -> None:
        async def silent(peer: Peer, _request: bytes, _number: int) -> None:
            await peer.request()

        pool = {"timeouts": {"first_byte": 0.05}, "retry": {"attempts": 0}}
        async with (
            kit.engine(silent) as engine,
            kit.running(kit.config([engine.section()], pool=pool), errors=True) as gateway,
        ):
            gateway.app.observer = Deaf(gateway.app.observer)  # type: ignore[assignment] - a seam
            answers = await asyncio.gather(*(gateway.ask(kit.post(kit.chat())) for _ in range(3)))
            assert [answer.status for answer in answers] == [504] * 3
            await gateway.quiet()
            assert ["settled" in line for line in gateway.records.errors] == [True] * 3

    go(main())


@interpreted
@pytest.mark.parametrize(("part", "name"), [("budget", "request"), ("dispatcher", "submit")])
def test_a_fault_before_a_call_is_placed_is_a_500(go: Go, kit: Kit, part: str, name: str):
    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK)) as engine,
            kit.running(kit.config([engine.section()]), errors=True) as gateway,
        ):
            setattr(gateway.pool, part, Broken(getattr(gateway.pool, part), name))
            assert_told(gateway, await gateway.ask(kit.post(kit.chat())), "broken")
            await gateway.quiet()

    go(main())


def test_a_fault_between_engine_and_head_of_a_stream_is_a_500(go: Go, kit: Kit):
    async def main() -> None:
        class Meter:
            def __init__(self, inner: Any) -> None:
                self.inner = inner

            def reserve(self, *asked: Any) -> Any:
                return Broken(self.inner.reserve(*asked), "headers", once=True)

        async def script(peer: Peer, _request: bytes, _number: int) -> None:
            peer.send(kit.events_head() + kit.chunk(kit.delta("one")))
            await peer.request()

        async with (
            kit.engine(script) as engine,
            kit.running(kit.config([engine.section()]), errors=True) as gateway,
        ):
            gateway.app.meter = Meter(gateway.app.meter)  # type: ignore[assignment] - a seam
            assert_told(gateway, await gateway.ask(kit.post(kit.chat(stream=True))), "broken")
            await kit.until(lambda: engine.left)

    go(main())


@interpreted
def test_a_fault_in_judging_an_endpoint_holds_no_place(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole({}, status=500)) as engine,
            kit.running(kit.config([engine.section(max_in_flight=1)]), errors=True) as gateway,
        ):
            gateway.pool.upkeep = Broken(gateway.pool.upkeep, "judged")  # type: ignore[assignment] - a seam
            for _ in range(3):
                answer = await gateway.ask(kit.post(kit.chat()))
                assert answer.json["error"]["message"] == "the gateway failed"
            await gateway.quiet()

    go(main())


@interpreted
def test_a_fault_in_taking_note_of_a_placement_is_that_calls_alone(go: Go, kit: Kit):
    def put_in(gateway: Gateway) -> None:
        gateway.pool.prefix = Broken(gateway.pool.prefix, "placed", once=True)  # type: ignore[assignment] - a seam

    assert go(three_in_line(kit, put_in, pool={"prefix": {}})) == [200, 500, 200]


@pytest.mark.parametrize("fault", ["observer", pytest.param("upkeep", marks=interpreted)])
def test_all_who_wait_are_told_in_time_whatever_is_broken(go: Go, kit: Kit, fault: str):
    async def main() -> None:
        async def silent(peer: Peer, _request: bytes, _number: int) -> None:
            await peer.request()

        pool = {"queue": {"deadline": 0.2}}
        async with (
            kit.engine(silent) as engine,
            kit.running(
                kit.config([engine.section(max_in_flight=1)], pool=pool), errors=True
            ) as gateway,
            await gateway.caller() as first,
        ):
            first.send(kit.post(kit.chat()))
            await kit.until(lambda: engine.requests)
            if fault == "observer":
                gateway.app.observer = Broken(gateway.app.observer, "settled")  # type: ignore[assignment] - a seam
            else:
                gateway.pool.upkeep = Broken(gateway.pool.upkeep, "tick")  # type: ignore[assignment] - a seam
            answers = await asyncio.gather(*(gateway.ask(kit.post(kit.chat())) for _ in range(3)))
            assert [answer.status for answer in answers] == [504] * 3
            first.leave()
            await gateway.quiet()

    go(main())


@interpreted
def test_a_fault_behind_the_cutting_of_a_prompt_is_a_500(go: Go, kit: Kit, tmp_path: Path):
    async def main() -> None:
        async def script(peer: Peer, request: bytes, _number: int) -> None:
            cut = b"/tokenize" in request.split(b"\r\n", 1)[0]
            peer.send(kit.whole({"tokens": [1, 2, 3], "count": 3} if cut else OK))

        pool = {"prefix": {"mode": "auto", "tokenizer": "engine"}}
        async with (
            kit.engine(script, kind="vllm") as engine,
            kit.running(
                kit.config([engine.section(events=f"ipc://{tmp_path}/none")], pool=pool),
                errors=True,
            ) as gateway,
        ):
            gateway.pool.prefix = Broken(gateway.pool.prefix, "named")  # type: ignore[assignment] - a seam
            answer = await gateway.ask(kit.post(kit.chat()))
            assert answer.status == 500
            assert answer.json["error"]["message"] == "the gateway failed"
            await gateway.quiet()

    go(main())
