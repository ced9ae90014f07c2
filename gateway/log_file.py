"""A file that takes lines until it cannot be written, which is told once and stops nobody."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal

logger = logging.getLogger(__name__)

_BUFFER = 1 << 16


class LogFile:
    """Adds lines to a file. Making one raises OSError where that cannot be done."""

    def __init__(self, path: str, *, ended: str, anew: bool = False) -> None:
        self.path = path
        self._ended = ended
        """What is logged once no more can be written."""
        self._file = self._open("wb" if anew else "ab")
        self.size = self._file.tell()
        """In bytes, with what is buffered."""

    @property
    def closed(self) -> bool:
        """Whether what is written now is forgotten."""
        return self._file.closed

    def write(self, line: bytes) -> None:
        """Add a line, newline and all."""
        if not self._file.closed:
            try:
                self._file.write(line)
            except OSError as error:
                self._end(error)
            else:
                self.size += len(line)

    def flush(self) -> None:
        """Write what is buffered."""
        if not self._file.closed:
            try:
                self._file.flush()
            except OSError as error:
                self._end(error)

    def put_aside(self, path: Path) -> None:
        """Give the file another name, in the place of what has it, and begin anew."""
        try:
            self._file.close()
            Path(self.path).replace(path)
            self._file = self._open("ab")
            self.size = 0
        except OSError as error:
            self._end(error)

    def close(self) -> None:
        """Write what is buffered; what comes after is forgotten."""
        try:
            self._file.close()
        except OSError as error:
            self._end(error)

    def _open(self, mode: Literal["ab", "wb"]) -> BinaryIO:
        return Path(self.path).open(mode, buffering=_BUFFER)

    def _end(self, error: OSError) -> None:
        logger.warning(self._ended, extra={"path": self.path, "reason": str(error)})
        with suppress(OSError):  # what is buffered cannot be written, either
            self._file.close()
