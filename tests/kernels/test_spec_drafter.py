# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
# ruff: noqa: ANN001, ANN002, ANN003, ANN202, ANN204, E402
# (skip before importing what needs torch, whose types are unknown where this is checked)
"""The drafter core: automaton, contexts, store, drafter, and vLLM's rows."""

import itertools
import random
import threading
from array import array
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")

from forebay.kernels.plugins import vllm_drafter
from forebay.kernels.speculative.automaton import SuffixAutomaton
from forebay.kernels.speculative.collect import Collector
from forebay.kernels.speculative.contexts import DEPTH, SEPARATOR, Contexts, pack
from forebay.kernels.speculative.corpus import read_texts
from forebay.kernels.speculative.draft_length import DraftLength
from forebay.kernels.speculative.drafter import Drafter, History
from forebay.kernels.speculative.store import StoreReader, answers_of, open_store, write_store


def longest_before(tokens):
    """Length of the longest end of tokens that ended earlier too, naively."""
    n = len(tokens)
    for length in range(n - 1, 0, -1):
        wanted = tokens[n - length :]
        if any(tokens[end - length : end] == wanted for end in range(length, n)):
            return length
    return 0


def longest_in(text, history):
    """Longest end of history before some token of text, up to DEPTH, naively."""
    best = 0
    for place in range(1, len(text)):
        length = 0
        while (
            length < min(DEPTH, place, len(history))
            and text[place - 1 - length] == history[len(history) - 1 - length]
        ):
            length += 1
        best = max(best, length)
    return best


def settled(sort):
    """Run at once, as an executor that is never behind would."""
    done = Future()
    done.set_result(sort())
    return done


def test_fences_lead_to_the_same_place_as_a_search_over_everything():
    rng = random.Random(8)
    text = array("I", [rng.randrange(6) for _ in range(3000)])
    contexts = Contexts.of(text)
    for _ in range(300):
        length = rng.randint(1, 20)
        history = array("I", [rng.randrange(6) for _ in range(length)])
        rank, match = contexts.find(pack(history[-DEPTH:]))
        assert match == longest_in(text, history)
        place = len(text) - contexts._order[rank]
        assert text[place - match : place] == history[len(history) - match :]


def test_no_step_waits_for_a_long_prompt_to_be_sorted():
    prompt = array("I", [1007, 1008, 1009, 1010, 1011] + [t % 500 for t in range(5000)])
    asked = []

    def later(sort):
        asked.append((sort, Future()))
        return asked[-1][1]

    history, drafter = History(prompt), Drafter(most=3, background=later)
    for token in (1007, 1008, 1009):
        history.extend([token])
        assert drafter.propose(history) == []
    (sort, future), *others = asked
    assert others == []
    future.set_result(sort())
    assert drafter.propose(history) == [1010, 1011, 0]


def test_a_short_prompt_is_sorted_on_the_way_and_a_done_one_serves_at_once():
    def never(_):
        raise AssertionError("a short prompt goes nowhere else")

    short = History(array("I", [1, 2, 3, 4]))
    short.extend([1, 2])
    assert Drafter(most=2, background=never).propose(short) == [3, 4]
    long = History(array("I", range(3000)))
    long.extend([5, 6])
    assert Drafter(most=2, background=settled).propose(long) == [7, 8]


def test_the_automaton_knows_the_longest_end_that_stood_before():
    rng = random.Random(0)
    for _ in range(300):
        kinds, tokens, automaton = rng.choice([1, 2, 3, 8]), [], SuffixAutomaton()
        for _ in range(rng.randint(1, 40)):
            token = rng.randrange(kinds)
            automaton.add(token)
            tokens.append(token)
            match, after = automaton.match, automaton.after
            assert match == longest_before(tokens)
            assert tokens[after - match : after] == tokens[len(tokens) - match :]
            assert not match or after < len(tokens)


def test_a_loop_is_copied_over_its_own_end():
    automaton = SuffixAutomaton()
    for token in [7, 1, 2, 1, 2]:
        automaton.add(token)
    assert automaton.following(5) == [1, 2, 1, 2, 1]


