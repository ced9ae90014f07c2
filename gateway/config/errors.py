"""All that is wrong with a configuration, each error with its line and its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from forebay.policies.contracts import ConfigError

Place = tuple[str | int, ...]
"""Keys and list positions from the top: `("pools", 0, "name")`."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One error. `line` counts from 1 (0: the file as a whole), `path` is as `pools[0].name`."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.path}: {self.message}" if self.path else self.message


class ConfigErrors(ConfigError):  # noqa: N818 - one exception, all the errors
    """The configuration cannot be used; `errors` holds every reason."""

    def __init__(self, errors: tuple[Fault, ...]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors

    @classmethod
    def single(cls, message: str, *, line: int = 0, path: str = "") -> Self:
        """Return the one error that makes it useless to look for more."""
        return cls((Fault(line, path, message),))


def path_of(place: Place) -> str:
    """Return a place as text."""
    text = ""
    for part in place:
        if part == "":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
