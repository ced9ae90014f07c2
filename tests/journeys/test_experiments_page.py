"""docs/experiments.md: its commands run, and say what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.gateway.config import load
from forebay.policies.experiments.plan import GUARDRAILS

if TYPE_CHECKING:
    from tests.journeys.conftest import Page

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "experiments.md").read_text()
EXAMPLE = (ROOT / "examples" / "experiments.yaml").read_text()


@pytest.mark.timeout(400)  # a dozen processes on a busy machine
def test_the_commands_of_the_page_answer_its_three_questions(page: type[Page], tmp_path: Path):
    experiments = page("experiments.md", "experiments.yaml", (8080, 8081))
    admin = f"--admin http://127.0.0.1:{experiments.ports[8081]}"
    asked = [
        re.sub(r"forebay ab (\S+ \S+)", rf"forebay ab \1 {admin}", each)
        for each in experiments.commands
    ]
    told = experiments.run(tmp_path, asked, limit_s=380)
    _, engines, quality, kernel, by_hand = told
    assert re.search(r"^engines \(pool chat\): promoted", engines, re.MULTILINE), engines
    assert "promote sglang: ttft: " in engines
    assert re.search(r"^kernel \(pool code\): rolled_back", kernel, re.MULTILINE), kernel
    assert re.search(r"roll back kernel: (errors|no endpoint)", kernel)
    phases = re.findall(r"^engines \(pool chat\): (\w+)", by_hand, re.MULTILINE)
    assert phases == ["running", "paused", "running", "running", "rolled_back"]
    check_pages(tmp_path)
    assert quality == ""


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