def test_contexts_find_the_longest_match_and_what_followed_it():
    rng = random.Random(1)
    for _ in range(400):
        kinds = rng.choice([1, 2, 3, 8])
        text = [rng.randrange(kinds) for _ in range(rng.randint(0, 60))]
        history = [rng.randrange(kinds) for _ in range(rng.randint(1, 30))]
        if text and rng.random() < 0.5:
            history = text[: rng.randint(1, len(text))]
        guess = Contexts.of(array("I", text)).guess(pack(array("I", history[-DEPTH:])), 5)
        assert guess.match == longest_in(text, history)
        if guess.match:
            seen = history[len(history) - guess.match :] + guess.tokens[:1]
            assert any(text[at : at + len(seen)] == seen for at in range(len(text)))


def test_the_more_frequent_continuation_is_guessed_and_nothing_past_a_separator():
    text = array("I", [5, 6, 1, SEPARATOR, 5, 6, 2, SEPARATOR, 5, 6, 1, 9, SEPARATOR])
    guess = Contexts.of(text).guess(pack(array("I", [5, 6])), 4)
    assert (guess.tokens[0], guess.match) == (1, 2)
    assert guess.shares[0] == pytest.approx(2 / 3)
    assert SEPARATOR not in guess.tokens


def test_large_token_ids_keep_their_order():
    text = array("I", [4_000_000_000, 1, 70_000, 2, 255, 256, 3])
    contexts = Contexts.of(text)
    for at, token in enumerate(text[:-1]):
        assert contexts.guess(pack(array("I", [token])), 1).tokens == [text[at + 1]]


def test_the_longest_match_wins_and_the_nearer_source_on_a_tie():
    kept = Contexts.of(array("I", [1, 2, 3, 4, 40]))
    drafter = Drafter(most=1, min_match=1, worth=0.0, store=lambda: kept)
    history = History(array("I", [3, 4, 50]))
    history.extend([2, 3, 4])
    assert drafter.propose(history) == [40]
    history = History(array("I", [2, 3, 4, 50]))
    history.extend([2, 3, 4])
    assert drafter.propose(history) == [50]


def test_a_draft_respects_room_and_the_rows_that_a_batch_may_take():
    drafter = Drafter(most=8, row_budget=16, worth=0.0)
    history = History(array("I", list(range(40))))
    history.extend([5, 6, 7])
    assert [
        len(drafter.propose(history, rows=rows, room=room))
        for rows, room in ((1, None), (1, 3), (4, None), (17, None), (1, 0))
    ] == [8, 3, 4, 0, 0]


def test_drafts_shorten_where_they_fail_and_one_is_tried_now_and_then():
    length = DraftLength(1)
    before = length.cut(0, 3, [1.0] * 8)
    for _ in range(200):
        length.learn(0, 3, drafted=8, accepted=0)
    tried = [length.cut(0, 3, [1.0] * 8) for _ in range(32)]
    assert before >= 2
    assert (max(tried), sum(tried)) == (1, 2)
    for _ in range(200):
        length.learn(0, 3, drafted=8, accepted=8)
    assert length.cut(0, 3, [1.0] * 8) == 8


def test_a_long_answer_goes_on_being_matched_when_its_automaton_is_renewed():
    rng = random.Random(2)
    text = [rng.randrange(1000) for _ in range(9000)]
    history = History(array("I", [1]))
    history.extend(text)
    history.extend(text[4000:4010])
    assert history.answer_guess(5).tokens == text[4010:4015]


def test_a_store_gives_back_what_went_in_at_8_bytes_a_token(tmp_path: Path):
    answers = [(day, [day, 7, 8, 9] * 50) for day in range(20)]
    path = tmp_path / "answers.store"
    head = write_store(path, answers, tokenizer="t")
    told, contexts, text = open_store(path)
    assert told == head
    assert list(answers_of(told, text)) == answers
    assert path.stat().st_size <= 8 * head.tokens + 300
    assert contexts.guess(pack(array("I", [3, 7, 8])), 2).tokens == [9, 3]


@pytest.mark.parametrize("size", [0, 5, 40, 900])
def test_a_store_that_is_cut_short_is_refused_by_name(tmp_path: Path, size: int):
    path = tmp_path / "answers.store"
    write_store(path, [(1, list(range(100)))], tokenizer="t")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"answers\.store"):
        open_store(path)


