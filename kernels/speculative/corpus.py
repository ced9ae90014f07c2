# pyright: basic, reportMissingImports=false
# (torch is not installed where types are checked)
"""Files of tokenised text: what heads are trained on and stores are built from.

JSON lines, each `{"tokens": [...], "answer_from": 12, "day": 20786, "tenant": "acme"}`; only
`tokens` is needed. answer_from: how many of them are the prompt; day: days since 1970, or a date as
2026-11-29. Or raw little-endian 32-bit tokens (a name that ends in .tokens), texts parted by
0xFFFFFFFF.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from .contexts import SEPARATOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import torch

__all__ = ["Corpus", "Text", "day_of", "read_texts"]


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt with its answer."""

    tokens: array[int]
    answer_from: int = 0
    day: int = 0
    tenant: str = ""


def read_texts(paths: Iterable[Path]) -> Iterator[Text]:
    """Read files of either kind; raises ValueError with file and line for what cannot be read."""
    for path in paths:
        yield from _raw(path) if path.suffix == ".tokens" else _lines(path)


def _raw(path: Path) -> Iterator[Text]:
    raw = path.read_bytes()
    if len(raw) % 4:
        raise ValueError(f"{path} holds {len(raw)} bytes, which is no whole number of tokens")
    tokens, start = array("I", raw), 0
    while start < len(tokens):
        try:
            end = tokens.index(SEPARATOR, start)
        except ValueError:
            end = len(tokens)
        if end > start:
            yield Text(tokens[start:end])
        start = end + 1


def _lines(path: Path) -> Iterator[Text]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _text(line, f"{path}:{number}")


def _text(line: str, where: str) -> Text:
    try:
        told: dict[str, Any] = json.loads(line)
        tokens = array("I", told["tokens"])
        day, start = day_of(told.get("day", 0)), int(told.get("answer_from", 0))
        _check(tokens, start)
        return Text(tokens, start, day, str(told.get("tenant", "")))
    except json.JSONDecodeError:
        raise ValueError(f"{where}: is no JSON; `forebay spec tokens` makes such lines") from None
    except KeyError:
        raise ValueError(
            f"{where}: no 'tokens'; `forebay spec tokens` makes them from text"
        ) from None
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise ValueError(f"{where}: {error}") from None


def _check(tokens: array[int], start: int) -> None:
    if not 0 <= start <= len(tokens):
        raise ValueError(f"'answer_from' must be 0 to {len(tokens)}, the tokens, not {start}")
    if SEPARATOR in tokens:
        raise ValueError(f"{SEPARATOR} is no token, it parts texts in files of raw tokens")


def day_of(told: object) -> int:
    """Return a day as days since 1970, of a number or of a date as 2026-11-29.

    Raises ValueError.
    """
    try:
        if isinstance(told, str):
            return date.fromisoformat(told).toordinal() - date(1970, 1, 1).toordinal()
        if isinstance(told, int) and told >= 0:
            return told
    except ValueError:
        pass
    raise ValueError(f"'day' must be days since 1970 or a date as 2026-11-29, not {told!r:.40}")


class Corpus:
    """Texts end to end, cut into windows for training; prompts are read but not learnt from."""

    def __init__(self, texts: Iterable[Text], *, end: int | None = None) -> None:
        tokens, learnt = array("I"), bytearray()
        for text in texts:
            tokens.extend(text.tokens)
            learnt += bytes(text.answer_from) + b"\x01" * (len(text.tokens) - text.answer_from)
            if end is not None:
                tokens.append(end)
                learnt.append(1)
        if not tokens:
            raise ValueError("the data holds no tokens")
        import torch  # noqa: PLC0415 - reading texts needs none

        self.tokens = torch.frombuffer(tokens, dtype=torch.int32).clone()
        self.learnt = torch.frombuffer(learnt, dtype=torch.uint8).bool().clone()

    def __len__(self) -> int:
        return len(self.tokens)

    def counts(self, vocab: int) -> torch.Tensor:
        """How often each token is part of an answer, `[vocab]`."""
        import torch  # noqa: PLC0415 - likewise

        return torch.bincount(self.tokens[self.learnt].long(), minlength=vocab)

    def windows(
        self, rows: int, length: int, rng: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Random windows: tokens int64 and which are learnt from, both `[rows, length]`."""
        import torch  # noqa: PLC0415 - likewise

        if len(self.tokens) <= length:
            raise ValueError(f"the data holds {len(self.tokens)} tokens, windows need {length + 1}")
        starts = torch.randint(len(self.tokens) - length, (rows, 1), generator=rng)
        at = starts + torch.arange(length)
        return self.tokens[at].long(), self.learnt[at]
