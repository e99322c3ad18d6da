"""The repair of an image that runs as root: a user with a home, who owns the directories that it works in.

It is made only where nothing in the Dockerfile needs root at run time, or lies where only root can read it.
"""

import re
from pathlib import PurePosixPath
from typing import Any

from tools.core import Verdict, tables
from tools.image.dockerfile.parse import Instruction, Stage, unresolved
from tools.image.draft import Draft, Unsafe, shell_of
from tools.image.rules.rule import Subject
from tools.image.rules.runtime import OWN_USER, ROOT, written

USER = "1000:1000"
HOME_OF_ROOT = f"/{'root'}"
_TABLES: dict[str, Any] = tables.load("image/tables.yaml")
BASES = [(re.compile(pattern), place) for pattern, place in _TABLES["bases with useradd"].items()]
SYSTEM = (*_TABLES["system"]["whole"], HOME_OF_ROOT)
_PATTERNS = tables.patterns("image/patterns.yaml")
OF_ROOT, NEEDS_ROOT = _PATTERNS["in the home of root"], _PATTERNS["needs root"]
CACHES = _PATTERNS["cache variables"]
UV_PYTHON = re.compile(r"\buv\s+(?:venv|sync|python|tool|run)\b")  # may install a Python in the home
PYTHON_BASE = re.compile(r"(?:^|/)python:")
SSH = re.compile(r"\bopenssh-server\b|\bsshd\b")


def user(draft: Draft, verdict: Verdict) -> None:
    """Switch to the user that the Dockerfile has used before, or add one. Raises Unsafe."""
    read = draft.read()
    final = read.dockerfile.final
    shell_of(final)
    _refuse(read, final)
    names = [one.value.strip().strip("\"'") for one in final.layers() if one.name == "USER"]
    own = next((name for name in reversed(names) if name.split(":")[0].lower() not in ROOT), None)
    if own and not unresolved(own):
        _put(draft, final, [f"USER {own}"])
        return
    if OWN_USER.search(final.image):
        raise Unsafe(f"{final.image} has its own user, whose name is not in the Dockerfile")
    start = next((place for pattern, place in BASES if pattern.search(final.image.split("@")[0])), None)
    if start is None:
        raise Unsafe(f"it is unknown whether {final.image} has useradd, and a user already")
    owned = " ".join(_owned(final, start))
    _put(draft, final, [
        "# A user with a home, who owns what the image writes at run time",
        "RUN (getent passwd 1000 || useradd --uid 1000 --create-home --shell /bin/bash trainer) \\",
        f"    && mkdir -p {owned} \\",
        f"    && chown -R {USER} {owned}",
        f"USER {USER}",
    ])  # fmt: skip


def _put(draft: Draft, final: Stage, lines: list[str]) -> None:
    """Add lines after the last instruction that needs root, in place of the USER behind it."""
    needs = [one for one in final.instructions if one.name in ("RUN", "COPY", "ADD", "WORKDIR")]
    after = max([final.start.end, *(one.last for one in needs)])
    last = next((one for one in reversed(final.instructions) if one.name == "USER"), None)
    if last is not None and last.line > after:
        draft.put(lines, last.line, last.end)
    else:
        draft.put(lines, after + 1, after)


def _refuse(read: Subject, final: Stage) -> None:
    """Raise Unsafe if something needs root at run time, or is where only root can read."""
    for one in final.layers():
        text = "\n".join([one.value, *one.heredocs])
        if match := OF_ROOT.search(text) if one.name in ("RUN", "COPY", "ADD", "ENV", "WORKDIR", "CMD") else None:
            text = "and another user does not find what it leaves in the home of root"
            raise Unsafe(f"line {one.line} has {match[0].strip()}, {text}")
        own_python = PYTHON_BASE.search(final.image) or "UV_PYTHON_INSTALL_DIR" in final.environment
        if one.name == "RUN" and UV_PYTHON.search(text) and not own_python:
            raise Unsafe(f"line {one.line}: uv may put a Python into the home of root; set UV_PYTHON_INSTALL_DIR")
        if one.name == "RUN" and SSH.search(text):
            raise Unsafe(f"line {one.line} sets up an SSH server, which MPI starts as root")
        if one.name == "EXPOSE" and any(int(port) < 1024 for port in re.findall(r"(?<!\S)\d{1,5}", one.value)):
            raise Unsafe(f"line {one.line}: a port below 1024 may need root")
        if one.name in ("ONBUILD", "VOLUME"):
            raise Unsafe(f"line {one.line}: {one.name} may need root, or drops a change of owner")
    for started in (final.last("ENTRYPOINT"), final.last("CMD")):
        if started is not None:
            _refuse_command(read, started)


def _refuse_command(read: Subject, one: Instruction) -> None:
    if match := NEEDS_ROOT.search(one.value):
        raise Unsafe(f"line {one.line} starts {match[0]}, which may need root")
    for name in (word for word in (one.words or one.value.split()) if word.endswith(".sh")):
        text = written(read, name)
        if text is None:
            raise Unsafe(f"{name} is not in the context, so it is unknown whether it needs root")
        if match := NEEDS_ROOT.search(re.sub(r"(?m)^[ \t]*+#.*$", "", text)):
            raise Unsafe(f"{name} has {match[0]}, which may need root")


def _owned(final: Stage, start: str) -> list[str]:
    """Return the directories that the user has to own. Raises Unsafe if it starts where it cannot write."""
    directory = PurePosixPath(start)
    for one in final.layers():
        if one.name == "WORKDIR":
            directory /= one.value.strip().strip("\"'")
    if unresolved(str(directory)) or directory == PurePosixPath("/") or _system(directory):
        raise Unsafe(f"it starts in {directory}, where only root writes; WORKDIR /app would help")
    caches = [PurePosixPath(value) for name, value in final.environment.items() if CACHES.fullmatch(name)]
    caches = [one for one in caches if one.is_absolute() and one.parts[:2] != ("/", "tmp")]
    wanted = [directory, *caches]
    if found := next((one for one in caches if _system(one) or unresolved(str(one))), None):
        raise Unsafe(f"a cache is in {found}, where only root writes")
    if not all(re.fullmatch(r"[\w./+-]+", str(one)) for one in wanted):
        raise Unsafe(f"the name of a directory has characters of the shell: {wanted[0]}")
    return [str(one) for one in dict.fromkeys(wanted)]


def _system(path: PurePosixPath) -> bool:
    """Return whether a path is a directory of the system, which no user of an image owns."""
    return str(path) in ("/", *_TABLES["system"]["others"]) or path.parts[:2] in [
        ("/", one.strip("/")) for one in SYSTEM
    ]
