"""Many processes on one real server that is frozen in the middle: the benchmark's own judgement."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_quota.py"


def replicas(*options: str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "replicas", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_replicas_keep_to_the_limits_together_while_their_server_is_frozen():
    found = replicas("--replicas", "2", "--clients", "20", "--seconds", "3", "--freeze", "0.8")
    assert found["faults"] == []
    assert found["tenants"]["open"]["admitted_here"] > 0
    assert found["tenants"]["closed"]["refused"]["quota_unavailable"] > 0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_four_replicas_of_two_hundred_clients_keep_to_the_limits_for_a_minute():
    assert replicas("--seconds", "60", "--freeze", "20")["faults"] == []
