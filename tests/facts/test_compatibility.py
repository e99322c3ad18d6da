"""The table of compatible releases agrees with the installed wheels and with itself."""

from __future__ import annotations

from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from ruamel.yaml import YAML

from tools.core import repo
from tools.core.tables import load
from tools.facts import compatibility
from tools.facts.instances import INSTANCES, NVIDIA


def test_the_table_agrees_with_the_installed_torch() -> None:
    row = compatibility.torch(version("torch"))
    assert row is not None
    asked = {requirement.name: requirement for requirement in map(Requirement, requires("torch") or [])}
    (toolkit,) = asked["cuda-toolkit"].specifier
    assert compatibility.series(toolkit.version) == row.cuda
    (nccl,) = next(item for name, item in asked.items() if name.startswith("nvidia-nccl")).specifier
    assert nccl.version == row.nccl


def test_the_table_agrees_with_the_installed_transformers() -> None:
    wanted = compatibility.oldest_torch("transformers", version("transformers"))
    assert wanted is not None
    asked = [Requirement(text) for text in requires("transformers") or []]
    (torch,) = [item for item in asked if item.name == "torch" and 'extra == "torch"' in str(item.marker)]
    assert torch.specifier.contains(f"{wanted}.0")
    assert Version(wanted) <= Version(version("torch"))


def test_the_documents_have_the_same_table() -> None:
    """docs/images.md prints every series of torch with its CUDA, NCCL and torchvision."""
    page = (repo.root() / "docs/images.md").read_text(encoding="utf-8")
    for row in compatibility.TORCH.values():
        others = ", ".join(row.other_cuda) or "-"
        vision = compatibility.torchvision_of(f"{row.series}.0")
        assert f"| {row.series} | {row.cuda} | {others} | {row.nccl} | {vision} |" in page


def test_rows_are_complete_and_in_order() -> None:
    """Every CUDA version of a torch build has a driver and a list of capabilities."""
    names = list(compatibility.TORCH)
    assert names == sorted(names, key=Version)
    for row in compatibility.TORCH.values():
        for cuda in row.builds:
            assert compatibility.driver(cuda), cuda
            assert cuda in compatibility.CAPABILITIES, cuda
    since = [Version(row.since) for row in compatibility.PLUGINS]
    assert since == sorted(since)


def test_every_nvidia_card_of_the_instance_table_has_a_capability() -> None:
    cards = {one.accelerator for one in INSTANCES.values() if one.device_resource == NVIDIA}
    assert cards <= set(compatibility.GPUS)


@pytest.mark.parametrize(
    ("torchvision", "torch"),
    [
        ("0.15.2", "2.0"),
        ("0.23.0", "2.8"),
        ("0.29.0", "2.14"),
        ("0.29.2", "2.15"),
        ("0.99", None),
        ("x", None),
    ],
)
def test_torchvision_names_its_torch(torchvision: str, torch: str | None) -> None:
    assert compatibility.torch_of_torchvision(torchvision) == torch


def test_torchaudio_requires_its_torch_up_to_2_10() -> None:
    wanted = {"2.9.1": "2.9", "2.11.0": None}
    assert {name: compatibility.torch_of_torchaudio(name) for name in wanted} == wanted


def test_the_torchvision_for_a_torch_requires_it() -> None:
    for name in compatibility.TORCH:
        wanted = compatibility.torchvision_of(f"{name}.0")
        assert wanted is not None
        assert compatibility.torch_of_torchvision(wanted.removesuffix(".*")) in (name, None)


@pytest.mark.parametrize(
    ("card", "built_for", "expected"),
    [
        ("8.9", ("8.0", "8.6"), True),  # a binary for Ampere runs on Ada
        ("9.0", ("8.0", "8.6"), False),
        ("9.0", ("8.0+PTX",), True),
        ("8.0", ("8.6",), False),
    ],
)
def test_which_cards_a_binary_runs_on(card: str, built_for: tuple[str, ...], expected: bool) -> None:
    assert compatibility.runs_on(card, built_for) is expected


@pytest.mark.parametrize("path", sorted((repo.root() / "tools/facts").glob("*.yaml")), ids=lambda path: path.name)
def test_another_reader_of_yaml_agrees(path: Path) -> None:
    """ruamel.yaml follows YAML 1.2 and refuses duplicate keys."""
    assert YAML(typ="safe", pure=True).load(path) == load(f"facts/{path.name}")
