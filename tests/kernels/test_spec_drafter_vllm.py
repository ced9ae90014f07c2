# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: ANN001, ANN002, ANN003, ANN202, ANN204, E402
# (skip before importing what needs torch, whose types are unknown where this is checked)
"""vLLM's drafter: rows followed without names, settings, answers kept for their owner."""

import itertools
import random
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")

from forebay.kernels.plugins import vllm_drafter
from forebay.kernels.speculative.collect import Collector
from forebay.kernels.speculative.corpus import read_texts
from forebay.kernels.speculative.drafter import History
from forebay.kernels.speculative.store import write_store


class Ids(list):
    """A row of token ids as vLLM has them: slices give bytes."""

    def __getitem__(self, at):
        return array("I", super().__getitem__(at))


def vllm_config(**additional):
    return SimpleNamespace(
        additional_config=additional or None,
        model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 1000),
        speculative_config=SimpleNamespace(num_speculative_tokens=4),
    )


def test_vllm_rows_are_followed_when_they_move_and_let_go_when_they_end():
    drafter = vllm_drafter.ForebayDrafter(vllm_config())
    a, b = [1, 2, 3, 4, 5, 1, 2], [1, 2, 3, 9, 8, 1, 2]

    def step(*rows):
        full = [Ids(tokens + [0] * (64 - len(tokens))) for tokens, _ in rows]
        return drafter.propose([new for _, new in rows], [len(t) for t, _ in rows], full)

    assert step((a, [2]), (b, [2])) == [[3, 4, 5, 1], [3, 9, 8, 1]]
    a, b = [*a, 3, 4], [*b, 3]
    assert step((b, [3]), (a, [3, 4])) == [[9, 8, 1], [5, 1]]
    kept = drafter._rows._of_row
    b = [*b, 9]
    assert step((b, [9])) == [[8, 1]]
    assert drafter._rows._of_row == [kept[0]]


def test_vllm_rows_without_new_tokens_draft_nothing_and_are_not_forgotten():
    drafter = vllm_drafter.ForebayDrafter(vllm_config())
    row = [1, 2, 3, 4, 1, 2]
    full = [Ids(row + [0] * 58)]
    drafter.propose([[2]], [6], full)
    first = drafter._rows._of_row[0]
    assert drafter.propose([[]], [6], full) == [[]]
    row.append(3)
    assert drafter.propose([[3]], [7], [Ids(row + [0] * 57)]) == [[4, 1]]
    assert drafter._rows._of_row[0] is first


def member(name):
    """A member of one of vLLM's enums."""
    return SimpleNamespace(name=name)


def graphs(mode, head_size, backend=None, kinds=None, **model):
    told = vllm_config()
    vars(told.model_config).update(get_head_size=lambda: head_size, **model)
    told.compilation_config = SimpleNamespace(cudagraph_mode=mode)
    told.attention_config = SimpleNamespace(backend=backend)
    if kinds is not None:  # later versions have it
        told.attention_config.backend_per_kind = kinds
    return told


def version_3(_head):
    """FlashAttention's, as vLLM tells it on Hopper."""
    return 3


@pytest.mark.parametrize("mode", [member("FULL"), "FULL"], ids=["member", "name"])
@pytest.mark.parametrize("head_size", [64, 256])
@pytest.mark.parametrize(
    ("backend", "kinds"),
    [
        (None, None),
        ("auto", {}),
        (member("FLASH_ATTN"), None),
        ("flash_attn", None),
        (member("TRITON_ATTN"), {"sliding_window": member("FLASH_ATTN")}),
    ],
    ids=["vLLM chooses", "auto", "member", "name", "some layers"],
)
def test_full_graphs_are_refused_where_flash_attention_3_is_wrong_in_them(
    mode, head_size, backend, kinds
):
    with pytest.raises(ValueError, match=f"heads {head_size} wide.*TRITON_ATTN"):
        vllm_drafter.ForebayDrafter(graphs(mode, head_size, backend, kinds), version_3)


@pytest.mark.parametrize(
    "told",
    [
        graphs(member("FULL"), 128),
        graphs(member("FULL"), 96, member("FLASH_ATTN")),
        graphs(member("FULL"), 64, member("TRITON_ATTN")),
        graphs(member("FULL"), 64, member("CUSTOM"), {"full": member("TRITON_ATTN")}),
        graphs(member("FULL_AND_PIECEWISE"), 64),
        graphs(member("FULL_DECODE_ONLY"), 64),
        graphs(None, 64),
        graphs(member("FULL"), 576, use_mla=True),
        graphs(member("FULL"), 256, is_hybrid=True),
    ],
    ids=[
        "heads of 128", "heads of 96", "another backend", "ours", "graphs of even rows and pieces",
        "graphs of even rows", "no graphs said", "MLA", "recurrent layers",
    ],
)  # fmt: skip
def test_other_graphs_heads_and_backends_are_taken(told):
    row = Ids([1, 2, 3, 4, 5, 1, 2])
    drafter = vllm_drafter.ForebayDrafter(told, version_3)
    assert drafter.propose([[2]], [7], [row]) == [[3, 4, 5, 1]]


