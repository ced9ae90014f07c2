"""The page about policies runs as it is written."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.gateway.config import load
from forebay.gateway.scheduling import Shared, scheduling_of
from forebay.policies.registry import GROUP, KINDS
from forebay.scheduler.admission import TABLE, WatermarkSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[number]


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[None]:
    """The page's package, with the entry points of the page's pyproject.toml."""
    (tmp_path / "acme_policies.py").write_text(block("python", -2))
    points = tomllib.loads(block("toml"))["project"]["entry-points"][GROUP]
    info = tmp_path / "acme_policies-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-policies\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]) + "\n")
    sys.path.insert(0, str(tmp_path))
    yield
    sys.path.remove(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_the_example_of_a_policy_of_ones_own_runs():
    exec(compile(block("python", -1), "docs/policies.md", "exec"), {})


def test_the_settings_on_the_page_are_right():
    (pool,) = load.read("version: 1\n" + block("yaml")).pools

    assert (pool.order, pool.scheduling.guards.longest_wait) == ("ml", 120.0)
    assert scheduling_of(pool, Shared(classes=True)).watermarks == WatermarkSettings()


def test_the_usual_marks_are_those_of_the_page():
    told = re.findall(r"^\| (\d+) % \| (.*) \|$", PAGE, re.MULTILINE)

    assert [float(at) / 100 for at, _ in told] == [mark.at for mark in TABLE]
    limits = {mark.max_prompt for mark in TABLE}
    assert limits == {int(n.replace(",", "")) for n in re.findall(r"([\d,]+) tokens", str(told))}


def test_every_policy_is_on_the_page():
    written = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))

    assert written == {name for table in KINDS.values() for name in table}
