"""The embedded engine's tokenizer, chat template and prose: small, ours, the same on each machine.

The vocabulary has 32,000 ids and needs no memory, so any id has one meaning everywhere: 256 bytes,
each pair of printable ASCII, each triple of lower-case letters and spaces, a list of words, and the
marks of the chat template. Any text comes back whole from its ids. Its limits: words it does not
list cost about three letters a token, and characters beyond ASCII a token for each byte.
"""

from __future__ import annotations

import re
from functools import cache
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

VOCABULARY = 32_000

_ADJECTIVES = """quiet early broad steady narrow bright distant careful level gentle heavy patient
 open steep shallow modest sudden silver northern spare even slow late warm cool plain deep clear
 ready common"""
_NOUNS = """turbine basin river valley gate screen morning evening signal engine bridge meadow
 harbour channel station reservoir keeper operator village forest wheel current season letter
 window garden ladder market winter summer bell lantern stone mill road map"""
_VERBS = """holds levels follows carries meets turns opens closes watches fills crosses answers
 measures settles guides feeds lifts joins leaves reaches"""
_PLACES = "beside above below behind near beyond before after along across against toward"
_JOINS = "and but while until because whenever although so"
_COMMON = """the a of to in is it you that he was for on are with as i his they be at one have this
 from or had by not what all were we when your can said there use an each which she do how their if
 will up other about out many then them these some her would make like him into time has look two
 more write go see number no way could people my than first water been call who its now find long
 down day did get come made may part please hello world say something tell me explain word words
 sentence question answer model user system assistant weather city name value list item shared
 prefix kept same every request tool function result json text summary short story help thanks
 name type string object true false null good new small large high low next last old great
 where why which over also back only work life year years just know take here our most"""
_SPLIT = [words.split() for words in (_ADJECTIVES, _NOUNS, _VERBS, _PLACES, _JOINS)]
_WORDS = list(dict.fromkeys([word for words in _SPLIT for word in words] + _COMMON.split()))

_PAIRS = 256
_TRIPLES = _PAIRS + 95 * 95
_LISTED = _TRIPLES + 27**3
_MARKS = VOCABULARY - 32

_ROLES = ("system", "user", "assistant", "tool", "developer", "function")
_END = _MARKS
_ROLE_MARKS = {role: _MARKS + 1 + index for index, role in enumerate(_ROLES)}

_PIECES = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+")
_LOWER = {letter: index for index, letter in enumerate(" abcdefghijklmnopqrstuvwxyz")}
_known: dict[str, tuple[int, ...]] = {}
_KNOWN_MOST = 65_536
_LONGEST = 1 << 20
"""Characters of a prompt that are turned into tokens: more than any context holds. The engine runs
on the loop of whoever embeds it, and thirty million would hold that up for ten seconds."""


def _list_words() -> list[str]:
    listed: list[str] = []
    for word in _WORDS:
        capital = word[0].upper() + word[1:]
        listed += [f" {word}", word, f" {capital}", capital]
    return listed


_LISTED_TEXT = _list_words()
_LISTED_ID = {text: _LISTED + index for index, text in enumerate(_LISTED_TEXT)}


def encode(text: str) -> list[int]:
    """Turn text into token ids; what is past a million characters is left out."""
    ids: list[int] = []
    known = _known
    for piece in _PIECES.findall(text[:_LONGEST]):
        found = known.get(piece)
        if found is None:
            found = _learn(piece)
        ids += found
    return ids


def decode(ids: Iterable[int]) -> str:
    """Turn token ids into text; bytes that are no UTF-8 become replacement characters."""
    return b"".join(map(token_bytes, ids)).decode("utf-8", "replace")


@cache
def token_bytes(token: int) -> bytes:
    """Return what one token stands for; ids with no meaning stand for nothing."""
    if token < _PAIRS:
        return bytes((token,))
    if token < _TRIPLES:
        first, second = divmod(token - _PAIRS, 95)
        return bytes((first + 32, second + 32))
    if token < _LISTED:
        first, rest = divmod(token - _TRIPLES, 729)
        return "".join(
            " abcdefghijklmnopqrstuvwxyz"[i] for i in (first, *divmod(rest, 27))
        ).encode()
    if token < _LISTED + len(_LISTED_TEXT):
        return _LISTED_TEXT[token - _LISTED].encode()
    return _mark_text(token).encode()


