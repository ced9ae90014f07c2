"""What other replicas counted, as one replica keeps it."""

from __future__ import annotations

from forebay.gateway.experiments.mirror import SHADOW, Mirror
from forebay.policies.experiments.answers import ShadowTally
from forebay.policies.experiments.tallies import Cell, Observation, Tallies


def rows(requests: int) -> list[tuple[str, str, int, object]]:
    tallies = Tallies()
    for _ in range(requests):
        tallies.add(Observation("a", Cell()))
    return tallies.as_rows()  # type: ignore[return-value] - rows


def requests(mirror: Mirror, stage: str) -> int:
    return Tallies.from_rows(mirror.stages[stage]).requests("a")


def test_counts_of_a_stage_add_up_over_replicas_and_change_with_their_stamp():
    mirror, stamps = Mirror(), {("0.0", "r"): b"1", ("0.0", "s"): b"1", ("0.1", "r"): b"2"}
    assert mirror.outdated(stamps) == list(stamps)
    mirror.update(stamps, {("0.0", "r"): rows(1), ("0.0", "s"): rows(2), ("0.1", "r"): rows(4)})  # type: ignore[dict-item] - rows
    assert (requests(mirror, "0.0"), requests(mirror, "0.1")) == (3, 4)
    assert mirror.outdated(stamps) == []

    before, newer = mirror.stages["0.1"], {**stamps, ("0.0", "s"): b"3"}
    assert mirror.outdated(newer) == [("0.0", "s")]
    mirror.update(newer, {("0.0", "s"): rows(9)})  # type: ignore[dict-item] - rows
    assert requests(mirror, "0.0") == 10
    assert mirror.stages["0.1"] is before


def test_a_part_that_could_not_be_read_is_asked_for_again():
    mirror, stamps = Mirror(), {("0.0", "r"): b"1"}
    mirror.update(stamps, {})
    assert mirror.outdated(stamps) == [("0.0", "r")]


def test_what_is_gone_counts_no_more():
    mirror, stamps = Mirror(), {("0.0", "r"): b"1", (SHADOW, "r"): b"2", (SHADOW, "s"): b"1"}
    copies = {"to-512": ShadowTally(copies=2)}
    mirror.update(stamps, {("0.0", "r"): rows(1), (SHADOW, "r"): copies, (SHADOW, "s"): copies})  # type: ignore[dict-item] - rows
    assert mirror.shadow == {"to-512": ShadowTally(copies=4)}
    mirror.update({(SHADOW, "s"): b"1"}, {})
    assert (mirror.stages, mirror.shadow) == ({"0.0": []}, copies)
