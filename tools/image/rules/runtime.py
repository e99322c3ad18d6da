"""Rules on how the image runs: its user, its first process, its architecture."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.core.repo import nearest
from tools.core.verdict import State, Verdict, bad, good, unclear
from tools.image.dockerfile.parse import KNOWN, PLATFORM_ARGS, Instruction, Stage, unresolved
from tools.image.rules.rule import Place, Subject, at, rule
from tools.simulator.torchrun import SHELLS

INITS = frozenset({"tini", "dumb-init", "catatonit"})
WHOLE_GROUP = frozenset({"dumb-init", "s6-svscan"})  # these pass a signal to every process below them
OTHER_MACHINE = {"amd64": re.compile(r"aarch64|arm64"), "arm64": re.compile(r"x86_64|amd64")}
FETCHED = re.compile(r"://|\.(?:whl|deb|rpm|sh|run|tgz|zip|tar(?:\.\w+)?)$")
TOLD = re.compile(
    r"uname -m|TARGETARCH|dpkg --print-architecture|\bcase\b|\$\(arch\b|`arch`|platform_machine"
)
# Images whose own user is not root. Sources: their publishers' documentation.
OWN_USER = re.compile(
    r"nonroot|^cgr\.dev/chainguard/|^(?:quay\.io/)?jupyter/|^(?:docker\.io/)?bitnami/|^mambaorg/micromamba"
)
QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'")
TRAP = re.compile(r"(?m)^\s*trap\s+(?:--\s+)?(\"[^\"]*\"|'[^']*'|[^-\s]\S*)\s[^\n]*\b(?:SIGTERM|TERM|15)\b")
ENDS = frozenset({"fi", "done", "esac", "}", ";;"})
BEFORE = re.compile(r"^(?:(?:then|else|do|\{)\s+|[^\s()]+\)\s*)*")  # a keyword, or a pattern of `case`
EXEC = re.compile(r"(?:\w+=\S*\s+)*exec\s+(?![<>&]|\d+[<>])")
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
        if OWN_USER.search(final.image) and not final.image.startswith("bitnami/minideb"):
            yield good(at(subject, final), f"{final.image} has a user of its own")
        else:
            yield bad(
                at(subject, final), "no USER: the image runs as root", "USER 1000:1000, after the last RUN"
            )
        return
    value = one.value.strip().strip("\"'")
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
    """ENTRYPOINT with CMD behind it: in exec form, or a shell that ends in `exec`. A script that the image
    copies or writes is read, and must end in exec; one below tini too, for tini passes a signal to its own
    child only (but with -g). In shell form /bin/sh is the first process, and passes nothing on.
    """
    final = subject.dockerfile.final
    stop = final.last("STOPSIGNAL")
    if stop and stop.value.strip().upper() in ("SIGKILL", "KILL", "9"):
        yield bad(at(subject, stop), "SIGKILL leaves no time for a checkpoint", "STOPSIGNAL SIGTERM")
    entrypoint, cmd = final.last("ENTRYPOINT"), _command(final)
    first = entrypoint or cmd
    if first is None:
        return
    if first.words is None:
        yield _shell_form(at(subject, first), first)
        return
    words = [Word(text, at(subject, first)) for text in first.words]
    if entrypoint and cmd and cmd.words is not None:
        words += [Word(text, at(subject, cmd)) for text in cmd.words]
    yield from _process(subject, words)
    if entrypoint and cmd and cmd.words is None:
        text = "CMD in shell form is given to the ENTRYPOINT as the words /bin/sh -c ..."
        yield bad(at(subject, cmd), text, _exec_remedy(cmd))


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
    yield from _handed_over(subject)
    if base := _named_machine(subject, wanted):
        text = f"{base} is an image for another architecture, and the nodes are {wanted}"
        yield bad(at(subject, subject.dockerfile.final.lineage()[0]), text, f"the image for {wanted}")
    for _, one in subject.dockerfile.instructions():
        fetched = one.value.split() if one.name in ("RUN", "ADD") else []
        matches = [
            OTHER_MACHINE[wanted].search(word) for word in fetched if FETCHED.search(word.strip("\"';"))
        ]
        match = next((each for each in matches if each), None)
        if match and not TOLD.search(one.raw + one.value):
            yield bad(
                at(subject, one), f"{match[0]} is fetched, and the nodes are {wanted}", f"take {wanted}'s"
            )


def _handed_over(subject: Subject) -> Iterator[Verdict]:
    """Judge Python packages of stages for the building machine: copied on, they are of its architecture."""
    for install in subject.shipped:
        value = install.stage.platform or ""
        if install.stage not in subject.dockerfile.shipped() and "BUILDPLATFORM" in value:
            text = "packages are installed for the machine that builds, and copied to the nodes"
            remedy = "no --platform=$BUILDPLATFORM in a stage that installs packages"
            yield bad(at(subject, install.stage), text, remedy)
            return


def _named_machine(subject: Subject, wanted: str) -> str | None:
    """Return the base image where its name says that it is for another architecture than the nodes'."""
    base = subject.dockerfile.final.image
    names = {
        "amd64": r"^arm(?:64v8|32v7)/|[-_:](?:arm64|aarch64)(?:[-_.]|$)",
        "arm64": r"^amd64/|[-_:](?:amd64|x86_64)(?:[-_.]|$)",
    }
    return base if re.search(names[wanted], base.split("@")[0]) else None


