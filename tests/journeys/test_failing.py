"""What the caller sees of engines that fail: another endpoint's answer, or one clear error."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from forebay.policies.contracts import Finish

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Engine, Gateway, Go, Kit

OK: dict[str, Any] = {"id": "c", "object": "chat.completion", "choices": []}


def said(message: str, **members: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "t", "param": None, "code": None, **members}}


async def two(
    kit: Kit, bad: Engine, good: Engine, data: bytes, **settings: Any
) -> tuple[Any, Gateway]:
    """Ask a gateway whose first choice is `bad`; the views are put right again after."""
    sections = [bad.section("bad"), good.section("good")]
    async with kit.running(kit.config(sections, **settings)) as gateway:
        view = gateway.pool.endpoints["good"].view
        view.in_flight_tokens += 100_000
        answer = await gateway.ask(data)
        view.in_flight_tokens -= 100_000
        await gateway.quiet()
    return answer, gateway


VERDICTS = {
    "400 nested": (400, said("bad n", param="n", code="c1"), 400, "as sent"),
    "400 flat": (400, {"object": "error", "message": "bad n", "type": "T"}, 400, "bad n"),
    "413": (413, said("too long"), 413, "as sent"),
    "422 detail": (
        422,
        {"detail": [{"loc": ["body", "n"], "msg": "no"}]},
        422,
        "body.n: no",
    ),
    "418": (418, said("tea"), 418, "as sent"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_callers_own_fault_keeps_its_status_and_message(go: Go, kit: Kit, name: str):
    status, body, wanted, text = VERDICTS[name]

    async def main() -> None:
        async with (
            kit.engine(kit.whole(body, status=status)) as bad,
            kit.engine(kit.whole(OK)) as good,
        ):
            answer, gateway = await two(kit, bad, good, kit.post(kit.chat()))
            assert answer.status == wanted
            if text == "as sent":
                assert answer.json == body
            else:
                assert answer.json["error"]["message"] == text
            assert answer.headers["content-type"] == "application/json"
            assert len(bad.requests) == 1
            assert good.requests == []
            assert gateway.pool.endpoints["bad"].view.usable
            assert [o.finish for o in gateway.outcomes] == [Finish.REJECTED]

    go(main())


def test_an_engines_error_is_wrapped_in_the_dialect_of_messages(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole(said("bad n"), status=400)) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            answer = await gateway.ask(kit.post(kit.chat(max_tokens=1), "/v1/messages"))
            assert answer.status == 400
            assert answer.json == {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "bad n"},
            }

    go(main())


@pytest.mark.parametrize("status", [401, 403])
def test_an_engine_that_refuses_our_key_goes_out_of_rotation(go: Go, kit: Kit, status: int):
    async def main() -> None:
        answer = kit.whole(said("wrong key CANARY"), status=status)
        async with (
            kit.engine(answer) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            told = await gateway.ask(kit.post(kit.chat()))
            assert (told.status, told.json["error"]["code"]) == (502, "engine_misconfigured")
            assert "CANARY" not in told.body.decode()
            assert not gateway.pool.endpoints["e0"].view.usable
            told = await gateway.ask(kit.post(kit.chat()))
            assert (told.status, told.json["error"]["code"]) == (503, "no_healthy_endpoint")
            assert len(engine.requests) == 1
            assert "CANARY" not in "".join(gateway.records.lines)

    go(main())


def test_an_engine_that_does_not_know_our_model_is_misconfigured(go: Go, kit: Kit):
    async def main() -> None:
        wrong = kit.whole(said("The model `m` does not exist.", code=404), status=404)
        async with kit.engine(wrong) as bad, kit.engine(kit.whole(OK)) as good:
            answer, gateway = await two(kit, bad, good, kit.post(kit.chat()))
            assert (answer.status, answer.json) == (200, OK)
            assert not gateway.pool.endpoints["bad"].view.usable

    go(main())


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_full_endpoint_is_passed_over_and_stays_in_rotation(go: Go, kit: Kit, status: int):
    async def main() -> None:
        full = kit.whole(said("full"), status=status)
        async with kit.engine(full) as bad, kit.engine(kit.whole(OK)) as good:
            answer, gateway = await two(kit, bad, good, kit.post(kit.chat()))
            assert (answer.status, answer.json) == (200, OK)
            assert gateway.outcomes[0].attempts == 2
        later = kit.whole(said("full"), status=status, headers=b"retry-after: 17\r\n")
        async with kit.engine(full) as one, kit.engine(later) as other:
            answer, gateway = await two(kit, one, other, kit.post(kit.chat()))
            assert (answer.status, answer.json["error"]["code"]) == (429, "overloaded")
            assert answer.headers["retry-after"] == "17"
            assert all(e.view.usable for e in gateway.pool.endpoints.values())

    go(main())


BROKEN = {
    "500": b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n{}",
    "502": b"HTTP/1.1 502 X\r\ncontent-length: 0\r\n\r\n",
    "no http": b"\x00\x01\x02\x03",
    "bad status": b"HTTP/1.1 999 X\r\ncontent-length: 0\r\n\r\n",
    "short body": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
    "short chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    "bad chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nab\r\n",
    "empty stream": (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\n"
    ),
    "upgrade": b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "closed": b"",
    "two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "both framings": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}"
    ),
    "huge head": b"HTTP/1.1 200 OK\r\nx: " + b"x" * 100_000 + b"\r\n\r\n",
}


def breaks(answer: bytes) -> Any:
    async def script(peer: Peer, _request: bytes, _number: int) -> bool:
        peer.send(answer)
        return False

    return script


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_tried_again_elsewhere(go: Go, kit: Kit, name: str):
    async def main() -> None:
        async with kit.engine(breaks(BROKEN[name])) as bad, kit.engine(kit.whole(OK)) as good:
            answer, gateway = await two(kit, bad, good, kit.post(kit.chat()))
            assert (answer.status, answer.json) == (200, OK)
            assert (len(bad.requests), len(good.requests)) == (1, 1)
            assert gateway.outcomes[0].attempts == 2

    go(main())


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_a_502_where_nobody_else_can_answer(go: Go, kit: Kit, name: str):
    async def main() -> None:
        async with (
            kit.engine(breaks(BROKEN[name])) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            answer = await gateway.ask(kit.post(kit.chat()))
            assert answer.status == 502
            assert set(answer.json["error"]) == {"message", "type", "param", "code"}
            assert [o.finish for o in gateway.outcomes] == [Finish.ENGINE_ERROR]

    go(main())


def test_a_kept_connection_that_the_engine_has_closed_costs_no_attempt(go: Go, kit: Kit):
    async def main() -> None:
        async def script(peer: Peer, _request: bytes, _number: int) -> bool:
            peer.send(kit.whole(OK))
            await peer.request()  # the next one comes on this connection, and is lost
            return False

        async with (
            kit.engine(script) as engine,
            kit.running(kit.config([engine.section()], pool={"retry": {"attempts": 0}})) as gateway,
        ):
            for _ in range(3):
                assert (await gateway.ask(kit.post(kit.chat()))).status == 200
            assert [outcome.attempts for outcome in gateway.outcomes] == [1, 1, 1]
            assert len(engine.requests) == 3

    go(main())


def test_failures_in_a_row_open_the_breaker(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(breaks(BROKEN["500"])) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            statuses = [(await gateway.ask(kit.post(kit.chat()))).status for _ in range(7)]
            assert statuses == [502] * 5 + [503] * 2
            assert len(engine.requests) == 5

    go(main())


def test_what_an_engine_cannot_take_is_said_where_no_other_engine_can(go: Go, kit: Kit):
    async def main() -> None:
        body = kit.chat(unheard_of=1)
        async with (
            kit.engine(kit.whole(OK), kind="trtllm") as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            answer = await gateway.ask(kit.post(body))
            assert (answer.status, answer.json["error"]["param"]) == (400, "unheard_of")
            assert engine.requests == []
            assert [o.finish for o in gateway.outcomes] == [Finish.REJECTED]
        async with (
            kit.engine(kit.whole(OK), kind="trtllm") as strict,
            kit.engine(kit.whole(OK)) as lenient,
        ):
            answer, _ = await two(kit, strict, lenient, kit.post(body))
            assert (answer.status, answer.json) == (200, OK)

    go(main())


def test_a_retry_whose_endpoint_is_full_waits_in_the_queue(go: Go, kit: Kit):
    async def main() -> None:
        free = asyncio.Event()
        slow = kit.first_waits(free, kit.whole(OK))
        async with kit.engine(breaks(BROKEN["500"])) as bad, kit.engine(slow) as good:
            sections = [bad.section("bad"), good.section("good", max_in_flight=1)]
            async with kit.running(kit.config(sections)) as gateway:
                bad_view = gateway.pool.endpoints["bad"].view
                bad_view.in_flight_tokens += 100_000
                occupant = await gateway.caller()
                occupant.send(kit.post(kit.chat()))
                await kit.until(lambda: good.requests)
                bad_view.in_flight_tokens -= 100_000
                second = await gateway.caller()
                second.send(kit.post(kit.chat()))
                await kit.until(lambda: bad.requests and gateway.pool.dispatcher.queued)
                free.set()
                assert (await second.answer()).json == OK
                assert (await occupant.answer()).json == OK
                second.leave()
                occupant.leave()
                await gateway.quiet()

    go(main())


def test_a_request_that_kills_its_engine_takes_down_two_endpoints_at_most(go: Go, kit: Kit):
    async def main() -> None:
        sections = [kit.sim(f"e{i}") for i in range(5)]
        async with kit.running(kit.config(sections)) as gateway:
            died: list[str] = []
            for endpoint in gateway.pool.endpoints.values():
                assert endpoint.embedded is not None
                reset = endpoint.embedded.engine.reset

                def count(name: str = endpoint.name, reset: Any = reset) -> None:
                    died.append(name)
                    reset()

                endpoint.embedded.engine.reset = count  # type: ignore[method-assign] - counts
            answer = await gateway.ask(kit.post(kit.chat(sim={"fault": "poison"})))
            assert answer.status == 502
            assert len(died) == len(set(died)) == 2
            answer = await gateway.ask(kit.post(kit.chat()))
            assert answer.status == 200

    go(main())


def test_retries_stay_within_the_budget_when_everything_fails(go: Go, kit: Kit):
    async def main() -> None:
        bad = kit.whole(said("full"), status=503)
        async with kit.engine(bad) as one, kit.engine(bad) as two, kit.engine(bad) as three:
            sections = [one.section("a"), two.section("b"), three.section("c")]
            async with kit.running(kit.config(sections)) as gateway:
                async with await gateway.caller() as caller:
                    for _ in range(100):
                        caller.send(kit.post(kit.chat()))
                        assert (await caller.answer()).status == 429
                attempts = len(one.requests) + len(two.requests) + len(three.requests)
                assert 100 < attempts <= 110
                assert gateway.spy.refused_retries >= 90

    go(main())


def test_nothing_is_tried_again_when_the_pool_says_so(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(breaks(BROKEN["500"])) as bad, kit.engine(kit.whole(OK)) as good:
            answer, _ = await two(
                kit, bad, good, kit.post(kit.chat()), pool={"retry": {"attempts": 0}}
            )
            assert answer.status == 502
            assert good.requests == []

    go(main())


# -- streams that break ----------------------------------------------------------------------------

ANTHROPIC_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"x","usage":'
    b'{"input_tokens":1,"output_tokens":0}}}\n\n'
)
RESPONSES_START = (
    b"event: response.created\n"
    b'data: {"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}\n\n'
)


def cut_stream(kit: Kit, *parts: bytes, end: bool = False) -> Any:
    async def script(peer: Peer, _request: bytes, _number: int) -> bool:
        peer.send(kit.events_head() + b"".join(map(kit.chunk, parts)) + b"0\r\n\r\n" * end)
        return False

    return script


async def stream(kit: Kit, script: Any, path: str, **settings: Any) -> tuple[bytes, Gateway]:
    async with (
        kit.engine(script) as engine,
        kit.running(kit.config([engine.section()], **settings)) as gateway,
    ):
        answer = await gateway.ask(kit.post(kit.chat(stream=True), path))
        assert answer.status == 200
        await gateway.quiet()
    return answer.body, gateway


CUTS = {
    "chat": ("/v1/chat/completions", "delta", b"data: "),
    "completions": ("/v1/completions", "delta", b"data: "),
    "messages": ("/v1/messages", ANTHROPIC_START, b"event: error\ndata: "),
    "responses": ("/v1/responses", RESPONSES_START, b"event: error\ndata: "),
}


@pytest.mark.parametrize("end", [False, True], ids=["cut", "ended"])
@pytest.mark.parametrize("half", [b"", b'data: {"a', b"data: {}\n"], ids=["whole", "half", "line"])
@pytest.mark.parametrize("name", CUTS)
def test_a_cut_stream_ends_in_one_error_event_of_its_dialect(
    go: Go, kit: Kit, name: str, half: bytes, *, end: bool
):
    path, start, prefix = CUTS[name]
    event = kit.delta("hi") if start == "delta" else start
    assert isinstance(event, bytes)

    async def main() -> None:
        parts = [event, half] if half else [event]
        body, gateway = await stream(kit, cut_stream(kit, *parts, end=end), path)
        assert body.startswith(event)
        strips = path.endswith("completions")  # there half an event is held back
        rest = body.removeprefix(event)
        if half and not strips:
            assert rest.startswith(half + b"\n\n")
            rest = rest.removeprefix(half + b"\n\n")
        assert rest.startswith(prefix)
        assert rest.endswith(b"\n\n")
        error = json.loads(rest.removeprefix(prefix))
        message = error["message"] if path == "/v1/responses" else error["error"]["message"]
        assert "engine" in message
        assert "127.0.0.1" not in message  # where engines are is no caller's business
        assert body.count(b"error") >= 1
        assert b'finish_reason":"' not in body
        assert b"[DONE]" not in body
        assert [o.finish for o in gateway.outcomes] == [Finish.TRUNCATED]

    go(main())


def test_half_an_event_that_has_gone_out_is_ended_before_the_error(go: Go, kit: Kit):
    async def main() -> None:
        body = kit.chat(stream=True, stream_options={"include_usage": True})
        for end in (False, True):
            script = cut_stream(kit, kit.delta("hi"), b'data: {"a', end=end)
            async with (
                kit.engine(script) as engine,
                kit.running(kit.config([engine.section()])) as gateway,
            ):
                answer = await gateway.ask(kit.post(body))
                lines = answer.body.removeprefix(kit.delta("hi")).split(b"\n\n")
                assert lines[0] == b'data: {"a'
                assert json.loads(lines[1].removeprefix(b"data: "))["error"]["code"]
                assert lines[2:] == [b""]

    go(main())


@pytest.mark.parametrize("end", [False, True], ids=["cut", "ended"])
def test_an_engines_own_error_event_is_not_doubled(go: Go, kit: Kit, *, end: bool):
    async def main() -> None:
        own = b'data: {"error":{"message":"boom","code":500}}\n\n'
        script = cut_stream(kit, kit.delta("hi"), own, end=end)
        body, gateway = await stream(kit, script, "/v1/chat/completions")
        assert body == kit.delta("hi") + own
        assert [o.finish for o in gateway.outcomes] == [Finish.TRUNCATED]

    go(main())


def test_an_engines_own_error_event_and_end_mark_are_an_engine_error(go: Go, kit: Kit):
    async def main() -> None:
        own = b'data: {"error":{"message":"boom","code":500}}\n\n'
        script = cut_stream(kit, kit.delta("hi"), own, kit.done, end=True)
        body, gateway = await stream(kit, script, "/v1/chat/completions")
        assert body == kit.delta("hi") + own + kit.done
        assert [o.finish for o in gateway.outcomes] == [Finish.ENGINE_ERROR]

    go(main())


# -- time ------------------------------------------------------------------------------------------


def hangs(*before: bytes) -> Any:
    async def script(peer: Peer, _request: bytes, _number: int) -> bool:
        for data in before:
            peer.send(data)
        await peer.gone()
        return False

    return script


def test_what_waits_past_its_deadline_is_a_504(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config([kit.sim(max_in_flight=1)], pool={"queue": {"deadline": 0.2}})
        async with kit.running(settings) as gateway:
            view = gateway.pool.endpoints["e0"].view
            view.in_flight += 1
            answer = await gateway.ask(kit.post(kit.chat()))
            view.in_flight -= 1
            assert (answer.status, answer.json["error"]["code"]) == (504, "deadline_expired")
            assert [o.finish for o in gateway.outcomes] == [Finish.TIMEOUT]

    go(main())


def test_an_answer_that_does_not_begin_by_its_deadline_is_a_504(go: Go, kit: Kit):
    async def main() -> None:
        gone = asyncio.Event()

        async def script(peer: Peer, _request: bytes, _number: int) -> bool:
            await peer.gone()
            gone.set()
            return False

        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], pool={"queue": {"deadline": 0.2}})
            async with kit.running(settings) as gateway:
                answer = await gateway.ask(kit.post(kit.chat()))
                assert (answer.status, answer.json["error"]["code"]) == (504, "deadline_expired")
                await gone.wait()

    go(main())


def test_an_engine_without_a_first_byte_in_time_is_left_for_another(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(hangs()) as bad, kit.engine(kit.whole(OK)) as good:
            answer, gateway = await two(
                kit, bad, good, kit.post(kit.chat()), pool={"timeouts": {"first_byte": 0.2}}
            )
            assert (answer.status, answer.json) == (200, OK)
            assert gateway.outcomes[0].attempts == 2
        async with kit.engine(hangs()) as bad:
            settings = kit.config([bad.section()], pool={"timeouts": {"first_byte": 0.2}})
            async with kit.running(settings) as gateway:
                answer = await gateway.ask(kit.post(kit.chat()))
                assert answer.status == 504

    go(main())


@pytest.mark.parametrize("limit", ["idle", "total"])
def test_a_stream_that_takes_too_long_ends_in_an_error_event(go: Go, kit: Kit, limit: str):
    async def main() -> None:
        script = hangs(kit.events_head() + kit.chunk(kit.delta("hi")))
        body, gateway = await stream(
            kit, script, "/v1/chat/completions", pool={"timeouts": {limit: 0.2}}
        )
        error = json.loads(body.removeprefix(kit.delta("hi")).removeprefix(b"data: "))
        assert error["error"]["code"] == "engine_timeout"
        assert gateway.outcomes[0].error == "engine_timeout"

    go(main())


def test_an_endpoint_that_refuses_connections_is_passed_over(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(kit.whole(OK)) as gone:
            refused = gone.section("bad")
        async with kit.engine(kit.whole(OK)) as good:
            settings = kit.config([refused, good.section("good")])
            async with kit.running(settings) as gateway:
                view = gateway.pool.endpoints["good"].view
                view.in_flight_tokens += 100_000
                answer = await gateway.ask(kit.post(kit.chat()))
                view.in_flight_tokens -= 100_000
                assert (answer.status, answer.json) == (200, OK)
                assert gateway.outcomes[0].endpoint == "good"

    go(main())
