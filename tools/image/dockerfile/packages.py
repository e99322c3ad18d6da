"""The Python packages that a Dockerfile installs, read from its commands and the files that it copies."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.markers import UndefinedEnvironmentName, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from tools.core import UserError, tables
from tools.image.dockerfile.parse import Dockerfile, Instruction, Stage
from tools.image.dockerfile.shell_script import commands, program, script
from training.run import bounds
from training.run.files import read_bounded

LARGEST = 2**24  # bytes of a requirement file or a lock
PIP = re.compile(r"pip(?:3(?:\.\d+)?)?")
PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
INDEX = re.compile(r"/whl/(?:nightly/)?(cu\d+|cpu)\b")
LOCAL = re.compile(r"^cu(\d{2,3})$")
WHEEL = re.compile(r"(?<![A-Za-z0-9_.])([A-Za-z0-9_.]{1,200}+)-(\d[^-]{0,200}+)-.{0,200}\.whl")
WITH_VALUE = frozenset(tables.load("image/tables.yaml")["options with value"])
CONSTRAINTS = {"-c", "--constraint", "--constraints"}
REQUIREMENTS = {"-r", "--requirement"}
PUBLIC = re.compile(r"//(?:[^/]*pypi|mirrors?\.|download\.pytorch\.org)")
INDEXES = {"-i", "--index-url", "--extra-index-url", "--default-index", "--index"}
ONLY = {"-i", "--index-url", "--default-index"}  # pip looks into no other index
CONDA = {"pytorch": "torch", "pytorch-cuda": "pytorch-cuda"}
CONDA_VERBS = ("env", "install", "create", "update")
CONDAS = ("conda", "mamba", "micromamba")
LOCKS = {"uv": "uv.lock", "poetry": "poetry.lock", "pdm": "pdm.lock"}  # what these tools install from


@dataclass(frozen=True)
class Sources:
    """The build context, and texts that replace those of some of its files."""

    root: Path
    texts: Mapping[Path, str] = field(default_factory=dict)

    def read(self, path: Path) -> str:
        known = self.texts.get(path.resolve())
        if known is not None:
            return known
        try:
            text = read_bounded(path, LARGEST, follow=True).decode(errors="replace")
            if path.suffix in (".yaml", ".yml"):
                bounds.check(YAML(typ="rt").parse(text))
            return text
        except (OSError, bounds.UnboundedError) as problem:
            raise UserError(f"{path}: {problem}") from None


@dataclass(frozen=True)
class Package:
    """One required package, and where it is named. `exact` is its version if it is pinned to one."""

    name: str
    text: str
    file: str
    line: int
    exact: str | None
    hashed: bool = False
    local: str = ""  # the part of the version after the plus sign: cu121


@dataclass
class Install:
    """One `pip install` (or uv, conda) of a stage: the instruction, its options, its packages."""

    stage: Stage
    instruction: Instruction
    tool: str  # pip | uv | conda | poetry | pdm
    flags: set[str] = field(default_factory=set)
    packages: list[Package] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # directories, archives and repositories
    cuda: str | None = None  # of the index: cu121, cpu
    only_index: bool = False  # no other index can have the package
    own_index: bool = False  # an index is neither PyPI, a mirror of it, nor PyTorch's, and can have any wheel
    channels: list[str] = field(default_factory=list)  # of conda, in environment files
    not_isolated: set[str] = field(default_factory=set)  # packages that uv builds without isolation
    missing: list[str] = field(default_factory=list)  # requirement files that were not found
    limits: dict[str, Package] = field(default_factory=dict)  # the pins of constraint files


def installs(dockerfile: Dockerfile, context: Sources, source: str) -> list[Install]:
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
    """Give each package that the instruction itself names its line."""
    one = install.instruction
    for number, package in enumerate(install.packages):
        if package.file != source:
            continue
        words = (package.text, package.name)
        found = (at for word in words for at in range(one.line, one.last + 1) if word in lines[at - 1 : at][0])
        install.packages[number] = replace(package, line=next(found, one.line))


def _install(words: list[str], stage: Stage, one: Instruction, context: Sources, source: str) -> Install | None:
    name, rest = program(words), words[1:]
    if PYTHON.fullmatch(name) and rest[:1] == ["-m"] and rest[1:2] and rest[1] in ("pip", "uv"):
        name, rest = rest[1], rest[2:]
    if name == "uv" and rest[:1] == ["pip"] and rest[1:2] and rest[1] in ("install", "sync"):
        install = Install(stage, one, "uv")
        files = rest[1] == "sync"  # its words are requirement files
        rest = [f"-r{word}" if files and word.endswith((".txt", ".lock")) else word for word in rest[2:]]
    elif name in LOCKS and rest[:1] and rest[0] in ("sync", "install"):
        install = Install(stage, one, name, {word.partition("=")[0] for word in rest if word[0] == "-"})
        _project(install, context)
        return install
    elif PIP.fullmatch(name) and "install" in rest[:3]:
        install = Install(stage, one, "pip")
        rest = [word for word in rest if word != "install"]
    elif name in CONDAS and {"install", "create", "update"} & set(rest[:2]):
        install = Install(stage, one, "conda")
        _conda(install, [word for word in rest if word not in CONDA_VERBS], context, source)
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
            elif key in CONSTRAINTS:
                _limits(install, value, context)
            elif key in INDEXES:
                install.own_index |= not PUBLIC.search(value)
                if match := INDEX.search(value):
                    install.cuda = match[1]
                    # uv takes a package from the first index that has it
                    install.only_index |= key in ONLY or install.tool == "uv"
            elif key == "--torch-backend" and (LOCAL.match(value) or value == "cpu"):
                install.cuda, install.only_index = value, True
            elif key == "--no-build-isolation-package":
                install.not_isolated.add(canonicalize_name(value))
            continue
        package = requirement(word, source, install.instruction.line)
        address = re.match(r"[\w.\[\],-]+\s*@\s*(\S+)", word)
        if package is not None:
            install.packages.append(package)
        elif address:
            install.places.append(address[1])
        elif word not in (">", "2>&1") and not word.startswith("$"):
            install.places.append(word)
    install.packages = [_limited(one, install.limits.get(one.name)) for one in install.packages]


def _limited(one: Package, limit: Package | None) -> Package:
    if one.exact or limit is None or limit.exact is None:
        return one
    return replace(one, exact=limit.exact, local=limit.local)


def _limits(install: Install, name: str, context: Sources) -> None:
    path = _in_context(name, install, context.root)
    for line, text in entries(context.read(path)) if path else ():
        found = requirement(re.split(r"\s--hash=", text)[0].strip(), path.name if path else name, line)
        if found is not None:
            install.limits[found.name] = found


def _project(install: Install, context: Sources) -> None:
    """Read the lock that a project's tool installs from. Without a copied lock nothing is pinned."""
    name = LOCKS[install.tool]
    path, project = (_in_context(one, install, context.root) for one in (name, "pyproject.toml"))
    if path is None:
        if project is None:
            install.missing.append(name)
        else:
            text = f"pyproject.toml without {name}"
            install.packages.append(Package("pyproject.toml", text, _shown(project, context), 1, None))
        return
    try:
        data: dict[str, Any] = tomllib.loads(context.read(path))
    except (tomllib.TOMLDecodeError, RecursionError):
        install.missing.append(name)
        return
    lines = context.read(path).splitlines()
    for one in data.get("package", []):
        key, version = str(one.get("name", "")), str(one.get("version", ""))
        at = next((n for n, line in enumerate(lines, 1) if line.strip() == f'name = "{key}"'), 1)
        exact, _, local = version.partition("+")
        shown = f"{key}=={version}"
        install.packages.append(
            Package(canonicalize_name(key), shown, _shown(path, context), at, exact or None, True, local)
        )


