"""Rules on how the image runs: its user, its first process, its architecture."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.core.verdict import State, Verdict, bad, doubtful, good, unclear
from tools.image.dockerfile.context import matching
from tools.image.dockerfile.parse import PLATFORM_ARGS, Instruction, Stage, unresolved
from tools.image.rules.rule import Location, Subject, at, rule
from tools.simulator.shell import SHELLS
from training.run.files import read_bounded

LARGEST_SCRIPT = 2**20  # bytes of an entrypoint that is read
INITS = frozenset({"tini", "dumb-init", "catatonit"})
WHOLE_GROUP = frozenset({"dumb-init", "s6-svscan"})  # they forward a signal to every process below them
OTHER_ARCHITECTURE = {"amd64": re.compile(r"aarch64|arm64"), "arm64": re.compile(r"x86_64|amd64")}
FETCHED = re.compile(r"://|\.(?:whl|deb|rpm|sh|run|tgz|zip|tar(?:\.\w+)?)$")
ASKS_ARCHITECTURE = re.compile(
    r"uname -m|TARGETARCH|dpkg --print-architecture|\bcase\b|\$\(arch\b|`arch`|platform_machine"
)
# Base images with a user that is not root. Sources: their publishers' documentation.
OWN_USER = re.compile(
    r"nonroot|^cgr\.dev/chainguard/|^(?:quay\.io/)?jupyter/|^(?:docker\.io/)?bitnami/(?!minideb)|^mambaorg/micromamba"
)
ROOT = frozenset({"root", "0"})
QUOTED = re.compile(r"(?<!\\)\"(?:[^\"\\]|\\.)*\"|'[^']*'")
TRAP = re.compile(
    r"(?m)^[ \t]*+trap\s++(?:--\s++)?(\"[^\"]*\"|'[^']*'|[^-\s]\S*)\s[^\n]*\b(?:SIGTERM|TERM|15)\b"
)
ENDS = frozenset({"fi", "done", "esac", "}", ";;"})
BEFORE = re.compile(r"^(?:(?:then|else|do|\{)\s+|[^\s()]+\)\s*)*")  # a keyword, or a pattern of `case`
ONLY_EXEC = re.compile(r"exec\s+[^\s|&;][^|&;]*$")
EXEC = re.compile(r"(?:\w++=\S*+\s++)*+exec\s++(?![<>&]|\d+[<>])")


@rule("user", "a process that breaks out of its container has the same user on the node")
def user(subject: Subject) -> Iterator[Verdict]:
    """The image does not run as root. For a user name, Kubernetes cannot check runAsNonRoot; it passes."""
    final = subject.dockerfile.final
    instruction, fix = final.last("USER"), "USER 1000:1000, after the last RUN"
    if instruction is None:
        if OWN_USER.search(final.image):
            yield good(at(subject, final), f"{final.image} has its own user")
        else:
            yield doubtful(at(subject, final), "no USER: the image runs as root", fix)
        return
    place, value = at(subject, instruction), instruction.value.strip().strip("\"'")
    name = value.split(":")[0].lower()
    if hole := unresolved(value):
        yield doubtful(place, f"the user depends on the build argument {hole}, which has no default", fix)
    elif name in ROOT:
        yield doubtful(place, "the image runs as root", fix)
    else:
        note = "" if name.isdigit() else ": a name, which runAsNonRoot cannot check without runAsUser"
        yield good(place, f"runs as {value}{note}")


@rule("signals", "a first process that keeps SIGTERM to itself is killed without a checkpoint")
def signals(subject: Subject) -> Iterator[Verdict]:
    """The first process gets SIGTERM: the program itself, a shell that ends in `exec`, or an init.

    A script that the image copies or writes is read and must end in `exec`. So must one below tini, because
    tini forwards a signal only to its own child (but with -g). DL3025 checks the shell form.
    """
    final = subject.dockerfile.final
    stop = final.last("STOPSIGNAL")
    if stop and stop.value.strip().upper() in ("SIGKILL", "KILL", "9"):
        yield doubtful(at(subject, stop), "SIGKILL leaves no time for a checkpoint", "STOPSIGNAL SIGTERM")
    started = _started(final)
    if started and started[0].words is None:
        if started[0] not in shell_forms(final):
            yield good(at(subject, started[0]), "the shell is replaced by exec")
        return
    words = [Word(text, at(subject, one)) for one in started for text in one.words or []]
    yield from _process(subject, words)


def shell_forms(final: Stage) -> list[Instruction]:
    """Return the started instructions in shell form, except an `exec`, which replaces the shell."""
    found = [one for one in _started(final) if one.words is None]
    return [
        one
        for one in found
        if (one.name == "CMD" and final.last("ENTRYPOINT")) or not ONLY_EXEC.match(one.value)
    ]


def _started(final: Stage) -> list[Instruction]:
    """Return the ENTRYPOINT and CMD that the container starts. An ENTRYPOINT in shell form drops the CMD."""
    entrypoint, command = final.last("ENTRYPOINT"), None
    for stage in reversed(final.lineage()):
        names = [one.name for one in stage.instructions]
        if "CMD" in names:
            command = next(one for one in reversed(stage.instructions) if one.name == "CMD")
        if "CMD" in names or "ENTRYPOINT" in names:  # an ENTRYPOINT drops the CMD of an earlier stage
            break
    drops = entrypoint is not None and entrypoint.words is None
    return [one for one in (entrypoint, None if drops else command) if one is not None]


@rule("platform", "an image for another architecture fails with: exec format error")
def platform(subject: Subject) -> Iterator[Verdict]:
    """The architecture of --platform and of downloaded files is the nodes': amd64, or that of --for."""
    wanted = subject.machine.architecture if subject.machine else "amd64"
    for stage in subject.dockerfile.shipped():
        if stage.platform is not None:
            yield from _stage_platform(at(subject, stage), stage.platform, wanted)
    yield from _built_elsewhere(subject)
    if base := _named_architecture(subject, wanted):
        text = f"{base} is an image for another architecture, and the nodes are {wanted}"
        yield bad(at(subject, subject.dockerfile.final.lineage()[0]), text, f"the image for {wanted}")
    for _, one in subject.dockerfile.instructions():
        words = one.value.split() if one.name in ("RUN", "ADD") else []
        files = [word for word in words if FETCHED.search(word.strip("\"';"))]
        match = next((found for word in files if (found := OTHER_ARCHITECTURE[wanted].search(word))), None)
        if match and not ASKS_ARCHITECTURE.search(one.raw + one.value):
            text = f"{match[0]} is downloaded, and the nodes are {wanted}"
            yield bad(at(subject, one), text, f"the file for {wanted}")


