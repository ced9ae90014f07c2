# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Reads prompts and the lengths of their answers: what `forebay predictor` learns from.

A folder has, for each set NAME, either a pair of files or one:

- `NAME_prompts.jsonl` with `pid, prompt` and `NAME_lengths` with `pid, model, out_tokens`;
- `NAME.jsonl` or `NAME_lengths.jsonl` with `prompt, model, output_tokens` in each line.

Files are JSON lines or Parquet, JSON lines maybe packed (.gz). Further columns are read where they
stand: `temperature, max_tokens, finish_reason, tenant, template, turns, tools, schema, stop, hour`.
Wide files with `L_t0_0, L_t0_3, ...` hold one answer at each of those temperatures. `out_tokens`,
`output_tokens` and `ref_tokens` are the same; a set of references is its own model.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay.gateway.config.suggest import did_you_mean
from forebay.gateway.extras import needs
from forebay.policies.contracts import Route
from forebay.scheduler.length import Example, LengthFeatures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

PARTS = ("all", "train", "dev")
_TOKENS = ("out_tokens", "output_tokens", "ref_tokens")
_WHOLE = frozenset({"completed", "end_turn", "stop", "stop_sequence", "tool_calls", "tool_use"})
"""How an answer that was not cut ends."""
_WIDE = re.compile(r"L_t(\d)_(\d)$")
_REFERENCE = re.compile(r"L_gt_(\w+)$")
_NAME = re.compile(r"(?P<name>.+?)(?P<kind>_prompts|_lengths)?\.(?P<form>jsonl(?:\.gz)?|parquet)$")


class Reading(NamedTuple):
    """What was found in a folder."""

    examples: list[Example]
    left_out: dict[str, str]
    """Files that nothing was taken from, each with the reason."""


def read_folder(
    folder: Path, *, part: str = "all", sets: Iterable[str] = (), wide: bool = True
) -> Reading:
    """Read all sets of a folder, or those named; raises ValueError when there is nothing.

    `sets` are names, or NAME/PATTERN for the models of that pattern only. `part` keeps the prompts
    of the train or dev split: a fifth by its hash. Without `wide` only the first temperature of a
    wide file is read, so that each prompt counts once.
    """
    files = _files(folder)
    wanted, left_out, examples = _wanted(sets), dict[str, str](), list[Example]()
    for name in sorted(set(wanted) - set(files)):
        hint = did_you_mean(name, files) or f"; has {', '.join(files)}"
        raise ValueError(f"{folder}: no set '{name}'{hint}")
    for name, kinds in files.items():
        if wanted and name not in wanted:
            continue
        models = wanted.get(name, "*")
        read = _read_set(name, kinds, wide=wide)
        found = [each for each in read if fnmatchcase(each.features.model, models)]
        if not found:
            left_out[name] = "has no prompts with lengths"
        examples += [each for each in found if in_part(each.key, part)]
    if not examples:
        raise ValueError(f"{folder}: no prompts with lengths in it; see 'forebay predictor --help'")
    return Reading(examples, left_out)


def _wanted(sets: Iterable[str]) -> dict[str, str]:
    """Return the pattern of models by set."""
    named = [each.partition("/") for each in sets]
    return {name: pattern or "*" for name, _, pattern in named}


def in_part(key: str, part: str) -> bool:
    """Tell whether a prompt is of that part of the data."""
    return part == "all" or (int(key[8:12], 16) % 5 == 0) == (part == "dev")


def key_of(prompt: str) -> str:
    """Return the first 16 hex digits of a prompt's SHA-256: the same prompt, the same key."""
    return hashlib.sha256(prompt.strip().encode("utf-8", "replace")).hexdigest()[:16]


def _files(folder: Path) -> dict[str, dict[str, Path]]:
    if not folder.is_dir():
        what = (
            "is a file; give the folder it is in" if folder.exists() else "there is no such folder"
        )
        raise ValueError(f"{folder}: {what}")
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match is not None:
            kind = (match["kind"] or "_lengths").removeprefix("_")
            found.setdefault(match["name"], {})[kind] = path
    if not found:
        raise ValueError(f"{folder}: no .jsonl or .parquet files in it")
    return found


def _read_set(name: str, kinds: Mapping[str, Path], *, wide: bool) -> Iterator[Example]:
    lengths = kinds.get("lengths")
    if lengths is None:
        return
    prompts: dict[str, str] = {}
    if "prompts" in kinds:
        prompts = dict(_prompts(kinds["prompts"]))
    for number, row in enumerate(_rows(lengths), 1):
        try:
            prompt = row.get("prompt") or prompts.get(row.get("pid", ""))
            if prompt:
                _check_text(prompt, "prompt")
                yield from _examples(name, prompt, row, wide=wide)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{lengths}: row {number}: {error}") from None


def _prompts(path: Path) -> Iterator[tuple[str, str]]:
    for number, row in enumerate(_rows(path), 1):
        try:
            _check_text(row.get("pid"), "pid")
            _check_text(row.get("prompt"), "prompt")
        except TypeError as error:
            raise ValueError(f"{path}: row {number}: {error}") from None
        yield row["pid"], row["prompt"]


def _check_text(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"'{name}' must be a text")


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".parquet":
        yield from _parquet(path)
        return
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                raise ValueError(f"{path}: line {number}: is no JSON") from None
            if isinstance(row, dict):
                yield row


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        text = needs("Parquet", "predictor-train")
        raise ValueError(f"{path}: {text}; or give JSON lines") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as Parquet: {error}") from error
    yield from rows


def _examples(name: str, prompt: str, row: dict[str, Any], *, wide: bool) -> Iterator[Example]:
    key = row.get("pid") or key_of(prompt)
    columns = [column for column in row if _WIDE.match(column)]
    for column in sorted(columns)[: None if wide else 1]:
        temperature = float(column[3:].replace("_", "."))
        features = _features(f"{name}-model", prompt, {**row, "temperature": temperature})
        yield Example(features, _count(row, column), name, key)
    if columns:
        for column in filter(_REFERENCE.match, row if wide else ()):
            features = _features(column.removeprefix("L_gt_"), prompt, row)
            yield Example(features, _count(row, column), name, key)
        return
    column = next((each for each in _TOKENS if row.get(each) is not None), None)
    if column is None or (column == "ref_tokens" and not row[column]):
        return
    model = str(row.get("model") or row.get("set") or name)
    cut = (row.get("finish_reason") or "stop") not in _WHOLE
    answers = _count(row, "answers") if row.get("answers") else 1
    tokens = _count(row, column) // max(1, answers)
    yield Example(_features(model, prompt, row), tokens, name, key, cut=cut)


def _count(row: Mapping[str, Any], column: str) -> int:
    try:
        number = int(row[column])
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number < 0:
        raise ValueError(f"'{column}' must be a whole number of at least 0")
    return number


def _features(model: str, prompt: str, row: Mapping[str, Any]) -> LengthFeatures:
    return LengthFeatures(
        Route.CHAT,
        model,
        str(row.get("tenant") or ""),
        int(row.get("prompt_tokens") or len(prompt.encode("utf-8", "replace")) // 4),
        row.get("max_tokens"),
        text=prompt,
        template=str(row.get("template") or ""),
        turns=int(row.get("turns") or 1),
        tools=int(row.get("tools") or 0),
        schema=bool(row.get("schema")),
        stop=bool(row.get("stop")),
        temperature=row.get("temperature"),
        hour=row.get("hour"),
    )
