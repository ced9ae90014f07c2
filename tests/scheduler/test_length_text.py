"""A prompt's text as numbers."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.policies.contracts import Route
from forebay.scheduler.length import LengthFeatures
from forebay.scheduler.length.fields import ROW, row_of
from forebay.scheduler.length.slots import HEAD, SLOTS, TAIL, TAIL_AT, WIDTH, slots_of
from forebay.scheduler.length.stated import stated_tokens
from forebay.scheduler.length.text import COUNTED, counted, ends, hashed_grams
from forebay.scheduler.length.wordpiece import SPECIAL, UNKNOWN, WordPiece, prune, split


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("Write about spring in 2,000 words.", 2700.0),
        ("a 300-500 word essay", 540.0),
        ("at least 2k words", 2700.0),
        ("Explain in three short paragraphs", 285.0),
        ("Answer in one sentence, then in five sentences.", 120.0),
        ("写一篇500字的文章", 400.0),
        ("写一篇八百字的作文", 640.0),
        ("一万两千字", 9600.0),
        ("3到5段", 400.0),
        ("The top 10 movies", 0.0),
        ("1984 by George Orwell", 0.0),
        ("", 0.0),
    ],
)
def test_a_stated_length_is_read_in_tokens(prompt: str, tokens: float):
    assert stated_tokens(prompt) == pytest.approx(tokens)


def test_a_stated_length_has_an_end():
    assert stated_tokens("write 999999 pages") == 100_000.0


@pytest.mark.parametrize("prompt", ["", " ", "?", "\ud800", "ok", "字" * 9, "x" * 100_000])
def test_any_text_has_grams_and_counts(prompt: str):
    columns, values = hashed_grams(ends(prompt))

    assert len(columns) == len(values) > 0
    assert len(set(columns.tolist())) == len(columns)
    assert len(counted(prompt)) == COUNTED


def test_like_texts_share_most_of_their_grams():
    first, _ = hashed_grams("write a poem about the sea")
    second, _ = hashed_grams("write a poem about the sky")
    third, _ = hashed_grams("用中文回答")

    assert len(np.intersect1d(first, second)) > 3 * len(np.intersect1d(first, third)) + 30


def test_a_word_is_cut_into_the_longest_pieces_known():
    cut = WordPiece([*SPECIAL, "play", "##ing", "##in", "##g", "中", "!"])

    assert cut("Playing 中文 PLAY!", 20) == [4, 5, 8, UNKNOWN, 4, 9]
    assert cut("Plaything", 20) == [UNKNOWN]
    assert cut("Playing 中文 PLAY!", 2) == [4, 5]
    assert cut("Playing 中文 PLAY!", 2, last=True) == [4, 9]


def test_accents_and_case_are_folded():
    assert split("Café 東京_Über-1") == ["cafe", "東京", "_", "uber", "-", "1"]


def test_a_run_of_han_signs_is_cut_into_the_longest_words_known():
    cut = WordPiece([*SPECIAL, "的", "中国", "中", "历史"])

    assert cut("中国的历史中", 20) == [5, 4, 7, 6]
    assert cut("中国鱻的", 20) == [5, UNKNOWN, 4]
    assert cut("的" * 100, 300) == [4] * 100


def test_a_vocabulary_keeps_what_texts_need_and_single_letters():
    whole = [*SPECIAL, "a", "b", "##a", "##b", "able", "word", "never"]

    assert prune(whole, ["word word able able 字 字 。 。"], most=12) == [
        *SPECIAL,
        "##a",
        "##b",
        "a",
        "able",
        "b",
        "word",
        "。",
        "字",
    ]


def test_a_vocabulary_without_its_special_pieces_is_refused():
    with pytest.raises(ValueError, match=r"begins with \[PAD\], \[UNK\], \[CLS\], \[SEP\]"):
        WordPiece(["a", "b", "c", "d"])


def test_a_short_prompt_has_a_slot_for_each_token():
    cut = WordPiece([*SPECIAL, "a"])

    ids, positions = slots_of("a a", cut)

    assert ids[:, 0].tolist() == [2, 4, 4, 3]
    assert ids.shape == (4, WIDTH)
    assert not ids[:, 1:].any()
    assert positions.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("words", [1, SLOTS - 2, SLOTS - 1, 100, HEAD + TAIL, 129, 5000])
def test_a_long_prompt_takes_no_more_slots_than_there_are(words: int):
    cut = WordPiece([*SPECIAL, "a", "b"])

    ids, positions = slots_of("a " * (words - 1) + "b", cut)

    assert len(ids) == len(positions) <= SLOTS
    assert 5 in ids[-3:], "the last token is read"
    assert (positions >= TAIL_AT).any() == (words > SLOTS - 2)
    assert (ids > 0).sum() == min(words, HEAD + TAIL) + 2


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": 0.7},
        {"max_tokens": 100},
        {"tools": 2},
        {"schema": True},
        {"stop": True},
        {"turns": 3},
        {"hour": 7},
        {"template": "a1b2"},
    ],
    ids=lambda field: next(iter(field)),
)
def test_every_field_of_a_request_is_heard_beside_its_text(field: dict[str, object]):
    plain = LengthFeatures(Route.CHAT, "big", "acme", 10, text="hello")

    bare, told = row_of(plain, 0.5), row_of(plain._replace(**field), 0.5)

    assert len(bare) == len(told) == ROW
    assert told != bare
    assert bare == [0.5] + [0.0] * (ROW - 1)


def test_a_languages_signs_are_counted():
    english, chinese = counted("Tell me of rivers"), counted("请介绍一下河流")

    assert english[5] == 0.0
    assert chinese[5] == 1.0
