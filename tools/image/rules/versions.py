"""Rules on releases that have to match: torch, CUDA, the driver, and packages that build on torch."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from packaging.version import Version

from tools.core import Verdict, bad, doubtful, good, tables, unclear
from tools.facts import compatibility
from tools.image.dockerfile.packages import LOCKS, Install, Package, cuda_version
from tools.image.dockerfile.parse import Stage
from tools.image.dockerfile.shell_script import script
from tools.image.rules.rule import Location, Subject, at, of, rule

BASE_CUDA = re.compile(r"(?:^|[^0-9a-z])cuda[-_]?(\d+\.\d+)|nvidia/cuda:(\d+\.\d+)|(?:^|-)cu(\d{3})(?:-|$)")
OFFICIAL = re.compile(r"^(?:docker\.io/)?pytorch/pytorch:")
CPU_BASE = re.compile(r"pytorch(?:-training|-inference):[^@]{0,128}-cpu-")
BASE_PYTHON = re.compile(r"(?:^|/)python:(\d+\.\d+)|[-_]py(3)(\d{1,2})(?:-|$)")
RUNTIME = re.compile(r"-(?:runtime|base)-|-(?:runtime|base)$|slim")
PYTHONS: dict[str, str] = tables.load("image/tables.yaml")["pythons of systems"]
MANAGED = Version("3.11")  # Debian 12 and Ubuntu 23.04 were the first systems with PEP 668
_PATTERNS = tables.patterns("image/patterns.yaml")
OFF = ("0", "false", "off", "no", "f", "n")
ISOLATION = re.compile(r"\b((?:PIP|UV)_NO_BUILD_ISOLATION(?:_PACKAGE)?)=[\"']?([\w.-]+)")
DEVEL, ISOLATED = "a -devel base in the stage that builds it", "pip install --no-build-isolation, after torch"
ARCHITECTURES = tables.load("image/tables.yaml")["architectures"]
# With this variable flash-attn compiles nothing. Source: setup.py of Dao-AILab/flash-attention.
SKIPS = "FLASH_ATTENTION_SKIP_CUDA_BUILD"
WHEEL_ONLY = re.compile(rf"\b{SKIPS}=[\"']?TRUE\b")

State = Callable[[Location, str, str], Verdict]


@dataclass(frozen=True)
class Torch:
    """The torch of an image. `cuda` is the one that was asked for: '' for the default, or cpu."""

    place: Location
    version: str
    cuda: str
    only_index: bool = False  # no other index can have it
    install: Install | None = None  # None for the torch of the base

    @property
    def number(self) -> Version | None:
        return compatibility.version(self.version)

    @property
    def row(self) -> compatibility.Torch | None:
        """What the table of releases says."""
        return compatibility.torch(self.version)

    @property
    def whole(self) -> bool:
        """Whether the version is a release, 2.5.1, and neither a series nor a pre-release."""
        return bool(re.fullmatch(r"\d+\.\d+\.\d+", self.version))


@rule("torch-cuda")
def torch_cuda(subject: Subject) -> Iterator[Verdict]:
    torch, base = find_torch(subject), cuda_of(subject.dockerfile.final.image)
    if torch is None:
        return
    place, name, wheel, row = torch.place, f"torch {torch.version}", torch.cuda, torch.row
    stage = at(subject, subject.dockerfile.final.lineage()[0])
    if place == stage and row and base and OFFICIAL.match(subject.dockerfile.final.image):
        exists = base in (*row.builds, *row.unsure_cuda)
        text = f"{name} was {'' if exists else 'never '}built for CUDA {base}"
        yield (good(place, text) if exists else bad(place, f"{text}: there is no such image", f"CUDA {row.cuda}"))
    elif place == stage:
        yield good(place, f"{name} comes with the base and is built for its CUDA")
    elif row is None:
        yield unclear(place, f"{name} is not in the table of releases", "see docs/images.md")
    elif wheel == "cpu":
        yield good(place, "the wheel of the index `cpu` needs no CUDA")
    elif wheel in row.unsure_cuda:
        yield unclear(place, f"it is uncertain whether {name} was built for CUDA {wheel}", f"CUDA {row.cuda}")
    elif wheel and wheel not in row.builds and compatibility.version(wheel):
        text = f"{name} was never built for CUDA {wheel}, but for {', '.join(row.builds)}"
        yield (bad if torch.only_index else doubtful)(place, text, f"CUDA {row.cuda}")
    elif base is None:
        yield good(place, f"{name} brings CUDA {wheel or row.cuda}, and the base has none")
    else:
        major = Version(row.cuda).major
        builds = (wheel,) if wheel else tuple(one for one in row.builds if Version(one).major == major)
        has = Version(base)
        if any(has.major == Version(build).major and has >= Version(build) for build in builds):
            text = f"CUDA {base} of the base matches {name} (built for {', '.join(builds)})"
            yield good(stage, text)
        else:
            text = f"{name} is built for CUDA {' or '.join(builds)}, and the base has {base}"
            remedy = f"a base with CUDA {builds[0]}, or one without: the wheel brings its own"
            refused = has.major not in {Version(build).major for build in builds} and _compiled(subject)
            if refused:
                yield bad(stage, f"{text}; {refused} is compiled with the base's, and refuses it", remedy)
            else:
                yield doubtful(stage, text, remedy)


def _compiled(subject: Subject) -> str | None:
    """Return the package that is compiled and compares nvcc with torch's CUDA, or None.

    Sources: setup.py of NVIDIA/apex, and assert_no_cuda_mismatch in DeepSpeed's op_builder/builder.py.
    """
    for install in subject.shipped:
        if any(re.search(r"\bapex\b", one) for one in install.places):
            return "apex"
        if _builds_operators(install) and any(one.name == "deepspeed" for one in install.packages):
            return "DeepSpeed"
    return None


@rule("driver")
def driver(subject: Subject) -> Iterator[Verdict]:
    torch, base = find_torch(subject), cuda_of(subject.dockerfile.final.image)
    if CPU_BASE.search(subject.dockerfile.final.image) and base is None:
        return
    cuda = (torch.cuda if torch else "") or (torch.row.cuda if torch and torch.row else base)
    if cuda is None or cuda == "cpu":
        return
    needed = compatibility.driver(cuda)
    place = torch.place if torch else at(subject, subject.dockerfile.final)
    if needed is None and subject.driver:
        yield unclear(place, f"the driver for CUDA {cuda} is unknown")
    elif needed is None:
        return
    elif subject.driver is None:
        yield good(place, f"CUDA {cuda} needs an NVIDIA driver of {needed} or newer on the nodes")
    elif subject.driver < needed:
        text = f"CUDA {cuda} needs a driver of {needed} or newer, and the nodes have {subject.driver}"
        yield bad(place, text, "a newer AMI, or a torch that was built for an older CUDA")
    else:
        yield good(place, f"driver {subject.driver} supports CUDA {cuda} ({needed} or newer)")


@rule("torchvision")
def torchvision(subject: Subject) -> Iterator[Verdict]:
    for torch, package, release, wrong in _beside_torch(subject, "torchvision"):
        place, wanted = of(package), compatibility.torch_of_torchvision(release)
        look_up = compatibility.torchvision_release if torch.whole else compatibility.torchvision_of
        right = look_up(torch.version)
        remedy = f"torchvision=={right}" if right else "see docs/images.md"
        if wanted is None:
            yield unclear(place, f"torchvision {release} is not in the table of releases")
        elif wanted != compatibility.series(torch.version):
            yield wrong(place, f"torchvision {release} is for torch {wanted}, not {torch.version}", remedy)
        elif torch.whole and right and compatibility.version(right) != compatibility.version(release):
            yield wrong(place, f"torchvision {release} requires another torch than {torch.version}", remedy)
        else:
            yield good(place, f"torchvision {release} is for torch {wanted}")


@rule("torchaudio")
def torchaudio(subject: Subject) -> Iterator[Verdict]:
    for torch, package, release, wrong in _beside_torch(subject, "torchaudio"):
        wanted, series = compatibility.torch_of_torchaudio(release), compatibility.series(torch.version)
        if wanted is None:
            yield good(of(package), f"torchaudio {release} requires no particular torch")
        elif wanted != series or (torch.whole and compatibility.version(release) != torch.number):
            remedy = f"torchaudio=={torch.version if torch.whole else f'{series}.*'}"
            yield wrong(of(package), f"torchaudio {release} is for torch {release}, not {torch.version}", remedy)
        else:
            yield good(of(package), f"torchaudio {release} is for torch {wanted}")


@rule("transformers")
def transformers(subject: Subject) -> Iterator[Verdict]:
    for torch, package, release, _ in _beside_torch(subject, "transformers"):
        yield from _required_torch(package, release, torch, bad)


@rule("torch-pins")
def torch_pins(subject: Subject) -> Iterator[Verdict]:
    for name in sorted({*compatibility.TORCH_PINS, *compatibility.TORCH_AT_LEAST} - {"transformers"}):
        for torch, package, release, wrong in _beside_torch(subject, name):
            yield from _required_torch(package, release, torch, wrong)
    for torch, package, release, wrong in _beside_torch(subject, "triton"):
        wanted = compatibility.TRITON.get(torch.version)
        if wanted is None:
            continue
        text = f"torch {torch.version} requires triton {str(wanted).removeprefix('==')}"
        if release in wanted:
            yield good(of(package), text)
        else:
            yield wrong(of(package), f"{text}, not {release}", "leave triton out: torch brings its own")


def _required_torch(package: Package, release: str, torch: Torch, wrong: State) -> Iterator[Verdict]:
    name = package.name
    wanted = compatibility.TORCH_PINS.get(name, {}).get(release)
    oldest = compatibility.oldest_torch(name, release) if name in compatibility.TORCH_AT_LEAST else None
    if wanted is not None:
        text = f"{name} {release} requires torch {wanted}"
        same_series = not torch.whole and compatibility.series(wanted) == torch.version
        fits = torch.version == wanted or same_series
        remedy = f"torch=={wanted}, or the {name} for {torch.version}"
    elif oldest is not None and torch.number is not None:
        text = f"{name} {release} requires torch {oldest} or newer"
        fits = torch.number >= Version(oldest)
        remedy = f"torch {oldest} or newer, or an older {name}"
    else:
        return
    yield good(of(package), text) if fits else wrong(of(package), f"{text}, not {torch.version}", remedy)


def _wrong(subject: Subject, install: Install, torch: Torch) -> State:
    """Return the verdict on a package for another torch.

    pip refuses both in one command, and the package fails at its import if torch comes later or dependencies
    are left out. If the package comes later, pip replaces torch by the one that it requires: a warning.
    """
    if "--no-deps" in install.flags:
        return doubtful if install.own_index else bad  # which may have another build
    if torch.install is None:
        return doubtful
    order = [each is install for each in subject.shipped].index(True)
    of_torch = [each is torch.install for each in subject.shipped].index(True)
    return doubtful if order > of_torch else bad


@rule("bitsandbytes")
def bitsandbytes(subject: Subject) -> Iterator[Verdict]:
    for torch, package, release, _ in _beside_torch(subject, "bitsandbytes"):
        if torch.row is None or torch.cuda == "cpu":
            continue
        named = subject.dockerfile.final.environment.get("BNB_CUDA_VERSION", "")
        cuda = cuda_version(f"cu{named}") if named.isdigit() and len(named) > 2 else None
        cuda = cuda or torch.cuda or torch.row.cuda
        runs = compatibility.bitsandbytes_runs_on(release, cuda)
        if runs:
            yield good(of(package), f"bitsandbytes {release} has a library for CUDA {cuda}")
        elif runs is None:
            text = f"it is uncertain whether bitsandbytes {release} has a library for CUDA {cuda}"
            yield unclear(of(package), text)
        else:
            text = f"bitsandbytes {release} has no library for CUDA {cuda} of torch {torch.version}"
            yield bad(of(package), text, "a newer bitsandbytes, or a torch of an older CUDA")


@rule("deepspeed")
def deepspeed(subject: Subject) -> Iterator[Verdict]:
    found, torch = subject.package("deepspeed"), find_torch(subject)
    if found is None:
        return
    install, package = found
    place, release = of(package), compatibility.version(package.exact or "")
    oldest, breaks = Version(compatibility.DEEPSPEED["before"]), Version(compatibility.DEEPSPEED["torch"])
    base = install.stage.image.split("@")[0]
    if torch and torch.number and release and release < oldest and torch.number >= breaks:
        text = f"deepspeed {package.exact} imports a name that torch {torch.version} no longer has"
        yield bad(place, text, f"deepspeed {oldest} or newer")
    elif not _builds_operators(install):
        if torch and package.exact:
            yield good(place, f"deepspeed {package.exact} compiles its operators when they are used")
    elif RUNTIME.search(base):
        yield bad(place, f"DS_BUILD_* compiles deepspeed's operators, and {base} has no nvcc", DEVEL)
    elif _isolated(install, "deepspeed"):
        text = "DS_BUILD_* compiles deepspeed's operators with torch, and an isolated build has no torch"
        yield bad(place, text, ISOLATED)
    else:
        yield good(place, "deepspeed's operators are compiled where torch is")


def _builds_operators(install: Install) -> bool:
    """Return whether a DS_BUILD_ variable is 1 where deepspeed is installed."""
    inline = dict(re.findall(r"\b(DS_BUILD_\w+)=[\"']?(\w+)", script(install.instruction)))
    values = install.stage.variables(install.instruction) | inline
    return any(name.startswith("DS_BUILD_") and value == "1" for name, value in values.items())


def _isolated(install: Install, name: str) -> bool:
    """Return whether a package is built where torch is not seen: by an option, uv's list or a variable."""
    # With --global-option pip calls setup.py in the environment itself.
    options = ("--no-build-isolation", "--no-use-pep517", "--global-option")
    listed = {name} & install.not_isolated or any(flag.partition("=")[0] in options for flag in install.flags)
    variables = install.stage.variables(install.instruction) | dict(ISOLATION.findall(script(install.instruction)))
    named = name in variables.get("UV_NO_BUILD_ISOLATION_PACKAGE", "").replace("_", "-").split()
    # pip reads its variable as a value of build isolation: 0 turns it off (pypa/pip issue 5735)
    value = variables.get(f"{install.tool.upper()}_NO_BUILD_ISOLATION", "").lower()
    off = bool(value) and (value in OFF) == (install.tool == "pip")
    return install.tool in ("pip", "uv") and not (listed or named or off)


