"""Rules on releases that go together: torch, CUDA, the driver, and what builds on torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from tools.core.verdict import Verdict, bad, good, unclear
from tools.facts import compatibility
from tools.image.dockerfile.packages import Install, Package, cuda_version
from tools.image.dockerfile.shell_script import script
from tools.image.rules.rule import Place, Subject, at, of, rule

BASE_CUDA = re.compile(r"(?:^|[^0-9a-z])cuda[-_]?(\d+\.\d+)|nvidia/cuda:(\d+\.\d+)|(?:^|-)cu(\d{3})(?:-|$)")
# torch's own images and those of AWS, which builds torch itself.
BASE_TORCH = re.compile(r"(?:^|/)pytorch(?:-training|-inference)?:v?(\d+\.\d+(?:\.\d+)?)")
NGC = re.compile(r"nvcr\.io/nvidia/pytorch:(\d\d\.\d\d)-")
OFFICIAL = re.compile(r"^(?:docker\.io/)?pytorch/pytorch:")
CPU_BASE = re.compile(r"pytorch(?:-training|-inference):[^@]*-cpu-")
BASE_PYTHON = re.compile(r"(?:^|/)python:(\d+\.\d+)|[-_]py(3)(\d{1,2})(?:-|$)")
RUNTIME = re.compile(r"-(?:runtime|base)-|-(?:runtime|base)$|slim")


@rule(
    "torch-cuda",
    "CUDA libraries of another release come first on the library path, and torch finds no symbol",
)
def torch_cuda(subject: Subject) -> Iterator[Verdict]:
    """The CUDA of the base image, and that of the index or the local version (`+cu121`), against the CUDA
    that the torch release was built for (docs/images.md has the table). Without an index it is the default
    wheel, and only builds for its major release are counted.

    Another major release fails, and so does an older minor release than the wheel's; a newer minor one of the
    same major is compatible by NVIDIA's rules. A base without CUDA is right: the wheels bring their own.
    """
    found = _torch(subject)
    base = base_cuda(subject)
    if found is None:
        return
    place, text, wheel = found
    row = compatibility.torch(text)
    if row is None:
        yield unclear(place, f"torch {text} is not in the table of releases", "see docs/images.md")
        return
    if wheel == "cpu":
        yield good(place, "the wheel of the index `cpu` needs no CUDA")
        return
    stage = at(subject, subject.dockerfile.final.lineage()[0])
    if place == stage and not OFFICIAL.match(subject.dockerfile.final.image):
        yield good(place, f"torch {text} comes with the base, built for its CUDA")
        return
    if wheel in row.unsure_cuda:
        yield unclear(
            place, f"whether torch {text} was built for CUDA {wheel} is not certain", f"CUDA {row.cuda}"
        )
        return
    if wheel and wheel not in row.builds and compatibility.version(wheel):
        known = ", ".join(row.builds)
        yield bad(
            place, f"torch {text} was never built for CUDA {wheel}, but for {known}", f"take CUDA {row.cuda}"
        )
        return
    if base is None:
        yield good(place, f"torch {text} brings CUDA {wheel or row.cuda}, and the base has none")
        return
    builds = (wheel,) if wheel else tuple(one for one in row.builds if _same_major(one, row.cuda))
    fits = [build for build in builds if _newer_minor(base, build)]
    if fits:
        yield good(stage, f"CUDA {base} of the base goes with torch {text} (built for {', '.join(builds)})")
    else:
        yield bad(
            stage,
            f"torch {text} needs CUDA {' or '.join(builds)}, and the base has {base}",
            f"a base with CUDA {builds[0]}, or one without CUDA: the wheel brings its own",
        )


@rule(
    "driver",
    "a driver older than the CUDA release gives `CUDA driver version is insufficient` at the first use",
)
def driver(subject: Subject) -> Iterator[Verdict]:
    """The oldest NVIDIA driver for the image's CUDA, against the one given with --driver. Without that the
    need is said, and nothing is judged.
    """
    found, base = _torch(subject), base_cuda(subject)
    if CPU_BASE.search(subject.dockerfile.final.image) and base is None:
        return
    row = compatibility.torch(found[1]) if found else None
    cuda = (found[2] if found else "") or (row.cuda if row else base)
    if cuda is None or cuda == "cpu":
        return
    needed = compatibility.driver(cuda)
    place = found[0] if found else at(subject, subject.dockerfile.final)
    if needed is None:
        yield unclear(place, f"no driver is known for CUDA {cuda}")
    elif subject.driver is None:
        yield good(place, f"CUDA {cuda} needs an NVIDIA driver of {needed} or newer on the nodes")
    elif subject.driver < needed:
        yield bad(
            place,
            f"CUDA {cuda} needs a driver of {needed} or newer, and the nodes have {subject.driver}",
            "a newer AMI, or a torch that was built for an older CUDA",
        )
    else:
        yield good(place, f"the driver {subject.driver} serves CUDA {cuda} (from {needed} on)")


@rule("torchvision", "a torchvision for another torch fails when it is imported: operator torchvision::nms")
def torchvision(subject: Subject) -> Iterator[Verdict]:
    """torchvision's release against the torch that its metadata requires, to the last number."""
    found, torch = subject.package("torchvision"), _torch(subject)
    if found is None or torch is None or found[1].exact is None:
        return
    place, wanted = of(found[1]), compatibility.torch_of_torchvision(found[1].exact)
    right = (
        compatibility.torchvision_release(torch[1])
        if _whole(torch[1])
        else compatibility.torchvision_of(torch[1])
    )
    remedy = f"torchvision=={right}" if right else "see docs/images.md"
    if wanted is None:
        yield unclear(place, f"torchvision {found[1].exact} is not in the table of releases")
    elif wanted != compatibility.series(torch[1]):
        yield bad(place, f"torchvision {found[1].exact} is for torch {wanted}, not {torch[1]}", remedy)
    elif _whole(torch[1]) and right and compatibility.version(right) != compatibility.version(found[1].exact):
        yield bad(place, f"torchvision {found[1].exact} requires another torch than {torch[1]}", remedy)
    else:
        yield good(place, f"torchvision {found[1].exact} is for torch {wanted}")


