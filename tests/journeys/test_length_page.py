"""docs/length-prediction.md: the commands that share one predictor run, and say what it says."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.journeys.conftest import Page


@pytest.mark.timeout(120)  # two processes on a busy machine
def test_gateways_share_a_predictor_as_the_page_says(page: type[Page], tmp_path: Path):
    lengths = page("length-prediction.md", "shared-predictor.yaml", (8080, 8081, 8090))

    asked, metrics = lengths.run(tmp_path, lengths.commands, limit_s=100)

    (said,) = json.loads(asked)["predictions"]
    assert set(said) == {"tokens", "quantiles", "buckets", "rank"}
    assert said["tokens"] > 0
    counts = dict(re.findall(r'result="(\w+)"} (\d+)', metrics))
    assert int(counts["idle"]) == 1
    assert int(counts["predicted"]) + int(counts["cached"]) == 2
    assert int(counts["failed"]) == 0
