"""Rules on the EFA stack: installer, libfabric, the NCCL plugin, NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from tools.core.verdict import Verdict, bad, good, unclear
from tools.facts import compatibility
from tools.image.dockerfile.parse import Instruction
from tools.image.dockerfile.shell_script import script
from tools.image.rules.rule import Subject, at, rule

INSTALLER = re.compile(r"aws-efa-installer-v?(\d+\.\d+\.\d+)")
PLUGIN = re.compile(r"aws-ofi-nccl[-/@ ](?:.*?[^\d.])??v?(\d+\.\d+\.\d+)")
LIBFABRIC = re.compile(r"libfabric[-/](?:.*?[^\d.])??v?(\d+\.\d+\.\d+)")
SKIPS_KERNEL = re.compile(r"efa_installer\.sh\b[^&;|\n]*(?:--skip-kmod|\s-[a-z]*k)")
RUNS = re.compile(r"efa_installer\.sh")
ARG_NAMES = {"installer": "EFA_INSTALLER_VERSION", "plugin": "AWS_OFI_NCCL_VERSION"}


@rule(
    "efa",
    "with a libfabric, plugin and NCCL that do not go together NCCL falls back to TCP, or does not start",
)
def efa(subject: Subject) -> Iterator[Verdict]:
    """The versions that are installed against the fact table: what an installer brings, the libfabric that
    aws-ofi-nccl is compiled with, the NCCL that it serves.

    In a container the installer must leave out the kernel module (--skip-kmod): that is the node's.
    """
    for _, one in subject.dockerfile.instructions():
        text = f"{one.value}\n{script(one)}" if one.name in ("RUN", "ADD", "COPY") else ""
        if match := INSTALLER.search(text):
            yield from _installer(subject, one, match[1])
        if RUNS.search(text):
            yield from _options(subject, one, text)
        if match := PLUGIN.search(text):
            yield from _plugin(subject, one, match[1])


def _installer(subject: Subject, one: Instruction, version: str) -> Iterator[Verdict]:
    known = compatibility.EFA.get(version)
    if known is None:
        yield unclear(at(subject, one), f"EFA installer {version} is not in the table of releases")
        return
    what = f"EFA installer {version}: libfabric {known.libfabric}, aws-ofi-nccl {known.ofi_nccl}"
    yield good(at(subject, one), what)
    yield from _plugin(subject, one, known.ofi_nccl)


def _options(subject: Subject, one: Instruction, text: str) -> Iterator[Verdict]:
    if SKIPS_KERNEL.search(text):
        yield good(at(subject, one), "the installer leaves out the kernel module, which is the node's")
    else:
        remedy = "efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify"
        yield bad(
            at(subject, one), "the installer builds a kernel module, which fails in a container", remedy
        )


def _plugin(subject: Subject, one: Instruction, version: str) -> Iterator[Verdict]:
    plugin = compatibility.plugin(version)
    if plugin is None:
        yield unclear(at(subject, one), f"aws-ofi-nccl {version} is older than the table of releases")
        return
    libfabric = LIBFABRIC.search(script(one)) if one.name == "RUN" else None
    if libfabric and Version(libfabric[1]) < Version(plugin.libfabric):
        yield bad(
            at(subject, one),
            f"aws-ofi-nccl {version} needs libfabric {plugin.libfabric} or newer, not {libfabric[1]}",
            f"libfabric {plugin.libfabric} or newer",
        )
        return
    nccl = _nccl(subject)
    if nccl is None:
        return
    if Version(nccl) < Version(plugin.nccl):
        yield bad(
            at(subject, one),
            f"aws-ofi-nccl {version} serves NCCL {plugin.nccl} and newer, and torch brings {nccl}",
            "an older plugin, or a newer torch",
        )
    elif Version(nccl) <= max(map(Version, plugin.tested_nccl)):
        yield good(at(subject, one), f"aws-ofi-nccl {version} serves NCCL {nccl}, which torch brings")
    else:
        newest = max(plugin.tested_nccl, key=Version)
        text = f"aws-ofi-nccl {version} was tested up to NCCL {newest}, and torch brings {nccl}"
        yield unclear(at(subject, one), text, "a newer plugin, or a run of nccl-tests on two nodes")


def _nccl(subject: Subject) -> str | None:
    """Return the NCCL that is used: the package's own pin, else what torch brings."""
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        own = subject.package(name)
        if own and own[1].exact:
            return own[1].exact
    torch = subject.package("torch")
    row = compatibility.torch(torch[1].exact) if torch and torch[1].exact else None
    return row.nccl if row else None