@pytest.mark.parametrize("version", [None, 2, 4])
def test_other_versions_of_flash_attention_are_taken_and_asked_by_the_heads(version):
    """vLLM has 2 on older GPUs, 4 on later ones and for heads over 256, none elsewhere."""
    asked = []
    told = graphs(member("FULL"), 512)
    vllm_drafter.ForebayDrafter(told, lambda head: (asked.append(head), version)[1])
    assert asked == [512]


def test_without_vllm_or_a_hopper_gpu_nothing_is_supposed():
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    assert (vllm_drafter.flash_attention(64) == 3) == hopper


def test_vllm_is_never_given_more_drafts_than_its_context_holds():
    drafter = vllm_drafter.ForebayDrafter(vllm_config())
    row = ([1, 2, 3, 4] * 16)[:62]
    assert len(drafter.propose([[row[-1]]], [62], [Ids([*row, 0, 0])])[0]) == 1


def test_vllm_is_never_given_a_token_that_its_model_does_not_know(tmp_path: Path):
    write_store(tmp_path / "other.store", [(0, [1, 2, 3, 999, 1000, 4])], tokenizer="another")
    given = {"store": str(tmp_path / "other.store"), "worth": 0.0, "min_match": 1}
    drafter = vllm_drafter.ForebayDrafter(vllm_config(forebay=given))
    row = [7, 1, 2]
    assert drafter.propose([[2]], [3], [Ids([*row, *[0] * 61])]) == [[3, 999]]


def test_the_drafters_settings_come_from_vllms_own_and_unknown_ones_are_named():
    assert vllm_drafter.settings_of(vllm_config(forebay={"min_match": 3})) == {"min_match": 3}
    with pytest.raises(ValueError, match="no setting 'wurth'"):
        vllm_drafter.settings_of(vllm_config(forebay={"wurth": 1}))


def test_settings_that_mean_nothing_are_refused():
    for given, why in (
        ({"collect_share": 0}, "collect_share must be over 0 and up to 1, not 0"),
        ({"collect_share": 1.5}, "collect_share must be over 0 and up to 1, not 1.5"),
        ({"collect_mb": -1}, "collect_mb must be over 0, not -1"),
        ({"row_budget": "many"}, "row_budget must be a whole number, not 'many'"),
        ({"min_match": 2.5}, "min_match must be a whole number, not 2.5"),
        ({"worth": "half"}, "worth must be a number, not 'half'"),
        ({"collect_share": True}, "collect_share must be a number, not True"),
        ({"store": 7}, "store must be a path, not 7"),
    ):
        with pytest.raises(ValueError, match=why):
            vllm_drafter.settings_of(SimpleNamespace(additional_config={"forebay": given}))


def collected(path, histories, **settings):
    collector = Collector(path, run=lambda write: write(), clock=lambda: 86_400.0 * 9, **settings)
    for prompt, answer in histories:
        history = History(array("I", prompt))
        history.extend(answer)
        collector.add(history)
    return [(list(each.tokens), each.answer_from, each.day) for each in read_texts([path])]


def test_answers_are_kept_as_what_training_reads_and_for_their_owner_alone(tmp_path: Path):
    path = tmp_path / "kept.jsonl"
    histories = [([1, 2, 3], range(20)), ([4], range(5)), ([5], range(30))]
    kept = collected(path, histories, share=1.0)
    assert kept == [([1, 2, 3, *range(20)], 3, 9), ([5, *range(30)], 1, 9)]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_share_is_kept_and_no_more_than_there_is_room_for(tmp_path: Path):
    many = [([1], range(20))] * 1000
    some = collected(tmp_path / "a.jsonl", many, share=0.1, rng=random.Random(0))
    assert 70 < len(some) < 130
    full = collected(tmp_path / "b.jsonl", many, share=1.0, most_bytes=1000)
    assert 0 < (tmp_path / "b.jsonl").stat().st_size <= 1000
    assert 0 < len(full) < 20


def test_a_file_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path: Path, caplog):
    collector = Collector(tmp_path / "no" / "x", run=lambda write: write(), share=1.0)
    history = History(array("I", [1]))
    history.extend(range(20))
    for _ in range(3):
        collector.add(history)
    assert [record.getMessage() for record in caplog.records] == [
        f"answers are not kept: {tmp_path}/no/x: No such file or directory"
    ]


def test_rows_tell_of_the_histories_that_end():
    ended = []
    rows = vllm_drafter.Rows(ended.append)
    ids = array("I", [1, 2, 3, 4])
    rows.take([(ids, 3, [3]), (ids, 4, [4])])
    assert ended == []
    rows.take([])
    assert [list(history.tokens) for history in ended] == [[1, 2], [1, 2, 3]]


def test_random_batches_of_vllm_rows_match_histories_kept_by_name():
    rng = random.Random(5)
    rows, names = vllm_drafter.Rows(), itertools.count()
    live: dict[int, list[int]] = {}
    for _ in range(200):
        while len(live) < 5:
            live[next(names)] = [rng.randrange(3) for _ in range(rng.randint(2, 40))]
        order = list(live)
        rng.shuffle(order)
        batch = []
        for name in order:
            new = [rng.randrange(3) for _ in range(rng.randint(1, 3))]
            live[name] += new
            batch.append((Ids(live[name]), len(live[name]), new))
        for name, history, (_, _, new) in zip(order, rows.take(batch), batch, strict=True):
            assert history is not None
            assert [*history.tokens, *new] == live[name]
            history.extend(new)
        if rng.random() < 0.3:
            live.pop(rng.choice(order))
