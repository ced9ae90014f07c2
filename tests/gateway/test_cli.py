import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay import __version__
from forebay.gateway.cli import main
from forebay.gateway.commands import demo, kernels
from forebay.gateway.config import load
from forebay.gateway.keys import Grant, Keys

GOOD = """\
version: 1
pools: [{name: main, models: [m], endpoints: [{name: e, engine: sim}]}]
"""
BAD = GOOD.replace("version: 1", "version: 1\nserver: {prot: 1}").replace(
    "engine: sim", "engine: x"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "forebay.yaml"


@pytest.mark.parametrize(
    "command",
    ["", "serve", "demo", "check", "keys", "keys new", "engine", "engine sim"],
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([*command.split(), "--help"]) == 0
    assert f"usage: forebay {command}".strip() in capsys.readouterr().out


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"forebay {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["serve"],
        ["serve", "-c", "x", "--port", "70000"],
        ["serve", "-c", "x", "--port", "²"],
        ["serve", "-c", "x", "--workers", "0"],
        ["demo", "--port", "-1"],
        ["check"],
        ["engine"],
        ["engine", "sim"],
        ["engine", "vllm"],
        ["keys"],
        ["keys", "new"],
        ["keys", "new", "a b"],
        ["prefix", "replay", "x", "--share", "0"],
        ["prefix", "replay", "x", "--stickiness", "inf"],
    ],
)
def test_a_wrong_call_exits_with_2_and_says_how(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: forebay")


@pytest.mark.parametrize(
    ("wrong", "command", "meant"),
    [
        ("chekc forebay.yaml", "", "check"),
        ("engine simm", " engine", "sim"),
        ("--verison", "", "--version"),
        ("serve --confg a.yaml", " serve", "--config"),
        ("demo --prot 1", " demo", "--port"),
        ("check a.yaml --jsno", " check", "--json"),
        ("engine sim --port 1 --proflie=fast", " engine sim", "--profile"),
        ("prefix replay trace --polcy sticky", " prefix replay", "--policy"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest_one(
    wrong: str, command: str, meant: str, capsys: pytest.CaptureFixture[str]
):
    assert main(wrong.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"usage: forebay{command} ")
    assert told.endswith(f"; did you mean '{meant}'?\n")


def test_a_word_like_no_other_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]):
    assert main(["fly"]) == 2
    told = capsys.readouterr().err
    assert "invalid choice: 'fly' (choose from " in told
    assert "did you mean" not in told


def test_a_right_file_passes_the_check(file: Path, capsys: pytest.CaptureFixture[str]):
    file.write_text(GOOD)
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok (pools: 1, endpoints: 1, tenants: 0)\n"
    assert main(["check", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "errors": [], "warnings": []}


def test_a_wrong_file_is_told_line_by_line(file: Path, capsys: pytest.CaptureFixture[str]):
    file.write_text(BAD)
    engines = "vllm, sglang, trtllm, llamacpp, openai, sim"
    assert main(["check", str(file)]) == 1
    assert capsys.readouterr().out == (
        f"{file}:2: server.prot: is no known key; did you mean 'port'?\n"
        f"{file}:3: pools[0].endpoints[0].engine: 'x' is not one of {engines}\n"
        f"{file}:3: pools[0].endpoints[0].url: is missing; only 'engine: sim' can do without\n"
    )
    assert main(["check", str(file), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["errors"][0] == {
        "line": 2,
        "path": "server.prot",
        "message": "is no known key; did you mean 'port'?",
    }


def test_a_missing_file_fails_the_check(file: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", str(file)]) == 1
    assert capsys.readouterr().out == f"{file}: cannot be read: no such file or directory\n"


def test_a_second_worker_is_refused(file: Path, capsys: pytest.CaptureFixture[str]):
    file.write_text(GOOD)
    assert main(["serve", "-c", str(file), "--workers", "2"]) == 1
    assert "more than one worker is not in this version" in capsys.readouterr().err


def test_a_new_key_opens_what_its_line_is_pasted_into(capsys: pytest.CaptureFixture[str]):
    assert main(["keys", "new", "acme"]) == 0
    told = capsys.readouterr().out
    key = next(word for word in told.split() if word.startswith("fb_"))
    assert told.count(key) == 1
    config = load.read(f"{GOOD}tenants:\n{told.partition('configuration:')[2]}")
    grant = Keys(config.tenants).find(f"Bearer {key}".encode(), None)
    assert isinstance(grant, Grant)
    assert grant.tenant.name == "acme"


def test_a_new_key_comes_as_json_too(capsys: pytest.CaptureFixture[str]):
    assert main(["keys", "new", "acme", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["tenant"], told["key"][:3], told["digest"][:7]) == ("acme", "fb_", "sha256:")


def test_kernels_gets_its_arguments_as_they_are(capsys: pytest.CaptureFixture[str]):
    assert kernels.forward(["--version"], module="forebay.gateway.cli") == 0
    assert capsys.readouterr().out == f"forebay {__version__}\n"


def test_kernels_without_torch_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "needs_torch_here.py").write_text("raise ModuleNotFoundError(name='torch')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert kernels.forward([], module="needs_torch_here") == 1
    told = "the kernels need torch; in forebay's checkout: pip install '.[kernels]'"
    assert told in capsys.readouterr().err


def test_kernels_that_are_not_there_are_not_in_this_version(capsys: pytest.CaptureFixture[str]):
    assert kernels.forward([], module="forebay.kernels.nowhere") == 1
    assert "not in this version" in capsys.readouterr().err


def test_the_kernels_command_needs_nothing_of_the_gateways():
    code = (
        "import sys\n"
        "for name in ('msgspec', 'pydantic', 'httpx', 'yaml', 'uvloop'):\n"
        "    sys.modules[name] = None\n"
        "from forebay.gateway.cli import main\n"
        "sys.exit(main(['kernels', 'doctor', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "msgspec" not in done.stderr, done.stderr
    assert done.stdout.startswith("{") or "need torch" in done.stderr


def test_the_demo_has_three_embedded_engines_in_one_pool():
    config = demo.config(port=0)
    [pool] = config.pools
    assert pool.models == {"sim": "sim"}
    assert [(each.name, each.engine, each.url) for each in pool.endpoints] == [
        ("sim-0", "sim", None),
        ("sim-1", "sim", None),
        ("sim-2", "sim", None),
    ]
    assert (config.server.host, config.tenants) == ("127.0.0.1", ())


def test_the_demos_banner_has_what_to_paste():
    banner = demo.banner("http://127.0.0.1:8080/")
    assert "curl http://127.0.0.1:8080/v1/chat/completions" in banner
    assert 'OpenAI(base_url="http://127.0.0.1:8080/v1"' in banner
    assert 'Anthropic(base_url="http://127.0.0.1:8080"' in banner
    assert "http://127.0.0.1:8080/metrics" in banner


def test_the_demo_names_its_live_page_where_it_has_one():
    assert demo.banner("http://x", "http://127.0.0.1:8081/").endswith(
        "Watch it: http://127.0.0.1:8081/\n"
    )
    admins = [demo.config(port=port).server.admin for port in (8080, 0, 65535)]
    assert [admin and admin.port for admin in admins] == [8081, 0, 0]


def test_help_loads_nothing_heavy():
    code = "import sys; from forebay.gateway.cli import main; main(['--help']); print(*sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    heavy = {"pydantic", "yaml", "fastapi", "uvicorn", "httpx", "prometheus_client", "asyncio"}
    assert not heavy & set(told.split())


def test_python_m_forebay_is_the_command():
    told = subprocess.run(
        [sys.executable, "-m", "forebay", "--version"], check=True, capture_output=True, text=True
    )
    assert told.stdout == f"forebay {__version__}\n"


def test_serving_a_file_that_is_not_there_says_which(
    file: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["serve", "-c", str(file)]) == 1
    assert capsys.readouterr().err == (
        f"forebay: {file}: no such file or directory; give a path that is there\n"
    )


def test_serving_a_wrong_file_tells_each_line(file: Path, capsys: pytest.CaptureFixture[str]):
    file.write_text(BAD)
    assert main(["serve", "-c", str(file)]) == 1
    assert f"{file}:2: server.prot: is no known key" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--fault=sulk", "--fault=cut:2", "--profile=h9000"])
def test_an_engine_with_a_wrong_setting_is_a_wrong_call(
    option: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["engine", "sim", "--port", "0", option]) == 2
    assert capsys.readouterr().err.startswith("forebay engine sim: ")


def test_spec_hands_its_own_arguments_over(capsys: pytest.CaptureFixture[str]):
    assert main(["spec", "profile", "--engine", "vllm-0.33", "--method", "medusa"]) == 0
    assert "taken out after 0.26" in capsys.readouterr().out
    assert main(["spec", "--help"]) == 0
    assert "forebay spec" in capsys.readouterr().out
    assert main(["spec", "nothing"]) == 2


def test_a_reader_that_has_gone_is_no_error_of_ours(file: Path):
    reader, writer = os.pipe()
    os.close(reader)
    call = [sys.executable, "-m", "forebay", "check", str(file)]
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(call, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
