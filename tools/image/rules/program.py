"""Rules on the program that the image starts: it is in the image, and can be executed."""

import os
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from tools.core import Verdict, bad, good, tables, unclear
from tools.image.dockerfile.packages import PYTHON
from tools.image.dockerfile.parse import Instruction, Stage, unresolved
from tools.image.dockerfile.shell_script import commands, program, script
from tools.image.rules.layers import PUBLIC
from tools.image.rules.rule import Subject, at, rule
from tools.image.rules.runtime import ROOT, Made, made, started_by, written
from tools.simulator.prefixes import behind_prefixes

OCTAL = re.compile(r"[0-7]{3,4}")
EXECUTABLE = re.compile(r"[0-7]?(?=[0-7]*[1357])[0-7]{3}|[ugoa]*[+=][rwst]*[xX][\w,+=-]*")
OF_OWNER = re.compile(r"[0-7]?[0-7][0246]{2}|u+[+=][rwst]*[xX]\w*")  # those of EXECUTABLE for the owner alone
_PATTERNS = tables.patterns("image/patterns.yaml")
NO_TORCH, NO_PYTHON = _PATTERNS["base without torch"], _PATTERNS["base without Python"]
SYSTEM = frozenset({"apk", "apt", "apt-get", "dnf", "microdnf", "yum"})
ARRANGE = frozenset(tables.load("image/tables.yaml")["programs that add no other"])
KEEP_MODES = ARRANGE | SYSTEM | frozenset(tables.load("image/tables.yaml")["installers"])
LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})  # they come with torch, or with a package on it
TEXT = re.compile(r".*\.(?:cfg|ini|json|md|py|sh|toml|txt|ya?ml)")
ON_PATH = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"})


@rule("executable")
def executable(subject: Subject) -> Iterator[Verdict]:
    final = subject.dockerfile.final
    name = _first_program(final)
    found = made(subject, name) if name else None
    if found is None or ("/" not in name and str(found.path.parent) not in ON_PATH):
        return
    place, file, can = at(subject, found.instruction), found.path.name, _executable(subject, found)
    crlf = _PATTERNS["script with CR LF"].search(written(subject, name) or "")
    if crlf and not _PATTERNS["takes CR out"].search(subject.dockerfile.text):
        text = f"{file} begins with #! and ends its lines in CR LF: the start ends in `no such file or directory`"
        yield bad(place, text, f"RUN sed -i 's/\\r$//' {found.path}, or *.sh text eol=lf in .gitattributes")
    elif can:
        yield good(place, f"{file} is executable")
    elif can is False and final.last("ENTRYPOINT") is None and not PUBLIC.match(final.image):
        text = f"{file} is not executable, and whether an ENTRYPOINT of the base reads it is unknown"
        yield unclear(place, text, _remedy(subject, found))
    elif can is False:
        yield bad(place, f"{file} is not executable: the start ends in `permission denied`", _remedy(subject, found))


@rule("torch")
def torch(subject: Subject) -> Iterator[Verdict]:
    final = subject.dockerfile.final
    base, place = final.image.partition("@")[0], at(subject, final)
    name, bare = _first_program(final), NO_PYTHON.match(final.image) is not None
    absent = (name in LAUNCHERS or (bare and PYTHON.fullmatch(name) is not None)) and made(subject, name) is None
    absent &= "PATH" not in final.environment
    added = [one for one in final.layers() if one.name in ("RUN", "COPY", "ADD")]
    read = (one for one in added if not (bare and absent and _is_off_path(final, one)))
    if not NO_TORCH.match(final.image) or any(_may_bring(subject, one) for one in read):
        return
    if base == "scratch" and not added:
        yield bad(place, "the image is empty: no program can start", "COPY --from=<stage>, or a base with torch")
    elif absent:
        yield bad(place, f"{name} is not in {base}, and nothing installs it", "a base with torch, or pip install torch")
    elif bare and not added:
        text = f"{base} has no torch, and nothing is installed: only a volume could bring it"
        yield unclear(place, text, "a base with torch, or pip install torch")


def _may_bring(subject: Subject, one: Instruction) -> bool:
    """Return whether an instruction may bring torch, Python or a launcher."""
    if one.name == "RUN":
        found = list(commands(script(one)))
        return not found or any(_may_install(words) for words in found)
    words = one.words or one.value.split()
    texts = (TEXT.fullmatch(word) and (subject.context / word.lstrip("/")).is_file() for word in words[:-1])
    return one.flag("from") is not None or not all(texts)


