"""The embedded engine as an opener: time, leaving, pausing, faults, probes."""

# That nothing is left behind is about what it keeps inside.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

from forebay.adapters.base import Load, ModelCard, Target
from forebay.adapters.sim import Embedded, SimAdapter
from forebay.adapters.sim_engine import SimEngine, SimSettings
from forebay.adapters.sim_stream import Collector
from forebay.policies.contracts import ConfigError, EngineFailed, EngineUnreachable, Route

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from forebay.adapters.base import Headers, Stream

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "hello world"}]}
TEN = {**HELLO, "sim": {"output_tokens": 10}}
STREAM = {**TEN, "stream": True}
DONE = b"data: [DONE]\n\n"


class _Skipping(selectors.DefaultSelector):
    """Waiting takes no time: the clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout:
            self.now += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Skipping()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(main)


def now() -> float:
    return asyncio.get_running_loop().time()


class Heard(Collector):
    """Also keeps what was called, and when, and can be told to act on a chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, float]] = []
        self.on_chunk: Callable[[], object] = lambda: None

    def on_head(self, status: int, headers: Headers) -> None:
        self.calls.append(("head", round(now(), 3)))
        super().on_head(status, headers)

    def on_data(self, data: bytes) -> None:
        self.calls.append(("data", round(now(), 3)))
        super().on_data(data)
        self.on_chunk()

    def on_end(self) -> None:
        self.calls.append(("end", round(now(), 3)))
        super().on_end()

    def on_failure(self, error: EngineFailed) -> None:
        self.calls.append(("failure", round(now(), 3)))
        super().on_failure(error)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def start(engine: Embedded, body: Any) -> tuple[Stream, Heard]:
    heard = Heard()
    return engine.open("POST", CHAT, [], msgspec.json.encode(body), heard), heard


async def never_ends(heard: Heard) -> bool:
    try:
        await asyncio.wait_for(heard.ended.wait(), 10_000)
    except TimeoutError:
        return True
    return False


def test_tokens_come_in_the_profiles_time() -> None:
    async def main() -> None:
        _, heard = start(Embedded(), STREAM)
        await heard.ended.wait()

        times = [when for name, when in heard.calls if name == "data"]
        assert heard.calls[0] == ("head", 0.08)
        assert times[:4] == [0.095, 0.109, 0.124, 0.138]
        assert heard.calls[-1] == ("end", times[-1])
        assert len(times) == 11  # ten tokens, and the end mark with the last of them
        assert times[-1] == times[-2]

    run(main())


def test_a_whole_answer_comes_at_its_end() -> None:
    async def main() -> None:
        _, heard = start(Embedded(), TEN)
        await heard.ended.wait()
        assert heard.calls == [("head", 0.226), ("data", 0.226), ("end", 0.226)]

    run(main())


def test_the_sink_is_never_called_before_open_has_returned() -> None:
    async def main() -> None:
        stream, heard = start(Embedded(profile="instant"), HELLO)
        assert (heard.calls, stream.sent) == ([], False)
        await heard.ended.wait()
        assert (heard.names, stream.sent) == (["head", "data", "end"], True)

    run(main())


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.085, 0.13, 0.22])
@pytest.mark.parametrize("body", [TEN, STREAM])
def test_a_caller_that_leaves_frees_the_engine_at_once(body: Any, after_s: float) -> None:
    async def main() -> None:
        engine = Embedded()
        stream, heard = start(engine, body)
        await asyncio.sleep(after_s)
        stream.close()
        told = list(heard.calls)

        assert engine.load() == Load(running=0, waiting=0, kv_use=0.0)
        assert await never_ends(heard)
        assert heard.calls == told
        stream.close()

    run(main())


def test_nothing_is_left_of_ten_thousand_callers_that_left() -> None:
    async def main() -> None:
        engine = Embedded()
        for number in range(10_000):
            stream, _ = start(engine, STREAM)
            if number % 50 == 0:
                await asyncio.sleep(0.001 * (number % 7))
            stream.close()
        await asyncio.sleep(10)

        assert engine.load() == Load(running=0, waiting=0, kv_use=0.0)
        assert (engine._streams, engine._streaming, engine._stalled) == ({}, {}, set())

    run(main())


def test_a_sink_may_leave_from_within_a_chunk() -> None:
    async def main() -> None:
        engine = Embedded()
        stream, heard = start(engine, STREAM)
        heard.on_chunk = stream.close
        assert await never_ends(heard)
        assert heard.names == ["head", "data"]
        assert engine.load().running == 0

    run(main())


