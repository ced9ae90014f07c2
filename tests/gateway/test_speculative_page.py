"""The page about speculation: its configuration is right, and its commands are known."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from forebay.gateway.config import load
from forebay.gateway.speculation import speculation_of

PAGE = (Path(__file__).parents[2] / "docs" / "speculative.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_its_configuration_is_right_and_speculates(tmp_path: Path):
    (text,) = blocks("yaml")
    path = tmp_path / "forebay.yaml"
    path.write_text(text)
    (pool,) = load.read(path, {}).pools
    assert speculation_of(pool) is not None
    assert (pool.endpoints[0].speculative, pool.speculation.max_batch) == ("eagle3", 64)


COMMANDS = [
    line for text in blocks("sh") for line in text.splitlines() if line.startswith("forebay spec")
]


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: " ".join(line.split()[2:4]))
def test_its_commands_are_known(line: str):
    parser = import_module("forebay.kernels.speculative.command").make_parser()
    assert parser.parse_args(shlex.split(line, comments=True)[2:]).run


def test_it_shows_several():
    assert len(COMMANDS) >= 5
