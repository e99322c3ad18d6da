"""Rules on what an image is made from and what stays in its layers: pins, caches, copied files."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from tools.core import State, Verdict, bad, doubtful, good, output, repo, tables, unclear
from tools.core.secret_patterns import mask
from tools.image.dockerfile.context import matching
from tools.image.dockerfile.dockerignore import files
from tools.image.dockerfile.packages import Install
from tools.image.dockerfile.parse import Instruction, Stage, unresolved
from tools.image.dockerfile.shell_script import commands, program, script
from tools.image.rules.rule import Location, Subject, at, of, rule

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
MOVING = re.compile(
    r"(?:.*[-_.])?latest(?:[-_.].*)?|(?:nightly|main|master|dev|devel|edge)(?:-[a-z]+)*|trunk|head|stable|testing|unstable|sid"
    r"|rolling|canary"
)
COMMIT = re.compile(r"@[0-9a-f]{7,40}(?:#|$)|@v?\d+(?:\.\d+)+(?:#|$)")
# The running program uses none of them.
TOOLS = frozenset({"pip", "setuptools", "wheel", "uv", "build", "ninja"})
_TABLES: dict[str, Any] = tables.load("image/tables.yaml")
SYSTEM = [(re.compile(row["removed"]), row) for row in _TABLES["system caches"]]
OFF = ("", "0", "false", "off", "no", "f", "n")
REMOVED = re.compile(r"\brm\s+((?:[^;&|\n]|\\\n)*)")
LATEST = re.compile(r"[/_.-]latest(?:[/_.-]|$)")
BEFORE_V = re.compile(r"(?<![A-Za-z0-9_.$])v\$\{?([A-Za-z_]\w{0,80})\b")
EMPTY = re.compile(r"(?<!\\)\$(?:([A-Za-z_]\w{0,80})|\{([A-Za-z_]\w{0,80})\})")  # empty without a value
PUBLIC = re.compile(r"(?:nvidia/|pytorch/)?[a-z0-9._-]+(?::|@|$)")  # bases whose variables are known
SHOWN = 4


@rule("base")
def base(subject: Subject) -> Iterator[Verdict]:
    images: dict[str, Location] = {}
    for source, name in _images(subject):
        images.setdefault(name, at(subject, source))
    for name, place in images.items():
        if name == "scratch" or DIGEST.search(name):
            yield good(place, f"{name.split('@')[0]} is pinned by digest" if "@" in name else name)
        elif hole := unresolved(name):
            text = f"the image depends on the build argument {hole}, which has no default"
            yield unclear(place, text, f"ARG {hole}=<image>@sha256:... before the first FROM")
        elif "@" in name:
            yield bad(place, f"{name}: the digest is not 64 hexadecimal digits", "look up the digest again")
        elif ":" not in name.rsplit("/", 1)[-1] or MOVING.fullmatch(name.rpartition(":")[2]):
            remedy = f"{re.sub(r':[^:/]*$', '', name)}:<version>@sha256:<digest>"
            yield doubtful(place, f"{name} can be a different image at the next build", remedy)
        else:
            yield good(place, f"{name}: a tag with a version, which can be moved; a digest cannot")


@rule("pins")
def pins(subject: Subject) -> Iterator[Verdict]:
    for install in subject.shipped:
        place = at(subject, install.instruction)
        for name in install.missing:
            text = f"{name} is not in the context, so its packages are unknown"
            yield doubtful(place, text, "give the context with --context")
        loose = [one for one in install.packages if one.exact is None and one.name not in TOOLS]
        moving = [
            one
            for one in install.places
            if re.match(r"(?:git\+|https?://)", one)
            and not COMMIT.search(one)
            and not re.search(r"\d\.\d", one.rsplit("/", 1)[-1])
        ]
        if loose:
            names = ", ".join(one.text.split(";")[0].strip() for one in loose[:SHOWN])
            more = f" and {len(loose) - SHOWN} more" if len(loose) > SHOWN else ""
            remedy = "name==version, or a lock: pip install --require-hashes -r requirements.lock"
            yield doubtful(of(loose[0]), f"no exact version: {names}{more}", remedy)
        if moving:
            yield doubtful(place, f"{mask(moving[0])} can change at any time", "git+https://...@<commit>")
        if install.packages and not loose:
            hashed = " with hashes" if all(one.hashed for one in install.packages) else ""
            yield good(place, f"{output.count(len(install.packages), 'package')} pinned{hashed}")
    for stage, one in subject.dockerfile.instructions():
        after = [each for each in stage.instructions if each.name == "RUN" and each.line > one.line]
        # A later clone begins another repository.
        same = takewhile(lambda text: "git clone" not in text, map(script, after))
        if moving_source := _moving(one, "\n".join(same)):
            text = f"{mask(moving_source[0])} can change at any time"
            yield doubtful(at(subject, one), text, moving_source[1])


@rule("caches")
def caches(subject: Subject) -> Iterator[Verdict]:
    stages = subject.dockerfile.shipped()
    seen: set[tuple[int, str, State]] = set()
    for install in subject.installs:
        for verdict in _python_cache(subject, install) if install.stage in stages else ():
            key = (install.instruction.line, install.tool, verdict.state)
            if key not in seen:  # two commands of one RUN
                seen.add(key)
                yield verdict
    for stage in stages:
        for one in stage.instructions:
            if one.name == "RUN":
                yield from _system_caches(subject, one)


@rule("copy")
def copy(subject: Subject) -> Iterator[Verdict]:
    sent: list[str] | None = None
    found: dict[tuple[str, str], list[tuple[Location, str, str]]] = {}
    for stage, one in subject.dockerfile.instructions():
        if one.name not in ("COPY", "ADD"):
            continue
        if giver := one.flag("from"):
            yield from _from_stage(subject, stage, one, giver)
            continue
        for source in (one.words or one.value.split())[:-1]:
            if "://" in source or source.startswith(("<<", "git@")) or unresolved(source):
                continue
            if sent is None:
                sent = [name for name, _ in files(subject.context, subject.ignore)]
            if problem := _missing(subject.context, source, sent):
                # BuildKit accepts a wildcard that matches nothing
                kind = "WARN" if re.search(r"[*?\[]", source) else "FAIL"
                found.setdefault((kind, problem[0]), []).append((at(subject, one), source, problem[1]))
    for (kind, problem_text), places in found.items():
        sources = [source for _, source, _ in places]
        names = ", ".join(sources[:SHOWN]) + (f" and {len(sources) - SHOWN} more" if len(sources) > SHOWN else "")
        text = f"{names} {'are' if len(sources) > 1 else 'is'} {problem_text}"
        verdict = (doubtful if kind == "WARN" else bad)(places[0][0], text, places[0][2])
        yield replace(verdict, evidence=list(dict.fromkeys(place.evidence() for place, _, _ in places)))


def _from_stage(subject: Subject, stage: Stage, one: Instruction, giver: str) -> Iterator[Verdict]:
    """Judge a COPY --from that names no earlier stage. A name that is not like that of a stage is an image."""
    found = subject.dockerfile.stage(giver)
    if found is not None and found.index >= stage.index:
        yield bad(at(subject, one), f"{giver} is not a stage before this one", "move that stage before this one")
    elif found is None and giver.isdigit():
        yield bad(at(subject, one), f"there is no stage {giver}", f"a number from 0 to {stage.index - 1}, or a name")
    elif found is None and giver in _TABLES["names of stages"]:
        text = f"there is no stage {giver}, and no official image has this name"
        yield bad(at(subject, one), text, f"FROM ... AS {giver}, before this stage")
    elif found is None and (meant := _meant(subject, giver)):
        yield unclear(at(subject, one), f"{giver} is not a stage, but may be an image", f"did you mean {meant}?")


@rule("arguments")
def arguments(subject: Subject) -> Iterator[Verdict]:
    for stage, one in subject.dockerfile.instructions():
        lost = set(subject.dockerfile.arguments) - _declared(stage, one)
        uses = [(word, match) for word in (_given(one) if lost else ()) for match in EMPTY.finditer(word)]
        for name, (word, match) in {match[1] or match[2]: (word, match) for word, match in uses}.items():
            if name not in lost or re.search(rf"\b{name}(?:=|\s+in\b)", one.raw):
                continue
            base = stage.lineage()[0].image
            text = f"{name} is empty: the ARG before the first FROM does not reach this stage"
            if word[: match.start()].endswith("==") and PUBLIC.match(base) and not name.endswith("_VERSION"):
                yield bad(at(subject, one), text, f"ARG {name}, after FROM")
            else:
                yield unclear(at(subject, one), f"{text}, unless {base} sets it", f"ARG {name}, after FROM")


def _declared(stage: Stage, one: Instruction) -> set[str]:
    """Return the names of ARG in a stage, and of ENV in it and below it, before an instruction."""
    own = [other for other in stage.instructions if other.name == "ARG"]
    found = [*own, *(other for other in stage.layers() if other.name == "ENV")]
    return {name for other in found if other.order < one.order for name, _ in other.pairs}


def _given(one: Instruction) -> list[str]:
    """Return the words of an instruction that decide what it does."""
    if one.name in ("COPY", "ADD"):
        return (one.words or one.value.split())[:-1]
    found = commands(script(one)) if one.name == "RUN" else ()
    return [word for words in found if program(words) not in ("echo", "printf") for word in words]


@rule("doubled-v")
def doubled_v(subject: Subject) -> Iterator[Verdict]:
    for _, one in subject.dockerfile.instructions():
        for match in BEFORE_V.finditer(one.raw) if one.known and one.name in ("RUN", "ADD") else ():
            value = one.known.get(match[1], "")
            if re.match(r"v\d", value):
                text = f"v${{{match[1]}}} has two v: the value of {match[1]} begins with one"
                yield bad(at(subject, one), text, f"${{{match[1]}}} without the v before it")
                break


@rule("system-packages")
def system_packages(subject: Subject) -> Iterator[Verdict]:
    managers = {name for _, row in SYSTEM for name in row["programs"]}
    users: dict[int, str] = {}
    for stage, one in subject.dockerfile.instructions():
        if one.name == "USER":
            users[stage.index] = one.value.strip().strip("\"'").split(":")[0]
        user = users.get(stage.index, "root")
        if one.name != "RUN" or user.lower() in ("root", "0") or unresolved(user) or "sudo" in script(one):
            continue
        used = (words[0] for words in commands(script(one)) if {"install", "update", "add"} & set(words))
        if name := next((word for word in used if word in managers), None):
            yield bad(at(subject, one), f"{name} needs root, and the user is {user}", "USER root, before this RUN")


def _moving(one: Instruction, after: str) -> tuple[str, str] | None:
    """Return what a RUN or ADD downloads that can change, and the fix, or None. `after` are later commands."""
    if one.name == "ADD" and one.flag("from") is None and one.flag("checksum") is None:
        sources = [word for word in (one.words or one.value.split())[:-1] if "://" in word]
        found = next((word for word in sources if not unresolved(word) and not _versioned(word)), None)
        remedy = "a release's address and --checksum=sha256:..., or for a repository .git#<commit>"
        return (found, remedy) if found else None
    if one.name != "RUN":
        return None
    text = script(one)
    for words in commands(text):
        if program(words) == "git" and "clone" in words[:4] and not _fixed_clone(words, f"{text}\n{after}"):
            address = next((word for word in words if "://" in word or "git@" in word), "git clone")
            return address, "git clone --branch <tag>, or git checkout <commit> after it"
        newest = next((word for word in words if "://" in word and LATEST.search(word)), None)
        if newest:
            return newest, "the address of one release"
    return None


def _versioned(address: str) -> bool:
    if re.search(r"\.git(?:#|$)|^git@", address):
        return bool(re.search(r"#(?:[0-9a-f]{7,40}|(?:refs/tags/)?v?\d++\.\d[\w.-]*+)(?::|$)", address))
    return bool(re.search(r"\d\.\d|[0-9a-f]{40}|\d{8}", address.split("://", 1)[1].partition("/")[2]))


def _fixed_clone(words: list[str], text: str) -> bool:
    """Return whether a clone is of one tag, or a later command checks out one commit."""
    later = r"git\s+(?:-C\s+\S+\s+)?(?:checkout|reset --hard|switch|submodule|fetch)\b\s[^;&|\n]{0,300}[\d$]"
    if re.search(later, text) or any("://" in word and re.search(r"\d\.\d", word) for word in words):
        return True
    branch = next((after for word, after in pairwise(words) if word in ("-b", "--branch")), "")
    branch = branch or next((word.partition("=")[2] for word in words if word.startswith("--branch=")), "")
    return "$" in branch or bool(re.search(r"\d", branch))


def _images(subject: Subject) -> Iterator[tuple[Instruction | Stage, str]]:
    dockerfile = subject.dockerfile
    for stage in dockerfile.stages:
        if stage.parent is None:
            yield stage, stage.base
    for _, one in dockerfile.instructions():
        name = one.flag("from")
        if one.name in ("COPY", "RUN", "ADD") and name and dockerfile.stage(name) is None:
            yield from [] if name.isdigit() or _meant(subject, name) else [(one, name)]


def _meant(subject: Subject, name: str) -> str | None:
    """Return the stage whose name a COPY --from misspells, None for the name of an image."""
    stages = [stage.name for stage in subject.dockerfile.stages if stage.name]
    return None if re.search(r"[/:@.$]", name) else repo.nearest(name.lower(), stages, cutoff=0.75)


def _python_cache(subject: Subject, install: Install) -> Iterator[Verdict]:
    one = install.instruction
    text = script(one)
    if install.tool == "conda":
        cleaned = bool(re.search(r"\b(?:conda|mamba|micromamba)\s+clean\b|\brm\s[^;&|]{0,300}/pkgs\b", text))
        cleaned |= _mounted(one, "pkgs")
        remedy = "&& conda clean -afy, in the same RUN"
    else:
        variable, options, place = _TABLES["no cache"][install.tool]
        environment = install.stage.variables(one)
        directory = environment.get(place) or ".cache"
        cleaned = bool(install.flags & set(options)) or _turned_off(install, variable, environment, text)
        cleaned |= any(directory in words or place in words for words in REMOVED.findall(text))
        cleaned |= bool(re.search(r"cache purge|uv cache clean|poetry cache clear", text))
        cleaned |= _mounted(one, directory, "cache")
        remedy = f"{options[0]}{f', or ENV {variable}=1' if variable else ''}, or RUN --mount=type=cache"
    if cleaned:
        yield good(at(subject, one), f"the layer does not keep {install.tool}'s cache")
    else:
        kept = doubtful(at(subject, one), f"the layer keeps {install.tool}'s cache", remedy)
        yield replace(kept, details={**kept.details, "tool": install.tool})


def _turned_off(install: Install, variable: str, environment: dict[str, str], text: str) -> bool:
    """Return whether a variable or pip's own configuration turns the cache off."""
    if not variable:
        return False
    inline = re.search(rf"\b{variable}=[\"']?([\w.-]+)", text)
    value = inline[1] if inline else environment.get(variable, "")
    if install.tool != "pip":
        return value.lower() not in OFF
    earlier = "\n".join(script(each) for each in install.stage.layers() if each.name == "RUN")
    configured = re.search(r"config\s+(?:--\w+\s+)?set\s+(?:global|install)\.no-cache-dir", earlier)
    return bool(value or configured)


