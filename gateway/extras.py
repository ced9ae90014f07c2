"""How an extra is installed: said in one place, in the words of the README."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULES: Mapping[str, tuple[str, ...]] = {"oidc": ("jwt",), "tokenizer": ("jinja2", "tokenizers")}
"""What the gateway imports of an extra."""


def is_there(extra: str, modules: Mapping[str, tuple[str, ...]] = MODULES) -> bool:
    """Whether an extra is installed."""
    return all(find_spec(module) is not None for module in modules[extra])


def needs(what: str, extra: str) -> str:
    """Say that something needs an extra, and how to install it."""
    return f"{what} needs the extra '{extra}'; in forebay's checkout: pip install '.[{extra}]'"
