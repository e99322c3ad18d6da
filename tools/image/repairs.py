"""The repairs of `yard image fix`, one for each rule. Each changes a draft, or raises Unsafe and says why.

None adds --no-install-recommends: an image may need what apt recommends, such as ca-certificates beside curl.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tools.core import Verdict, tables
from tools.facts import compatibility
from tools.image.dockerfile.packages import CONDAS, LOCKS, Package, Sources, entries, requirement
from tools.image.dockerfile.parse import Instruction, Stage
from tools.image.dockerfile.shell_script import commands, program, script
from tools.image.draft import Draft, Unsafe, shell_of
from tools.image.repair_user import user
from tools.image.rules import versions
from tools.image.rules.efa import RUNS
from tools.image.rules.layers import TOOLS
from tools.image.rules.runtime import QUOTED, ROOT, exec_form, with_exec

Repair = Callable[[Draft, Verdict], None]
_TABLES: dict[str, Any] = tables.load("image/tables.yaml")
LISTS = "rm -rf /var/lib/apt/lists/*"
APT = frozenset({"apt", "apt-get"})
# What a program of its own would do with apt's lists is unknown.
OTHER_SCRIPT = re.compile(r"\.sh\b|\|\s{0,4}(?:sudo\s+)?(?:ba|da)?sh\b|--with-deps")
COMMENT = re.compile(r"(?:^|\s)#")
LEAVES = re.compile(r"(?<![\w./-])(?:exit|exec)(?![\w./-])|[&|]\s*$")


def caches(draft: Draft, verdict: Verdict) -> None:
    """Turn a package manager's cache off by an option, or remove it at the end of the same RUN."""
    stage, one = draft.instruction(verdict)
    tool = str(verdict.details["tool"])
    if tool in _TABLES["without cache"]:
        command, option = _TABLES["without cache"][tool]
        if one.words is not None or not draft.swap_all(command, rf"\g<1> {option}", one):
            raise Unsafe(f"the command is not `{tool}` with its options behind it")
        return
    if tool in APT:
        _lists_are_not_needed(draft, stage, one)
        _append(draft, stage, one, LISTS)
    else:
        programs = CONDAS if tool == "conda" else (tool,)
        used = next((words[0] for words in commands(script(one)) if program(words) in programs), tool)
        _append(draft, stage, one, f"{used} clean {'-afy' if tool == 'conda' else 'all'}")


def _lists_are_not_needed(draft: Draft, stage: Stage, one: Instruction) -> None:
    """Raise Unsafe if a later RUN installs packages, or may do so, without an update of the lists."""
    if not any(program(words) in APT and "update" in words for words in commands(script(one))):
        raise Unsafe("the lists are those of an earlier RUN, whose layer keeps them")
    for other in draft.read().dockerfile.stages:
        if all(below.index != stage.index for below in other.lineage()):
            continue
        later = (each for each in other.instructions if each.name == "RUN" and each.line > one.line)
        for each in later:
            text = script(each)
            updates = any(program(words) in APT and "update" in words for words in commands(text))
            installs = any(program(words) in APT and "install" in words for words in commands(text))
            if not updates and (installs or OTHER_SCRIPT.search(text)):
                raise Unsafe(f"line {each.line} may install packages and does not run apt-get update")


def _append(draft: Draft, stage: Stage, one: Instruction, command: str) -> None:
    """Add a command to a RUN, which runs if all others succeeded. Raises Unsafe if that would not hold."""
    shell_of(stage)
    bare = QUOTED.sub("Q", one.value)
    if one.words is not None or one.heredocs:
        raise Unsafe("the RUN is a JSON list or a here-document")
    if COMMENT.search(bare) or LEAVES.search(bare):
        raise Unsafe("the RUN has a comment, or a command that ends its shell")
    before = stage.instructions[: stage.instructions.index(one)]
    users = [each.value for each in before if each.name == "USER"]
    if users and users[-1].split(":")[0] not in ROOT and "sudo" not in one.value:
        raise Unsafe(f"the RUN runs as {users[-1]}")
    sudo = "sudo " if re.search(r"\bsudo\b", one.value) else ""
    lines = draft.lines()
    number = next(n for n in range(one.end, 0, -1) if lines[n - 1].strip(" \t\\"))
    text = lines[number - 1].rstrip().rstrip(";").rstrip()
    if text.endswith("\\") or text.lstrip().startswith("#"):
        raise Unsafe("the RUN ends in a comment or a continued line")
    draft.put([f"{text} \\", f"    && {sudo}{command}"], number, number)