@rule("torchaudio", "a torchaudio for another torch fails when it is imported: undefined symbol")
def torchaudio(subject: Subject) -> Iterator[Verdict]:
    """torchaudio's release against torch's: the same number, up to 2.10."""
    found, torch = subject.package("torchaudio"), _torch(subject)
    if found is None or torch is None or found[1].exact is None:
        return
    wanted = compatibility.torch_of_torchaudio(found[1].exact)
    same = compatibility.version(found[1].exact) == compatibility.version(torch[1])
    if wanted is None:
        yield good(of(found[1]), f"torchaudio {found[1].exact} requires no particular torch")
    elif wanted != compatibility.series(torch[1]) or (_whole(torch[1]) and not same):
        remedy = f"torchaudio=={torch[1] if _whole(torch[1]) else compatibility.series(torch[1]) + '.*'}"
        text = f"torchaudio {found[1].exact} is for torch {found[1].exact}, not {torch[1]}"
        yield bad(of(found[1]), text, remedy)
    else:
        yield good(of(found[1]), f"torchaudio {found[1].exact} is for torch {wanted}")


@rule("transformers", "transformers switches torch off where it is too old, and no model class is there")
def transformers(subject: Subject) -> Iterator[Verdict]:
    """transformers' release against the oldest torch that its metadata names."""
    found, torch = subject.package("transformers"), _torch(subject)
    if found is None or torch is None or found[1].exact is None:
        return
    wanted, has = compatibility.torch_for_transformers(found[1].exact), compatibility.version(torch[1])
    if wanted is None or has is None:
        return
    if has < Version(wanted):
        yield bad(
            of(found[1]),
            f"transformers {found[1].exact} needs torch {wanted} or newer, not {torch[1]}",
            f"torch {wanted} or newer, or an older transformers",
        )
    else:
        yield good(of(found[1]), f"transformers {found[1].exact} works with torch {wanted} and newer")


@rule(
    "torch-pins", "pip replaces torch by the one that a package requires, or the package fails at its import"
)
def torch_pins(subject: Subject) -> Iterator[Verdict]:
    """Packages whose wheels require one torch, or one from a release on: xformers, vLLM, bitsandbytes. And
    the triton that torch requires. By the fact table's releases; of another nothing is said.
    """
    torch = _torch(subject)
    if torch is None:
        return
    for name in sorted({*compatibility.TORCH_PINS, *compatibility.TORCH_AT_LEAST}):
        found = subject.package(name)
        if found is not None and found[1].exact is not None:
            yield from _pinned(found[1], found[1].exact, torch[1])
    found = subject.package("triton")
    wanted = compatibility.TRITON.get(torch[1])
    if found is None or wanted is None or found[1].exact is None:
        return
    text = f"torch {torch[1]} requires triton {str(wanted).removeprefix('==')}"
    if found[1].exact in wanted:
        yield good(of(found[1]), text)
    else:
        remedy = "leave triton out: torch brings its own"
        yield bad(of(found[1]), f"{text}, not {found[1].exact}", remedy)