@rule("flash-attn")
def flash_attn(subject: Subject) -> Iterator[Verdict]:
    found, torch = subject.package("flash-attn"), find_torch(subject)
    if found is None:
        return
    install, package = found
    if package.file.endswith(tuple(LOCKS.values())):
        return  # the lock's project has its own wheels and settings of builds
    place, needs, one = of(package), compatibility.flash_attn(package.exact), install.instruction
    base = install.stage.image.split("@")[0]
    cuda, ngc = cuda_of(base), compatibility.NGC_IMAGE.search(base)
    if ngc and not package.exact and "://" not in package.text:
        yield good(place, "NVIDIA's PyTorch images bring flash-attn, so that pip keeps theirs")
    elif torch and torch.number and torch.number < Version(needs["torch"]):
        text = f"this flash-attn needs torch {needs['torch']}, not {torch.version}"
        yield bad(place, text, "a newer torch, or an older flash-attn")
    elif "://" in package.text:
        yield from _flash_wheel(place, package, torch)
    elif _isolated(install, "flash-attn"):
        said = doubtful if install.own_index else bad  # which may have a wheel
        yield said(place, "flash-attn's build imports torch, and an isolated build has no torch", ISOLATED)
    elif WHEEL_ONLY.search(script(one)) or install.stage.variables(one).get(SKIPS) == "TRUE":
        yield good(place, "flash-attn's build only downloads its wheel for the installed torch")
    elif RUNTIME.search(base):
        yield bad(place, f"flash-attn is compiled, and {base} has no nvcc", DEVEL)
    elif cuda and Version(cuda) < Version(needs["cuda"]):
        text = f"this flash-attn needs CUDA {needs['cuda']}, not {cuda}"
        yield bad(place, text, "a newer base, or an older flash-attn")
    elif cuda or ngc:
        yield good(place, "flash-attn is built where nvcc is")
    else:
        yield unclear(place, f"flash-attn is compiled, and it is unknown whether {base} has nvcc")