def test_a_reader_takes_up_a_new_store_and_keeps_the_old_one_when_the_new_is_damaged(
    tmp_path: Path,
):
    path, now = tmp_path / "answers.store", [0.0]
    write_store(path, [(1, [1, 2, 3])], tokenizer="t")
    reader = StoreReader(path, clock=lambda: now[0])
    recent = pack(array("I", [1, 2]))
    seen = [reader.contexts().guess(recent, 1).tokens]
    write_store(path, [(1, [1, 2, 9])], tokenizer="t")
    seen.append(reader.contexts().guess(recent, 1).tokens)
    now[0] = 3.0
    seen.append(reader.contexts().guess(recent, 1).tokens)
    path.unlink()
    now[0] = 6.0
    seen.append(reader.contexts().guess(recent, 1).tokens)
    path.write_bytes(b"no store")
    now[0] = 9.0
    seen.append(reader.contexts().guess(recent, 1).tokens)
    assert seen == [[3], [3], [9], [9], [9]]


def test_a_new_store_is_opened_beside_the_steps_and_taken_up_when_it_is(tmp_path: Path):
    path, now, asked = tmp_path / "a.store", [0.0], []

    def later(opening):
        asked.append((opening, Future()))
        return asked[-1][1]

    write_store(path, [(0, [1, 2, 3])], tokenizer="")
    reader = StoreReader(path, clock=lambda: now[0], background=later)
    old = reader.contexts()
    write_store(path, [(0, [4, 5, 6])], tokenizer="")
    now[0] = 3.0
    assert reader.contexts() is reader.contexts() is old
    ((opening, future),) = asked
    future.set_result(opening())
    assert reader.contexts().guess(pack(array("I", [4])), 2).tokens == [5, 6]
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"fbstore1")
    damaged.replace(path)
    now[0] = 6.0
    reader.contexts()
    asked[1][1].set_exception(ValueError("damaged"))
    assert reader.contexts().guess(pack(array("I", [4])), 2).tokens == [5, 6]


def test_threads_may_draft_for_different_histories_at_once():
    rng = random.Random(3)
    text = array("I", [rng.randrange(50) for _ in range(5000)])
    kept = Contexts.of(text)
    drafter = Drafter(most=6, store=lambda: kept)
    failures: list[BaseException] = []

    def work(seed):
        try:
            own = random.Random(seed)
            history = History(array("I", text[:100]))
            for _ in range(300):
                draft = drafter.propose(history)
                new = [*draft[:2], own.randrange(50)]
                drafter.settle(history, new)
                history.extend(new)
        except BaseException as error:  # noqa: BLE001 - told below, whatever it is
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(drafter.counts.drafts) > 0


class Ids(list):
    """A row of token ids as vLLM has them: slices give bytes."""

    def __getitem__(self, at):
        return array("I", super().__getitem__(at))


def vllm_config(**additional):
    return SimpleNamespace(
        additional_config=additional or None,
        model_config=SimpleNamespace(max_model_len=64),
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


def test_vllm_is_never_given_more_drafts_than_its_context_holds():
    drafter = vllm_drafter.ForebayDrafter(vllm_config())
    row = ([1, 2, 3, 4] * 16)[:62]
    assert len(drafter.propose([[row[-1]]], [62], [Ids([*row, 0, 0])])[0]) == 1


def test_the_drafters_settings_come_from_vllms_own_and_unknown_ones_are_named():
    assert vllm_drafter.settings_of(vllm_config(forebay={"min_match": 3})) == {"min_match": 3}
    with pytest.raises(ValueError, match="no setting 'wurth'"):
        vllm_drafter.settings_of(vllm_config(forebay={"wurth": 1}))


def test_settings_that_mean_nothing_are_refused():
    for given, why in (
        ({"collect_share": 0}, "collect_share must be over 0 and up to 1, not 0"),
        ({"collect_share": 1.5}, "collect_share must be over 0 and up to 1, not 1.5"),
        ({"collect_mb": -1}, "collect_mb must be over 0, not -1"),
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