def _pinned(package: Package, release: str, torch: str) -> Iterator[Verdict]:
    """Judge the torch that a release of a package requires: exactly, or from one on."""
    name, has = package.name, compatibility.version(torch)
    wanted = compatibility.TORCH_PINS.get(name, {}).get(release)
    oldest = compatibility.oldest_torch(name, release) if name in compatibility.TORCH_AT_LEAST else None
    if wanted is not None:
        text = f"{name} {release} requires torch {wanted}"
        fits = torch == wanted or (not _whole(torch) and compatibility.series(wanted) == torch)
        remedy = f"torch=={wanted}, or the {name} for {torch}"
    elif oldest is not None and has is not None:
        text = f"{name} {release} requires torch {oldest} or newer"
        fits = has >= Version(oldest)
        remedy = f"torch {oldest} or newer, or an older {name}"
    else:
        return
    yield good(of(package), text) if fits else bad(of(package), f"{text}, not {torch}", remedy)


@rule("bitsandbytes", "without a library for torch's CUDA it has no 8-bit optimizer, and says so in mid-run")
def bitsandbytes(subject: Subject) -> Iterator[Verdict]:
    """The libraries in the wheel of bitsandbytes against the CUDA that torch was built for. BNB_CUDA_VERSION
    names another one.
    """
    found, torch = subject.package("bitsandbytes"), _torch(subject)
    row = compatibility.torch(torch[1]) if torch else None
    if found is None or torch is None or row is None or found[1].exact is None or torch[2] == "cpu":
        return
    named = subject.dockerfile.final.environment.get("BNB_CUDA_VERSION", "")
    cuda = cuda_version(f"cu{named}") if named.isdigit() and len(named) > 2 else None
    cuda = cuda or torch[2] or row.cuda
    place, release = of(found[1]), found[1].exact
    runs = compatibility.bitsandbytes_runs_on(release, cuda)
    if runs:
        yield good(place, f"bitsandbytes {release} has a library that runs with CUDA {cuda}")
    elif runs is None:
        yield unclear(place, f"whether bitsandbytes {release} has a library for CUDA {cuda} is not certain")
    else:
        text = f"bitsandbytes {release} has no library for CUDA {cuda}, which torch {torch[1]} is built for"
        yield bad(place, text, "a newer bitsandbytes, or a torch of an older CUDA")


@rule("deepspeed", "its operators are compiled against torch and CUDA, when it is installed or in mid-run")
def deepspeed(subject: Subject) -> Iterator[Verdict]:
    """DeepSpeed's release against torch's; and where DS_BUILD_* asks for its operators to be compiled, nvcc
    in that stage and a build that is not isolated, for it imports torch.
    """
    found, torch = subject.package("deepspeed"), _torch(subject)
    if found is None:
        return
    install, package = found
    place, release = of(package), compatibility.version(package.exact or "")
    has = compatibility.version(torch[1]) if torch else None
    old = release is not None and release < Version(compatibility.DEEPSPEED["before"])
    if torch and has and old and has >= Version(compatibility.DEEPSPEED["torch"]):
        text = f"deepspeed {package.exact} imports a name that torch {torch[1]} no longer has"
        yield bad(place, text, f"deepspeed {compatibility.DEEPSPEED['before']} or newer")
        return
    if not _builds_operators(install):
        if torch and package.exact:
            yield good(place, f"deepspeed {package.exact} compiles what it needs when it is used")
        return
    base = install.stage.image.split("@")[0]
    if RUNTIME.search(base):
        text = f"DS_BUILD_* compiles deepspeed's operators, and {base} has no nvcc"
        yield bad(place, text, "a -devel base in the stage that builds it")
    elif install.tool in ("pip", "uv") and "--no-build-isolation" not in install.flags:
        text = "DS_BUILD_* compiles deepspeed's operators with torch, and an isolated build has none"
        yield bad(place, text, "pip install --no-build-isolation, after torch")
    else:
        yield good(place, "deepspeed's operators are compiled where torch is")


