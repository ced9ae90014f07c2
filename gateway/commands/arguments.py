"""What the commands' arguments have in common."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, NoReturn

from forebay.gateway.config.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - argparse gives this type no public name

_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")
_MISSING = "the following arguments are required"
_OPTION = re.compile(r"--[a-z][a-z-]*")


class Parser(argparse.ArgumentParser):
    """Says of a misspelt command, option or choice which one was meant; so do its commands."""

    _asked: Sequence[str] = ()

    def parse_known_args(  # type: ignore[override]  # a namespace is made here, never brought
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is unknown at once: the command knows its own options, its parent does not.

        argparse asks every command's parser through here.
        """
        self._asked = () if args is None else args
        found, unknown = super().parse_known_args(args, namespace or argparse.Namespace())
        if unknown:
            self.error(self._unrecognized(unknown))
        return found, unknown

    def _unrecognized(self, unknown: Sequence[str]) -> str:
        option = unknown[0].partition("=")[0]
        names = self._options() if option.startswith("--") else ()
        return f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(option, names)}"

    def _options(self) -> Sequence[str]:
        return _OPTION.findall(self.format_help())

    def _is_option(self, word: str) -> bool:
        option = word.partition("=")[0]
        return any(name.startswith(option) for name in self._options())

    def error(self, message: str) -> NoReturn:
        """See ArgumentParser; what is missing may be there, misspelt."""
        if message.startswith(_MISSING):
            unknown = [w for w in self._asked if w.startswith("--") and not self._is_option(w)]
            message = self._unrecognized(unknown) if unknown else message
        wrong = _CHOICE.search(message)
        names = () if wrong is None else re.findall(r"[\w.-]+", wrong[2])
        super().error(message if wrong is None else message + did_you_mean(wrong[1], names))


def port(text: str) -> int:
    """Return a port number; 0 lets the system choose."""
    number = int(text) if text.isdecimal() and len(text) < 6 else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port (0 to 65535)")
    return number


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of at least 1")
    return int(text)


def above_zero(text: str) -> float:
    """Return a number above 0, and not infinite."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no number above 0")
    return number


def numbers(text: str) -> list[int]:
    """Return comma-separated whole numbers of at least 1."""
    return [positive(part.strip()) for part in text.split(",")]