def test_a_paused_stream_holds_everything_back_and_loses_nothing() -> None:
    async def main() -> None:
        _, plain = start(Embedded(seed=3), STREAM)
        await plain.ended.wait()
        stream, heard = start(Embedded(seed=3), STREAM)
        await asyncio.sleep(0.11)
        stream.pause()
        told = list(heard.calls)
        await asyncio.sleep(5)
        assert heard.calls == told

        stream.resume()
        assert heard.calls == told
        await heard.ended.wait()
        assert heard.names == plain.names
        assert len(heard.body) == len(plain.body)

    run(main())


def test_a_stream_paused_again_while_it_catches_up_stops() -> None:
    async def main() -> None:
        stream, heard = start(Embedded(profile="instant"), STREAM)
        stream.pause()
        await asyncio.sleep(1)
        heard.on_chunk = stream.pause
        for seen in range(1, 5):
            stream.resume()
            await asyncio.sleep(1)
            assert heard.names == ["head"] + ["data"] * seen

    run(main())


def test_many_share_the_engines_steps() -> None:
    async def main() -> None:
        engine = Embedded(profile="h200-8b")
        body = {**HELLO, "sim": {"output_tokens": 500}}
        streams = [start(engine, body)[1] for _ in range(300)]
        await asyncio.sleep(0.1)
        assert engine.load().running == 256
        assert engine.load().waiting == 44
        await asyncio.gather(*(heard.ended.wait() for heard in streams))
        assert {heard.status for heard in streams} == {200}

    run(main())


def test_refused_means_that_the_request_was_never_sent() -> None:
    async def main() -> None:
        stream, heard = start(Embedded(fault="refuse"), HELLO)
        await heard.ended.wait()
        assert isinstance(heard.error, EngineUnreachable)
        assert (stream.sent, heard.names) == (False, ["failure"])

    run(main())


@pytest.mark.parametrize(("fault", "status"), [("error503", 503), ("error500", 500)])
def test_an_error_on_demand_has_the_engines_shape(fault: str, status: int) -> None:
    async def main() -> None:
        answer = await Embedded(fault=fault).ask(CHAT, STREAM)
        assert (answer.status, answer.error) == (status, None)
        assert msgspec.json.decode(answer.body)["error"]["code"] == status

    run(main())


def test_a_stalled_answer_never_comes_and_holds_its_seat() -> None:
    async def main() -> None:
        engine = Embedded()
        stream, heard = start(engine, {**HELLO, "sim": {"fault": "stall"}})
        assert await never_ends(heard)
        assert (heard.calls, stream.sent, engine.load().running) == ([], True, 1)
        stream.close()
        assert engine.load().running == 0

    run(main())


@pytest.mark.parametrize("body", [TEN, STREAM])
def test_a_stall_after_the_first_bytes_never_ends(body: Any) -> None:
    async def main() -> None:
        engine = Embedded(fault="stall_after_first")
        stream, heard = start(engine, body)
        assert await never_ends(heard)
        assert heard.names == ["head", "data"]
        assert engine.load().running == 1
        stream.close()
        assert engine.load() == Load(running=0, waiting=0, kv_use=0.0)

    run(main())


def test_a_cut_stream_breaks_off_in_the_middle() -> None:
    async def main() -> None:
        engine = Embedded(fault="cut")
        answer = await engine.ask(CHAT, STREAM)
        assert isinstance(answer.error, EngineFailed)
        assert not isinstance(answer.error, EngineUnreachable)
        assert len(answer.chunks) == 5
        assert DONE not in answer.body
        assert engine.load() == Load(running=0, waiting=0, kv_use=0.0)

    run(main())


def test_a_cut_answer_is_shorter_than_it_said() -> None:
    async def main() -> None:
        answer = await Embedded(fault="cut").ask(CHAT, TEN)
        assert isinstance(answer.error, EngineFailed)
        assert answer.status == 200
        assert 0 < len(answer.body) < int(answer.headers[b"content-length"])

    run(main())


@pytest.mark.parametrize("body", [TEN, STREAM])
def test_a_slow_answer_takes_ten_times_as_long(body: Any) -> None:
    async def main() -> None:
        _, plain = start(Embedded(), body)
        await plain.ended.wait()
        begun = now()
        _, slow = start(Embedded(fault="slow"), body)
        await slow.ended.wait()
        assert slow.names == plain.names
        assert slow.calls[-1][1] - begun == pytest.approx(10 * plain.calls[-1][1], rel=0.01)

    run(main())


def test_only_the_slow_one_is_slow() -> None:
    async def main() -> None:
        engine = Embedded()
        _, slow = start(engine, {**STREAM, "sim": {"output_tokens": 10, "fault": "slow"}})
        _, plain = start(engine, STREAM)
        await plain.ended.wait()
        assert (now() < 0.3, slow.calls) == (True, [])

    run(main())


def test_an_empty_answer_says_nothing() -> None:
    async def main() -> None:
        answer = msgspec.json.decode((await Embedded(fault="empty").ask(CHAT, HELLO)).body)
        assert answer["choices"][0]["message"]["content"] == ""
        assert answer["choices"][0]["finish_reason"] == "stop"

    run(main())


