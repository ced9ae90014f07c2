"""The length that a prompt states: "in 2,000 words", "500字", "three paragraphs".

A stated number is turned into tokens by what a unit takes on average in the usual vocabularies. Of
several the longest counts; of a range, its middle. Limits ("under 100 words") read as the number
that they name, since answers come close to it.
"""

from __future__ import annotations

import re

_UNITS = {
    "word": 1.35,
    "token": 1.0,
    "character": 0.25,
    "letter": 0.25,
    "line": 12.0,
    "sentence": 24.0,
    "paragraph": 95.0,
    "page": 600.0,
}
_HAN_UNITS = {"字": 0.8, "词": 1.2, "行": 14.0, "句": 25.0, "段": 100.0, "页": 600.0}
_SMALL = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_WORDS = {
    **{word: number for number, word in enumerate(_SMALL, 1)},
    "twelve": 12,
    "fifteen": 15,
    "twenty": 20,
}
_DIGITS = dict(zip("零一二三四五六七八九", range(10), strict=True)) | {"两": 2, "\u3007": 0}
_SCALES = {"十": 10, "百": 100, "千": 1000}
_MOST_TOKENS = 100_000.0

_NUMBER = r"\d{1,3}(?:,\d{3})+|\d{1,6}"
_ENGLISH = re.compile(
    # What no number begins with is passed over without trying them all.
    rf"\b(?=[\dotfsen])({_NUMBER}|{'|'.join(_WORDS)})(k)?"
    rf"(?:\s?(?:-|\u2013|to|or)\s?({_NUMBER}|{'|'.join(_WORDS)})(k)?)?"
    r"[\s-]{1,2}(?:\w{3,12}[\s-])?"
    rf"({'|'.join(_UNITS)})s?\b"
)
_HAN_NUMBER = r"\d{1,6}|[零〇一二两三四五六七八九十百千万]{1,9}"
_HAN_UNIT = re.compile(f"[{''.join(_HAN_UNITS)}]")
_HAN = re.compile(
    rf"({_HAN_NUMBER})(?:\s?[-~到至]\s?({_HAN_NUMBER}))?\s?(?:个)?([{''.join(_HAN_UNITS)}])"
    r"(?![a-z0-9])"
)


def stated_tokens(text: str) -> float:
    """Return the tokens that a prompt asks for in so many words; 0 when it states none."""
    lower = text.lower()
    found: list[float] = []
    if any(
        unit in lower for unit in _UNITS
    ):  # ten times as fast as the pattern, which is seldom met
        found = [_english(match) for match in _ENGLISH.finditer(lower)]
    if not text.isascii() and _HAN_UNIT.search(text):
        found += [_han(match) for match in _HAN.finditer(text)]
    return min(_MOST_TOKENS, max(found, default=0.0))


def _english(match: re.Match[str]) -> float:
    low, low_k, high, high_k, unit = match.groups()
    first = _number(low) * (1000 if low_k else 1)
    last = _number(high) * (1000 if high_k else 1) if high else first
    return (first + last) / 2 * _UNITS[unit]


def _number(text: str) -> float:
    known = _WORDS.get(text)
    return float(text.replace(",", "")) if known is None else float(known)


def _han(match: re.Match[str]) -> float:
    low, high, unit = match.groups()
    first = _han_number(low)
    return (first + (_han_number(high) if high else first)) / 2 * _HAN_UNITS[unit]


def _han_number(text: str) -> float:
    if text.isdecimal():
        return float(text)
    high, _, low = text.rpartition("万")
    return (_under_10k(high) or 1) * 1e4 + _under_10k(low) if "万" in text else _under_10k(low)


def _under_10k(text: str) -> float:
    total, digit = 0.0, 0
    for sign in text:
        if sign in _SCALES:
            total += (digit or 1) * _SCALES[sign]
            digit = 0
        else:
            digit = _DIGITS[sign]
    return total + digit
