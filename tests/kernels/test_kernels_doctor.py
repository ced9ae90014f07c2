"""The doctor reports; it does not need what it asks about."""

import json

import pytest

from forebay.kernels.doctor import examine, main


def test_each_thing_is_looked_at_once() -> None:
    names = [f.what for f in examine()]
    assert names == [
        "python",
        "torch",
        "triton",
        "gpu",
        "tables",
        "narrow decode",
        "vllm",
        "sglang",
        "tensorrt_llm",
    ]
    assert {f.state for f in examine()} <= {"ok", "missing", "unsupported", "off"}


@pytest.mark.parametrize(("said", "state"), [("1", "ok"), ("", "ok"), ("0", "off")])
def test_narrow_decode_is_said_to_run_unless_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, said: str, state: str
) -> None:
    monkeypatch.setenv("FOREBAY_NARROW_DECODE", said)
    assert {f.what: f.state for f in examine()}["narrow decode"] == state


def test_the_json_report_agrees_with_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["runs"] is (status == 0)
    assert [f["what"] for f in report["findings"]] == [f.what for f in examine()]


def test_the_plain_report_ends_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    status = main([])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("the kernels run here" if status == 0 else "the kernels do not run here")
