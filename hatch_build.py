"""Compiles the hot path, where a build asks for it.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=true pip install .

mypyc makes C of the modules named here: the same code, at up to twice the speed. It needs a
C compiler and Python's headers, and makes a wheel for one machine and Python, so a plain build
leaves it out. Which modules: those that run for each request or decision, but not those whose
classes are msgspec's or pydantic's, or are taken as a base by others.

Where C behaves otherwise, the code asks first: a slice of bytes that ends before it begins raises
SystemError, and one tuple or float may be two objects, so that `is` tells nothing of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED = {
    "adapters": (
        "connection_answer connection_exchange connection_head connection_socket connections edits"
    ),
    "gateway": (
        "answer answer_head app arrangement attempt connections failing feedback heads ids intake "
        "keys messages meter pools prefix prefix_names prefix_numbers prefix_placements "
        "prefix_source prefix_text preparation protocol reading recourse relay routes sse stored "
        "time_limits upkeep wire"
    ),
    "gateway/dialects": "anthropic base by_route only_usage openai responses",
    "gateway/quota": "ledger local memory tariff",
    "gateway/telemetry": "access_log codes histogram metrics observer",
    "policies": (
        "double_queue filter_capability filter_room filter_speculation filter_usable heap "
        "ladder lanes ordering_aged ordering_bounded ordering_edf ordering_fair ordering_fcfs "
        "ordering_hrrn ordering_sjf pick prefill_rate quota residency score_confined "
        "score_hash_ring score_least_tokens score_sticky score_weighted service shares stalls"
    ),
    "prefixcache": "blocks chains eviction index learned owners slots tiers",
    "scheduler": (
        "avalanche cost dispatch drain engine_decoding engine_kv engine_model engine_queue "
        "engine_sequence entrance guards health journal lifecycle limits line others places "
        "placing recall reserves retry timeline turns unservable waiting window window_adaptive"
    ),
    "scheduler/length": "constant",
    "scheduler/twin": "station",
}
"""Modules by folder."""
_FLAGS = ("--follow-imports=silent", "--ignore-missing-imports", "--warn-unreachable")


class CustomBuildHook(BuildHookInterface[Any]):
    """Puts compiled modules beside their sources into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name what came of it. Raises RuntimeError where that fails."""
        if version == "editable":
            return
        self._folder = tempfile.mkdtemp()
        folder = Path(self._folder)
        shutil.copytree(Path(self.root) / "src" / "forebay", folder / "forebay")
        _compile(folder)
        for found in folder.rglob("*.so"):
            if found.is_relative_to(folder / "build"):
                continue
            build_data["force_include"][str(found)] = str(found.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's signature
        """Clean up when the wheel is there."""
        if version != "editable":
            shutil.rmtree(self._folder)


def _compile(folder: Path) -> None:
    modules = [
        f"forebay/{place}/{name}.py" for place, names in COMPILED.items() for name in names.split()
    ]
    command = [sys.executable, "-m", "mypyc", *_FLAGS, *modules]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    if done.returncode:
        raise RuntimeError(f"mypyc failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