def _stage_platform(place: Location, value: str, wanted: str) -> Iterator[Verdict]:
    if "BUILDPLATFORM" in value or "BUILDARCH" in value:
        text = "the image is for the machine that builds it, not for the nodes"
        yield bad(place, text, "--platform=$BUILDPLATFORM only in stages that are not shipped")
    elif hole := unresolved(value):
        if hole not in PLATFORM_ARGS:
            yield unclear(place, f"the platform depends on {hole}, which has no default")
    elif value.rsplit("/", 1)[-1] == wanted or value.split("/")[1:2] == [wanted]:
        yield good(place, f"{value} is the nodes' architecture")
    else:
        yield bad(place, f"the image is for {value}, and the nodes are {wanted}", f"linux/{wanted}")


def _built_elsewhere(subject: Subject) -> Iterator[Verdict]:
    """Find Python packages that a stage for the building machine installs and the image copies."""
    for install in subject.shipped:
        value = install.stage.platform or ""
        if install.stage not in subject.dockerfile.shipped() and "BUILDPLATFORM" in value:
            text = "packages are installed for the machine that builds, and copied to the nodes"
            remedy = "no --platform=$BUILDPLATFORM in a stage that installs packages"
            yield bad(at(subject, install.stage), text, remedy)
            return


def _named_architecture(subject: Subject, wanted: str) -> str | None:
    """Return the base image if its name states another architecture than the nodes'."""
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
    place: Location

    @property
    def program(self) -> str:
        return PurePosixPath(self.text).name


def exec_remedy(instruction: Instruction) -> str:
    if instruction.value.lstrip().startswith("["):
        return "valid JSON: double quotes, and no comma at the end"
    form = exec_form(instruction.raw)
    return f"{instruction.name} {form}" if form else f"{instruction.name} of a script that ends in exec"


