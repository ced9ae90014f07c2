"""`forebay predictor`: data in, scores out."""

from __future__ import annotations

import gzip
import json
import re
import socket
from pathlib import Path
from random import Random
from typing import Any

import pytest

from forebay.gateway.cli import main
from forebay.gateway.commands.predictor_data import key_of, read_folder
from forebay.gateway.config import load
from forebay.gateway.weights import load_encoder, save
from forebay.policies.contracts import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "length-prediction.md"


def written(folder: Path, prompts: int = 80) -> Path:
    """A set in two files and one in a single file, with essays long and questions short."""
    rng, folder = Random(0), folder / "data"
    folder.mkdir()
    asked, lengths, log = list[str](), list[str](), list[str]()
    for number in range(prompts):
        kind = number % 2
        text = f"Write an essay about topic {number}" if kind else f"Yes or no, {number}?"
        pid = key_of(text)
        asked.append(json.dumps({"pid": pid, "prompt": text}))
        for model in ("gpt-4-0314", "other"):
            tokens = round((600 if kind else 20) * rng.uniform(0.5, 2))
            lengths.append(json.dumps({"pid": pid, "model": model, "out_tokens": tokens}))
        row = {"prompt": text, "model": "gpt-4-0314", "output_tokens": 9 + 300 * kind}
        log.append(json.dumps({**row, "finish_reason": "length" if number == 1 else "stop"}))
    (folder / "pairs_prompts.jsonl.gz").write_bytes(gzip.compress("\n".join(asked).encode()))
    (folder / "pairs_lengths.jsonl").write_text("\n".join(lengths))
    (folder / "log.jsonl").write_text("\n".join(log))
    (folder / "README.md").write_text("not data")
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["predictor", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_eval_tells_each_set_and_the_pool(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    scores = told(capsys, "eval", "--data", written(tmp_path), "--bootstrap", 20)

    assert set(scores["sets"]) == {"log", "pairs"}
    for each in (*scores["sets"].values(), scores["pool"]):
        assert set(each) >= {
            "rows",
            "tau_per_model",
            "tau_mixed",
            "bucket_accuracy",
            "recall_more",
            "precision_more",
            "mae_tokens",
        }
        low, high = each["intervals"]["tau_mixed"]
        assert low <= each["tau_mixed"] <= high
    assert [scores["sets"]["pairs"]["rows"], scores["pool"]["rows"]] == [160, 240]
    assert scores["sets"]["pairs"]["tau_per_model"] > 0.2
    assert set(scores["predict_ms"]) == {"p50", "p99"}


def test_eval_says_the_same_again_by_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    call = ["eval", "--data", written(tmp_path), "--bootstrap", 20]
    first, again, other = (told(capsys, *call, "--seed", seed) for seed in (1, 1, 2))

    assert (first["sets"], first["pool"]) == (again["sets"], again["pool"])
    assert first["pool"]["intervals"] != other["pool"]["intervals"]


@pytest.mark.parametrize("kind", ["mean", "linear"])
def test_eval_compares_with_what_learns_on_the_spot(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data = written(tmp_path)
    scores = told(capsys, "eval", "--data", data, "--part", "dev", "--kind", kind)

    tau = scores["sets"]["pairs"]["tau_mixed"]
    assert tau > 0.4 if kind == "linear" else tau is None or tau < 0.4


def test_eval_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    call = ["predictor", "eval", "--data", str(written(tmp_path)), "--sets", "pairs/gpt*"]
    assert main(call) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["set", "rows"]
    assert [line.split()[:2] for line in lines[1:3]] == [["pairs", "80"], ["pool", "80"]]
    assert lines[-1].startswith("one prediction: p50 ")


def test_data_is_read_by_prompt_and_never_parts_one(tmp_path: Path):
    folder = written(tmp_path)
    parts = {part: read_folder(folder, part=part).examples for part in ("train", "dev")}

    keys = [{example.key for example in examples} for examples in parts.values()]
    assert keys[0] & keys[1] == set()
    assert len(keys[0] | keys[1]) == 80
    cut = [example for example in read_folder(folder, sets=["log"]).examples if example.cut]
    assert [example.tokens for example in cut] == [309]


def test_a_wide_file_has_an_answer_at_each_temperature(tmp_path: Path):
    row = {"pid": "0" * 16, "prompt": "hi", "L_t0_0": 5, "L_t0_7": 9, "L_gt_davinci003": 7}
    (tmp_path / "wide.jsonl").write_text(json.dumps(row))

    whole = read_folder(tmp_path).examples
    assert [(e.features.model, e.features.temperature, e.tokens) for e in whole] == [
        ("wide-model", 0.0, 5),
        ("wide-model", 0.7, 9),
        ("davinci003", None, 7),
    ]
    assert [e.tokens for e in read_folder(tmp_path, wide=False).examples] == [5]


@pytest.mark.parametrize(
    ("files", "arguments", "said"),
    [
        ({}, [], "no .jsonl or .parquet files in it"),
        ({"a.jsonl": "{"}, [], "a.jsonl: line 1: is no JSON"),
        ({"a.jsonl": "[1]"}, [], "no prompts with lengths in it"),
        (
            {"a.jsonl": '{"prompt": "x", "out_tokens": "many"}'},
            [],
            "a.jsonl: row 1: 'out_tokens' must be a whole number of at least 0",
        ),
        (
            {"a.jsonl": '{"prompt": "x", "out_tokens": 1e400}'},
            [],
            "a.jsonl: row 1: 'out_tokens' must be a whole number of at least 0",
        ),
        (
            {"a.jsonl": '{"prompt": "x", "out_tokens": 3, "prompt_tokens": 1e400}'},
            [],
            "a.jsonl: row 1: cannot convert float infinity to integer",
        ),
        (
            {"a.jsonl": '{"prompt": "x", "out_tokens": -3}'},
            [],
            "a.jsonl: row 1: 'out_tokens' must be a whole number of at least 0",
        ),
        ({"a.jsonl": '{"prompt": "x", "out_tokens": 1}'}, ["--sets", "b"], "no set 'b'; has a"),
        (
            {"alpaca.jsonl": '{"prompt": "x", "out_tokens": 1}'},
            ["--sets", "alpca"],
            "no set 'alpca'; did you mean 'alpaca'?",
        ),
        (
            {"a_prompts.jsonl": '{"pid": "1", "prompt": "x"}', "a_lengths.parquet": "x"},
            [],
            "a_lengths.parquet: cannot be read as Parquet: ",
        ),
        (
            {"a.jsonl": '{"prompt": "x", "out_tokens": 1}'},
            ["--learn", "x"],
            "--learn is for --kind linear or mean; an encoder has its weights",
        ),
        (
            {"a.jsonl": '{"prompt": "x", "out_tokens": 1}'},
            ["--kind", "mean", "--weights", "x"],
            "--weights is of an encoder; --kind mean learns from --learn",
        ),
        (
            {"a.jsonl": '{"prompt": "x", "out_tokens": 1}'},
            ["--bootstrap", "-3"],
            "'-3' is no whole number of at least 1",
        ),
    ],
)
def test_data_that_cannot_be_read_is_told(
    files: dict[str, str],
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    wrong_call = arguments[:1] in (["--bootstrap"], ["--kind"], ["--learn"])
    assert main(["predictor", "eval", "--data", str(tmp_path), *arguments]) == (
        2 if wrong_call else 1
    )
    assert said in capsys.readouterr().err


def test_no_such_folder_and_no_weights_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for folder, why in (
        (tmp_path / "none", "there is no such folder"),
        (Path(__file__), "is a file; give the folder it is in"),
    ):
        assert main(["predictor", "eval", "--data", str(folder)]) == 1
        assert capsys.readouterr().err == f"forebay predictor: {folder}: {why}\n"
    call = ["predictor", "eval", "--data", str(written(tmp_path)), "--weights", str(tmp_path)]
    assert main(call) == 1
    told = f"forebay: no weights in '{tmp_path}': meta.json: no such file or directory\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (["predictor", "serve"], "Answer the gateways that have 'predictor: http://HOST:PORT'"),
        (["predictor", "train"], "Train an encoder and write its weights"),
        (["predictor", "eval"], "Predict the lengths of answers"),
        (["kernels"], "usage: forebay kernels [-h]"),
    ],
)
def test_help_is_of_the_command_itself(
    call: list[str], told: str, capsys: pytest.CaptureFixture[str]
):
    assert main([*call, "--help"]) == 0
    assert told in " ".join(capsys.readouterr().out.split())


def test_weights_that_are_written_again_keep_the_last_three(tmp_path: Path):
    for number in range(6):
        save(tmp_path / "w", {"meta.json": str(number).encode()})

    found = {path.name: (path / "meta.json").read_text() for path in tmp_path.iterdir()}
    assert found == {"w": "5", "w.1": "4", "w.2": "3", "w.3": "2"}


def test_weights_that_are_damaged_are_refused(tmp_path: Path):
    files = load_encoder().to_files()
    save(tmp_path / "w", {**files, "meta.json": b"{"})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_encoder(tmp_path / "w")
    save(tmp_path / "w", {**files, "model.onnx": b"nothing"})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_encoder(tmp_path / "w")


def test_the_example_of_the_page_is_a_configuration():
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)

    own = load.read(example, {}).pools[0].scheduling
    assert (own.predictor, own.prediction.budget) == ("encoder", 0.005)


def test_a_device_that_cannot_be_used_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("torch")
    call = ["predictor", "train", "--data", str(written(tmp_path, 2)), "--out", str(tmp_path / "w")]
    assert main([*call, "--base", "scratch", "--device", "abacus"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("forebay predictor: --device abacus cannot be used here: ")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_encoder_is_trained_the_same_twice_and_learns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("torch")
    data = written(tmp_path, 240)
    call = ["train", "--data", data, "--part", "train", "--base", "scratch", "--layers", 1]
    call += ["--epochs", 3, "--vocabulary", 500, "--teachers", 1]
    for name in ("a", "b"):
        told(capsys, *call, "--out", tmp_path / name)

    scores = told(capsys, "eval", "--data", data, "--part", "dev", "--weights", tmp_path / "a")
    assert scores["sets"]["pairs"]["tau_mixed"] > 0.5
    assert (tmp_path / "a/model.onnx").read_bytes() == (tmp_path / "b/model.onnx").read_bytes()


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        (
            "log.jsonl",
            {"prompt": 1, "output_tokens": 3},
            "row 1: 'prompt' must be a text",
        ),
        ("a_prompts.jsonl", {"pid": "x", "prompt": 5}, "row 1: 'prompt' must be a text"),
        ("a_prompts.jsonl", {"prompt": "hi"}, "row 1: 'pid' must be a text"),
    ],
)
def test_a_row_that_is_no_example_is_named(
    tmp_path: Path, name: str, row: dict[str, Any], message: str
):
    (tmp_path / name).write_text(json.dumps(row))
    (tmp_path / "a_lengths.jsonl").write_text(json.dumps({"pid": "x", "output_tokens": 3}))
    with pytest.raises(ValueError, match=message):
        list(read_folder(tmp_path))


def test_a_port_that_is_taken_is_told_before_anything_listens(
    capsys: pytest.CaptureFixture[str],
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["predictor", "serve", "--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}: " in told
    assert "listens" not in told
