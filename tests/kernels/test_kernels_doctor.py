"""The doctor reports; it does not need what it asks about."""

import json

import pytest

from forebay.kernels.doctor import examine, main, narrow_decode


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


@pytest.mark.parametrize(
    ("told", "triton", "tuned", "state", "why"),
    [
        (None, "3.6.0", True, "ok", "FOREBAY_NARROW_DECODE=0 switches it off"),
        ("1", "3.6.1", True, "ok", "switches it off"),
        ("0", "3.6.0", True, "off", "switched off by FOREBAY_NARROW_DECODE=0"),
        (None, "3.9.0", True, "off", "needs Triton 3.6, not 3.9.0"),
        (None, None, True, "off", "needs Triton 3.6, not none"),
        (None, "3.6.0", False, "off", "no tuned table for this device"),
    ],
)  # fmt: skip
def test_narrow_decode_is_said_to_run_where_it_does(
    told: str | None, triton: str | None, *, tuned: bool, state: str, why: str
) -> None:
    found = narrow_decode(told, triton, tuned=tuned)
    assert (found.state, why in found.detail) == (state, True)


def test_what_the_environment_says_of_narrow_decode_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOREBAY_NARROW_DECODE", "0")
    told = {f.what: f.detail for f in examine()}["narrow decode"]
    assert told == "switched off by FOREBAY_NARROW_DECODE=0"


def test_the_json_report_agrees_with_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["runs"] is (status == 0)
    assert [f["what"] for f in report["findings"]] == [f.what for f in examine()]


def test_the_plain_report_ends_with_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    status = main([])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("the kernels run here" if status == 0 else "the kernels do not run here")