def _flash_wheel(place: Location, package: Package, torch: Torch | None) -> Iterator[Verdict]:
    match = re.search(r"(?:cu(\d+))?torch(\d+\.\d+)", package.local or package.text)
    cuda = (torch.cuda or (torch.row.cuda if torch.row else "")) if torch else ""
    if match is None or torch is None:
        yield unclear(place, "the wheel's name does not state its torch")
    elif match[1] and cuda[:2].isdigit() and match[1][:2] != cuda[:2]:
        text = f"this wheel of flash-attn is for CUDA {match[1][:2]}, and torch {torch.version} for {cuda}"
        yield bad(place, text, "the wheel for it")
    elif match[2] != compatibility.series(torch.version):
        text = f"this wheel of flash-attn is for torch {match[2]}, not {torch.version}"
        yield bad(place, text, "the wheel for it")
    else:
        yield good(place, f"the wheel of flash-attn is for torch {match[2]}")


@rule("python")
def python(subject: Subject) -> Iterator[Verdict]:
    torch = find_torch(subject)
    stage = torch.install.stage if torch and torch.install else subject.dockerfile.final
    has, place, row = _python_of(subject, stage), at(subject, stage.lineage()[0]), torch.row if torch else None
    if torch and torch.install and torch.install.tool != "conda" and _PATTERNS["musl"].search(stage.image):
        text = "torch has no wheels for musl, the C library of Alpine: pip finds no matching distribution"
        yield bad(place, text, "a base with glibc, such as python:3.11-slim")
    elif torch and row and has and compatibility.torch_of_image(stage.image) != torch.version:
        span = "Python {} to {}".format(*row.python)
        if Version(row.python[0]) <= Version(has) <= Version(row.python[1]):
            yield good(place, f"torch {torch.version} has wheels for Python {has}")
        else:
            yield bad(place, f"torch {torch.version} has wheels for {span}, and the base has {has}", span)
    for package in (one for install in subject.shipped for one in install.packages):
        tag = _PATTERNS["python of a wheel"].search(package.text)
        if has and tag and f"3.{tag[1]}" != has:
            yield bad(of(package), f"this wheel is for Python 3.{tag[1]}, and the base has {has}", "the wheel for it")
    if refused := next((one for one in subject.installs if _managed(subject, one)), None):
        text = f"apt manages the Python of {refused.stage.image}, so that pip refuses: externally-managed-environment"
        remedy = "python3 -m venv /opt/venv, and its bin first in PATH; or --break-system-packages"
        yield bad(at(subject, refused.instruction), text, remedy)