def _process(subject: Subject, words: list[Word]) -> Iterator[Verdict]:
    """Check the program that `words` start, and what that program is replaced by."""
    if not words:
        return
    first, rest = words[0], words[1:]
    if first.program in INITS:
        yield from _init(subject, first, rest)
    elif first.program in WHOLE_GROUP:
        yield good(first.place, f"{first.text} forwards signals")
    elif first.program == "env":
        plain = (n for n, word in enumerate(rest) if not re.match(r"-|\w+=", word.text))
        yield from _process(subject, rest[next(plain, len(rest)) :])
    elif first.program in ("gosu", "su-exec"):
        yield from _process(subject, rest[1:])
    elif first.program == "conda" and rest[:1] and rest[0].text == "run":  # conda/conda issue 10351
        text = "conda run stays the first process and does not forward SIGTERM"
        yield doubtful(
            first.place, text, "the program's path in the environment: /opt/conda/envs/NAME/bin/python"
        )
    elif first.program in SHELLS:
        yield from _shell(subject, first, rest)
    else:
        yield from _program(subject, first, rest)


def _init(subject: Subject, first: Word, rest: list[Word]) -> Iterator[Verdict]:
    """Check what an init starts, if the init forwards signals to that one process only."""
    options = []
    while rest and rest[0].text.startswith("-"):
        options.append(rest[0].text)
        rest = rest[1:]
        if options[-1] == "--":
            break
    if first.program == "dumb-init":
        one_child = bool({"-c", "--single-child"} & set(options))
    else:
        one_child = not any(re.fullmatch(r"-[a-z]*g[a-z]*", option) for option in options)
    found = list(_process(subject, rest)) if one_child else []
    if any(verdict.state is not State.PASS for verdict in found):
        yield from found
    else:
        yield good(first.place, f"{first.text} forwards signals")


def _shell(subject: Subject, first: Word, rest: list[Word]) -> Iterator[Verdict]:
    texts = [word.text for word in rest]
    at_c = next((n for n, text in enumerate(texts) if re.fullmatch(r"-[a-z]*c", text)), None)
    if at_c is None:
        after_option = [False, *(text in ("-o", "+o") for text in texts)]
        files = (n for n, text in enumerate(texts) if text[:1] not in "-+" and not after_option[n])
        if (script := next(files, None)) is not None:
            yield from _script(subject, rest[script], rest[script + 1 :])
    elif at_c + 1 < len(rest):  # otherwise the command is given when the container is started
        command = rest[at_c + 1]
        if ends_in_exec(command.text):
            yield good(command.place, "the shell ends in exec")
        else:
            text = "the shell stays the first process and does not forward SIGTERM"
            yield doubtful(command.place, text, "exec before the command")


def _program(subject: Subject, first: Word, rest: list[Word]) -> Iterator[Verdict]:
    """Check a program by its file, if that is a shell script of the context or of a heredoc."""
    text = written(subject, first.text)
    shell = re.match(r"#!\s*(?:/\S*/)?(?:env\s+(?:-S\s+)?)?(\w+)", text or "")
    if first.text.endswith(".sh") or (shell and shell[1] in SHELLS):
        yield from _script(subject, first, rest)
    else:
        yield good(first.place, "exec form: the program itself gets SIGTERM")


def _script(subject: Subject, first: Word, rest: list[Word]) -> Iterator[Verdict]:
    text, name = written(subject, first.text), first.program
    if text is None:
        what = f"{first.text} is not in the context, so it is unknown whether it ends in exec"
        yield doubtful(first.place, what, 'exec "$@" as its last line')
    elif not ends_in_exec(text):
        what = f"{name} does not end in exec: the shell stays the first process and does not forward SIGTERM"
        yield doubtful(first.place, what, 'exec "$@" as its last line')
    elif rest and re.search(r"exec\s+\"?\$[@*]", text):
        yield from _process(subject, rest)
    else:
        yield good(first.place, f"{name} ends in exec")


