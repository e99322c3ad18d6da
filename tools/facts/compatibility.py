"""Which releases of torch, CUDA, drivers, torchvision, NCCL and the EFA stack go together.

compatibility.yaml has the numbers and their sources. Versions are compared by their first two numbers (a
series, such as 2.9) where the facts are about series.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from ruamel.yaml import YAML

SOURCE = Path(__file__).parent / "compatibility.yaml"


@dataclass(frozen=True)
class Torch:
    """One series of torch. `cuda` is the index's default wheel's; there were builds for `other_cuda` too, and
    there may have been for `unsure_cuda`.
    """

    series: str
    cuda: str
    other_cuda: tuple[str, ...]
    nccl: str
    torchvision: str
    oldest_python: str
    newest_python: str
    unsure_cuda: tuple[str, ...] = ()

    @property
    def builds(self) -> tuple[str, ...]:
        """Return the CUDA versions that this series was built for, the default first."""
        return self.cuda, *self.other_cuda


@dataclass(frozen=True)
class Ngc:
    """What one of NVIDIA's images of PyTorch has: a series of torch, CUDA, Python."""

    torch: str
    cuda: str
    python: str


@dataclass(frozen=True)
class Efa:
    """What one release of the EFA installer brings."""

    installer: str
    libfabric: str
    ofi_nccl: str
    date: str


@dataclass(frozen=True)
class Plugin:
    """What aws-ofi-nccl asks for, from release `since` on."""

    since: str
    nccl: str
    libfabric: str
    tested_nccl: tuple[str, ...]


_FACTS: dict[str, Any] = YAML(typ="safe", pure=True).load(SOURCE)

TORCH: Mapping[str, Torch] = MappingProxyType(
    {
        series: Torch(
            series,
            row["cuda"],
            tuple(row["other_cuda"]),
            row["nccl"],
            row["torchvision"],
            oldest_python=row["python"][0],
            newest_python=row["python"][1],
            unsure_cuda=tuple(row.get("unsure_cuda", ())),
        )
        for series, row in _FACTS["torch"].items()
    }
)
NGC: Mapping[str, Ngc] = MappingProxyType({name: Ngc(**row) for name, row in _FACTS["ngc"].items()})
EFA: Mapping[str, Efa] = MappingProxyType(
    {
        name: Efa(name, row["libfabric"], row["ofi_nccl"], str(row["date"]))
        for name, row in _FACTS["efa"].items()
    }
)
PLUGINS: tuple[Plugin, ...] = tuple(
    Plugin(str(row["since"]), str(row["nccl"]), str(row["libfabric"]), tuple(map(str, row["tested_nccl"])))
    for row in _FACTS["ofi_nccl"]
)
GPUS: Mapping[str, str] = MappingProxyType(dict(_FACTS["gpus"]))
CAPABILITIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {cuda: tuple(found) for cuda, found in _FACTS["cuda"]["capabilities"].items()}
)
FLASH_ATTN: Mapping[str, str] = MappingProxyType(dict(_FACTS["flash_attn"]))
TORCH_PINS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {name: MappingProxyType(dict(releases)) for name, releases in _FACTS["torch_pins"].items()}
)
TORCH_AT_LEAST: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {name: MappingProxyType(dict(releases)) for name, releases in _FACTS["torch_at_least"].items()}
)
TRITON: Mapping[str, SpecifierSet] = MappingProxyType(
    {name: SpecifierSet(wanted) for name, wanted in _FACTS["triton"].items()}
)
DEEPSPEED: Mapping[str, str] = MappingProxyType(dict(_FACTS["deepspeed"]))
NEURON: Mapping[str, str] = MappingProxyType(dict(_FACTS["neuron"]))


def version(text: str) -> Version | None:
    """Return a version number as pip compares it, without a local part, or None where it is none."""
    try:
        return Version(text.split("+")[0])
    except InvalidVersion:
        return None


def series(text: str) -> str:
    """Return the first two numbers of a version: 2.9 of 2.9.1. Other text comes back as it is."""
    found = version(text)
    return f"{found.major}.{found.minor}" if found else text


def torch(text: str) -> Torch | None:
    """Return the facts on the torch release `text`, or None where the table does not have it."""
    return TORCH.get(series(text))


def torch_of_torchvision(text: str) -> str | None:
    """Return the series of torch that a torchvision release requires, or None where it is not known."""
    exact: dict[str, str] = _FACTS["torchvision_exceptions"]
    if text in exact:
        return exact[text]
    found = [row.series for row in TORCH.values() if row.torchvision == series(text)]
    return found[0] if len(found) == 1 else None