def _is_off_path(final: Stage, one: Instruction) -> bool:
    """Return whether files of the context are copied where no program is found by its bare name."""
    if one.name == "RUN" or one.flag("from") is not None:
        return False
    directory = PurePosixPath("/")
    for before in final.layers():
        if before.name == "WORKDIR" and before.order < one.order:
            directory /= before.value.strip("\"' ")
    target = (one.words or one.value.split() or ["$"])[-1].strip("\"'")
    goal = PurePosixPath(os.path.normpath(directory / target))
    near = (goal.is_relative_to(path) or PurePosixPath(path).is_relative_to(goal) for path in ON_PATH)
    return not unresolved(str(goal)) and not any(near)


def _may_install(words: list[str]) -> bool:
    """Return whether a command may install one of them. Without pip, a package manager needs their names."""
    if program(words) in SYSTEM:
        return any(re.search(r"[$/*]|py|torch", word) for word in words[1:])
    return program(words) not in ARRANGE | {"chmod"}


def _first_program(final: Stage) -> str:
    """Return the program that the container starts, behind prefixes such as `tini --`; empty if unknown."""
    started = started_by(final)
    if started and started[0].words is None:
        parts = list(commands(started[0].value))
        return parts[0][0] if len(parts) == 1 else ""
    words, _, _ = behind_prefixes([word for one in started for word in one.words or []], {})
    return words[0] if words else ""


def _remedy(subject: Subject, found: Made) -> str:
    one = found.instruction
    words = one.words or one.value.split()
    if len(words) == 2 and (one.heredocs or (subject.context / words[0].lstrip("/")).is_file()):
        return f"{one.name} --chmod=755 " + re.sub(r"--chmod=\S+\s*", "", one.raw)
    return f"RUN chmod 755 {found.path}, after this line"


def _executable(subject: Subject, found: Made) -> bool | None:
    """Return whether a file can be executed; None if the Dockerfile and the context do not say it."""
    owner = _may_own(subject.dockerfile.final)
    result = _copied_mode(subject, found, owner)
    for one in subject.dockerfile.final.layers():
        if one.order > found.instruction.order and result is not True:
            changed = _changes(one, found.path, owner)
            result = result if changed is False else changed
    return result


def _may_own(final: Stage) -> bool:
    """Return whether the user of the image may own its files: those that root copies are root's."""
    user = final.last("USER")
    name = user.value.strip("\"' ").split(":")[0].lower() if user else "root"
    chown = any("chown" in "\n".join([one.raw, *one.heredocs]) for one in final.layers())
    return chown or name in ROOT or unresolved(name) is not None


def _lets(mode: str, owner: bool) -> bool:
    """Return whether a mode lets a user execute a file, who is its owner or not."""
    return bool(EXECUTABLE.fullmatch(mode)) and (owner or not OF_OWNER.fullmatch(mode))


def _copied_mode(subject: Subject, found: Made, owner: bool) -> bool | None:
    """Return whether the file can be executed when it is copied. A heredoc has the mode 0644."""
    mode, content = found.instruction.flag("chmod"), found.content
    if mode is not None:
        return _lets(mode, owner) or (False if OCTAL.fullmatch(mode) else None)
    if isinstance(content, str):
        return False
    if content.is_symlink() or subject.ignore.excludes(os.path.relpath(content, subject.context)):
        return None
    return bool(content.stat().st_mode & (0o111 if owner else 0o011))


def _changes(one: Instruction, path: PurePosixPath, owner: bool) -> bool | None:
    """Return whether an instruction makes a file executable; None if it may."""
    if one.name == "ADD" or one.flag("from"):
        target = (one.words or one.value.split() or ["$"])[-1]
        beside = target.startswith("/") and not unresolved(target) and not path.is_relative_to(target)
        return False if beside else None
    found = [_sets(words, path, owner) for words in commands(script(one))] if one.name == "RUN" else []
    unread = one.name == "RUN" and not found  # the heredoc of another program than a shell
    return True if True in found else None if unread or None in found else False


def _sets(words: list[str], path: PurePosixPath, owner: bool) -> bool | None:
    """Return whether a command makes a file executable; None if it may."""
    name = words[2] if PYTHON.fullmatch(program(words)) and words[1:2] == ["-m"] and words[2:] else program(words)
    if name != "chmod":
        return False if name in KEEP_MODES else None
    mode, *files = [word for word in words[1:] if not word.startswith("-")] or [""]
    if EXECUTABLE.fullmatch(mode) and path.name in {PurePosixPath(file).name for file in files}:
        return _lets(mode, owner)
    beside = (re.fullmatch(r"/[\w./-]*", file) and not path.is_relative_to(os.path.normpath(file)) for file in files)
    return False if files and all(beside) else None
