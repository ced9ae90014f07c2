"""What holds for the whole tree."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from forebay.gateway.config import load

ROOT = Path(__file__).parents[1]
FOLDERS = ("gateway", "adapters", "scheduler", "policies", "prefixcache", "kernels")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
IMPORT_NAMES = {
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry-sdk": "opentelemetry.sdk",
    "prometheus-client": "prometheus_client",
    "pyyaml": "yaml",
    "pyzmq": "zmq",
}
# Brackets keep a pattern from finding itself.
FOREIGN = re.compile(
    r"[/]work/|[/]tmp/(?:fb|engines)|[.][.]/shared|[/]opt/pypi|\b[C]laude\b|\b[h]elper-|"
    r"\b[i]ssues? (?:#?\d|show\b)|(?i:[c]o-authored-by|\b[A]I assistant|[l]anguage model assistant)"
)


def sources() -> list[Path]:
    return [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]


def packages() -> list[Path]:
    return [file for file in sources() if file.name == "__init__.py"]


def tracked() -> list[Path]:
    """What git keeps; without git, what lies in folders that are not hidden."""
    try:
        told = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        files = (file.relative_to(ROOT) for file in ROOT.rglob("*"))
        return [file for file in files if not any(part[0] == "." for part in file.parts)]
    return [Path(name) for name in told.split("\0") if name]


def requirements() -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    groups = [PROJECT["project"]["dependencies"], *extras, *PROJECT["dependency-groups"].values()]
    return sorted({re.split(r"[\[<>=~ ]", line)[0] for group in groups for line in group})


def test_folders_import_only_those_to_their_right():
    linter = Path(sys.executable).with_name("lint-imports")
    told = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_only_one_command_knows_of_the_kernels():
    others = [file for file in sources() if ROOT / "kernels" not in file.parents]
    knowing = [file for file in others if "forebay.kernels" in file.read_text()]
    assert knowing == [ROOT / "gateway" / "commands" / "kernels.py"]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_bare_name_is_not_ours(name: str):
    spec = importlib.util.find_spec(name)
    assert spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(ROOT)


@pytest.mark.parametrize("file", packages(), ids=lambda file: str(file.parent.relative_to(ROOT)))
def test_a_package_says_what_it_is_and_what_it_exports(file: Path):
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree)
    imported = [
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    ]
    exported = [
        sorted(ast.literal_eval(node.value))  # ruff says in which order they stand
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(each, ast.Name) and each.id == "__all__" for each in node.targets)
    ]
    assert exported == ([sorted(imported)] if imported else [])


@pytest.mark.parametrize("file", sources(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_has_a_docstring(file: Path):
    assert ast.get_docstring(ast.parse(file.read_text()))


def test_a_module_is_short_enough_to_be_read_at_once():
    lines = {file: len(file.read_text().splitlines()) for file in sources()}
    assert [str(file.relative_to(ROOT)) for file, number in lines.items() if number > 400] == []


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda f: f.name)
def test_an_example_is_a_right_configuration(file: Path):
    env = dict.fromkeys(re.findall(r"\$\{(\w+)\}", file.read_text()), "secret")
    load.read(file, env)


def test_nothing_tells_of_the_place_where_it_was_made():
    found: list[str] = []
    for name in tracked():
        file = ROOT / name
        if file.is_symlink() or not file.is_file():
            continue
        text = file.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), 1):
            if FOREIGN.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []


def test_the_path_of_a_request_names_files_that_are_there():
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## The path of a request")[2]
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", page.partition("\n## ")[0])
    found = [(ROOT / name).is_file() or (ROOT / "gateway" / name).is_file() for name in named]
    assert len(found) > 10
    assert all(found)


def test_every_dependency_has_its_reason():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert [name for name in requirements() if f"`{name}`" not in page] == []


def test_every_dependency_is_in_use():
    text = "\n".join(file.read_text() for file in sources())
    names = [re.split(r"[\[<>=~ ]", line)[0] for line in PROJECT["project"]["dependencies"]]
    unused = [
        name
        for name in names
        if not re.search(rf"^\s*(import|from) {IMPORT_NAMES.get(name, name)}\b", text, re.MULTILINE)
    ]
    assert unused == []


def test_the_folders_are_linked_into_the_package():
    links = {name: (ROOT / "src" / "forebay" / name).resolve() for name in FOLDERS}
    assert links == {name: ROOT / name for name in FOLDERS}
