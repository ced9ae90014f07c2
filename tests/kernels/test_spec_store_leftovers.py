# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: ANN001, ANN202
# (skip before importing what needs torch, whose types are unknown where this is checked)
"""`forebay spec store` clears up after commands that were killed, and after nobody else."""

import fcntl
import json
import os
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="kernels need torch")

from forebay.kernels.speculative.command import main
from forebay.kernels.speculative.store import clear_leftovers, open_store, write_store

TODAY = int(time.time() // 86_400)
KILLED_WHILE_IT_WRITES = """
import os, signal, sys
from pathlib import Path
from forebay.kernels.speculative import store

class Order(list):
    def tofile(self, file):
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

sort = store.sort_contexts
store.sort_contexts = lambda text: (sort(text)[0], Order(sort(text)[1]))
store.write_store(Path(sys.argv[1]), [(1, list(range(20)))], tokenizer="")
"""


@pytest.fixture(scope="module")
def gone():
    """The number of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def killed(store):
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_IT_WRITES, str(store)], check=False, timeout=60
    )
    assert done.returncode == -9
    (left,) = [each for each in store.parent.iterdir() if each.name.endswith(".new")]
    return left


@pytest.mark.parametrize("verb", ["build", "add", "prune"])
def test_what_a_killed_command_left_is_removed_and_told_in_a_line(tmp_path, capsys, verb):
    store, data = tmp_path / "a.store", tmp_path / "t.jsonl"
    write_store(store, [(TODAY, list(range(20)))], tokenizer="")
    data.write_text(json.dumps({"tokens": list(range(30)), "day": TODAY}) + "\n")
    left = killed(store)
    more = [] if verb == "prune" else ["--data", str(data)]
    assert main(["store", verb, str(store), *more, "--json"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"removed what a killed command had left: {left.name}"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.store", "t.jsonl"]
    assert open_store(store)[0].answers >= 1


def test_what_a_process_may_still_write_stays(tmp_path, gone):
    store = tmp_path / "a.store"
    running = tmp_path / f"a.store.{os.getppid()}.new"
    others = [tmp_path / f"b.store.{gone}.new", tmp_path / f"a.store.{gone}.new.txt"]
    held = tmp_path / f"a.store.{gone}.new"
    for each in (running, held, *others):
        each.touch()
    with held.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert clear_leftovers(store) == []
    assert clear_leftovers(store) == [held]
    assert sorted(tmp_path.iterdir()) == sorted([running, *others])


def test_where_there_is_no_folder_nothing_is_left(tmp_path):
    assert clear_leftovers(tmp_path / "none" / "a.store") == []


def test_while_it_is_written_a_file_is_locked(tmp_path):
    store = tmp_path / "a.store"
    seen = []

    def answers():
        yield TODAY, list(range(20))

    class Path(type(store)):
        def replace(self, target):
            with self.open("rb") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen.append(self.name)
            return super().replace(target)

    write_store(Path(store), answers(), tokenizer="")
    assert seen == [f"a.store.{os.getpid()}.new"]
    assert [each.name for each in tmp_path.iterdir()] == ["a.store"]
