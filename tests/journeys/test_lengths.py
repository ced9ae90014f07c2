"""Prompts are read while they wait, and the order follows."""

from __future__ import annotations

import json
from math import log1p
from typing import TYPE_CHECKING, Any

from tests.asking import a_request

from forebay.gateway.lengths import MOST_BYTES, PoolLength
from forebay.gateway.weights import default_folder
from forebay.policies.contracts import Outcome, Route
from forebay.scheduler.build import check_journal
from forebay.scheduler.length import LengthFeatures, Prediction

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journeys.conftest import Caller, Gateway, Go, Kit

ESSAY = "Write a detailed report of 3,000 words about the Roman empire and its many neighbours."
WORD = "What is the capital of France? Answer with one word, and give no reason for it at all."
STALL = {"fault": "stall"}


def reading(order: str = "sjf", predictor: str = "encoder", **prediction: Any) -> dict[str, Any]:
    own = {"predictor": predictor, "prediction": {"budget": "30s", **prediction}}
    return {"order": order, "scheduling": own}


def reader(gateway: Gateway) -> PoolLength:
    found = gateway.pool.arrangement.length
    assert isinstance(found, PoolLength)
    return found


def told(gateway: Gateway, start: str) -> list[str]:
    """Return what the log says that begins so."""
    events = [json.loads(line)["event"] for line in gateway.records.lines]
    return [event for event in events if event.startswith(start)]


async def occupied(gateway: Gateway, kit: Kit) -> Caller:
    caller = await gateway.caller()
    caller.send(kit.post(kit.chat(sim=STALL)))
    await kit.until(lambda: gateway.pool.dispatcher.in_flight == 1)
    return caller


async def waits(gateway: Gateway, kit: Kit, text: str) -> Caller:
    """Send a request, let it wait, and let it be read."""
    caller = await gateway.caller()
    before = gateway.pool.dispatcher.queued
    caller.send(kit.post(kit.chat(text)))
    await kit.until(lambda: gateway.pool.dispatcher.queued > before)
    results = reader(gateway).results
    await kit.until(lambda: sum(results.values()) - results["idle"] > before)
    return caller


async def both(gateway: Gateway, kit: Kit) -> tuple[list[str], list[int]]:
    """Let an essay and then a word wait; return in which order they were served, and as what."""
    first = await occupied(gateway, kit)
    callers = {"essay": await waits(gateway, kit, ESSAY), "word": await waits(gateway, kit, WORD)}
    relays = gateway.pool.waiting.values()
    await kit.until(lambda: all(each.outcome.predicted_tokens != 256 for each in relays))
    first.leave()
    said: dict[str, int] = {}
    for name, caller in callers.items():
        answer = await caller.answer()
        assert answer.status == 200
        said[name] = int(answer.headers["x-forebay-predicted-tokens"])
        caller.leave()
    names = {tokens: name for name, tokens in said.items()}
    order = [names[outcome.predicted_tokens] for outcome in gateway.outcomes[1:]]
    return order, [said["essay"], said["word"]]


def test_what_waits_is_read_and_the_shorter_answer_goes_first(go: Go, kit: Kit):
    async def main(predictor: str) -> None:
        pool = reading(predictor=predictor)
        async with kit.running(kit.config([kit.sim(max_in_flight=1)], pool=pool)) as gateway:
            order, (essay, word) = await both(gateway, kit)
            assert order == ["word", "essay"]
            assert essay > word
            assert dict(reader(gateway).results) == {"idle": 1, "predicted": 2}

    go(main("encoder"))
    go(main("linear"))


def test_what_is_placed_at_once_is_not_read(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config([kit.sim()], pool=reading())) as gateway:
            assert (await gateway.ask(kit.post(kit.chat(ESSAY)))).status == 200
            assert dict(reader(gateway).results) == {"idle": 1}

    go(main())


def test_a_prompt_seen_before_is_remembered_and_one_too_late_is_skipped(go: Go, kit: Kit):
    async def main(budget: str, expected: dict[str, int]) -> None:
        pool = reading(budget=budget)
        async with kit.running(kit.config([kit.sim(max_in_flight=1)], pool=pool)) as gateway:
            first = await occupied(gateway, kit)
            callers = [await waits(gateway, kit, ESSAY) for _ in range(2)]
            assert dict(reader(gateway).results) == expected
            for caller in (first, *callers):
                caller.leave()
            await gateway.quiet()

    go(main("30s", {"idle": 1, "predicted": 1, "cached": 1}))
    go(main("0.001ms", {"idle": 1, "late": 2}))


def test_who_leaves_while_being_read_is_forgotten(go: Go, kit: Kit):
    async def main() -> None:
        pool = reading()
        async with kit.running(kit.config([kit.sim(max_in_flight=1)], pool=pool)) as gateway:
            first = await occupied(gateway, kit)
            for _ in range(5):
                caller = await gateway.caller()
                caller.send(kit.post(kit.chat(ESSAY)))
                await kit.until(lambda: gateway.pool.dispatcher.queued == 1)
                caller.leave()
                await kit.until(lambda: gateway.pool.dispatcher.queued == 0)
            first.leave()
            await gateway.quiet()
            assert gateway.pool.waiting == {}

    go(main())


