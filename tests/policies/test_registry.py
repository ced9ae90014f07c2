"""Names, and what they stand for."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from forebay.policies.contracts import ConfigError
from forebay.policies.ordering_fcfs import Fcfs
from forebay.policies.registry import factory, names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Site:
    """A folder that Python imports from, to install packages in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, package: str, source: str, **points: str) -> None:
        (self.folder / f"{package}.py").write_text(source)
        info = self.folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name.replace('__', '.')} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[forebay.policies]", *lines]) + "\n")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    sys.path.insert(0, str(tmp_path))
    yield Site(tmp_path)
    sys.path.remove(str(tmp_path))


def test_our_own_are_found_by_name():
    assert factory("ordering", "fcfs") is Fcfs
    assert [names(kind) for kind in ("ordering", "filter", "score", "pick")] == [
        ["aged", "bounded", "edf", "fair", "fcfs", "hrrn", "ml", "sjf"],
        ["capability", "room", "speculation", "usable"],
        ["hash_ring", "least_tokens"],
        ["seeded"],
    ]


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("score", "least_token", "no score is named 'least_token'; did you mean 'least_tokens'?"),
        ("filter", "x", "no filter is named 'x'; there are capability, room, speculation, usable"),
    ],
)
def test_a_name_that_is_unknown_is_answered_with_those_known(kind: str, name: str, message: str):
    with pytest.raises(ConfigError) as caught:
        factory(kind, name)

    assert str(caught.value) == message


def test_an_installed_one_is_listed_without_being_imported(site: Site):
    site.install("acme_lazy", "raise RuntimeError('too early')", score__lazy="acme_lazy:Lazy")

    assert names("score") == ["hash_ring", "lazy", "least_tokens"]
    assert names("filter") == ["capability", "room", "speculation", "usable"]


def test_an_installed_one_is_made_from_its_factory(site: Site):
    source = "class Cheapest:\n    name = 'cheapest'\n"
    site.install("acme_cheap", source, score__cheapest="acme_cheap:Cheapest")

    assert factory("score", "cheapest")().name == "cheapest"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("raise OSError('no disk')", "OSError: no disk", id="cannot be imported"),
        pytest.param("", "AttributeError: ", id="has no such name"),
        pytest.param("Broken = 3", "is 3, and has to be a factory", id="is no factory"),
    ],
)
def test_one_that_cannot_be_loaded_says_whose_it_is(site: Site, source: str, message: str):
    package = f"acme_{abs(hash(source))}"
    site.install(package, source, pick__broken=f"{package}:Broken")

    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        factory("pick", "broken")
    assert str(caught.value).startswith(f"'pick.broken' of {package} ")


def test_two_packages_with_one_name_are_both_named(site: Site):
    for package in ("acme_one", "acme_two"):
        site.install(package, "class Same: name = 'same'", ordering__same=f"{package}:Same")

    with pytest.raises(ConfigError) as caught:
        factory("ordering", "same")

    assert str(caught.value) == (
        "ordering 'same' comes from acme_one and acme_two; uninstall all but one"
    )


def test_ours_cannot_be_replaced(site: Site):
    site.install("acme_fcfs", "class Fcfs: name = 'fcfs'", ordering__fcfs="acme_fcfs:Fcfs")

    assert factory("ordering", "fcfs") is Fcfs
