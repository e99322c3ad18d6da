"""Compatible releases of torch, CUDA, drivers, torchvision, NCCL and the EFA stack.

compatibility.yaml has the numbers and their sources. Facts about a series, such as torch 2.9, apply to all
releases of it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from tools.core.tables import load

T = TypeVar("T")
# The images of PyTorch, and those of AWS, which builds torch itself.
TORCH_IMAGE = re.compile(r"(?:^|/)pytorch(?:-training|-inference)?:v?(\d+\.\d+(?:\.\d+)?)")
NGC_IMAGE = re.compile(r"nvcr\.io/nvidia/pytorch:(\d\d\.\d\d)-")


@dataclass(frozen=True)
class Torch:
    """A series of torch. `cuda` is the CUDA of the index's default wheel.

    There were also builds for `other_cuda`, and perhaps for `unsure_cuda`.
    """

    series: str
    cuda: str
    other_cuda: list[str]
    nccl: str
    torchvision: str
    python: list[str]  # oldest and newest
    unsure_cuda: list[str]

    @property
    def builds(self) -> tuple[str, ...]:
        """Return the CUDA versions of the builds, the default first."""
        return self.cuda, *self.other_cuda


@dataclass(frozen=True)
class Ngc:
    """The contents of an NVIDIA PyTorch image: the series of torch, CUDA, Python."""

    torch: str
    cuda: str
    python: str


@dataclass(frozen=True)
class Efa:
    """The contents of a release of the EFA installer. Releases before 1.38.0 have no aws-ofi-nccl."""

    installer: str
    libfabric: str
    ofi_nccl: str | None = None


@dataclass(frozen=True)
class Plugin:
    """The requirements of aws-ofi-nccl from release `since`."""

    since: str
    nccl: str
    libfabric: str
    tested_nccl: list[str]


_FACTS: dict[str, Any] = load("facts/compatibility.yaml")

TORCH: Mapping[str, Torch] = {
    series: Torch(series=series, **{"unsure_cuda": []} | row) for series, row in _FACTS["torch"].items()
}
NGC: Mapping[str, Ngc] = {name: Ngc(**row) for name, row in _FACTS["ngc"].items()}
EFA: Mapping[str, Efa] = {name: Efa(installer=name, **row) for name, row in _FACTS["efa"].items()}
PLUGINS: list[Plugin] = [Plugin(**row) for row in _FACTS["ofi_nccl"]]
GPUS: Mapping[str, str] = _FACTS["gpus"]
CAPABILITIES: Mapping[str, list[str]] = _FACTS["cuda"]["capabilities"]
FLASH_ATTN: Mapping[str, Mapping[str, str]] = {str(row["since"]): row for row in _FACTS["flash_attn"]}
TORCH_PINS: Mapping[str, Mapping[str, str]] = _FACTS["torch_pins"]
TORCH_AT_LEAST: Mapping[str, Mapping[str, str]] = _FACTS["torch_at_least"]
TRITON: Mapping[str, SpecifierSet] = {name: SpecifierSet(one) for name, one in _FACTS["triton"].items()}
ADVISORIES: Mapping[str, Mapping[str, str]] = _FACTS["advisories"]  # of torch, by their name
HYPERPOD: Mapping[str, Mapping[str, list[str]]] = _FACTS["hyperpod"]
DEEPSPEED: Mapping[str, str] = _FACTS["deepspeed"]


def version(text: str) -> Version | None:
    """Return a version number as pip compares it, without a local part, or None if it is invalid."""
    try:
        return Version(text.split("+")[0])
    except InvalidVersion:
        return None


def outside_hyperpod(part: str, running: Mapping[str, Iterable[str]]) -> list[str]:
    """Return, a line each, the running versions for which AWS does not document a part of HyperPod."""
    return [
        f"{name} {text}: documented are {oldest} to {newest}"
        for name, texts in running.items()
        for text in sorted(texts)
        for oldest, newest in [HYPERPOD[part][name]]
        if (number := version(text)) and not Version(oldest) <= number <= Version(newest)
    ]


def series(text: str) -> str:
    """Return the first two numbers of a version, or the text if it is not a version."""
    number = version(text)
    return f"{number.major}.{number.minor}" if number else text


def torch(text: str) -> Torch | None:
    """Return the facts about a torch release, or None if they are unknown."""
    return TORCH.get(series(text))


def ngc(image: str) -> Ngc | None:
    """Return what an NVIDIA PyTorch image contains, or None for another image or an unknown release."""
    match = NGC_IMAGE.search(image)
    return NGC.get(match[1]) if match else None


def torch_of_image(image: str) -> str | None:
    """Return the torch of a published image by its name, a release or a series, or None if it is unknown."""
    if NGC_IMAGE.search(image):
        row = ngc(image)
        return row.torch if row else None
    match = TORCH_IMAGE.search(image.split("@")[0])
    return match[1] if match else None


def torch_of_torchvision(text: str) -> str | None:
    """Return the series of torch that a torchvision release requires, or None if it is unknown."""
    exact: dict[str, str] = _FACTS["torchvision_exceptions"]
    if text in exact:
        return exact[text]
    rows = [row.series for row in TORCH.values() if row.torchvision == series(text)]
    return rows[0] if len(rows) == 1 else None


def torchvision_of(text: str) -> str | None:
    """Return the torchvision requirement that fits a torch release, such as `0.23.*`."""
    row = torch(text)
    if row is None:
        return None
    exact = [name for name, wanted in _FACTS["torchvision_exceptions"].items() if wanted == row.series]
    return max(exact, key=Version) if exact else f"{row.torchvision}.*"


def torchvision_release(text: str) -> str | None:
    """Return the torchvision release that requires exactly this torch release, or None if it is unknown.

    Its last number is that of torch from torch 2.1 on, and one more before.
    """
    row, number, wanted = torch(text), version(text), torchvision_of(text)
    if row is None or number is None or wanted is None:
        return None
    if not wanted.endswith("*"):
        return wanted
    return f"{row.torchvision}.{number.micro + (1 if row.series == '2.0' else 0)}"


def cuda_images(tag: str, cuda: str) -> list[str]:
    """Return tags of nvidia/cuda like `tag`, for `cuda` and newer releases of its major, nearest first."""
    oldest = Version(cuda)
    newer = [one for one in _FACTS["cuda_images"] if Version(one).major == oldest.major and Version(one) >= oldest]
    tags = [_cuda_image(tag, one) for one in sorted(newer, key=Version)]
    return [one for one in tags if one]


def _cuda_image(tag: str, cuda: str) -> str | None:
    row = _FACTS["cuda_images"][cuda]
    parts = [row["cudnn"] if part.startswith("cudnn") else part for part in tag.split("-")[1:]]
    system = next((part.removeprefix("ubuntu") for part in parts if part.startswith("ubuntu")), None)
    return "-".join([row["release"], *parts]) if system is None or system in row["ubuntu"] else None


def torch_of_torchaudio(text: str) -> str | None:
    """Return the series of torch that a torchaudio release requires, or None if it requires none."""
    number, last = version(text), Version(_FACTS["torchaudio_follows_until"])
    if number is None or (number.major, number.minor) > (last.major, last.minor) or number.major < 2:
        return None
    return series(text)


def flash_attn(text: str | None) -> Mapping[str, str]:
    """Return the oldest torch and CUDA of a release of flash-attn, of the newest one if it is unknown."""
    return _newest(FLASH_ATTN, text or "") or [*FLASH_ATTN.values()][-1]


def oldest_torch(name: str, text: str) -> str | None:
    """Return the oldest torch that a release of a package requires, or None if it is unknown."""
    return _newest(TORCH_AT_LEAST[name], text)


def plugin(text: str) -> Plugin | None:
    """Return the facts about an aws-ofi-nccl release, or None if it is older than the table."""
    return _newest({row.since: row for row in PLUGINS}, text)


def _newest(rows: Mapping[str, T], text: str) -> T | None:
    """Return the last row whose release is not newer than `text`. The rows are in order."""
    number = version(text)
    matching = [row for since, row in rows.items() if number and Version(since) <= number]
    return matching[-1] if matching else None


def bitsandbytes_runs_on(text: str, cuda: str) -> bool | None:
    """Return whether a bitsandbytes release has a library for torch's CUDA, or None if it is unknown.

    A library that both neighbours of a release have is not missing between them.
    """
    number = version(text)
    libraries: dict[str, list[str]] = _FACTS["bitsandbytes"]["libraries"]
    if number is None:
        return None
    before = [row for name, row in libraries.items() if Version(name) <= number]
    after = [row for name, row in libraries.items() if Version(name) >= number]
    near = [*before[-1:], *after[:1]]
    if Version(_FACTS["bitsandbytes"]["nearest_since"]) <= number:
        return any(one.split(".")[0] == cuda.split(".")[0] for one in near[0]) or None
    has = {cuda in row for row in near}
    return has.pop() if len(has) == 1 and (before or cuda not in near[0]) else None


def driver(cuda: str) -> int | None:
    """Return the oldest NVIDIA driver (its first number) for a CUDA version, or None if it is unknown."""
    drivers: dict[str, int] = _FACTS["cuda"]["driver"]
    return drivers.get(cuda.split(".")[0])


def runs_on(capability: str, built_for: Iterable[str]) -> bool:
    """Return whether a binary for the capabilities `built_for` runs on a card of `capability`.

    A binary for X.y runs on X.z with z >= y. An entry with `+PTX` also runs on all newer cards.
    """
    card = Version(capability)
    for entry in built_for:
        target = Version(entry.removesuffix("+PTX"))
        if target <= card and (target.major == card.major or entry.endswith("+PTX")):
            return True
    return False