def test_a_predictor_that_fails_stops_nobody_and_is_told_once(go: Go, kit: Kit):
    async def main() -> None:
        pool = reading(predictor="http://127.0.0.1:9/predict")
        async with kit.running(kit.config([kit.sim(max_in_flight=1)], pool=pool)) as gateway:
            first = await occupied(gateway, kit)
            callers = [await waits(gateway, kit, text) for text in (ESSAY, WORD)]
            first.leave()
            for caller in callers:
                assert (await caller.answer()).status == 200
                caller.leave()
            assert dict(reader(gateway).results) == {"idle": 1, "failed": 2}
            assert told(gateway, "length predictor") == [
                "length predictor fails; the mean stands in"
            ]

    go(main())


def test_without_trust_the_order_is_fair_until_trust_returns(go: Go, kit: Kit):
    async def main() -> None:
        pool = reading("ml")
        async with kit.running(kit.config([kit.sim(max_in_flight=1)], pool=pool)) as gateway:
            first = await occupied(gateway, kit)
            caller = await waits(gateway, kit, ESSAY)
            feed(reader(gateway), said=10, true=400)
            assert not gateway.pool.arrangement.settings.predicts
            assert gateway.pool.dispatcher.queued == 1
            status = (await gateway.ask(kit.get("/metrics"))).body.decode()
            assert 'forebay_predictor_trusted{pool="p"} 0.0' in status
            feed(reader(gateway), said=400, true=400)
            assert gateway.pool.arrangement.settings.predicts
            first.leave()
            assert (await caller.answer()).status == 200
            caller.leave()
            assert told(gateway, "length predictions") == [
                "length predictions are not believed; order is fair until they are good again",
                "length predictions are believed again",
            ]

    go(main())


def feed(length: PoolLength, *, said: int, true: int) -> None:
    """Let some hundred outcomes be as they are, with a prediction of each."""
    shares = (0.0, 0.0, 1.0, 0.0)
    trusted = length.trusted
    for number in range(2000):
        name = f"fed-{number}"
        features = LengthFeatures(Route.CHAT, "m", "", 8, text=name)
        spread = said * (1 + number % 7 / 10)
        rank = log1p(spread) if said == true else -log1p(spread)
        length.live.take(name, features, Prediction(said, (said, said, said), shares, rank))
        request = a_request(number, id=name, tenant="", prompt_tokens_estimate=8)
        tokens = round(true * (1 + number % 7 / 10))
        length.learn(request, Outcome(name, "p", Route.CHAT, "", output_tokens=tokens))
        if length.trusted != trusted:
            return


def test_a_journal_with_better_estimates_decides_the_same_again(go: Go, kit: Kit, tmp_path: Path):
    async def main() -> None:
        pool = reading()
        pool["scheduling"]["journal"] = str(tmp_path / "journal")
        async with kit.running(kit.config([kit.sim(max_in_flight=1)], pool=pool)) as gateway:
            assert (await both(gateway, kit))[0] == ["word", "essay"]

    go(main())
    lines = (tmp_path / "journal").read_bytes().splitlines(keepends=True)
    assert len([line for line in lines if b'"revise"' in line]) == 2
    assert list(check_journal(lines)) == []


def test_outcomes_are_written_without_prompts_unless_they_are_asked_for(
    go: Go, kit: Kit, tmp_path: Path
):
    async def main(path: Path, **more: Any) -> None:
        pool = reading(outcomes=str(path), **more)
        async with kit.running(kit.config([kit.sim(max_in_flight=1)], pool=pool)) as gateway:
            await both(gateway, kit)
            await gateway.quiet()

    def rows(path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_bytes().splitlines()]

    go(main(tmp_path / "plain"))
    go(main(tmp_path / "told", prompts=True))
    plain, whole = rows(tmp_path / "plain"), rows(tmp_path / "told")
    assert [len(plain), len(whole)] == [2, 2]
    assert "prompt" not in plain[0]
    assert plain[0]["output_tokens"] > 0
    assert len(plain[0]["pid"]) == 16
    assert whole[0]["prompt"] == WORD


def test_a_body_that_takes_long_to_decode_is_not_read(go: Go, kit: Kit):
    async def main() -> None:
        pool = reading()
        async with kit.running(kit.config([kit.sim(max_in_flight=1)], pool=pool)) as gateway:
            first = await occupied(gateway, kit)
            caller = await waits(gateway, kit, "x" * (MOST_BYTES + 1))
            assert dict(reader(gateway).results) == {"idle": 1, "large": 1}
            for each in (first, caller):
                each.leave()
            await gateway.quiet()

    go(main())


def test_a_challenger_reads_along_in_the_shadow(go: Go, kit: Kit):
    async def main() -> None:
        pool = reading(challenger=str(default_folder()))
        async with kit.running(kit.config([kit.sim(max_in_flight=1)], pool=pool)) as gateway:
            await both(gateway, kit)
            rivals = reader(gateway).live.rivals
            assert rivals is not None
            assert (rivals.compared, rivals.share) == (2, 0.0)

    go(main())


def test_a_reload_brings_another_predictor_and_a_bad_one_changes_nothing(
    go: Go, kit: Kit, tmp_path: Path
):
    async def main() -> None:
        endpoints = [kit.sim(max_in_flight=1)]
        async with kit.running(kit.config(endpoints, pool=reading())) as gateway:
            before = reader(gateway)
            gateway.process.apply(kit.config(endpoints, pool=reading(weights=str(tmp_path))))
            assert gateway.pool.arrangement.length is before
            gateway.process.apply(kit.config(endpoints, pool=reading(budget="1s")))
            assert reader(gateway) is not before
            gateway.process.apply(kit.config(endpoints, pool={"order": "sjf"}))
            assert not isinstance(gateway.pool.arrangement.length, PoolLength)
            assert (await gateway.ask(kit.post(kit.chat()))).status == 200

    go(main())