def _builds_operators(install: Install) -> bool:
    """Say whether DS_BUILD_OPS or one of its kin is 1 where deepspeed is installed."""
    values = dict(install.stage.environment)
    for one in install.stage.layers():
        values |= {name: value for name, value in one.pairs if value} if one.name == "ARG" else {}
    said = {**values, **dict(re.findall(r"\b(DS_BUILD_\w+)=[\"']?(\w+)", script(install.instruction)))}
    return any(name.startswith("DS_BUILD_") and value == "1" for name, value in said.items())


@rule(
    "flash-attn",
    "flash-attn is compiled against the torch and CUDA that are there, for an hour, or not at all",
)
def flash_attn(subject: Subject) -> Iterator[Verdict]:
    """flash-attn from the index is a source archive: it needs nvcc in the stage that builds it,
    --no-build-isolation so that it finds torch, torch 2.2, and CUDA 12 of torch's own major release.
    """
    found = subject.package("flash-attn")
    if found is None:
        return
    install, package = found
    place, torch = of(package), _torch(subject)
    if (
        torch
        and (has := compatibility.version(torch[1]))
        and has < Version(compatibility.FLASH_ATTN["torch"])
    ):
        yield bad(
            place,
            f"flash-attn needs torch {compatibility.FLASH_ATTN['torch']}, not {torch[1]}",
            "a newer torch",
        )
        return
    if "://" in package.text:
        yield from _flash_wheel(place, package, torch)
        return
    base = install.stage.image.split("@")[0]
    problem = _cannot_compile(install, base)
    if problem:
        yield bad(place, *problem)
    elif BASE_CUDA.search(base) or NGC.search(base):
        yield good(place, "flash-attn is built where nvcc is")
    else:
        yield unclear(place, f"flash-attn is compiled: whether {base} has nvcc cannot be told")


@rule("python", "pip finds no wheel of torch for this Python, and says: no matching distribution")
def python(subject: Subject) -> Iterator[Verdict]:
    """The base image's Python against those that the torch release has wheels for."""
    found = _torch(subject)
    base = subject.dockerfile.final.image
    match, ngc = BASE_PYTHON.search(base), _ngc(base)
    row = compatibility.torch(found[1]) if found else None
    if not found or not (match or ngc) or row is None or _base_torch(base) == found[1]:
        return
    has = (match[1] or f"{match[2]}.{match[3]}") if match else ngc.python if ngc else ""
    place = at(subject, subject.dockerfile.final.lineage()[0])
    if Version(row.oldest_python) <= Version(has) <= Version(row.newest_python):
        yield good(place, f"torch {found[1]} has wheels for Python {has}")
    else:
        span = f"{row.oldest_python} to {row.newest_python}"
        yield bad(
            place, f"torch {found[1]} has wheels for Python {span}, and the base has {has}", f"Python {span}"
        )


@rule("gpu", "a binary without code for the card fails with: no kernel image is available")
def gpu(subject: Subject) -> Iterator[Verdict]:
    """The compute capability of the machine given with --for, against what torch was built for and against
    TORCH_CUDA_ARCH_LIST, by which extensions are compiled.
    """
    card = subject.machine.accelerator if subject.machine else None
    capability = compatibility.GPUS.get(str(card))
    found = _torch(subject)
    row = compatibility.torch(found[1]) if found else None
    if capability is None:
        return
    if found and row and found[2] != "cpu":
        cuda = found[2] or row.cuda
        built = compatibility.CAPABILITIES.get(cuda)
        if built is None:
            yield unclear(found[0], f"which cards torch's builds for CUDA {cuda} run on is not in the table")
        elif compatibility.runs_on(capability, built):
            yield good(found[0], f"torch {found[1]} for CUDA {cuda} runs on {card} ({capability})")
        else:
            yield bad(
                found[0],
                f"torch {found[1]} for CUDA {cuda} has no code for {card} ({capability})",
                "a torch that was built for a newer CUDA: 11.8 for H100, 12.8 for B200",
            )
    yield from _arch_list(subject, str(card), capability)


def base_cuda(subject: Subject) -> str | None:
    """Return the CUDA of the base image, by its name, or None."""
    if ngc := _ngc(subject.dockerfile.final.image):
        return ngc.cuda
    match = BASE_CUDA.search(subject.dockerfile.final.image.split("@")[0])
    if match is None:
        return None
    return match[1] or match[2] or cuda_version("cu" + match[3])


def torch_version(subject: Subject) -> str | None:
    """Return the torch release that the image has, or None."""
    found = _torch(subject)
    return found[1] if found else None