@dataclass(frozen=True)
class Word:
    """One word of the first process's command line, and the instruction that it comes from."""

    text: str
    place: Place

    @property
    def program(self) -> str:
        """Return the word as a program's name, without its directory."""
        return PurePosixPath(self.text).name


def _command(final: Stage) -> Instruction | None:
    """Return the CMD that counts: an ENTRYPOINT drops the one that an earlier stage left."""
    for stage in reversed(final.lineage()):
        names = [one.name for one in stage.instructions]
        if "CMD" in names:
            return next(one for one in reversed(stage.instructions) if one.name == "CMD")
        if "ENTRYPOINT" in names:
            return None
    return None


def _shell_form(place: Place, one: Instruction) -> Verdict:
    if one.value.lstrip().startswith("["):
        text = "no JSON: the builder takes it as shell form"
        return bad(place, text, "exec form has double quotes and no comma at its end")
    if re.match(r"exec\s+\S", one.value) and not re.search(r"[|&;]", one.value):
        return good(place, "the shell is replaced by exec")
    text = "shell form: /bin/sh is the first process, and SIGTERM ends there"
    return bad(place, text, _exec_remedy(one))


def _exec_remedy(one: Instruction) -> str:
    form = exec_form(one.raw)
    return f"{one.name} {form}" if form else f"{one.name} of a script that ends in exec"


def _process(subject: Subject, words: list[Word]) -> Iterator[Verdict]:
    """Judge the program that `words` start, and what it starts in its place."""
    if not words:
        return
    first, rest = words[0], words[1:]
    if first.program in INITS:
        yield from _init(subject, first, rest)
    elif first.program in WHOLE_GROUP:
        yield good(first.place, f"{first.text} passes signals on")
    elif first.program == "env":
        plain = (n for n, word in enumerate(rest) if not re.match(r"-|\w+=", word.text))
        yield from _process(subject, rest[next(plain, len(rest)) :])
    elif first.program in ("gosu", "su-exec"):
        yield from _process(subject, rest[1:])
    elif first.program == "conda" and rest[:1] and rest[0].text == "run":
        # conda/conda issue 10351
        text = "conda run stays the first process, and passes no SIGTERM on"
        yield bad(first.place, text, "the program's path in the environment: /opt/conda/envs/NAME/bin/python")
    elif first.program in SHELLS:
        yield from _shell(subject, first, rest)
    else:
        yield from _program(subject, first, rest)


def _init(subject: Subject, first: Word, rest: list[Word]) -> Iterator[Verdict]:
    """Judge what an init starts, where it passes signals to that one process and not to all."""
    options = []
    while rest and rest[0].text.startswith("-"):
        options.append(rest[0].text)
        rest = rest[1:]
        if options[-1] == "--":
            break
    if first.program == "dumb-init":
        alone = bool({"-c", "--single-child"} & set(options))
    else:
        alone = not any(re.fullmatch(r"-[a-z]*g[a-z]*", one) for one in options)
    found = list(_process(subject, rest)) if alone else []
    if any(one.state is not State.PASS for one in found):
        yield from found
    else:
        yield good(first.place, f"{first.text} passes signals on")


def _shell(subject: Subject, first: Word, rest: list[Word]) -> Iterator[Verdict]:
    at_c = next((n for n, word in enumerate(rest) if re.fullmatch(r"-[a-z]*c", word.text)), None)
    if at_c is None:
        texts = [word.text for word in rest]
        named = next(
            (
                n
                for n, text in enumerate(texts)
                if text[:1] not in "-+" and texts[n - 1 : n] not in (["-o"], ["+o"])
            ),
            None,
        )
        if named is not None:
            yield from _script(subject, rest[named], rest[named + 1 :])
        return
    if at_c + 1 == len(rest):
        return  # what it runs is given when it is started
    text = rest[at_c + 1]
    if ends_in_exec(text.text):
        yield good(text.place, "the shell ends in exec")
    else:
        says = "the shell stays the first process, and SIGTERM ends there"
        yield bad(text.place, says, "exec before the command")


def _program(subject: Subject, first: Word, rest: list[Word]) -> Iterator[Verdict]:
    """Judge a program by its file, where that is a shell script of the context or of a heredoc."""
    text = _written(subject, first.text)
    shell = re.match(r"#!\s*(?:/\S*/)?(?:env\s+(?:-S\s+)?)?(\w+)", text or "")
    if first.text.endswith(".sh") or (shell and shell[1] in SHELLS):
        yield from _script(subject, first, rest)
    else:
        yield good(first.place, "exec form: the program itself gets SIGTERM")


