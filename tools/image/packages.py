"""The Python packages that a Dockerfile installs: from its commands, and from the files that it copies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from packaging.markers import UndefinedEnvironmentName, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tools.image.dockerfile import Dockerfile, Instruction, Stage
from tools.image.script import commands, program, script

PIP = re.compile(r"pip(?:3(?:\.\d+)?)?")
PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
INDEX = re.compile(r"/whl/(?:nightly/)?(cu\d+|cpu)\b")
LOCAL = re.compile(r"^cu(\d+)$")
WHEEL = re.compile(r"([A-Za-z0-9_.]+)-(\d[^-]*)-.*\.whl")
WITH_VALUE = frozenset(
    [
        "-r",
        "--requirement",
        "-c",
        "--constraint",
        "-i",
        "--index-url",
        "--extra-index-url",
        "-f",
        "--find-links",
        "-t",
        "--target",
        "--prefix",
        "--root",
        "--platform",
        "--python-version",
        "--python",
        "-p",
        "--cache-dir",
        "--timeout",
        "--retries",
        "--proxy",
        "--trusted-host",
        "--cert",
        "--progress-bar",
        "--no-binary",
        "--only-binary",
        "--upgrade-strategy",
        "--index-strategy",
        "--group",
        "--torch-backend",
        "--default-index",
        "--index",
        "--log",
    ]
)
REQUIREMENTS, INDEXES = (
    {"-r", "--requirement"},
    {"-i", "--index-url", "--extra-index-url", "--default-index", "--index"},
)
CONDA = {"pytorch": "torch", "pytorch-cuda": "pytorch-cuda"}


@dataclass(frozen=True)
class Sources:
    """The build context, and the texts that some of its files have for now."""

    root: Path
    texts: Mapping[Path, str] = field(default_factory=dict)

    def read(self, path: Path) -> str:
        """Return a file's text."""
        known = self.texts.get(path.resolve())
        return path.read_text(encoding="utf-8", errors="replace") if known is None else known


@dataclass(frozen=True)
class Package:
    """One package that is asked for, and where. `exact` is its version where it is pinned to one."""

    name: str
    text: str
    file: str
    line: int
    exact: str | None
    hashed: bool = False
    local: str = ""  # the part of the version behind a plus sign: cu121


@dataclass
class Install:
    """One `pip install` (or uv, conda) of a stage: the instruction, its options, its packages."""

    stage: Stage
    instruction: Instruction
    tool: str  # pip | uv | conda
    flags: set[str] = field(default_factory=set)
    packages: list[Package] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # directories, archives and repositories
    cuda: str | None = None  # of the index that is named: cu121, cpu
    missing: list[str] = field(default_factory=list)  # requirement files that are not to be found


def installs(dockerfile: Dockerfile, context: Sources, source: str) -> list[Install]:
    """Return every installation of Python packages, in their order."""
    found = []
    for stage, one in dockerfile.instructions():
        if one.name != "RUN":
            continue
        for words in commands(script(one)):
            install = _install(words, stage, one, context, source)
            if install is not None:
                _place(install, dockerfile.text.splitlines(), source)
                found.append(install)
    return found


def cuda_version(text: str) -> str | None:
    """Return 12.1 of cu121, or None."""
    match = LOCAL.match(text)
    return f"{match[1][:-1]}.{match[1][-1]}" if match else None


def _place(install: Install, lines: list[str], source: str) -> None:
    """Give each package that the instruction itself names the line that it stands on."""
    one = install.instruction
    last = one.end + sum(body.count("\n") + 2 for body in one.heredocs)
    for number, package in enumerate(install.packages):
        if package.file != source:
            continue
        words = (package.text, package.name)
        found = (at for word in words for at in range(one.line, last + 1) if word in lines[at - 1 : at][0])
        install.packages[number] = replace(package, line=next(found, one.line))


def _install(
    words: list[str], stage: Stage, one: Instruction, context: Sources, source: str
) -> Install | None:
    name, rest = program(words), words[1:]
    if PYTHON.fullmatch(name) and rest[:1] == ["-m"] and rest[1:2] and rest[1] in ("pip", "uv"):
        name, rest = rest[1], rest[2:]
    if name == "uv" and rest[:2] == ["pip", "install"]:
        install = Install(stage, one, "uv")
        rest = rest[2:]
    elif PIP.fullmatch(name) and "install" in rest[:3]:
        install = Install(stage, one, "pip")
        rest = [word for word in rest if word != "install"]
    elif name in ("conda", "mamba", "micromamba") and "install" in rest[:2]:
        install = Install(stage, one, "conda")
        _conda(install, [word for word in rest if word != "install"], source)
        return install
    else:
        return None
    _pip(install, rest, context, source)
    return install