@pytest.mark.parametrize("fault", ["restart", "poison"])
def test_an_engine_that_dies_takes_all_its_answers_with_it_and_comes_back(fault: str) -> None:
    async def main() -> None:
        clock = iter(range(100, 10_000, 100))
        engine = Embedded(SimEngine(SimSettings(), clock=lambda: next(clock)))
        started = engine.probe().started
        _, other = start(engine, {**STREAM, "sim": {"output_tokens": 500}})
        await asyncio.sleep(0.2)
        _, guilty = start(engine, {**STREAM, "sim": {"fault": fault}})
        await asyncio.gather(other.ended.wait(), guilty.ended.wait())

        died = now()
        assert isinstance(other.error, EngineFailed)
        assert isinstance(guilty.error, EngineFailed)
        assert guilty.names[-1] == "failure"
        assert ("data" in guilty.names) == (fault == "restart")
        with pytest.raises(EngineUnreachable):
            engine.probe()
        assert isinstance((await engine.ask(CHAT, HELLO)).error, EngineUnreachable)

        await asyncio.sleep(1.01 - (now() - died))
        assert engine.probe().started != started
        assert engine.load() == Load(running=0, waiting=0, kv_use=0.0)
        answer = await engine.ask(CHAT, {**HELLO, "messages": [LONG]})
        assert msgspec.json.decode(answer.body)["usage"]["prompt_tokens_details"] == {
            "cached_tokens": 0
        }

    run(main())


def test_answers_that_end_in_the_step_in_which_the_engine_dies_fail() -> None:
    async def main() -> None:
        engine = Embedded()
        _, guilty = start(engine, {**TEN, "sim": {"output_tokens": 10, "fault": "restart"}})
        others = [start(engine, body)[1] for body in (TEN, STREAM, TEN)]
        for heard in (guilty, *others):
            await heard.ended.wait()
            assert isinstance(heard.error, EngineFailed)

    run(main())


LONG = {"role": "user", "content": "the quiet turbine holds the level " * 20}


def test_a_share_of_the_requests_goes_wrong_the_same_in_each_run() -> None:
    async def main() -> None:
        async def statuses() -> list[int]:
            engine = Embedded(fault="error503:0.3", seed=5, profile="instant")
            return [(await engine.ask(CHAT, HELLO)).status for _ in range(200)]

        first, second = await statuses(), await statuses()
        assert first == second
        assert 40 <= first.count(503) <= 80
        assert first.count(200) == 200 - first.count(503)

    run(main())


@pytest.mark.parametrize(
    "fault", ["nope", "cut:", "cut:2", "cut:-1", "cut:x", "cut:nan", "", ":0.5"]
)
def test_a_fault_that_does_not_exist_is_a_configuration_error(fault: str) -> None:
    with pytest.raises(ConfigError, match="fault"):
        Embedded(fault=fault)


def test_a_profile_that_does_not_exist_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        Embedded(profile="dem")


def test_a_probe_says_what_it_is() -> None:
    async def main() -> None:
        engine = Embedded(SimEngine(SimSettings(models=("a", "b")), clock=lambda: 5.0))
        probe = engine.probe()
        assert (probe.engine, probe.limit, probe.started) == ("sim", 256, 5.0)
        assert probe.models == (ModelCard("a", 32768), ModelCard("b", 32768))
        assert probe.routes == frozenset(Route)

    run(main())


class _Transport(httpx.AsyncBaseTransport):
    """HTTP without a network: hands requests to an opener."""

    def __init__(self, engine: Embedded) -> None:
        self._engine = engine

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._engine.ask(
            request.url.path, await request.aread(), method=request.method
        )
        return httpx.Response(answer.status, content=answer.body)


def test_behind_a_port_the_adapter_sees_what_an_embedded_one_says() -> None:
    async def main() -> None:
        engine = Embedded(SimEngine(SimSettings(), clock=lambda: 1_700_000_000.0))
        adapter, target = SimAdapter(), Target("sim-0", "http://sim")
        _, heard = start(engine, {**STREAM, "sim": {"output_tokens": 100}})
        await asyncio.sleep(0.2)
        async with httpx.AsyncClient(transport=_Transport(engine)) as http:
            probe = await adapter.probe(http, target)
            load = await adapter.read_load(http, target)

        direct = engine.probe()
        assert load == engine.load()
        assert load.running == 1
        assert (probe.engine, probe.version) == (direct.engine, direct.version)
        assert (probe.models, probe.started) == (direct.models, direct.started)
        assert probe.routes == direct.routes
        await heard.ended.wait()

    run(main())


def test_the_sim_field_is_no_control_field() -> None:
    assert "sim" not in SimAdapter.control_fields
    assert SimAdapter.engine == "sim"