def _shown(path: Path, context: Sources) -> str:
    return path.relative_to(context.root).as_posix() if path.is_relative_to(context.root) else path.name


def _conda(install: Install, words: list[str], context: Sources, source: str) -> None:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        key, equals, value = word.partition("=")
        if key in ("-c", "--channel", "-n", "--name", "-p", "--prefix", "--solver"):
            at += not equals
        elif key in ("-f", "--file"):
            value = value or (words[at] if at < len(words) else "")
            at += not equals
            _environment_file(install, value, context)
        elif word.startswith("-"):
            install.flags.add(word)
        else:
            _conda_package(install, word, source, install.instruction.line)


def _conda_package(install: Install, text: str, file: str, line: int) -> None:
    """Add a match specification of conda: numpy, numpy=1.26, conda-forge::numpy==1.26.4=build."""
    match = re.match(r"([A-Za-z0-9_.-]+)\s*={1,2}\s*([0-9][^=\s*,|<>]*)(?:=\S+)?$", text.split("::")[-1])
    bare = re.split(r"[\s=<>!~\[]", text.split("::")[-1], maxsplit=1)[0]
    name = CONDA.get(bare, bare)
    exact = match[2] if match else None
    install.packages.append(Package(name, text, file, line, exact))
    if name == "pytorch-cuda" and exact:
        install.cuda, install.only_index = "cu" + exact.replace(".", ""), True


