# pyright: basic, reportMissingImports=false
# (torch and triton are not installed where types are checked)
"""Compile the kernels for Hopper without a GPU and read what came out.

Inside `compile_only()` a kernel launch on `meta` tensors compiles for sm_90 and records registers,
stack, shared memory and instruction counts instead of running. The tests hold every shipped
configuration to: no spills, asynchronous copies, the expected matrix instruction.
"""

import contextlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

__all__ = ["Compiled", "compile_only"]

_TOOLS = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler made of one launch; equal keys are one compilation."""

    name: str
    key: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    opcodes: dict[str, int]

    def count(self, *prefixes: str) -> int:
        """Instructions whose opcode starts with one of the prefixes."""
        return sum(n for op, n in self.opcodes.items() if op.startswith(prefixes))


class _Hopper(DriverBase):
    """A driver that has a target and nothing to run on."""

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device

    def get_active_torch_device(self) -> str:
        return "meta"

    def get_benchmarker(self) -> Any:
        raise NotImplementedError


def _read(name: str, kernel: Any) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()

        def dump(what: str) -> str:
            tool = [str(_TOOLS / "cuobjdump"), what, cubin.name]
            return subprocess.run(tool, check=True, capture_output=True, text=True).stdout  # noqa: S603 - Triton's own tool

        usage = dump("--dump-resource-usage")
        sass = dump("--dump-sass")
    registers, stack = (int(re.findall(rf"{w}:(\d+)", usage)[0]) for w in ("REG", "STACK"))
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", sass)
    return Compiled(
        name, kernel.hash, registers, stack, kernel.metadata.shared, dict(Counter(lines))
    )


@contextlib.contextmanager
def compile_only(*, read: bool = True) -> Iterator[list[Compiled]]:
    """Turn launches into compilations for sm_90; yields the list that they are added to.

    With read False nothing is disassembled or listed: that only fills Triton's disk cache.
    """
    found: list[Compiled] = []
    seen: dict[str, Compiled] = {}
    run = JITFunction.run

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        del grid, warmup
        kernel = run(self, *args, grid=None, warmup=True, **kwargs)
        if read:
            if kernel.hash not in seen:
                seen[kernel.hash] = _read(self.fn.__name__, kernel)
            found.append(seen[kernel.hash])
        return kernel

    driver.set_active(_Hopper())
    JITFunction.run = record
    try:
        yield found
    finally:
        JITFunction.run = run
        driver.set_active(None)