def _pip(install: Install, words: list[str], context: Sources, source: str) -> None:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        key, equals, value = word.partition("=")
        if word.startswith("-"):
            if key in WITH_VALUE and not equals and at < len(words):
                value = words[at]
                at += 1
            elif word[:2] in REQUIREMENTS and len(word) > 2 and not word.startswith("--"):
                key, value = word[:2], word[2:]
            install.flags.add(key)
            if key in REQUIREMENTS:
                _file(install, value, context)
            elif key in INDEXES and (match := INDEX.search(value)):
                install.cuda = match[1]
            continue
        package = requirement(word, source, install.instruction.line)
        if package is not None:
            install.packages.append(package)
        elif word not in (">", "2>&1") and not word.startswith("$"):
            install.places.append(word)


def _conda(install: Install, words: list[str], source: str) -> None:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word in ("-c", "--channel", "-n", "--name", "-p", "--prefix", "--file"):
            at += 1
        elif word.startswith("-"):
            install.flags.add(word)
        else:
            name, _, rest = word.split("::")[-1].partition("=")
            exact = rest.strip("=") or None
            shown = CONDA.get(name, name)
            package = Package(shown, word, source, install.instruction.line, exact)
            install.packages.append(package)
            if shown == "pytorch-cuda" and exact:
                install.cuda = "cu" + exact.replace(".", "")


def requirement(text: str, file: str, line: int, hashed: bool = False) -> Package | None:
    """Return one requirement as a package, or None where it is a path, an address or no requirement.

    A wheel's address is a package of exactly its version.
    """
    wheel = WHEEL.search(PurePosixPath(text.split("#")[0]).name) if "://" in text else None
    if wheel:
        exact, _, local = wheel[2].replace("%2B", "+").partition("+")
        return Package(canonicalize_name(wheel[1]), text, file, line, exact, hashed, local)
    try:
        found = Requirement(text)
    except InvalidRequirement:
        return None
    if found.url is not None or not applies(found):
        return None
    pins = [one.version for one in found.specifier if one.operator in ("==", "===")]
    exact = pins[0] if len(pins) == 1 and "*" not in pins[0] else None
    base, _, local = (exact or "").partition("+")
    return Package(canonicalize_name(found.name), text, file, line, base or None, hashed, local)


def applies(found: Requirement) -> bool:
    """Say whether a requirement is for a Linux machine of a cluster."""
    if found.marker is None:
        return True
    machine = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
    }
    try:
        values = {key: str(value) for key, value in default_environment().items()}
        return found.marker.evaluate({**values, **machine})
    except UndefinedEnvironmentName:
        return True


def entries(text: str) -> Iterator[tuple[int, str]]:
    """Yield the logical lines of a requirements file, each with the number of its first line."""
    held, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*$", "", line).rstrip()
        first = first if held else number
        held += " " + bare.removesuffix("\\")
        if bare.endswith("\\"):
            continue
        if held.strip():
            yield first, held.strip()
        held = ""
    if held.strip():
        yield first, held.strip()


def _file(install: Install, name: str, context: Sources, depth: int = 0) -> None:
    path = _in_context(name, install, context.root) or _copied_lock(install, context.root)
    if path is None or depth > 5:
        install.missing.append(name)
        return
    shown = path.relative_to(context.root).as_posix() if path.is_relative_to(context.root) else path.name
    for line, text in entries(context.read(path)):
        words = text.split()
        if words[0] in REQUIREMENTS and len(words) > 1:
            _file(install, str(PurePosixPath(shown).parent / words[1]), context, depth + 1)
        elif text.startswith("-"):
            if match := INDEX.search(text):
                install.cuda = match[1]
        else:
            bare = re.split(r"\s--hash=", text)[0].strip()
            package = requirement(bare, shown, line, "--hash=" in text)
            if package is not None:
                install.packages.append(package)


def _copied_lock(install: Install, context: Path) -> Path | None:
    """Return the lock that a file made in the build can only be a part of: the one copied into its stage.

    Only where pip is told to refuse what has no hash.
    """
    if "--require-hashes" not in install.flags:
        return None
    for one in install.stage.layers():
        if one.name == "COPY" and one.flag("from") is None:
            for entry in (one.words or one.value.split())[:-1]:
                if entry.endswith(".lock") and (context / entry).is_file():
                    return context / entry
    return None


def _in_context(name: str, install: Install, context: Path) -> Path | None:
    """Return the file of the context that `name` is in the image: where COPY or a bind mount took it from."""
    base = PurePosixPath(name).name
    tried = [context / name.lstrip("/"), context / base]
    for one in install.stage.layers():
        if one.name in ("COPY", "ADD") and one.flag("from") is None:
            *sources, target = one.words or one.value.split()
            if len(sources) == 1 and target == name:
                tried.insert(0, context / sources[0])
            tried = [context / entry for entry in sources if PurePosixPath(entry).name == base] + tried
            tried += [context / entry / base for entry in sources if not entry.startswith("http")]
    for key, value in install.instruction.flags:
        options = dict(part.partition("=")[::2] for part in value.split(",")) if key == "mount" else {}
        origin = options.get("source") or options.get("src") or "."
        target = next((options[name] for name in ("target", "dst", "destination") if name in options), "")
        if target:
            below = name.removeprefix(target.rstrip("/")).lstrip("/") if name.startswith(target) else base
            tried.insert(0, context / origin / below if below else context / origin)
    return next((path for path in tried if path.is_file()), None)