def _environment_file(install: Install, name: str, context: Sources) -> None:
    """Read the packages of an environment file of conda, and those under `pip:`."""
    path = _in_context(name, install, context.root)
    try:
        data: Any = YAML(typ="rt").load(context.read(path)) if path else None
    except YAMLError:
        data = None
    if path is None or not isinstance(data, dict):
        install.missing.append(name)
        return
    shown = _shown(path, context)
    install.channels += [str(one) for one in data.get("channels") or [] if isinstance(one, str)]
    listed: Any = data.get("dependencies") or []
    for number, entry in enumerate(listed):
        if isinstance(entry, str):
            _conda_package(install, entry, shown, listed.lc.item(number)[0] + 1)
            continue
        below: Any = entry.get("pip") or [] if isinstance(entry, dict) else []
        for index, text in enumerate(below):
            line = below.lc.item(index)[0] + 1
            words = re.split(r"[\s=]+", str(text), maxsplit=1)
            package = requirement(str(text), shown, line)
            if package is not None:
                install.packages.append(package)
            elif words[0] in REQUIREMENTS and len(words) > 1:
                _file(install, str(PurePosixPath(shown).parent / words[1]), context)
            elif match := INDEX.search(str(text)):
                install.cuda = match[1]


def requirement(text: str, file: str, line: int, hashed: bool = False) -> Package | None:
    """Return one requirement as a package, or None for a path, an address or other text.

    The address of a wheel is a package of exactly its version.
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
    """Return whether a requirement's marker holds on a Linux node."""
    if found.marker is None:
        return True
    machine = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    try:
        values = {key: str(value) for key, value in default_environment().items()}
        return found.marker.evaluate({**values, **machine, "os_name": "posix"})
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
    shown = _shown(path, context)
    for line, text in entries(context.read(path)):
        words = text.split()
        if words[0] in CONSTRAINTS and len(words) > 1:
            _limits(install, str(PurePosixPath(shown).parent / words[1]), context)
        elif words[0] in REQUIREMENTS and len(words) > 1:
            _file(install, str(PurePosixPath(shown).parent / words[1]), context, depth + 1)
        elif text.startswith("-"):
            if match := INDEX.search(text):
                install.cuda = match[1]
                install.only_index |= re.split(r"[\s=]", text)[0] in ONLY
        else:
            package = requirement(re.split(r"\s--hash=", text)[0].strip(), shown, line, "--hash=" in text)
            if package is not None:
                install.packages.append(package)


def _copied_lock(install: Install, context: Path) -> Path | None:
    """Return the lock copied into the stage: a file that the build makes can only be a part of it.

    Only with --require-hashes, which makes pip refuse packages without a hash.
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
    """Return the file of the context that COPY or a bind mount makes available as `name`."""
    base = PurePosixPath(name).name
    tried = [context / name.lstrip("/"), context / base]
    for one in install.stage.layers():
        if one.name in ("COPY", "ADD") and one.flag("from") is None:
            *sources, target = one.words or one.value.split()
            if len(sources) == 1 and target == name:
                tried.insert(0, context / sources[0])
            tried = [context / entry for entry in sources if PurePosixPath(entry).name == base] + tried
            tried += [context / entry / base for entry in sources if not entry.startswith("http")]
    for mount in install.instruction.mounts:
        if mount.target:
            inside = name.startswith(mount.target)
            below = name.removeprefix(mount.target.rstrip("/")).lstrip("/") if inside else base
            tried.insert(0, context / mount.source / below)
    return next((path for path in tried if path.is_file()), None)
