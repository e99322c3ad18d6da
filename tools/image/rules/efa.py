"""Rules on the EFA stack: installer, libfabric, the NCCL plugin, NCCL."""

import re
from collections.abc import Iterator

from packaging.version import Version

from tools.core import Verdict, bad, doubtful, good, unclear
from tools.facts import compatibility
from tools.image.dockerfile.parse import Instruction
from tools.image.dockerfile.shell_script import commands, script
from tools.image.rules.rule import Subject, at, rule

INSTALLER = re.compile(r"aws-efa-installer-v?(\d+\.\d+\.\d+)")
PLUGIN = re.compile(r"aws-ofi-nccl[-/@ ](?:.{0,200}?[^\d.])??v?(\d+\.\d+\.\d+)")
BRANCH = re.compile(r"(?:-b|--branch|checkout)[ =](?:tags/)?v?(\d+\.\d+\.\d+)")
LIBFABRIC = re.compile(r"libfabric[-/](?:.{0,200}?[^\d.])??v?(\d+\.\d+\.\d+)")
SKIPS_KERNEL = re.compile(r"efa_installer\.sh\b[^&;|\n]{0,300}(?:--skip-kmod|\s-[a-z]{0,9}k)")
RUNS = re.compile(r"efa_installer\.sh")


@rule("efa")
def efa(subject: Subject) -> Iterator[Verdict]:
    for _, one in subject.dockerfile.instructions():
        text = f"{one.value}\n{script(one)}" if one.name in ("RUN", "ADD", "COPY") else ""
        if match := INSTALLER.search(text):
            yield from _installer(subject, one, match[1])
        started = (word for words in (commands(script(one)) if one.name == "RUN" else ()) for word in words[:2])
        if any(word.rpartition("/")[2] == "efa_installer.sh" for word in started):  # also behind sudo or a shell
            yield from _options(subject, one, text)
        if match := PLUGIN.search(text) or (_cloned(one) if one.name == "RUN" else None):
            yield from _plugin(subject, one, match[1])


def _cloned(one: Instruction) -> re.Match[str] | None:
    """Return the release of aws-ofi-nccl that a RUN clones, with its number in a group."""
    clones = [" ".join(words) for words in commands(script(one)) if "clone" in words[:4]]
    ours = next((text for text in clones if "aws-ofi-nccl" in text), "")
    return BRANCH.search(ours) or (BRANCH.search(script(one)) if ours and len(clones) == 1 else None)


def _installer(subject: Subject, one: Instruction, version: str) -> Iterator[Verdict]:
    known = compatibility.EFA.get(version)
    if known is None:
        yield unclear(at(subject, one), f"EFA installer {version} is not in the table of releases")
    elif known.ofi_nccl:
        what = f"EFA installer {version}: libfabric {known.libfabric}, aws-ofi-nccl {known.ofi_nccl}"
        yield good(at(subject, one), what)
        yield from _plugin(subject, one, known.ofi_nccl)
    elif "ofi-nccl" in subject.dockerfile.text:
        yield good(at(subject, one), f"EFA installer {version}: libfabric {known.libfabric}")
    else:
        text = f"EFA installer {version} brings no aws-ofi-nccl, and without one NCCL uses TCP"
        yield doubtful(at(subject, one), text, "installer 1.38.0 or newer, or build aws-ofi-nccl")


def _options(subject: Subject, one: Instruction, text: str) -> Iterator[Verdict]:
    if SKIPS_KERNEL.search(text):
        yield good(at(subject, one), "the installer skips the kernel module, which belongs to the node")
    else:
        remedy = "efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify"
        text = "the installer builds a kernel module, which fails in a container"
        yield bad(at(subject, one), text, remedy)


def _plugin(subject: Subject, one: Instruction, version: str) -> Iterator[Verdict]:
    plugin = compatibility.plugin(version)
    if plugin is None:
        yield unclear(at(subject, one), f"aws-ofi-nccl {version} is older than the table of releases")
        return
    libfabric = _libfabric(subject, one)
    if libfabric and Version(libfabric) < Version(plugin.libfabric):
        text = f"aws-ofi-nccl {version} needs libfabric {plugin.libfabric} or newer, not {libfabric}"
        yield bad(at(subject, one), text, f"libfabric {plugin.libfabric} or newer")
        return
    nccl = _nccl(subject)
    if nccl is None:
        return
    if Version(nccl) < Version(plugin.nccl):
        text = f"aws-ofi-nccl {version} supports NCCL {plugin.nccl} and newer, and torch brings {nccl}"
        yield bad(at(subject, one), text, "an older plugin, or a newer torch")
    elif Version(nccl) <= max(map(Version, plugin.tested_nccl)):
        yield good(at(subject, one), f"aws-ofi-nccl {version} supports NCCL {nccl}, which torch brings")
    else:
        newest = max(plugin.tested_nccl, key=Version)
        text = f"aws-ofi-nccl {version} was tested up to NCCL {newest}, and torch brings {nccl}"
        yield doubtful(at(subject, one), text, "a newer plugin, or nccl-tests on two nodes")


def _libfabric(subject: Subject, one: Instruction) -> str | None:
    """Return the number of the libfabric that a RUN names, else of the one that the EFA installer brings."""
    named = LIBFABRIC.search(script(one)) if one.name == "RUN" else None
    if named:
        return named[1]
    texts = (f"{each.value}\n{script(each)}" for each in subject.dockerfile.final.layers())
    installer = next((match[1] for match in map(INSTALLER.search, texts) if match), "")
    known = compatibility.EFA.get(installer)
    return known.libfabric.partition("amzn")[0] if known else None


def _nccl(subject: Subject) -> str | None:
    """Return the NCCL in use: that of a pinned package, else that of torch."""
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12"):
        found = subject.package(name)
        if found and found[1].exact:
            return found[1].exact
    torch = subject.package("torch")
    row = compatibility.torch(torch[1].exact) if torch and torch[1].exact else None
    return row.nccl if row else None
