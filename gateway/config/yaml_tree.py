"""YAML to plain values, with the line of each: the loader's first step.

Not PyYAML's own constructor, for four reasons: it takes the last of two equal keys, forgets lines,
reads `no` and `1:30` as YAML 1.1 did (false and 90), and knows no `${NAME}`.

`${NAME}` is replaced before parsing by a marker without YAML's special characters, so that it may
stand unquoted in `{key: ${NAME}}`, and after parsing by the variable's value, which therefore
cannot change the structure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from .errors import ConfigErrors, Fault, Place, path_of
from .units import Substituted

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPEN, _CLOSE = "\ue000", "\ue001"
_REFERENCE = re.compile(r"\$\{([^{}\s'\"]*)\}")
_MARKER = re.compile(f"{_OPEN}(.*?){_CLOSE}")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_NUMBER = re.compile(r"[-+]?[0-9.]{1,100}(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)
_MERGE = "tag:yaml.org,2002:merge"
_MAX_VALUES = 200_000
_MAX_DEPTH = 40
"""Aliases of aliases can ask for more values than there is memory, or for endless ones."""
_TOO_MUCH = "is nested too deeply, or its aliases grow too large"


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars as YAML 1.2's core schema does."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]{1,100}", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]{1,3})?", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType] - PyYAML's stubs
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), list(_first)
    )


@dataclass(slots=True)
class Tree:
    """A document's values, and what was found wrong on the way."""

    data: object = None
    lines: dict[Place, int] = field(default_factory=dict[Place, int])
    faults: list[Fault] = field(default_factory=list[Fault])
    unread: set[Place] = field(default_factory=set[Place])
    """Places that have a fault instead of a value; they hold None."""

    def line(self, place: Place) -> int:
        """Return the line of a place, or of the nearest one around it."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def fault(self, place: Place, message: str) -> Fault:
        """Return a fault with the line of its place."""
        return Fault(self.line(place), path_of(place), message)


def read_tree(text: str, env: Mapping[str, str]) -> Tree:
    """Read one YAML document. Raises ConfigErrors where the text is not YAML at all."""
    tree = Tree()
    try:
        tree.data = _Reader(tree, env).read(_compose(text), ())
    except RecursionError:
        raise ConfigErrors.single(_TOO_MUCH) from None
    return tree


def _compose(text: str) -> yaml.Node:
    if _OPEN in text or _CLOSE in text:
        raise ConfigErrors.single("holds a private-use character (U+E000 or U+E001)")
    marked = _REFERENCE.sub(lambda found: f"{_OPEN}{found[1]}{_CLOSE}", text)
    try:
        node = _Loader(marked).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = _readable(error.problem or error.context or "syntax")
        begun = error.context_mark if (error.context or "").startswith("while ") else None
        if mark and begun and begun.line < mark.line:
            what += f"; look from line {begun.line + 1} on"
        raise ConfigErrors.single(
            f"is no YAML: {what}", line=mark.line + 1 if mark else 1
        ) from None
    except yaml.reader.ReaderError as error:
        line = marked.count("\n", 0, error.position) + 1
        raise ConfigErrors.single("holds a character that YAML forbids", line=line) from None
    if node is None:
        raise ConfigErrors.single("is empty")
    return node


def _joined(text: str) -> str:
    """Make one character of two halves: JSON escapes beyond U+FFFF so, and JSON is YAML."""
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def _is_name(text: str) -> bool:
    return _OPEN not in text and _is_whole(text)


def _is_whole(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _readable(text: str) -> str:
    return _MARKER.sub(lambda found: f"${{{found[1]}}}", text)


class _Reader:
    def __init__(self, tree: Tree, env: Mapping[str, str]) -> None:
        self._tree = tree
        self._env = env
        self._values = 0

    def read(self, node: yaml.Node, place: Place) -> object:
        self._tree.lines.setdefault(place, node.start_mark.line + 1)
        self._count(node, len(place))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*place, i)) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return self._scalar(node, place)

    def _count(self, node: yaml.Node, depth: int) -> None:
        self._values += 1
        if self._values > _MAX_VALUES or depth > _MAX_DEPTH:
            raise ConfigErrors.single(_TOO_MUCH, line=node.start_mark.line + 1)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        found: dict[str, object] = {}
        own: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                found = {**self._merged(value_node, place), **found}
        for key_node, value_node in node.value:
            key = self._key(key_node, place, own)
            if key is not None:
                own[key] = self._tree.lines[*place, key] = key_node.start_mark.line + 1
                found[key] = self.read(value_node, (*place, key))
        return found

    def _key(self, node: yaml.Node, place: Place, own: dict[str, int]) -> str | None:
        """Return a member's key, or None when the member is not to be read."""
        line = node.start_mark.line + 1
        if node.tag == _MERGE:
            return None
        if not isinstance(node, yaml.ScalarNode) or not _is_name(node.value):
            message = "has a key that is not a plain name"
            self._tree.faults.append(Fault(line, path_of(place), message))
            return None
        if node.value in own:
            message = f"stands twice, first in line {own[node.value]}"
            self._tree.faults.append(Fault(line, path_of((*place, node.value)), message))
            return None
        return node.value

    def _merged(self, node: yaml.Node, place: Place) -> dict[str, object]:
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, object] = {}
        for each in nodes:
            if not isinstance(each, yaml.MappingNode):
                message = "'<<' takes a mapping or a list of them"
                self._tree.faults.append(Fault(each.start_mark.line + 1, path_of(place), message))
                continue
            self._count(each, len(place))
            merged = {**self._mapping(each, place), **merged}
        return merged

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> object:
        text = _joined(node.value)
        if not _is_whole(text):
            return self._refused(place, "holds half a character (a lone surrogate)")
        if _OPEN in text:
            return self._substituted(text, place)
        if "${" in text:
            return self._refused(place, "has '${' without '}' or a name; write ${NAME}")
        match node.tag.removeprefix("tag:yaml.org,2002:"):
            case "str":
                return text
            case "bool":
                return text.lower() == "true"
            case "int" | "float" as kind if _NUMBER.fullmatch(text):
                return int(text) if kind == "int" else float(text)
            case "null":
                return self._refused(place, "has no value; give it one, or leave the key out")
            case _:
                return self._refused(place, "has a YAML tag that has no meaning here")

    def _substituted(self, text: str, place: Place) -> object:
        names = _MARKER.findall(text)
        for name in names:
            if not _VARIABLE.fullmatch(name):
                return self._refused(place, f"'${{{name}}}' does not hold a variable's name")
            if name not in self._env:
                return self._refused(place, f"environment variable {name} is not set")
            if not _is_whole(self._env[name]):
                return self._refused(place, f"environment variable {name} is not UTF-8 text")
        return Substituted(_MARKER.sub(lambda found: self._env[found[1]], text))

    def _refused(self, place: Place, message: str) -> None:
        self._tree.faults.append(self._tree.fault(place, message))
        self._tree.unread.add(place)
