"""`forebay replay`: what it prints, draws and refuses."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from forebay.gateway.cli import main

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "arrival_s,prompt_tokens,output_tokens,tenant\n"
KEYS = {
    "trace",
    "order",
    "predictor",
    "load",
    "seed",
    "requests",
    "mean_wait_s",
    "p99_wait_s",
    "mean_e2e_s",
    "p99_e2e_s",
    "mean_ttft_s",
    "p99_ttft_s",
    "max_wait_s",
    "goodput_share",
    "jain",
    "rejected",
    "p99_e2e_s_by_bucket",
    "capacity_rps",
}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    rows = [f"{n * n % 97 / 10},{50 + n % 7 * 300},{20 + n % 11 * 60},t{n % 3}" for n in range(300)]
    path = tmp_path / "made.csv.gz"
    path.write_bytes(gzip.compress((HEAD + "\n".join(rows)).encode()))
    return str(path)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["replay", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["runs"]


def test_there_is_a_run_for_each_load_seed_and_order(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--in-flight", "4", "--endpoints", "2")
    runs = told(capsys, trace, "--orders", "fcfs,ml", "--load", ".7,1.2", "--seed", "0", "1", *more)

    assert [(r["load"], r["seed"], r["order"]) for r in runs] == [
        (load, seed, order) for load in (0.7, 1.2) for seed in (0, 1) for order in ("fcfs", "ml")
    ]
    for run in runs:
        assert run.keys() >= KEYS
        assert set(run["p99_e2e_s_by_bucket"]) == {"50", "200", "1000", "more"}
        assert (run["trace"], run["requests"], run["tenants"]) == ("made", 300, 3)
        assert (run["in_flight"], run["endpoints"], run["predictor"]) == (4, 2, "ssjf")
    assert len({run["capacity_rps"] for run in runs}) == 1


def test_the_same_call_says_the_same_again(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    call = (trace, "--orders", "sjf,hrrn,bounded,aged,fair,edf", "--in-flight", "4")
    assert told(capsys, *call) == told(capsys, *call)


def test_people_get_a_table_with_the_capacity_over_it(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", trace, "--requests", "100", "--predictor", "none"]) == 0

    out, err = capsys.readouterr()
    assert out.startswith("made: capacity ")
    assert "mean wait  p99 wait" in out
    assert "100 % made: ml at 0.95, seed 0" in err


def test_clients_of_servegen_are_one_tenant_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "\n".join(f"{n},{n % 5},100,50" for n in range(50))
    path = tmp_path / "any-name.csv"
    path.write_text("timestamp_s,client,input_tokens,output_tokens\n" + rows)

    tenants = [
        told(capsys, str(path), "--orders", "fcfs", *more)[0]["tenants"]
        for more in ((), ("--tenants", "each"), ("--tenants", "one"))
    ]

    assert tenants == [1, 5, 1]


def test_classes_are_told_one_by_one(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = told(
        capsys, trace, "--orders", "ml", "--classes", "batch:60:0.8,live:20:0.2", "--load", "1.5"
    )

    assert {name: each["requests"] > 0 for name, each in run["by_class"].items()} == {
        "batch": True,
        "live": True,
    }


def test_a_reserve_shortens_the_wait_of_its_tenants(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    call = (trace, "--orders", "fair", "--load", "1.2", "--in-flight", "4")
    kept = ("t0:1.0", "t0+t1:.25,t2:.5")
    (alone,), (split,) = (told(capsys, *call, "--reserve", each) for each in kept)

    assert alone["reserves"] == {"t0": 1.0}
    assert alone["by_reserve"]["t0"]["requests"] == 100
    assert alone["by_reserve"]["t0"]["mean_wait_s"] < 0.5 * alone["mean_wait_s"]
    assert split["by_reserve"]["t2"]["mean_wait_s"] < split["mean_wait_s"]
    assert split["by_reserve"]["t0+t1"]["requests"] == 200


def test_the_picture_has_a_line_for_each_order_and_panel(trace: str, tmp_path: Path) -> None:
    file = tmp_path / "waits.svg"
    call = ["replay", trace, "--orders", "fcfs,ml", "--load", ".7,.9", "--in-flight", "4"]
    assert main([*call, "--plot", str(file)]) == 0

    root = ET.fromstring(file.read_text())
    assert len(root.findall(".//{http://www.w3.org/2000/svg}polyline")) == 4
    assert {t.text for t in root.iter("{http://www.w3.org/2000/svg}text")} >= {
        "fcfs",
        "ml",
        "made: mean wait, s",
        "made: p99 wait, s",
        "0.7",
        "0.9",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--orders", "best"], "no ordering 'best': take some of aged, "),
        (
            ["--predictor", "best"],
            "no predictor 'best': take one of oracle, mean, none, ssjf, encoder, linear",
        ),
        (["--predictor", "liner"], "linear; did you mean 'linear'?"),
        (["--orders", "fcsf"], "; did you mean 'fcfs'?"),
        (["--engine-profile", "h100"], "no profile 'h100': did you mean 'h200-8b'"),
        (["--load", "0"], "a load must be above 0 and at most 10"),
        (["--load", "much"], "'much' is no load such as 0.95 or .7,.95"),
        (["--seed", "x"], "'x' is no whole number such as 0 or 0,1,2"),
        (["--classes", "batch"], "'batch' is no class such as batch:300:0.7"),
        (["--reserve", "vip"], "'vip' is no reserve such as vip1+vip2:0.2"),
        (["--reserve", "vip:2"], "'vip:2' is no reserve such as vip1+vip2:0.2"),
        (["--reserve", "t9:.2"], "no trace has a tenant 't9' (see --tenants)"),
        (["--longest-wait", "-1"], "'-1' is no number of seconds above 0"),
    ],
)
def test_a_wrong_call_is_told_what_to_do(
    trace: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", trace, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_picture_that_has_no_folder_is_refused_before_the_runs(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", trace, "--plot", str(tmp_path / "none" / "waits.svg")]) == 2
    told = f"forebay replay: --plot: no folder '{tmp_path / 'none'}'\n"
    assert capsys.readouterr() == ("", told)


def test_a_trace_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, cut = tmp_path / "wrong.csv", tmp_path / "cut.csv.gz"
    wrong.write_text(HEAD + "0,1\n")
    cut.write_bytes(gzip.compress(HEAD.encode() * 100)[:-9])

    assert [main(["replay", str(path)]) for path in (wrong, cut, tmp_path / "none")] == [2, 2, 1]
    err = capsys.readouterr().err
    assert f"{wrong}: line 2: 2 fields, the header has 4" in err
    assert f"{cut}: " in err
    assert "no such file or directory; give a path that is there" in err