def torchvision_of(text: str) -> str | None:
    """Return a torchvision requirement that goes with the torch release `text`, such as `0.23.*`."""
    row = torch(text)
    if row is None:
        return None
    exact = [name for name, wanted in _FACTS["torchvision_exceptions"].items() if wanted == row.series]
    return max(exact, key=Version) if exact else f"{row.torchvision}.*"


def torchvision_release(text: str) -> str | None:
    """Return the torchvision release that requires exactly the torch release `text`, or None if not known.

    Its last number is torch's own, from torch 2.1 on; before it was one more.
    """
    row, found = torch(text), version(text)
    wanted = torchvision_of(text)
    if row is None or found is None or wanted is None:
        return None
    if not wanted.endswith("*"):
        return wanted
    return f"{row.torchvision}.{found.micro + (1 if row.series == '2.0' else 0)}"


def cuda_image(tag: str, cuda: str) -> str | None:
    """Return the tag of nvidia/cuda for another CUDA, with the same parts, or None if there is none known."""
    row = _FACTS["cuda_images"].get(cuda)
    if row is None:
        return None
    parts = tag.split("-")[1:]
    parts = [row["cudnn"] if part.startswith("cudnn") else part for part in parts]
    system = next((part.removeprefix("ubuntu") for part in parts if part.startswith("ubuntu")), None)
    if system is not None and system not in row["ubuntu"]:
        return None
    return "-".join([row["release"], *parts])


def cuda_images(tag: str, cuda: str) -> list[str]:
    """Return tags of nvidia/cuda for `cuda` and for newer minor releases of its major, the nearest first."""
    wanted = Version(cuda)
    newer = [
        one for one in _FACTS["cuda_images"] if Version(one).major == wanted.major and Version(one) >= wanted
    ]
    found = [cuda_image(tag, one) for one in sorted(newer, key=Version)]
    return [one for one in found if one]


def torch_of_torchaudio(text: str) -> str | None:
    """Return the series of torch that a torchaudio release requires; None where it requires none."""
    found, last = version(text), Version(_FACTS["torchaudio_follows_until"])
    if found is None or (found.major, found.minor) > (last.major, last.minor) or found.major < 2:
        return None
    return series(text)


def torch_for_transformers(text: str) -> str | None:
    """Return the oldest torch that a transformers release works with, or None where it is not known."""
    found = version(text)
    rows = [row for row in _FACTS["transformers"] if found and Version(row["since"]) <= found]
    return str(rows[-1]["torch"]) if rows else None


def oldest_torch(name: str, text: str) -> str | None:
    """Return the oldest torch that a release of a package requires, or None where it is not known."""
    found = version(text)
    rows = [torch for since, torch in TORCH_AT_LEAST[name].items() if found and Version(since) <= found]
    return rows[-1] if rows else None


def bitsandbytes_runs_on(text: str, cuda: str) -> bool | None:
    """Say whether a release of bitsandbytes has a library for torch's CUDA; None where it is not known.

    What both neighbours of a release have was not dropped and taken in again between them.
    """
    found = version(text)
    libraries: dict[str, list[str]] = _FACTS["bitsandbytes"]["libraries"]
    if found is None:
        return None
    before = [row for name, row in libraries.items() if Version(name) <= found]
    behind = [row for name, row in libraries.items() if Version(name) >= found]
    near = [*before[-1:], *behind[:1]]
    if Version(_FACTS["bitsandbytes"]["nearest_since"]) <= found:
        return any(one.split(".")[0] == cuda.split(".")[0] for one in near[0]) or None
    has = {cuda in row for row in near}
    return has.pop() if len(has) == 1 and (before or cuda not in near[0]) else None


def driver(cuda: str) -> int | None:
    """Return the oldest NVIDIA driver (its first number) for a CUDA version, or None where not known."""
    return _FACTS["cuda"]["driver"].get(cuda.split(".")[0])  # type: ignore[no-any-return]


def runs_on(capability: str, built_for: tuple[str, ...]) -> bool:
    """Say whether a binary for the capabilities `built_for` runs on a card of `capability`.

    A binary for X.y runs on X.z with z >= y; `+PTX` in an entry makes it run on anything newer too.
    """
    card = Version(capability)
    for entry in built_for:
        found = Version(entry.removesuffix("+PTX"))
        if found.major == card.major and found.minor <= card.minor:
            return True
        if entry.endswith("+PTX") and found <= card:
            return True
    return False


def plugin(text: str) -> Plugin | None:
    """Return what is known of the aws-ofi-nccl release `text`, or None where it is older than the table."""
    found = version(text)
    rows = [row for row in PLUGINS if found and Version(row.since) <= found]
    return rows[-1] if rows else None