def split(text: str) -> tuple[list[int], list[str]]:
    """Turn text into token ids and what each adds: a cut character comes with its last byte."""
    ids = encode(text)
    pieces: list[str] = []
    held = b""
    for token in ids:
        held += token_bytes(token)
        try:
            pieces.append(held.decode("utf-8"))
            held = b""
        except UnicodeDecodeError:
            pieces.append("")
    return ids, pieces


def render(turns: Iterable[tuple[str, str]]) -> list[int]:
    """Apply the chat template to (role, text) turns: mark, text, end, and the answer's mark.

    The marks are ids that no text encodes to, so a turn cannot pretend to be another.
    """
    ids: list[int] = []
    left = _LONGEST
    for role, text in turns:
        ids.append(_ROLE_MARKS.get(role, _ROLE_MARKS["user"]))
        ids += encode(text[:left])
        left = max(0, left - len(text))
        ids.append(_END)
    ids.append(_ROLE_MARKS["assistant"])
    return ids


class Prose(NamedTuple):
    """Tokens of an answer: ids, the text that each adds, and that text as JSON."""

    ids: list[int]
    pieces: list[str]
    quoted: list[bytes]


def prose(key: int, count: int) -> Prose:
    """Return `count` tokens of varied sentences, the same for the same `key`."""
    rings = _rings()
    ring, starts = rings[key % len(rings)]
    start = starts[(key // len(rings)) % len(starts)]
    end = start + count
    if end > len(ring.ids):
        laps = end // len(ring.ids) + 1
        ring = Prose(ring.ids * laps, ring.pieces * laps, ring.quoted * laps)
    found = Prose(ring.ids[start:end], ring.pieces[start:end], ring.quoted[start:end])
    if count:
        found.ids[0], found.pieces[0], found.quoted[0] = _LISTED_ID["The"], "The", b'"The"'
    return found


@cache
def _rings() -> list[tuple[Prose, list[int]]]:
    return [_ring(Random(f"prose {number}"), 2048) for number in range(8)]  # noqa: S311 - no secret


def _ring(rng: Random, least: int) -> tuple[Prose, list[int]]:
    """Make sentences of at least so many tokens, and say where each begins."""
    ids: list[int] = []
    pieces: list[str] = []
    starts: list[int] = []
    while len(ids) < least:
        starts.append(len(ids))
        for word in _sentence(rng):
            (token,) = encode(word)
            ids.append(token)
            pieces.append(word)
    return Prose(ids, pieces, [b'"%s"' % piece.encode() for piece in pieces]), starts


def _sentence(rng: Random) -> list[str]:
    words = ["The", *_clause(rng)]
    if rng.random() < 0.5:
        words += [",", rng.choice(_SPLIT[4]), "the", *_clause(rng)]
    return [" " + word if word != "," else word for word in words] + ["."]


def _clause(rng: Random) -> list[str]:
    adjective, noun, verb, place, _ = _SPLIT
    words = [rng.choice(adjective), rng.choice(noun), rng.choice(verb), "the"]
    if rng.random() < 0.4:
        words.append(rng.choice(adjective))
    words.append(rng.choice(noun))
    if rng.random() < 0.5:
        words += [rng.choice(place), "the", rng.choice(noun)]
    return words


def _learn(piece: str) -> tuple[int, ...]:
    """Encode one piece and remember it; the memory is emptied when it is full."""
    if len(piece) > 64:
        return tuple(_spell(piece))
    if len(_known) >= _KNOWN_MOST:
        _known.clear()
    found = _LISTED_ID.get(piece)
    ids = _known[piece] = (found,) if found is not None else tuple(_spell(piece))
    return ids


def _spell(piece: str) -> list[int]:
    ids: list[int] = []
    at = 0
    while at < len(piece):
        triple = [_LOWER.get(letter, -1) for letter in piece[at : at + 3]]
        if len(triple) == 3 and min(triple) >= 0:
            ids.append(_TRIPLES + 729 * triple[0] + 27 * triple[1] + triple[2])
            at += 3
            continue
        pair = [ord(letter) - 32 for letter in piece[at : at + 2]]
        if len(pair) == 2 and min(pair) >= 0 and max(pair) < 95:
            ids.append(_PAIRS + 95 * pair[0] + pair[1])
            at += 2
            continue
        ids += piece[at].encode("utf-8", "surrogatepass")
        at += 1
    return ids


def _mark_text(token: int) -> str:
    names = {_END: "<|end|>"}
    names |= {mark: f"<|{role}|>" for role, mark in _ROLE_MARKS.items()}
    return names.get(token, "")
