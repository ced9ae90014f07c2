"""Reads a configuration: YAML to frozen sections, or every error in it with its line.

Three steps: `yaml_tree` reads the text and remembers the line of each value, pydantic judges each
section (`sections`), `relations` judges what concerns several. All errors of the last two are
reported together. No message repeats a value that came from the environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from .errors import ConfigErrors
from .explain import explain
from .relations import find_faults
from .sections import Config
from .yaml_tree import read_tree

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydantic_core import ErrorDetails

    from .errors import Place
    from .yaml_tree import Tree


def read(source: Path | bytes | str, env: Mapping[str, str] | None = None) -> Config:
    """Read a file (a Path), its content (bytes) or a text (str).

    `env` stands for the process's environment. Raises ConfigErrors with all that is wrong.
    """
    return read_with_lines(source, env)[0]


def read_with_lines(
    source: Path | bytes | str, env: Mapping[str, str] | None = None
) -> tuple[Config, Tree]:
    """Do as `read` does, and return what knows the line of each place, too."""
    tree = read_tree(_text(source), os.environ if env is None else env)
    config, found = _judge(tree)
    found += find_faults(tree.data)
    faults = {tree.fault(place, what) for place, what in found if place not in tree.unread}
    faults.update(tree.faults)
    if config is None or faults:
        raise ConfigErrors(tuple(sorted(faults)))
    return config, tree


def _judge(tree: Tree) -> tuple[Config | None, list[tuple[Place, str]]]:
    try:
        return Config.model_validate(tree.data, context={"file": True}), []
    except ValidationError as error:
        return None, [explain(each) for each in first_errors(error.errors(), tree.unread)]


def first_errors(errors: list[ErrorDetails], unread: Collection[Place]) -> list[ErrorDetails]:
    """Leave out what only follows from other errors, and would send the reader astray."""
    own = [each for each in errors if not _follows(each, unread)]
    # What could not be read has its own errors; else a file that is refused is told why.
    return own if own or unread else errors


def _follows(error: ErrorDetails, unread: Collection[Place]) -> bool:
    if error["type"] == "too_short":
        return bool(error["input"])  # its entries are all refused
    place = error["loc"]
    return error["type"] == "value_error" and any(other[: len(place)] == place for other in unread)


def _text(source: Path | bytes | str) -> str:
    try:
        content = source.read_bytes() if isinstance(source, Path) else source
        return content if isinstance(content, str) else content.decode("utf-8-sig")
    except OSError as error:
        why = (error.strerror or "no access").lower()
        raise ConfigErrors.single(f"cannot be read: {why}") from error
    except UnicodeDecodeError as error:
        raise ConfigErrors.single("is not UTF-8 text") from error
