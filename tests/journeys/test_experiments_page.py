"""docs/experiments.md: its commands run, and say what the page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.gateway.config import load
from forebay.policies.experiments.plan import GUARDRAILS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "experiments.md").read_text()
EXAMPLE = (ROOT / "examples" / "experiments.yaml").read_text()


def commands() -> list[str]:
    return re.findall(r"<!-- run -->\n```sh\n(.*?)```", PAGE, re.DOTALL)


def two_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


@pytest.mark.timeout(400)  # a dozen processes on a busy machine
def test_the_commands_of_the_page_answer_its_three_questions(tmp_path: Path):
    port, admin = two_ports()

    def moved(text: str) -> str:
        return text.replace("8080", str(port)).replace("8081", str(admin))

    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "experiments.yaml").write_text(moved(EXAMPLE))
    asked = [moved(block) for block in commands()]
    asked = [
        re.sub(r"forebay ab (\S+ \S+)", rf"forebay ab \1 --admin http://127.0.0.1:{admin}", a)
        for a in asked
    ]
    # Whatever fails, the gateway must go: it holds the pipes open.
    script = "set -e\ntrap 'kill %1; wait %1' EXIT\n" + "\n".join(
        f"{block}\necho '=== block'" for block in asked
    )
    told = run(script, tmp_path)
    _, engines, quality, kernel, by_hand, _ = told.split("=== block\n")
    assert re.search(r"^engines \(pool chat\): promoted", engines, re.MULTILINE), engines
    assert "promote sglang: ttft: " in engines
    assert re.search(r"^kernel \(pool code\): rolled_back", kernel, re.MULTILINE), kernel
    assert re.search(r"roll back kernel: (errors|no endpoint)", kernel)
    phases = re.findall(r"^engines \(pool chat\): (\w+)", by_hand, re.MULTILINE)
    assert phases == ["running", "paused", "running", "running", "rolled_back"]
    check_pages(tmp_path)
    assert quality == ""


def run(script: str, folder: Path) -> str:
    binaries = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
    bash = shutil.which("bash")
    assert bash is not None
    process = subprocess.Popen(
        [bash, "-m", "-c", script],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=380)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, f"{out}\n{err[-3000:]}"
    return out


def check_pages(folder: Path) -> None:
    engines, quality = ((folder / f"{n}.html").read_text() for n in ("engines", "quality"))
    assert engines.count("<svg") >= 2
    assert "promote" in engines
    assert not re.search(r'(src|href)="', engines + quality)
    buckets = json.loads((folder / "quality.json").read_text())["shadow"]["buckets"]
    (tally,) = buckets.values()
    assert tally["copies"] + tally["dropped"] == 20
    assert tally["copies"] > 10
    assert "Copies to fp8" in quality


def test_the_snippets_of_the_page_are_the_examples():
    snippets = re.findall(r"```yaml\nexperiments:\n(.*?)```", PAGE, re.DOTALL)
    plain = {line.partition("#")[0].strip() for line in EXAMPLE.splitlines()}
    lines = [line.partition("#")[0].strip() for text in snippets for line in text.splitlines()]
    assert [line for line in lines if line not in plain] == []


def test_the_guardrails_of_the_page_are_the_ones_there_are():
    table = PAGE.split("## What stops a candidate", 1)[1].split("`guardrails:", 1)[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(GUARDRAILS)


def test_the_example_has_a_control_for_each_experiment():
    config = load.read(EXAMPLE)
    assert [each.name for each in config.experiments] == ["engines", "quality", "kernel"]
