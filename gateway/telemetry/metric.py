"""What a metric is. `catalog` has those that are counted, `readings` those that are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