def base(draft: Draft, verdict: Verdict) -> None:
    """Change the CUDA of the base image or of the index, if exactly one choice is good."""
    read = draft.read()
    torch, has = versions.find_torch(read), versions.cuda_of(read.dockerfile.final.image)
    stage = read.dockerfile.final.lineage()[0]
    if torch is None or torch.row is None or torch.install is None:
        raise Unsafe("which torch and CUDA are meant is unknown")
    if (verdict.details["file"], verdict.details["line"]) != (read.source, stage.line):
        _index(draft, torch, has)
        return
    wheel = torch.cuda or torch.row.cuda
    if not torch.cuda and has in torch.row.builds:
        raise Unsafe(f"either the base can have CUDA {wheel}, or the wheel can be that for CUDA {has}")
    image, _, tag = stage.base.split("@")[0].partition(":")
    tags = compatibility.cuda_images(tag, wheel) if image.endswith("nvidia/cuda") else []
    if not tags:
        raise Unsafe(f"no image like {stage.base} with CUDA {wheel} is in the table of releases")
    _put_base(draft, f"{image}:{tags[0]}")


def _index(draft: Draft, torch: versions.Torch, has: str | None) -> None:
    """Change the CUDA of the index to the one build of its major release, or to that of the base."""
    builds = torch.row.builds if torch.row else ()
    asked = torch.cuda.partition(".")[0]
    same = [one for one in builds if one.partition(".")[0] == asked]
    good = [has] if has in builds else same[:1] if same[:1] == [*builds[:1]] or len(same) == 1 else []
    if not good or good[0] is None:
        raise Unsafe(f"more than one build of torch {torch.version} is possible: {', '.join(builds)}")
    wanted = "cu" + good[0].replace(".", "")
    for path, text in draft.texts.items():
        changed = re.sub(r"(/whl/|\+|--torch-backend[= ])cu\d+", rf"\g<1>{wanted}", text)
        if changed != text:
            draft.texts[path] = changed
            return
    raise Unsafe("the index is not in the Dockerfile or a requirement file")


def _put_base(draft: Draft, image: str) -> None:
    """Change the base image: in the default of the build argument that differs, or else in FROM."""
    dockerfile = draft.read().dockerfile
    stage = dockerfile.final.lineage()[0]
    line = stage.start.line
    if draft.swap(re.escape(stage.base), image, line):
        return
    for name, value in dockerfile.arguments.items():
        before, found, after = stage.base.partition(value) if value else ("", "", "")
        if found and image.startswith(before) and image.endswith(after):
            new = image[len(before) : len(image) - len(after)]
            default = rf"^(\s*ARG\s+{name}=[\"']?){re.escape(value)}"
            if any(draft.swap(default, rf"\g<1>{new}", number) for number in range(1, line)):
                return
    words = [word for word in stage.start.raw.split() if not word.startswith("--")]
    if not words or not draft.swap(re.escape(words[0]), image, line):
        raise Unsafe("FROM does not name the base")


def torchvision(draft: Draft, verdict: Verdict) -> None:
    torch = _own_torch(draft)
    _pin(draft, "torchvision", compatibility.torchvision_release(torch.version))


def torchaudio(draft: Draft, verdict: Verdict) -> None:
    _pin(draft, "torchaudio", _own_torch(draft).version)


def _own_torch(draft: Draft) -> versions.Torch:
    """Return the torch of the image. Raises UserError unless its whole release is known."""
    torch = versions.find_torch(draft.read())
    of_nvidia = compatibility.NGC_IMAGE.search(draft.read().dockerfile.final.image)
    if torch is None or not torch.whole or (torch.install is None and of_nvidia):
        raise Unsafe("the base has its own build of torch, for which the index may have no package")
    return torch


def _pin(draft: Draft, name: str, release: str | None) -> None:
    """Change the version of a package in the Dockerfile or the requirements file that pins it."""
    read = draft.read()
    found = read.package(name)
    if found is None or release is None or found[1].exact is None:
        raise Unsafe(f"the release of {name} that fits is not in the table")
    package = found[1]
    place = draft.path if package.file == read.source else read.context / package.file
    pin = rf"({re.escape(name)}\s*={{1,3}}\s*){re.escape(package.exact or '')}(?![\w.])"
    if place not in draft.texts or not draft.swap(pin, rf"\g<1>{release}", package.line, place):
        raise Unsafe(f"{name} is not pinned in a line of the Dockerfile or of a requirement file")


def pins(draft: Draft, verdict: Verdict) -> None:
    """Pin packages to the versions in the context's locks, and torch's companions by the facts."""
    read, torch = draft.read(), versions.find_torch(draft.read())
    locked = _locked(draft)
    if torch and torch.whole and torch.install:
        fitting = {"torchvision": compatibility.torchvision_release(torch.version), "torchaudio": torch.version}
        locked = {name: release for name, release in fitting.items() if release} | locked
    place = verdict.details["file"], verdict.details["line"]
    groups = ([one for one in install.packages if not one.exact and one.name not in TOOLS] for install in read.shipped)
    loose = next((group for group in groups if group and (group[0].file, group[0].line) == place), [])
    if not loose:
        raise Unsafe("no version or commit is written down that it could be pinned to")
    if not [one for one in loose if _pinned(draft, one, locked)]:
        raise Unsafe("no lock in the context has a version of it")


