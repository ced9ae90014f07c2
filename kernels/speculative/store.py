"""A file of past answers, searchable by context: the retrieval store of REST.

Layout, little-endian unless said: 8 bytes `fbstore1`, 4 bytes length of a JSON head, the head (how
many tokens and answers, when built, from which tokenizer), padding to 64 bytes; then the text and
the order of `contexts.Contexts`: 4 + 4 bytes a token. A file is never changed in place: it is
written anew beside and renamed, so that engines that have it mapped go on reading the old one, and
notice the new one within seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import re
import time
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .contexts import SEPARATOR, TOKEN_BYTES, Contexts, sort_contexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    Background = Callable[[Callable[[], Contexts]], Future[Contexts]]

__all__ = [
    "Head",
    "StoreReader",
    "answers_of",
    "clear_leftovers",
    "identity",
    "open_store",
    "write_store",
]

_MAGIC = b"fbstore1"
_LOOK_AGAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Head:
    """What a store says of itself; ages are days since 1970, one an answer, oldest first."""

    tokens: int
    answers: int
    places: int
    tokenizer: str
    days: tuple[int, ...]


def write_store(
    path: Path,
    answers: Iterable[tuple[int, list[int]]],
    *,
    tokenizer: str,
    instead: tuple[int, int] | None = None,
) -> Head:
    """Sort answers, each a day and its tokens, into a file; replaces one that is there, at once.

    instead: the `identity` of the one that they were read from; ValueError where another has come
    in its place since, whose answers would be lost.
    """
    text = array("I", [SEPARATOR])
    days: list[int] = []
    for day, tokens in answers:
        text.extend(tokens)
        text.append(SEPARATOR)
        days.append(day)
    turned, order = sort_contexts(text)
    head = Head(len(text), len(days), len(order), tokenizer, tuple(days))
    told = json.dumps(asdict(head)).encode()
    start = _MAGIC + len(told).to_bytes(4, "little") + told
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with _held(beside) as file:
            file.write(start + bytes(-len(start) % 64) + turned)
            order.tofile(file)
            file.flush()
            os.fsync(file.fileno())
            if instead is not None and identity(path) != instead:
                raise ValueError(
                    f"{path} was changed meanwhile by another command, start this again"
                )
            beside.replace(path)
    except OSError as error:  # a full disk's error has no path, others one that nobody gave
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        beside.unlink(missing_ok=True)
    return head


def _held(beside: Path) -> BinaryIO:
    """Begin a file anew, locked for as long as it is open, so that nobody takes it for left."""
    while True:
        file = beside.open("wb")
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # somebody cleared up just before the lock


def clear_leftovers(path: Path) -> list[Path]:
    """Remove what commands that were killed have left beside a store; return what that was.

    A file stays while a process has its number, and while anybody holds its lock.
    """
    left = re.compile(rf"{re.escape(path.name)}\.([0-9]+)\.new")
    cleared: list[Path] = []
    for each in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
        named = left.fullmatch(each.name)
        if named is not None and not _runs(int(named[1])) and _removed(each):
            cleared.append(each)
    return cleared


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def _removed(file: Path) -> bool:
    """Remove a file unless somebody holds it, or it cannot be told whether."""
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(opened.fileno()), file.stat()):
                return False
            file.unlink()
    except OSError:
        return False
    return True


def identity(path: Path) -> tuple[int, int] | None:
    """Tell a file from those that take its place; None where there is none."""
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_ino, told.st_mtime_ns


def open_store(path: Path) -> tuple[Head, Contexts, memoryview]:
    """Map a store: what it says of itself, its contexts, its text.

    Raises ValueError for a file that is not one or is cut short, OSError when it cannot be read.
    """
    with path.open("rb") as file:
        try:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:
            raise ValueError(f"{path} is empty, build it with `forebay spec store build`") from None
    if view[:8].tobytes() != _MAGIC:
        raise ValueError(f"{path} is no store, build one with `forebay spec store build`")
    size = int.from_bytes(view[8:12], "little")
    try:
        told = json.loads(view[12 : 12 + size].tobytes())
        head = _head_of(told)
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path} has a damaged head, build it again") from None
    start = -(-(12 + size) // 64) * 64
    middle = start + head.tokens * TOKEN_BYTES
    end = middle + head.places * TOKEN_BYTES
    if len(view) != end:
        raise ValueError(f"{path} holds {len(view)} bytes where {end} are due, build it again")
    text = view[start:middle]
    return head, Contexts(text, view[middle:end].cast("I")), text


def _head_of(told: dict[str, Any]) -> Head:
    """Read what a head says; raises ValueError where that cannot be so."""
    tokens, answers, places = (told[name] for name in ("tokens", "answers", "places"))
    days = tuple(told["days"])
    if not all(type(each) is int and each >= 0 for each in (tokens, answers, places, *days)):
        raise ValueError("no whole numbers")
    if len(days) != answers or places > tokens:
        raise ValueError("its numbers do not agree")
    return Head(tokens, answers, places, str(told["tokenizer"]), days)


def answers_of(
    head: Head, text: memoryview, name: object = "the store"
) -> Iterator[tuple[int, list[int]]]:
    """Give back the answers, oldest first, each with its day.

    Raises ValueError where they are not as many as the head says.
    """
    tokens = array("I", text.tobytes())
    tokens.byteswap()
    tokens.reverse()
    if tokens.count(SEPARATOR) != head.answers + 1:
        raise ValueError(f"{name} has a damaged text, build it again")
    start = 1
    for day in head.days:
        end = tokens.index(SEPARATOR, start)
        yield day, tokens[start:end].tolist()
        start = end + 1


class StoreReader:
    """A store as a drafter reads it: mapped, and mapped again when the file was replaced.

    A file that goes away or is damaged leaves the last good one in place. A new one is looked for
    every two seconds at most; background, as an executor's `submit`, opens it beside the caller.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        background: Background | None = None,
    ) -> None:
        self._path = Path(path)
        self._clock = clock
        self._background = background
        self._mark = identity(self._path)
        self._contexts = open_store(self._path)[1]
        self._opening: Future[Contexts] | None = None
        self._next = clock() + _LOOK_AGAIN_S

    def contexts(self) -> Contexts:
        """Return the newest good contexts."""
        if self._opening is not None:
            self._take(self._opening)
        elif self._clock() >= self._next:
            self._look()
        return self._contexts

    def _look(self) -> None:
        self._next = self._clock() + _LOOK_AGAIN_S
        mark = identity(self._path)
        if mark in (None, self._mark):
            return
        self._mark = mark
        if self._background is not None:
            self._opening = self._background(self._open)
            return
        with contextlib.suppress(OSError, ValueError):
            self._contexts = self._open()

    def _open(self) -> Contexts:
        return open_store(self._path)[1]

    def _take(self, opening: Future[Contexts]) -> None:
        if not opening.done():
            return
        self._opening = None
        with contextlib.suppress(OSError, ValueError):
            self._contexts = opening.result()
