"""Rules on how the image runs: its user, its first process, its architecture."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tools.image.dockerfile import KNOWN, PLATFORM_ARGS, Instruction, unresolved
from tools.image.rule import Place, Subject, at, rule
from tools.launch import SHELLS
from tools.repo import nearest
from tools.verdict import Verdict, bad, good, unclear

INITS = frozenset({"tini", "dumb-init", "catatonit", "s6-svscan"})
OTHER_MACHINE = {"amd64": re.compile(r"aarch64|arm64"), "arm64": re.compile(r"x86_64|amd64")}
ROOT = frozenset({"root", "0", "0:0", "root:root"})


@rule("syntax", "the builder stops at what it does not know")
def syntax(subject: Subject) -> Iterator[Verdict]:
    """Every line is an instruction that there is."""
    for one in subject.dockerfile.unknown:
        match = nearest(one.name, KNOWN)
        remedy = f"did you mean {match}?" if match else "instructions: " + ", ".join(sorted(KNOWN))
        yield bad(at(subject, one), f"{one.name} is no instruction", remedy)


@rule(
    "user",
    "a process that breaks out of its container is on the node what it was in it, and namespaces refuse root",
)
def user(subject: Subject) -> Iterator[Verdict]:
    """The last USER of the image that is built. A number can be checked by Kubernetes (runAsNonRoot); a name
    is passed and said.
    """
    final = subject.dockerfile.final
    one = final.last("USER")
    if one is None:
        if "nonroot" in final.image:
            yield good(at(subject, final), f"{final.image} has a user of its own")
        else:
            yield bad(
                at(subject, final), "no USER: the image runs as root", "USER 1000:1000, after the last RUN"
            )
        return
    value = one.value.strip()
    if unresolved(value):
        yield unclear(at(subject, one), f"the user depends on {unresolved(value)}, which has no default")
    elif value.lower() in ROOT or value.split(":")[0] in ("root", "0"):
        yield bad(at(subject, one), "the image runs as root", "USER 1000:1000, after the last RUN")
    elif value.split(":")[0].isdigit():
        yield good(at(subject, one), f"runs as {value}")
    else:
        text = f"runs as {value}: a name, which runAsNonRoot cannot check without runAsUser"
        yield good(at(subject, one), text)


@rule(
    "signals",
    "a first process that keeps SIGTERM to itself is killed after its grace period, with no checkpoint",
)
def signals(subject: Subject) -> Iterator[Verdict]:
    """ENTRYPOINT, or CMD where there is none: in exec form, or a shell that ends in `exec`. A script of the
    context is read, and must end in exec. In shell form /bin/sh is the first process, and passes nothing on.
    """
    final = subject.dockerfile.final
    stop = final.last("STOPSIGNAL")
    if stop and stop.value.strip().upper() in ("SIGKILL", "KILL", "9"):
        yield bad(at(subject, stop), "SIGKILL leaves no time for a checkpoint", "STOPSIGNAL SIGTERM")
    entrypoint, cmd = final.last("ENTRYPOINT"), final.last("CMD")
    first = entrypoint or cmd
    if first is None:
        return
    yield from _first_process(subject, first)
    if entrypoint and cmd and entrypoint.words is not None and cmd.words is None:
        text = "CMD in shell form is given to the ENTRYPOINT as the words /bin/sh -c ..."
        yield bad(at(subject, cmd), text, f"CMD {exec_form(cmd.value)}")


@rule("platform", "an image of another architecture ends in: exec format error")
def platform(subject: Subject) -> Iterator[Verdict]:
    """--platform of FROM, and file names that carry an architecture, against the nodes' (amd64, or that of
    the machine given with --for).
    """
    wanted = subject.machine.architecture if subject.machine else "amd64"
    for stage in subject.dockerfile.shipped():
        value = stage.platform
        if value is None:
            continue
        place = at(subject, stage)
        if "BUILDPLATFORM" in value or "BUILDARCH" in value:
            text = "the image is of the machine that builds it, not of the nodes"
            yield bad(place, text, "--platform=$BUILDPLATFORM only in stages that are not shipped")
        elif (hole := unresolved(value)) is not None:
            if hole not in PLATFORM_ARGS:
                yield unclear(place, f"the platform depends on {hole}, which has no default")
        elif value.rsplit("/", 1)[-1] == wanted or value.split("/")[1:2] == [wanted]:
            yield good(place, f"{value} is the nodes' architecture")
        else:
            yield bad(place, f"the image is for {value}, and the nodes are {wanted}", f"linux/{wanted}")
    for _, one in subject.dockerfile.instructions():
        text = one.value if one.name in ("RUN", "ADD") else ""
        match = OTHER_MACHINE[wanted].search(text)
        if match and not re.search(r"uname -m|TARGETARCH|dpkg --print-architecture|\bcase\b", one.raw + text):
            yield bad(
                at(subject, one), f"{match[0]} is fetched, and the nodes are {wanted}", f"take {wanted}'s"
            )


def _first_process(subject: Subject, one: Instruction) -> Iterator[Verdict]:
    place = at(subject, one)
    words = one.words
    if words is None:
        if one.value.lstrip().startswith("["):
            text = "no JSON: the builder takes it as shell form"
            yield bad(place, text, "exec form has double quotes and no comma at its end")
        elif re.match(r"exec\s+\S", one.value) and not re.search(r"[|&;]", one.value):
            yield good(place, "the shell is replaced by exec")
        else:
            text = "shell form: /bin/sh is the first process, and SIGTERM ends there"
            yield bad(place, text, f"{one.name} {exec_form(one.value)}")
        return
    if words and PurePosixPath(words[0]).name in INITS:
        yield good(place, f"{words[0]} passes signals on")
    elif words and PurePosixPath(words[0]).name in SHELLS:
        yield from _shell(subject, place, words)
    elif words and words[0].endswith(".sh"):
        yield from _script_file(subject, place, words[0])
    else:
        yield good(place, "exec form: the program itself gets SIGTERM")


def _shell(subject: Subject, place: Place, words: list[str]) -> Iterator[Verdict]:
    at_c = next((n for n, word in enumerate(words[1:], 1) if re.fullmatch(r"-[a-z]*c", word)), None)
    if at_c is None:
        named = next((word for word in words[1:] if not word.startswith("-")), None)
        if named:
            yield from _script_file(subject, place, named)
        return
    text = words[at_c + 1] if at_c + 1 < len(words) else ""
    if _ends_in_exec(text):
        yield good(place, "the shell ends in exec")
    else:
        yield bad(
            place, "the shell stays the first process, and SIGTERM ends there", "exec before the command"
        )


def _script_file(subject: Subject, place: Place, name: str) -> Iterator[Verdict]:
    path = _in_context(subject, name)
    if path is None:
        yield unclear(place, f"{name} is not in the context: whether it ends in exec cannot be told")
    elif _ends_in_exec(path.read_text(encoding="utf-8", errors="replace")):
        yield good(place, f"{path.name} ends in exec")
    else:
        text = f"{path.name} does not end in exec: the shell stays the first process, and SIGTERM ends there"
        yield bad(place, text, 'exec "$@" as its last line')


def _ends_in_exec(text: str) -> bool:
    """Say whether the last command of a script, or its handler of SIGTERM, gives the signal on."""
    lines = [line.strip() for line in re.sub(r"\\\n", " ", text).splitlines()]
    lines = [
        line
        for line in lines
        if line and not line.startswith("#") and line not in ("fi", "done", "esac", "}", ";;")
    ]
    if not lines:
        return False
    last = re.split(r"&&|;|\|\|", lines[-1])[-1].strip()
    return last.startswith("exec ") or bool(re.search(r"\btrap\b.*\bTERM\b", text))


def _in_context(subject: Subject, name: str) -> Path | None:
    base = PurePosixPath(name).name
    for one in subject.dockerfile.final.layers():
        if one.name in ("COPY", "ADD") and one.flag("from") is None:
            for source in (one.words or one.value.split())[:-1]:
                for path in (subject.context / source, subject.context / source / base):
                    if path.name == base and path.is_file():
                        return path
    return None


def exec_form(command: str) -> str:
    """Return a shell form as an exec form: the words where they are plain, else a shell that ends in exec."""
    try:
        plain = not re.search(r"[|&;<>()$`*?~]", command)
        words = shlex.split(command) if plain else ["/bin/sh", "-c", f"exec {command}"]
    except ValueError:
        words = ["/bin/sh", "-c", f"exec {command}"]
    return (
        "["
        + ", ".join(f'"{word}"' for word in (one.replace("\\", "\\\\").replace('"', '\\"') for one in words))
        + "]"
    )