def _python_of(subject: Subject, stage: Stage) -> str | None:
    """Return the Python of a stage's base by its name, or apt's; None if unknown, or if another one may be in use."""
    match, ngc, text = BASE_PYTHON.search(stage.image), compatibility.ngc(stage.image), subject.dockerfile.text
    apt = next((has for name, has in PYTHONS.items() if re.search(name, stage.image) and "python3-pip" in text), None)
    found = (match[1] or f"{match[2]}.{match[3]}") if match else ngc.python if ngc else apt
    others = {f"3.{minor}" for minor in re.findall(r"\bpython3\.(\d{1,2})\b", text)} - {found}
    return None if others or _PATTERNS["another Python"].search(text) else found


def _managed(subject: Subject, install: Install) -> bool:
    """Return whether pip refuses to install packages beside those of apt (PEP 668)."""
    has = _python_of(subject, install.stage) if _PATTERNS["base with apt"].match(install.stage.image) else None
    kept = {"--break-system-packages", "--target", "-t", "--prefix", "--root"} & install.flags
    elsewhere = install.tool != "pip" and (install.tool != "uv" or "--system" not in install.flags)
    allowed = kept or elsewhere or _PATTERNS["may install beside apt"].search(subject.dockerfile.text)
    return has is not None and not allowed and Version(has) >= MANAGED


