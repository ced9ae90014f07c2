"""`forebay calibrate`: what it asks an endpoint, and the file that it writes."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from forebay.gateway.cli import main
from forebay.gateway.commands import calibrate
from forebay.gateway.commands.calibrate_runs import Endpoint, measure, read_blocks
from forebay.gateway.commands.profile_file import read_profile, write_profile
from forebay.policies.contracts import EngineFailed, EngineRefused, EngineUnreachable
from forebay.scheduler.engine_fit import Limits, fit
from forebay.scheduler.engine_profiles import DEMO

if TYPE_CHECKING:
    from pathlib import Path

METRICS = (
    '# HELP x\nvllm:cache_config_info{block_size="32",cpu_swap="0",num_gpu_blocks="1984"} 1.0\n'
)


class Fake:
    """An endpoint that answers at once: two tokens a word, and time that passes at each chunk."""

    def __init__(self, *, status: int = 200, metrics: str | None = METRICS) -> None:
        self.asked: list[dict[str, Any]] = []
        self.status = status
        self.metrics = metrics
        self._ticks = count()

    def clock(self) -> float:
        return next(self._ticks) / 100

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 2048}]})
        if request.url.path == "/metrics":
            return httpx.Response(404 if self.metrics is None else 200, text=self.metrics or "")
        body = json.loads(request.content)
        self.asked.append(body)
        usage = {
            "prompt_tokens": 2 * len(body["prompt"].split()),
            "completion_tokens": body["max_tokens"],
        }
        token = 'data: {"choices":[{"text":"a"}]}\n\n'
        last = json.dumps({"choices": [], "usage": usage})
        lines = [token * body["max_tokens"], f"data: {last}\n\n"]
        return httpx.Response(self.status, text="".join(lines) + "data: [DONE]\n\n")

    def run(self, **options: Any) -> Any:
        async def go() -> Any:
            transport = httpx.MockTransport(self)
            async with httpx.AsyncClient(transport=transport, base_url="http://e") as http:
                return await measure(
                    Endpoint(http, clock=self.clock, model=options.pop("model", None)),
                    lengths=[32, 9000],
                    concurrencies=[1, 3],
                    repeats=2,
                    progress=lambda _: None,
                )

        return asyncio.run(go())


def test_runs_are_made_at_each_length_and_concurrency() -> None:
    fake = Fake()
    measured = fake.run()

    # The warm-up says that a word is two tokens; each length has one of its own; the longest prompt
    # is what the model still takes.
    words = [(len(body["prompt"].split()), body["max_tokens"]) for body in fake.asked]
    pair = [(1, 16), (1, 144), (3, 16), (3, 144)]
    decoded = [(n, out) for n in (8, 472) for k, out in pair for _ in range(k)]
    assert words[:7] == [(64, 8), *[(16, 1)] * 3, *[(944, 1)] * 3]
    assert sorted(words[7:]) == sorted(decoded * 2)
    assert [p.prompt_tokens for p in measured.prefills] == [32, 1888]
    assert [d.sequences for d in measured.decodes] == [1, 3, 1, 3]
    assert measured.limits == Limits(max_model_len=2048, num_blocks=1984, block_tokens=32)
    assert len({body["prompt"] for body in fake.asked}) == len(fake.asked)
    assert all(body["stream"] and body["ignore_eos"] for body in fake.asked)


def test_what_was_measured_can_be_fitted_written_and_read_again(tmp_path: Path) -> None:
    measured = Fake(metrics=None).run()
    profile = fit("mine", measured.prefills, measured.decodes, measured.limits)
    file = tmp_path / "mine.json"

    write_profile(file, profile, calibrate.told_of(measured))

    assert read_profile(file) == profile
    assert json.loads(file.read_text())["measured"]["model"] == "m"


def test_an_endpoint_without_such_metrics_keeps_the_usual_size() -> None:
    assert (read_blocks("a 1\n"), read_blocks(METRICS.replace("1984", "None"))) == ({}, {})


@pytest.mark.parametrize(
    ("fake", "options", "error"),
    [
        (Fake(status=400), {}, "^http://e: POST /v1/completions was answered 400$"),
        (Fake(status=401), {}, "was answered 401; --key-env NAME names the variable with its key"),
        (Fake(), {"model": "other"}, "there is no model 'other': m"),
    ],
)
def test_an_endpoint_that_refuses_is_told(fake: Fake, options: dict[str, Any], error: str) -> None:
    with pytest.raises(EngineRefused, match=error):
        fake.run(**options)


@pytest.mark.parametrize("told", ["<html>", "[]", "{}", '{"data": []}', '{"data": [{}]}', "1"])
def test_who_names_no_model_is_told_to_be_no_endpoint(told: str) -> None:
    class Other(Fake):
        def __call__(self, request: httpx.Request) -> httpx.Response:  # noqa: ARG002 - the base's
            return httpx.Response(200, text=told)

    with pytest.raises(EngineRefused, match="names no model; is it"):
        Other().run()


def test_a_stream_without_tokens_is_a_failure() -> None:
    class Empty(Fake):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v1/completions":
                return httpx.Response(200, text="data: [DONE]\n\n")
            return super().__call__(request)

    with pytest.raises(EngineFailed, match="answered without a token"):
        Empty().run()


def test_an_endpoint_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "http://127.0.0.1:9"]) == 1
    told = "forebay: http://127.0.0.1:9: GET /v1/models: connection refused\n"
    assert capsys.readouterr().err == told
    assert EngineUnreachable.status == 502


def test_a_key_that_is_not_in_the_environment_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "http://127.0.0.1:9", "--key-env", "NO_SUCH_KEY_HERE"]) == 2
    told = "forebay calibrate: --key-env NO_SUCH_KEY_HERE: is not set\n"
    assert capsys.readouterr().err == told


def test_a_wrong_address_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "127.0.0.1:8000"]) == 2
    assert "is no http address" in capsys.readouterr().err


def test_a_profile_with_a_wrong_member_is_told_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    write_profile(file, DEMO, None)
    file.write_text(file.read_text().replace('"step_s": 0.0145', '"step_s": "fast"'))

    with pytest.raises(ValueError, match=rf"{file}: Expected `float`, got `str`"):
        read_profile(file)


def test_a_measured_profile_is_one_to_replay_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, file = tmp_path / "t.csv", tmp_path / "p.json"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n1,10,10\n")
    write_profile(file, DEMO, None)

    assert main(["replay", str(trace), "--engine-profile", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["engine_profile"] == "demo"
