"""What a configuration names to be written is looked at before anything starts."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from forebay.gateway.config import load
from forebay.gateway.config.errors import path_of
from forebay.gateway.process import Process
from forebay.gateway.writable import find_unwritable

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """\
version: 1
server: {{port: 0}}
pools:
  - name: p
    models: [m]
    endpoints: [{{name: a, engine: sim}}, {{name: b, engine: sim}}]
    {pool}
experiments: [{{name: e, pool: p, arms: {{one: [a], two: [b]}}}}]
{rest}
"""
OUTCOMES = "scheduling: {{predictor: linear, prediction: {{outcomes: {}}}}}"
JOURNAL = "scheduling: {{journal: {}}}"
LEDGER = "state: {{ledger: {}}}"
EXPERIMENTS = "state: {{experiments: {}}}"
KEYS = {
    OUTCOMES: "pools[0].scheduling.prediction.outcomes",
    JOURNAL: "pools[0].scheduling.journal",
    LEDGER: "state.ledger",
    EXPERIMENTS: "state.experiments",
}
each_key = pytest.mark.parametrize("member", KEYS, ids=KEYS.values())


def written(member: str, path: object) -> str:
    said = member.format(path)
    return TEXT.format(**{"pool": "", "rest": "", "rest" if "state" in said else "pool": said})


def found(member: str, path: object, file: Path) -> list[tuple[str, str]]:
    config = load.read(written(member, path), {})
    return [(path_of(place), why) for place, why in find_unwritable(config, file)]


@each_key
def test_serve_names_the_setting_its_line_the_path_and_what_to_do_and_starts_nothing(
    member: str, tmp_path: Path
):
    taken, file = tmp_path / "file", tmp_path / "forebay.yaml"
    taken.touch()
    file.write_text(written(member, taken / "x"))
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "serve", "-c", str(file)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=20,
        check=False,
    )
    why = f"there is no folder '{taken}' for it; make it, or name another file"
    if member == EXPERIMENTS:
        why = f"'{taken}' is no folder; name a folder"
    line = 9 if "state" in member else 7
    assert (done.returncode, done.stderr) == (1, f"{file}:{line}: {KEYS[member]}: {why}\n")


@each_key
def test_what_can_be_made_is_not_missed_and_not_made(member: str, tmp_path: Path):
    assert found(member, tmp_path / "x", tmp_path / "forebay.yaml") == []
    assert list(tmp_path.iterdir()) == []


@each_key
def test_a_folder_that_takes_no_files_is_told(member: str, tmp_path: Path):
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o500)
    if os.access(shut, os.W_OK):
        pytest.skip("this user may write to every folder")
    kind = "folder" if member == EXPERIMENTS else "file"
    why = f"'{shut}' cannot be written by this user; allow it, or name another {kind}"
    assert found(member, shut / "x", tmp_path / "forebay.yaml") == [(KEYS[member], why)]


@pytest.mark.parametrize("member", [OUTCOMES, JOURNAL, LEDGER])
def test_a_file_that_may_not_be_written_is_told(member: str, tmp_path: Path):
    shut = tmp_path / "shut"
    shut.touch(mode=0o400)
    if os.access(shut, os.W_OK):
        pytest.skip("this user may write to every file")
    why = f"'{shut}' cannot be written by this user; allow it, or name another file"
    assert found(member, shut, tmp_path / "forebay.yaml") == [(KEYS[member], why)]


@pytest.mark.parametrize(
    "text",
    [
        written(LEDGER, "/nowhere/x, experiments: /nowhere/x, url: 'redis://r'"),
        written(OUTCOMES.replace("linear", "mean"), "/nowhere/x"),
        re.sub(r"\nexperiments: .*", "", written(EXPERIMENTS, "/nowhere/x")),
    ],
    ids=["kept at a url", "not read", "no experiments"],
)
def test_what_will_not_be_written_is_not_looked_at(text: str, tmp_path: Path):
    assert find_unwritable(load.read(text, {}), tmp_path / "forebay.yaml") == []


def test_a_ledger_that_is_no_database_is_told_before_an_engine_is_asked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    ledger = tmp_path / "usage.db"
    ledger.write_text("this is no database, but long enough for one's header " * 10)
    process = Process(load.read(written(LEDGER, ledger), {}))

    async def scenario() -> tuple[int, int]:
        code = await process.run()
        return code, len(asyncio.all_tasks())

    assert asyncio.run(scenario()) == (1, 1)
    assert (
        f'"reason":"state.ledger: \'{ledger}\' cannot be written: file is not a database; '
        'name another file"' in capfd.readouterr().err
    )
