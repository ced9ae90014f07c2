# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingImports=false
# (torch is not installed where types are checked)
"""`forebay kernels doctor`: what would run here, and why not.

Standard library only until a check needs more; each check imports what it asks about by itself, so
that a broken torch is a finding and not a crash.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Finding", "examine", "main", "narrow_decode"]

ENGINES = {
    "vllm": ("vllm.general_plugins", "vllm serve MODEL --attention-backend CUSTOM"),
    "sglang": ("sglang.srt.plugins", "sglang serve --attention-backend forebay"),
    "tensorrt_llm": ("", "trtllm-serve MODEL --custom_module_dirs DIR (see docs/kernels.md)"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; state is `ok`, `missing`, `unsupported` or `off`."""

    what: str
    state: str
    detail: str


def _version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _installed(name: str) -> bool:
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(name) is not None
    return False


def _package(name: str) -> Finding:
    if not _installed(name):
        return Finding(name, "missing", f"pip install {name}")
    return Finding(name, "ok", _version(name) or "version unknown")


def _gpu() -> Finding:
    try:
        import torch  # noqa: PLC0415 - may be absent or broken
    except Exception as problem:  # noqa: BLE001 - whatever a broken install raises is the finding
        return Finding("gpu", "missing", f"torch does not import: {problem}")
    cuda: Any = torch.cuda
    if not cuda.is_available():
        return Finding("gpu", "missing", "torch sees no GPU; the references run on the CPU")
    major, minor = cuda.get_device_capability()
    name = f"{cuda.get_device_name()}, compute capability {major}.{minor}"
    if getattr(torch.version, "hip", None):
        return Finding("gpu", "unsupported", f"{name}: untried on ROCm")
    if (major, minor) < (8, 0):
        return Finding("gpu", "unsupported", f"{name}: 8.0 or more is needed")
    return Finding("gpu", "ok", name)


def _tuned() -> Finding:
    try:
        import torch  # noqa: PLC0415 - may be absent or broken

        from ._common.host import config_files  # noqa: PLC0415 - needs torch

        device: Any = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        names: list[str] = config_files(device)
    except Exception as problem:  # noqa: BLE001 - see above
        return Finding("tables", "missing", str(problem))
    if not names:
        return Finding("tables", "missing", "no tuned table for this device, built-in settings")
    return Finding("tables", "ok", ", ".join(names))


def narrow_decode(told: str | None, triton: str | None, *, tuned: bool) -> Finding:
    """Say whether narrow decode runs, by FOREBAY_NARROW_DECODE, Triton's version and GPU."""
    reason = ""
    if told == "0":
        reason = "switched off by FOREBAY_NARROW_DECODE=0"
    elif not tuned:
        reason = "no tuned table for this device, where Triton's kernel runs"
    elif triton is None or not triton.startswith("3.6."):
        reason = f"needs Triton 3.6, not {triton or 'none'}: Triton's kernel runs"
    if reason:
        return Finding("narrow decode", "off", reason)
    return Finding("narrow decode", "ok", "FOREBAY_NARROW_DECODE=0 switches it off")


def _engine(name: str) -> Finding:
    group, how = ENGINES[name]
    if not _installed(name):
        return Finding(name, "missing", "not installed here")
    version = _version(name) or "version unknown"
    if not group:
        return Finding(name, "ok", f"{version}; {how}")
    entries = [
        e for e in importlib.metadata.entry_points(group=group) if e.value.startswith("forebay.")
    ]
    if not entries:
        return Finding(name, "missing", f"{version}; no entry point of ours in {group}")
    return Finding(name, "ok", f"{version}; {how}")


def examine() -> list[Finding]:
    """Look at Python, packages, GPU, tuned tables and engines."""
    tuned = _tuned()
    told = os.environ.get("FOREBAY_NARROW_DECODE")
    return [
        Finding("python", "ok", platform.python_version()),
        _package("torch"),
        _package("triton"),
        _gpu(),
        tuned,
        narrow_decode(told, _version("triton"), tuned=tuned.state == "ok"),
        *(_engine(name) for name in ENGINES),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; return 0 where the kernels would run, else 1."""
    parser = argparse.ArgumentParser(
        prog="forebay kernels",
        description="Say which kernels would run on this machine and in its engines, and why not. "
        "'forebay kernels doctor' is the same. Exits with 1 where they do not run.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of lines")
    options = parser.parse_args(argv)
    findings = examine()
    states = {f.what: f.state for f in findings}
    runs = all(states[name] == "ok" for name in ("torch", "triton", "gpu"))
    if options.json:
        report = {"runs": runs, "findings": [asdict(f) for f in findings]}
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
        return 0 if runs else 1
    for f in findings:
        sys.stdout.write(f"{f.what:13} {f.state:12} {f.detail}\n")
    verdict = "the kernels run here" if runs else "the kernels do not run here"
    sys.stdout.write(f"{verdict}\n")
    return 0 if runs else 1


if __name__ == "__main__":
    sys.exit(main())
