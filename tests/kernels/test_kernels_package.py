"""The package's promises: nothing but the standard library to import, torch and triton to run."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import forebay.kernels

SRC = str(Path(__file__).parents[2] / "src")
HAS_TRITON = bool(importlib.util.find_spec("torch") and importlib.util.find_spec("triton"))

BLOCK = """
import importlib.abc, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {blocked} or name.startswith({inside}):
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)

sys.meta_path.insert(0, Block())
"""
OURS = tuple(
    f"forebay.{folder}"
    for folder in ("gateway", "adapters", "scheduler", "policies", "prefixcache")
)
GATEWAY = {
    "fastapi", "httptools", "httpx", "msgspec", "opentelemetry", "prometheus_client", "pydantic",
    "redis", "starlette", "uvicorn", "uvloop", "yaml", "zmq",
}  # fmt: skip


def run(program: str, blocked: set[str]) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", BLOCK.format(blocked=blocked, inside=OURS) + program],
        env={"PYTHONPATH": SRC, "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in (0, 1), ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.stdout


def test_the_package_its_plugins_and_the_doctor_import_without_torch() -> None:
    program = (
        "import forebay.kernels, forebay.kernels.doctor as d\n"
        "import forebay.kernels.plugins.vllm, forebay.kernels.plugins.sglang\n"
        "import forebay.kernels.plugins.trtllm as t\n"
        "print(t.load(), d.main(['--json']))\n"
    )
    assert run(program, GATEWAY | {"torch", "triton", "numpy"}).endswith("}\nFalse 1\n")


@pytest.mark.skipif(not HAS_TRITON, reason="needs torch and triton")
def test_every_op_imports_with_torch_and_triton_alone() -> None:
    program = (
        "import forebay.kernels as k\n"
        "from forebay.kernels import ops, aot, testing\n"
        "print(all(getattr(k, n) for n in k.__all__))\n"
    )
    assert run(program, GATEWAY | {"vllm", "sglang"}) == "True\n"


@pytest.mark.skipif(not importlib.util.find_spec("numpy"), reason="sorting needs numpy")
def test_stores_and_the_doctor_need_no_torch(tmp_path: Path) -> None:
    program = (
        "import json\n"
        "from forebay.kernels.speculative.command import main\n"
        f"data, store = '{tmp_path}/t.jsonl', '{tmp_path}/a.store'\n"
        "with open(data, 'w') as file:\n"
        "    for n in range(4):\n"
        "        text = [*range(n, n + 60), *range(n, n + 30)]\n"
        "        file.write(json.dumps({'tokens': text, 'answer_from': 10, 'day': n}) + '\\n')\n"
        "main(['store', 'build', store, '--data', data, '--json'])\n"
        "main(['doctor', '--data', data, '--store', store, '--json'])\n"
    )
    built, advice = run(program, GATEWAY | {"torch", "triton"}).splitlines()
    assert '"kept": 4' in built
    assert '"advice": ["rest:' in advice


def test_public_names_are_sorted_and_live_where_the_table_says() -> None:
    names = forebay.kernels.__all__
    assert names == sorted(names)
    for home in set(forebay.kernels._HOMES.values()):
        assert importlib.util.find_spec(f"forebay.kernels.{home.partition('.')[0]}")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = forebay.kernels.nonsense
