"""docs/length-prediction.md: the commands that share one predictor run, and say what it says."""

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

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "length-prediction.md").read_text()
EXAMPLE = (ROOT / "examples" / "shared-predictor.yaml").read_text()


def ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return found


@pytest.mark.timeout(120)  # two processes on a busy machine
def test_gateways_share_a_predictor_as_the_page_says(tmp_path: Path):
    moves: dict[str, str] = {}
    for written, port in zip((8080, 8081, 8090), ports(3), strict=True):
        moves[str(written)] = str(port)

    def moved(text: str) -> str:
        return re.sub("|".join(moves), lambda match: moves[match[0]], text)

    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "shared-predictor.yaml").write_text(moved(EXAMPLE))
    blocks = re.findall(r"<!-- run -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    # Whatever fails, both must go: they hold the pipes open.
    script = "set -e\ntrap 'kill %1 %2; wait %1 %2' EXIT\n" + "\necho '=== block'\n".join(
        map(moved, blocks)
    )

    asked, metrics = run(script, tmp_path).split("=== block\n")

    (said,) = json.loads(asked)["predictions"]
    assert set(said) == {"tokens", "quantiles", "buckets", "rank"}
    assert said["tokens"] > 0
    counts = dict(re.findall(r'result="(\w+)"} (\d+)', metrics))
    assert int(counts["idle"]) == 1
    assert int(counts["predicted"]) + int(counts["cached"]) == 2
    assert int(counts["failed"]) == 0


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
        out, err = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert "=== block" in out, f"{out}\n{err[-3000:]}"
    return out