def _mounted(one: Instruction, *parts: str) -> bool:
    """Return whether a cache mount's target has one of `parts` in its path. Mounts of apt do not count."""
    targets = (mount.target for mount in one.mounts if mount.type == "cache" and "/apt" not in mount.target)
    return any(part in target for target in targets for part in parts)


def _system_caches(subject: Subject, one: Instruction) -> Iterator[Verdict]:
    text = script(one)
    used = {program(words) for words in commands(text) if {"install", "update", "add"} & set(words)}
    for removed, row in SYSTEM:
        if managers := used & set(row["programs"]):
            mounted = any(each.type == "cache" and row["mount"] in each.target for each in one.mounts)
            if mounted or removed.search(text):
                yield good(at(subject, one), f"the layer does not keep {row['leaves']}")
            else:
                kept = doubtful(at(subject, one), f"the layer keeps {row['leaves']}", row["fix"])
                yield replace(kept, details={**kept.details, "tool": min(managers)})


def _missing(context: Path, source: str, sent: list[str]) -> tuple[str, str] | None:
    """Return what a source is, and the fix, if the builder does not find it."""
    name = source.strip("/").removeprefix("./").removesuffix("/.")
    if name in ("", "."):
        return None
    if ".." in name.split("/"):
        return "outside the context", "build from the directory above it, with -f"
    if any(sign in name for sign in "*?["):
        found = [path.relative_to(context).as_posix() for path in matching(context, name)]
    else:
        found = [name] if (context / name).exists() else []
    if not found:
        return f"not in the context {context.name}/", "check that the context is the right directory"
    if any(path == one or path.startswith(one.rstrip("/") + "/") for one in found for path in sent):
        return None
    if not any(path.is_file() for one in found for path in [context / one, *(context / one).rglob("*")]):
        return None  # empty, such as the directory of a submodule
    if any((context / one).is_symlink() for one in PurePosixPath(name).parents if str(one) != "."):
        return "behind a link, which is sent without its target", "a copy of the directory in the context"
    return "excluded by .dockerignore", f"!{name} in .dockerignore"