def ends_in_exec(script: str) -> bool:
    """Return whether the last command of a script, or its SIGTERM handler, passes the signal on."""
    text = re.sub(r"\\\n", " ", script.replace("\r", ""))
    if any("kill" in _body(text, match[1].strip("\"'")) for match in TRAP.finditer(text)):
        return True
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#") and line not in ENDS]
    parts = re.split(r"&&|\|\||;", QUOTED.sub("Q", lines[-1])) if lines else []
    parts = [part.strip() for part in parts if part.strip() and part.strip() not in ENDS]
    last = BEFORE.sub("", parts[-1]) if parts else ""
    if not last:
        return False
    name = last.split()[0]
    body = _body(text, name)
    if body != name:
        return ends_in_exec(body)
    # neither `exec > log`, nor a pipeline or a background job, which have a shell above them
    return bool(EXEC.match(last)) and not re.search(r"(?<![|>&])[|&](?![|&>])", last)


def _body(text: str, name: str) -> str:
    """Return the body of the shell function `name`, or `name` itself if there is none."""
    head = re.search(rf"(?m)^[ \t]*+(?:function\s++)?{re.escape(name)}\s*+(?:\(\))?\s*+\{{", text)
    end = re.compile(r"(?m)^[ \t]*+\}").search(text, head.end()) if head else None
    return text[head.end() : end.start()] if head and end else name


def written(subject: Subject, name: str) -> str | None:
    """Return the text of a file of the image that a COPY or ADD of the context or a heredoc made."""
    directory, copies = PurePosixPath("/"), []
    for one in subject.dockerfile.final.layers():
        if one.name == "WORKDIR":
            directory /= one.value.strip("\"' ")
        elif one.name in ("COPY", "ADD") and one.flag("from") is None:
            copies.append((one, directory))
    wanted = PurePosixPath(os.path.normpath(directory / name)) if "/" in name else PurePosixPath(name)
    texts = [_copied(subject.context, one, place, wanted) for one, place in copies]
    return next((text for text in reversed(texts) if text is not None), None)


def _copied(context: Path, one: Instruction, place: PurePosixPath, wanted: PurePosixPath) -> str | None:
    """Return the text of the file `wanted` (a path, or a program's bare name) if this COPY makes it."""
    words = one.words or one.value.split()
    if len(words) < 2:
        return None
    goal = PurePosixPath(os.path.normpath(place / words[-1].strip("\"'")))
    marks = [word.strip("<-\"'") for word in words[:-1] if word.startswith("<<")]
    made: list[tuple[str, str | Path]] = [*zip(marks, one.heredocs, strict=False)]  # name of a file, content
    for source in words[:-1]:
        if source.startswith("<<") or ".." in source or unresolved(source):
            continue
        for path in matching(context, source.strip("/")) if source.strip("./") else [context]:
            below = wanted.relative_to(goal) if wanted.is_relative_to(goal) else PurePosixPath(wanted.name)
            made.append((str(below), path / below) if path.is_dir() else (path.name, path))
    for name, content in made:
        if wanted in (goal, goal / name) or ("/" not in str(wanted) and wanted.name in (name, goal.name)):
            if isinstance(content, str):
                return content
            if content.is_file():
                with contextlib.suppress(OSError):
                    return read_bounded(content, LARGEST_SCRIPT, follow=True).decode(errors="replace")
    return None


def exec_form(command: str, shell: Sequence[str] = ("/bin/sh", "-c")) -> str | None:
    """Return a shell form as an exec form: plain words, or else a shell that ends in exec.

    None if the shell has to stay, as in a pipeline.
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
    """Return a command line with `exec` before its last command; None if that changes what it does."""
    plain = QUOTED.sub(lambda match: "Q" * len(match[0]), command.rstrip("; "))
    start = max((match.end() for match in re.finditer(r"&&|;", plain)), default=0)
    start += len(plain[start:]) - len(plain[start:].lstrip())
    start += len(match[0]) if (match := re.match(r"(?:\w+=\S*\s+)*", plain[start:])) else 0
    last = plain[start:]
    pipes = "||" in plain or re.search(r"(?<![>&])[|&](?![&>])", plain.replace("&&", ""))
    if pipes or last.split()[:1] in ([], ["}"], ["fi"], ["done"]):
        return None
    return command if last.startswith("exec ") else f"{command[:start]}exec {command[start:]}"