def _whole(version: str) -> bool:
    """Say whether a version is a whole release, 2.5.1, and not a series or what was built before one."""
    return bool(re.fullmatch(r"\d+\.\d+\.\d+", version))


def _ngc(image: str) -> compatibility.Ngc | None:
    match = NGC.search(image)
    return compatibility.NGC.get(match[1]) if match else None


def _base_torch(image: str) -> str | None:
    """Return the torch that a base image has by its name: a release, or a series; None where not known."""
    if NGC.search(image):
        ngc = _ngc(image)
        return ngc.torch if ngc else None
    match = BASE_TORCH.search(image.split("@")[0])
    return match[1] if match else None


def _torch(subject: Subject) -> tuple[Place, str, str] | None:
    """Return where torch comes from, its version, and the CUDA that was asked for ('' for the default)."""
    found = subject.package("torch")
    base = _base_torch(subject.dockerfile.final.image)
    if found and found[1].exact and base != found[1].exact:
        install, package = found
        asked = package.local or install.cuda or ""
        return of(package), package.exact or "", "cpu" if asked == "cpu" else cuda_version(asked) or ""
    if base is None:
        return None
    return at(subject, subject.dockerfile.final.lineage()[0]), base, base_cuda(subject) or ""


def _same_major(one: str, other: str) -> bool:
    return Version(one).major == Version(other).major


def _newer_minor(base: str, build: str) -> bool:
    return _same_major(base, build) and Version(base) >= Version(build)


def _flash_wheel(place: Place, package: Package, torch: tuple[Place, str, str] | None) -> Iterator[Verdict]:
    match = re.search(r"(?:cu(\d+))?torch(\d+\.\d+)", package.local or package.text)
    row = compatibility.torch(torch[1]) if torch else None
    cuda = (torch[2] if torch else "") or (row.cuda if row else "")
    if match is None or torch is None:
        yield unclear(place, "which torch this wheel is for cannot be told from its name")
    elif match[1] and cuda[:2].isdigit() and match[1][:2] != cuda[:2]:
        text = f"this wheel of flash-attn is for CUDA {match[1][:2]}, and torch {torch[1]} for {cuda}"
        yield bad(place, text, "the wheel for it")
    elif match[2] != compatibility.series(torch[1]):
        yield bad(
            place, f"this wheel of flash-attn is for torch {match[2]}, not {torch[1]}", "the wheel for it"
        )
    else:
        yield good(place, f"the wheel of flash-attn is for torch {match[2]}")


def _cannot_compile(install: Install, base: str) -> tuple[str, str] | None:
    """Return why flash-attn is not built in this stage, and what to do, or None."""
    if RUNTIME.search(base):
        return f"flash-attn is compiled, and {base} has no nvcc", "a -devel base in the stage that builds it"
    match = BASE_CUDA.search(base)
    if match and match[1] and Version(match[1]) < Version(compatibility.FLASH_ATTN["cuda"]):
        return f"flash-attn needs CUDA {compatibility.FLASH_ATTN['cuda']}, not {match[1]}", "a newer base"
    if install.tool in ("pip", "uv") and "--no-build-isolation" not in install.flags:
        return (
            "flash-attn imports torch while it is built, and an isolated build has none",
            "pip install --no-build-isolation, after torch",
        )
    return None


def _arch_list(subject: Subject, card: str, capability: str) -> Iterator[Verdict]:
    for stage in subject.dockerfile.shipped():
        for one in stage.instructions:
            value = dict(one.pairs).get("TORCH_CUDA_ARCH_LIST") if one.name in ("ENV", "ARG") else None
            if not value:
                continue
            entries = tuple(re.split(r"[;\s]+", value.strip()))
            if not all(re.fullmatch(r"\d+\.\d+a?(\+PTX)?", entry) for entry in entries):
                remedy = 'numbers with a point: TORCH_CUDA_ARCH_LIST="8.0;9.0"'
                yield bad(
                    at(subject, one), f"TORCH_CUDA_ARCH_LIST={value} is no list of capabilities", remedy
                )
            elif compatibility.runs_on(capability, tuple(entry.replace("a", "") for entry in entries)):
                yield good(at(subject, one), f"extensions are compiled for {card} ({capability}) too")
            else:
                remedy = f"add {capability}"
                yield bad(at(subject, one), f"extensions are not compiled for {card} ({capability})", remedy)