@rule("gpu")
def gpu(subject: Subject) -> Iterator[Verdict]:
    card = subject.machine.accelerator if subject.machine else None
    capability = compatibility.GPUS.get(str(card))
    torch = find_torch(subject)
    if capability is None:
        return
    if torch and torch.row and torch.cuda != "cpu":
        name = f"torch {torch.version} for CUDA {(cuda := torch.cuda or torch.row.cuda)}"
        built = compatibility.CAPABILITIES.get(cuda)
        if built is None:
            yield unclear(torch.place, f"the GPUs of torch's builds for CUDA {cuda} are not in the table")
        elif compatibility.runs_on(capability, built):
            yield good(torch.place, f"{name} runs on {card} ({capability})")
        else:
            remedy = "a torch that was built for a newer CUDA: 11.8 for H100, 12.8 for B200"
            yield bad(torch.place, f"{name} has no code for {card} ({capability})", remedy)
    yield from _arch_list(subject, str(card), capability)


def _arch_list(subject: Subject, card: str, capability: str) -> Iterator[Verdict]:
    for one in subject.dockerfile.final.layers():
        value = dict(one.pairs).get("TORCH_CUDA_ARCH_LIST") if one.name in ("ENV", "ARG") else None
        if not value:
            continue
        entries = tuple(re.split(r"[;\s]+", value.strip()))
        if any(entry.removesuffix("+PTX").partition("+")[0] in ARCHITECTURES for entry in entries):
            continue
        if not all(re.fullmatch(r"\d+\.\d+a?(\+PTX)?", entry) for entry in entries):
            text = f"TORCH_CUDA_ARCH_LIST={value} is not a list of compute capabilities"
            yield bad(at(subject, one), text, 'numbers with a point: TORCH_CUDA_ARCH_LIST="8.0;9.0"')
        elif compatibility.runs_on(capability, tuple(entry.replace("a", "") for entry in entries)):
            yield good(at(subject, one), f"extensions are compiled for {card} ({capability}) too")
        else:
            text = f"extensions are not compiled for {card} ({capability})"
            yield bad(at(subject, one), text, f"add {capability}")