def _script(subject: Subject, first: Word, rest: list[Word]) -> Iterator[Verdict]:
    text, name = _written(subject, first.text), first.program
    if text is None:
        says = f"{first.text} is not in the context: whether it ends in exec cannot be told"
        yield unclear(first.place, says)
    elif not ends_in_exec(text):
        says = f"{name} does not end in exec: the shell stays the first process, and SIGTERM ends there"
        yield bad(first.place, says, 'exec "$@" as its last line')
    elif rest and re.search(r"exec\s+\"?\$[@*]", text):
        yield from _process(subject, rest)
    else:
        yield good(first.place, f"{name} ends in exec")


def ends_in_exec(script: str) -> bool:
    """Say whether the last command of a script, or its handler of SIGTERM, gives the signal on."""
    text = re.sub(r"\\\n", " ", script.replace("\r", ""))
    if any("kill" in _body(text, match[1].strip("\"'")) for match in TRAP.finditer(text)):
        return True
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#") and line not in ENDS]
    parts = re.split(r"&&|\|\||;", QUOTED.sub("Q", lines[-1])) if lines else []
    parts = [part.strip() for part in parts if part.strip() and part.strip() not in ENDS]
    if not parts:
        return False
    last = BEFORE.sub("", parts[-1])
    body = _body(text, last.split()[0]) if last else ""
    if last and body != last.split()[0]:
        return ends_in_exec(body)
    # neither `exec > log`, nor a pipeline or a background job, which have a shell above them
    return bool(EXEC.match(last)) and not re.search(r"(?<![|>&])[|&](?![|&>])", last)


def _body(text: str, name: str) -> str:
    """Return the body of the shell function `name`, or `name` itself where there is none."""
    head = rf"(?ms)^\s*(?:function\s+)?{re.escape(name)}\s*(?:\(\))?\s*\{{(.*?)^\s*\}}"
    match = re.search(head, text)
    return match[1] if match else name


def _written(subject: Subject, name: str) -> str | None:
    """Return the text of a file of the image, where a COPY or ADD of the context or a heredoc made it."""
    layers = list(subject.dockerfile.final.layers())
    places = [PurePosixPath("/")]
    for one in layers:
        places.append(places[-1] / one.value.strip("\"' ") if one.name == "WORKDIR" else places[-1])
    wanted = PurePosixPath(os.path.normpath(places[-1] / name)) if "/" in name else PurePosixPath(name)
    found = None
    for one, place in zip(layers, places, strict=False):
        if one.name in ("COPY", "ADD") and one.flag("from") is None:
            text = _copied(subject.context, one, place, wanted)
            found = found if text is None else text
    return found


def _copied(context: Path, one: Instruction, place: PurePosixPath, wanted: PurePosixPath) -> str | None:
    """Return the text of the file `wanted` (a path, or a program's bare name) where this COPY makes it."""
    words = one.words or one.value.split()
    if len(words) < 2:
        return None
    goal = PurePosixPath(os.path.normpath(place / words[-1].strip("\"'")))
    made: list[tuple[str, str | Path]] = []  # the name that a file has by itself, and what is in it
    marks = [word.strip("<-\"'") for word in words[:-1] if word.startswith("<<")]
    made += zip(marks, one.heredocs, strict=False)
    for source in words[:-1]:
        if source.startswith("<<") or ".." in source or unresolved(source):
            continue
        for path in context.glob(source.strip("/")) if source.strip("./") else [context]:
            if path.is_dir():
                inner = (
                    wanted.relative_to(goal) if wanted.is_relative_to(goal) else PurePosixPath(wanted.name)
                )
                made.append((str(inner), path / inner))
            else:
                made.append((path.name, path))
    for name, text in made:
        if wanted in (goal, goal / name) or ("/" not in str(wanted) and wanted.name in (name, goal.name)):
            if isinstance(text, str):
                return text
            if text.is_file():
                return text.read_text(encoding="utf-8", errors="replace")
    return None


def exec_form(command: str, shell: Sequence[str] = ("/bin/sh", "-c")) -> str | None:
    """Return a shell form as an exec form: the words where they are plain, else a shell that ends in exec.

    None where the shell has to stay, as in a pipeline.
    """
    if re.search(r"[|&;<>()$`*?~{}!#]", command):
        text = with_exec(command)
        return None if text is None else json.dumps([*shell, text], ensure_ascii=False)
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if re.match(r"\w+=", command):
        words.insert(0, "env")
    return json.dumps(words, ensure_ascii=False)


def with_exec(command: str) -> str | None:
    """Return a command line with `exec` before its last command; None where that changes what it does."""
    plain = QUOTED.sub(lambda match: "Q" * len(match[0]), command.rstrip("; "))
    start = max((match.end() for match in re.finditer(r"&&|;", plain)), default=0)
    start += len(plain[start:]) - len(plain[start:].lstrip())
    start += len(match[0]) if (match := re.match(r"(?:\w+=\S*\s+)*", plain[start:])) else 0
    last = plain[start:]
    if (
        "||" in plain
        or re.search(r"(?<![>&])[|&](?![&>])", plain.replace("&&", ""))
        or last.split()[:1] in ([], ["}"], ["fi"], ["done"])
    ):
        return None
    return command if last.startswith("exec ") else f"{command[:start]}exec {command[start:]}"