def _pinned(draft: Draft, package: Package, locked: dict[str, str]) -> bool:
    """Pin one package to its locked version, if its requirement allows that; return whether it changed."""
    release, read = locked.get(package.name), draft.read()
    place = draft.path if package.file == read.source else read.context / package.file
    try:
        wanted = Requirement(package.text)
    except InvalidRequirement:
        return False
    if release is None or place not in draft.texts or not wanted.specifier.contains(release):
        return False
    extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
    bare = package.text.split(";")[0].strip()
    pattern = rf"(?<![\w./=@-]){re.escape(bare)}(?![\w\[=<>!~.-])"
    return draft.swap(pattern, f"{wanted.name}{extras}=={release}", package.line, place)


def _locked(draft: Draft) -> dict[str, str]:
    """Return the versions in the locks of the context, by name; none for a package with several."""
    context, found = Sources(draft.original.context), dict[str, set[str]]()
    names = [*LOCKS.values(), "requirements.lock", "requirements-lock.txt", "constraints.txt"]
    for path in (path for name in names if (path := context.root / name).is_file()):
        for name, version in _versions(path, context.read(path)):
            found.setdefault(canonicalize_name(name), set()).add(version)
    return {name: each.pop() for name, each in found.items() if len(each) == 1}


def _versions(path: Path, text: str) -> Iterable[tuple[str, str]]:
    if path.name not in LOCKS.values():
        lines = (requirement(re.split(r"\s--hash=", line)[0].strip(), "", 0) for _, line in entries(text))
        return [(one.name, one.exact) for one in lines if one and one.exact and not one.local]
    try:
        packages = tomllib.loads(text).get("package", [])
    except (tomllib.TOMLDecodeError, RecursionError):
        return []
    pairs = [(str(one.get("name", "")), str(one.get("version", ""))) for one in packages]
    return [(name, version) for name, version in pairs if version and "+" not in version]


def kernel_module(draft: Draft, verdict: Verdict) -> None:
    """Let the EFA installer skip the kernel module, which belongs to the node."""
    _, one = draft.instruction(verdict)
    if not RUNS.search(one.raw) or not draft.swap_all(r"(efa_installer\.sh)(?=\s+-)", r"\g<1> --skip-kmod", one):
        raise Unsafe("only another release can remove this")


def first_process(draft: Draft, verdict: Verdict) -> None:
    """Write ENTRYPOINT or CMD in exec form, or put `exec` into the command line of its shell."""
    stage, found = draft.instruction(verdict)
    final = draft.read().dockerfile.final
    if found.name not in ("ENTRYPOINT", "CMD"):
        raise Unsafe("the program that is meant is not in the Dockerfile")
    if found.words is not None:
        form = _with_exec(found.words)
        if form is None and not any(re.search(r"\s", word) for word in found.words):
            raise Unsafe("the program that is meant is not in the Dockerfile")
    elif found.raw.lstrip().startswith("["):
        form = json.dumps(re.findall(r"'([^']*)'", found.raw))
    elif found.name == "ENTRYPOINT" and any(one.name == "CMD" for one in final.layers()):
        raise Unsafe("the shell form ignores CMD, and the exec form would get it as arguments")
    elif found.name == "CMD" and final.last("ENTRYPOINT"):
        raise Unsafe("the ENTRYPOINT gets the shell form as arguments of a shell")
    else:
        words = found.raw.split()
        builtin = words[0] in _TABLES["builtins"] and not re.search(r"&&|;", found.raw)
        form = None if builtin else exec_form(found.raw, shell_of(stage))
    if form is None:
        raise Unsafe("its shell has to stay: it has a pipe, a background job or a command of the shell")
    draft.put([f"{found.name} {form}"], found.line, found.end)


def _with_exec(words: list[str]) -> str | None:
    """Return an exec form whose command line ends in `exec`, or None if no word is a command line."""
    at = next((number for number, word in enumerate(words) if re.search(r"\s", word)), None)
    text = with_exec(words[at]) if at is not None else None
    if at is None or text is None:
        return None
    return json.dumps([*words[:at], text, *words[at + 1 :]], ensure_ascii=False)


def executable(draft: Draft, verdict: Verdict) -> None:
    """Give a COPY of one file a mode that lets it be executed."""
    _, one = draft.instruction(verdict)
    if not (verdict.remedy or "").startswith(one.name):
        raise Unsafe("the line also copies other files")
    old, new = (r"--chmod=\S+", "--chmod=755") if one.flag("chmod") else (r"^(\s*\w+)", r"\1 --chmod=755")
    draft.swap(old, new, one.line)


REPAIRS: dict[str, Repair] = {
    "torch-cuda": base,
    "torchvision": torchvision,
    "torchaudio": torchaudio,
    "DL3025": first_process,
    "signals": first_process,
    "executable": executable,
    "caches": caches,
    "pins": pins,
    "efa": kernel_module,
    "user": user,
}
