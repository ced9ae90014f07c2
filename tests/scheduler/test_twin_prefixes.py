"""Prefix caches on a trace: what each placement hits, against caches one knows the answer of."""

from __future__ import annotations

import json
import random

import pytest

from forebay.gateway.cli import main
from forebay.scheduler.traces import TraceRequest
from forebay.scheduler.twin.prefixes import POLICIES, LruCache, replay, working_set


def sessions(number: int, turns: int) -> list[TraceRequest]:
    """Make sessions that share two blocks and grow by one a turn, in turn."""
    requests: list[TraceRequest] = []
    for turn in range(turns):
        for session in range(number):
            own = tuple(1000 * (session + 1) + n for n in range(turn + 1))
            blocks = (1, 2, *own)
            requests.append(
                TraceRequest(
                    arrival_s=float(len(requests)),
                    prompt_tokens=len(blocks) * 100,
                    output_tokens=1,
                    session=str(session),
                    hashes=blocks,
                    block_tokens=100,
                )
            )
    return requests


TRACE = sessions(12, 6)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_placement_hits_more_than_an_endless_cache(policy: str):
    run = replay(TRACE, policy, endpoints=4, blocks_per_endpoint=working_set(TRACE))
    assert 0 < run.hit_token_share <= run.infinite_shared_share


def test_following_the_prefix_hits_nearly_what_an_endless_cache_does_and_more_than_the_others():
    runs = {
        policy: replay(TRACE, policy, endpoints=4, blocks_per_endpoint=working_set(TRACE))
        for policy in POLICIES
    }
    sticky = runs["sticky_until_saturated"]
    assert sticky.hit_token_share > 0.9 * sticky.infinite_shared_share
    assert sticky.hit_token_share > runs["least_load"].hit_token_share
    assert sticky.hit_token_share > runs["round_robin"].hit_token_share


@pytest.mark.parametrize("share", [0.25, 1.0, 2.0, 4.0])
def test_two_gateways_that_share_what_they_learn_hit_as_much_as_one(share: float):
    hits = [0.0, 0.0]
    for number in (38, 40, 42):  # one trace alone differs by chance
        trace = sessions(number, 12)
        blocks = int(working_set(trace) * share / 4)
        for place, replicas in enumerate((1, 2)):
            run = replay(
                trace,
                "sticky_until_saturated",
                endpoints=4,
                blocks_per_endpoint=blocks,
                replicas=replicas,
            )
            hits[place] += run.hit_token_share / 3
    one, two = hits
    assert one > 0.2
    assert two > one - 0.02


def test_the_same_seed_gives_the_same_run():
    one, other = (
        replay(TRACE, "least_load", endpoints=4, blocks_per_endpoint=20, seed=3) for _ in range(2)
    )
    assert one == other


def test_prompts_shorter_than_their_block_are_no_ghosts():
    short = [
        TraceRequest(float(n), 40, 1, session=str(n), hashes=(7,), block_tokens=100)
        for n in range(200)
    ]
    run = replay(short + TRACE, "sticky_until_saturated", endpoints=2, blocks_per_endpoint=100)
    assert run.hit_token_share > 0.9 * run.infinite_shared_share


def test_large_prompts_are_shared_out():
    rng, trace = random.Random(1), list[TraceRequest]()
    for number in range(2400):
        blocks = 60 if rng.random() < 0.05 else rng.randrange(1, 4)
        hashes = tuple(1000 * number + block for block in range(blocks))
        trace.append(TraceRequest(number / 4, blocks * 100, 1, hashes=hashes, block_tokens=100))
    runs = [
        replay(trace, policy, endpoints=8, blocks_per_endpoint=working_set(trace))
        for policy in ("sticky_until_saturated", "least_load", "round_robin")
    ]
    loads = [run.load_p95_max_over_mean for run in runs]
    assert loads[0] < 1.4 < min(loads[1:])


def test_a_full_cache_gives_up_the_ends_of_old_prompts_first():
    cache = LruCache(3)
    assert [cache.use((1, 2, 3)), cache.use((1, 9)), cache.use((1, 2, 3))] == [0, 1, 2]


def test_the_command_prints_the_documented_json(
    tmp_path: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
):
    from pathlib import Path

    path = Path(str(tmp_path)) / "trace.jsonl"
    rows = [
        {"timestamp": n * 1000, "input_length": 1024, "output_length": 5, "hash_ids": [0, n % 3]}
        for n in range(30)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert main(["prefix", "replay", str(path), "--endpoints", "2", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["policy"] for run in runs] == list(POLICIES)
    assert set(runs[0]) == {
        *("trace", "policy", "endpoints", "blocks_per_endpoint", "hit_token_share"),
        *("infinite_shared_share", "one_cache_share", "load_p95_max_over_mean"),
    }


def test_files_that_are_no_traces_are_told_by_name(
    tmp_path: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
):
    from pathlib import Path

    wrong, packed = Path(str(tmp_path)) / "wrong.jsonl", Path(str(tmp_path)) / "packed.gz"
    wrong.write_text('{"prompt": "a"}\n')
    packed.write_text("not packed")
    assert [main(["prefix", "replay", str(path)]) for path in (wrong, packed)] == [1, 1]
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"forebay: {wrong}: line 1: no trace format has prompt (known are ")
    assert second.startswith(f"forebay: {packed}: Not a gzipped file")