def find_torch(subject: Subject) -> Torch | None:
    """Return the torch of the image: an installed one, else that of the base."""
    found = subject.package("torch")
    base = compatibility.torch_of_image(subject.dockerfile.final.image)
    if found and found[1].exact and base != found[1].exact:
        install, package = found
        asked = package.local or install.cuda or ""
        cuda = "cpu" if asked == "cpu" else cuda_version(asked) or ""
        only = bool(package.local) or install.only_index
        return Torch(of(package), package.exact or "", cuda, only, install)
    if base is None:
        return None
    return Torch(
        at(subject, subject.dockerfile.final.lineage()[0]), base, cuda_of(subject.dockerfile.final.image) or ""
    )


def cuda_of(image: str) -> str | None:
    """Return the CUDA of an image, by its name, or None."""
    if ngc := compatibility.ngc(image):
        return ngc.cuda
    match = BASE_CUDA.search(image.split("@")[0])
    return (match[1] or match[2] or cuda_version("cu" + match[3])) if match else None


def _beside_torch(subject: Subject, name: str) -> Iterator[tuple[Torch, Package, str, State]]:
    """Yield torch, the package `name`, its release, and the verdict on a wrong one, if both are known."""
    found, torch = subject.package(name), find_torch(subject)
    if found is not None and torch is not None and found[1].exact is not None:
        yield torch, found[1], found[1].exact, _wrong(subject, found[0], torch)
