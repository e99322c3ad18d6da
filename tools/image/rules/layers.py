"""Rules on what an image is made from and what stays in its layers: pins, caches, copied files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tools.core.verdict import State, Verdict, bad, good, unclear
from tools.image.dockerfile.dockerignore import files
from tools.image.dockerfile.packages import Install
from tools.image.dockerfile.parse import Dockerfile, Instruction, Stage, unresolved
from tools.image.dockerfile.shell_script import commands, program, script
from tools.image.rules.rule import Subject, at, of, rule

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
MOVING = re.compile(
    r"latest(?:[-_.].*)?|(?:nightly|main|master|dev|devel|edge)(?:-[a-z]+)*|trunk|head|stable|testing|unstable|sid"
    r"|rolling|canary"
)
COMMIT = re.compile(r"@[0-9a-f]{7,40}(?:#|$)|@v?\d+(?:\.\d+)+(?:#|$)")
TOOLS = frozenset({"pip", "setuptools", "wheel", "uv", "build", "ninja"})  # none of them is in what runs
# By tool: the variable and the options that switch the cache off, and the variable that says where it is.
# Sources: pip's cmdoptions.py (any value of PIP_NO_CACHE_DIR does it, also 0), the others' documentation.
NO_CACHE = {
    "pip": ("PIP_NO_CACHE_DIR", ("--no-cache-dir",), "PIP_CACHE_DIR"),
    "uv": ("UV_NO_CACHE", ("--no-cache", "--no-cache-dir", "-n"), "UV_CACHE_DIR"),
    "poetry": ("", ("--no-cache",), "POETRY_CACHE_DIR"),
    "pdm": ("PDM_NO_CACHE", ("--no-cache",), "PDM_CACHE_DIR"),
}
OFF = ("", "0", "false", "off", "no", "f", "n")
REMOVED = re.compile(r"\brm\s+((?:[^;&|\n]|\\\n)*)")
APT_LISTS = re.compile(r"/var/lib/(?:apt\b|\{[^}]*\bapt\b)|apt-get dist-?clean")
LATEST = re.compile(r"[/_.-]latest(?:[/_.-]|$)")
SHOWN = 4


@rule("base", "a tag that moves makes another image of the same commit, and nobody sees when")
def base(subject: Subject) -> Iterator[Verdict]:
    """Every image that FROM and COPY --from name: `latest` and no tag at all fail. A digest is what cannot
    move; a tag with a version is passed, and said.
    """
    seen = set()
    for place, name in _images(subject):
        if name in seen:
            continue
        seen.add(name)
        hole = unresolved(name)
        if name == "scratch" or DIGEST.search(name):
            yield good(
                at(subject, place), f"{name.split('@')[0]} is pinned by digest" if "@" in name else name
            )
        elif hole:
            yield unclear(
                at(subject, place),
                f"the image depends on the build argument {hole}, which has no default",
                f"ARG {hole}=<image>@sha256:... before the first FROM",
            )
        elif "@" in name:
            yield bad(
                at(subject, place), f"{name}: the digest is not 64 hexadecimal digits", "look it up again"
            )
        elif ":" not in name.rsplit("/", 1)[-1] or MOVING.fullmatch(name.rpartition(":")[2]):
            yield bad(
                at(subject, place),
                f"{name} is another image tomorrow",
                f"{re.sub(r':[^:/]*$', '', name)}:<version>@sha256:<digest>",
            )
        else:
            yield good(at(subject, place), f"{name}: a version's tag, which can be moved; a digest cannot")


@rule("pins", "an unpinned package is another one at the next build, and the first to hear of it is a run")
def pins(subject: Subject) -> Iterator[Verdict]:
    """Python packages that the image ships: each pinned with `==`, or in a lock file with hashes; a
    repository by its commit or tag. pip's own tools are left out. What ADD, curl and git clone fetch: a
    release, not what is the latest.
    """
    for install in subject.shipped:
        for name in install.missing:
            text = f"{name} is not in the context, so what it asks for cannot be told"
            yield unclear(at(subject, install.instruction), text, "give the context with --context")
        loose = [one for one in install.packages if one.exact is None and one.name not in TOOLS]
        moving = [
            one for one in install.places if re.match(r"(?:git\+|https?://)", one) and not COMMIT.search(one)
        ]
        moving = [one for one in moving if not re.search(r"\d+\.\d+", one.rsplit("/", 1)[-1])]
        if loose:
            names = ", ".join(one.text.split(";")[0].strip() for one in loose[:SHOWN])
            more = f" and {len(loose) - SHOWN} more" if len(loose) > SHOWN else ""
            remedy = "name==version, or a lock: pip install --require-hashes -r requirements.lock"
            yield bad(of(loose[0]), f"no exact version: {names}{more}", remedy)
        if moving:
            remedy = "git+https://...@<commit>"
            yield bad(at(subject, install.instruction), f"{moving[0]} is what it is today", remedy)
        if install.packages and not loose:
            hashed = all(one.hashed for one in install.packages)
            count = f"{len(install.packages)} package" + "s" * (len(install.packages) != 1)
            text = f"{count} pinned" + (" with hashes" if hashed else "")
            yield good(at(subject, install.instruction), text)
    for _, one in subject.dockerfile.instructions():
        moving_source = _moving(one)
        if moving_source:
            yield bad(at(subject, one), f"{moving_source[0]} is what it is today", moving_source[1])


@rule("caches", "a package manager's cache is shipped to every node and read by nobody")
def caches(subject: Subject) -> Iterator[Verdict]:
    """pip, uv, Poetry, PDM, conda, apt, yum and apk leave caches in the layer they run in: switched off,
    removed in the same RUN, or on a cache mount. Only in stages whose layers the image has.
    """
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
                yield from _system_cache(subject, one)


@rule("copy", "a COPY of what is not in the context ends the build, after minutes")
def copy(subject: Subject) -> Iterator[Verdict]:
    """The sources of COPY and ADD in the context: there, and not held back by .dockerignore."""
    sent: list[str] | None = None
    for _, one in subject.dockerfile.instructions():
        if one.name not in ("COPY", "ADD") or one.flag("from") is not None:
            continue
        sources = [word for word in (one.words or one.value.split())[:-1] if not word.startswith("<<")]
        for source in sources:
            if "://" in source or source.startswith("git@") or unresolved(source):
                continue
            if sent is None:
                sent = [name for name, _ in files(subject.context, subject.ignore)]
            problem = _not_there(subject.context, source, sent)
            if problem:
                yield bad(at(subject, one), *problem)


def _moving(one: Instruction) -> tuple[str, str] | None:
    """Return what a RUN or ADD fetches that is not the same tomorrow, and what to do, or None."""
    if one.name == "ADD" and one.flag("from") is None and one.flag("checksum") is None:
        sources = [word for word in (one.words or one.value.split())[:-1] if "://" in word]
        found = next((word for word in sources if not unresolved(word) and not _versioned(word)), None)
        if found is None:
            return None
        return found, "a release's address and --checksum=sha256:..., or for a repository .git#<commit>"
    if one.name != "RUN":
        return None
    text = script(one)
    for words in commands(text):
        if program(words) == "git" and "clone" in words[:4] and not _held(words, text):
            address = next((word for word in words if "://" in word or "git@" in word), "git clone")
            return address, "git clone --branch <tag>, or git checkout <commit> after it"
        newest = next((word for word in words if "://" in word and LATEST.search(word)), None)
        if newest:
            return newest, "the address of one release"
    return None


def _versioned(address: str) -> bool:
    if re.search(r"\.git(?:#|$)|^git@", address):
        return bool(re.search(r"#(?:[0-9a-f]{7,40}|(?:refs/tags/)?v?\d+(?:\.\d+)+[\w.-]*)(?::|$)", address))
    return bool(re.search(r"\d+\.\d+|[0-9a-f]{40}|\d{8}", address.split("://", 1)[1].partition("/")[2]))


def _held(words: list[str], text: str) -> bool:
    """Say whether a clone is of one tag, or is put on one commit after it."""
    if re.search(
        r"git\s+(?:-C\s+\S+\s+)?(?:checkout|reset --hard|switch|submodule|fetch)\b[^;&|\n]*\s\S*[\d$]", text
    ):
        return True
    if any("://" in word and re.search(r"\d\.\d", word) for word in words):
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
        if one.name in ("COPY", "RUN", "ADD") and name and not _is_stage(dockerfile, name):
            yield one, name


def _is_stage(dockerfile: Dockerfile, name: str) -> bool:
    return dockerfile.stage(name) is not None


def _python_cache(subject: Subject, install: Install) -> Iterator[Verdict]:
    one = install.instruction
    text = script(one)
    if install.tool == "conda":
        cleaned = bool(re.search(r"\b(?:conda|mamba|micromamba)\s+clean\b|\brm\s[^;&|]*/pkgs\b", text))
        cleaned |= _mounted(one, "pkgs")
        remedy = "&& conda clean -afy, in the same RUN"
    else:
        variable, options, place = NO_CACHE[install.tool]
        environment = _environment(install.stage)
        directory = environment.get(place) or ".cache"
        cleaned = bool(install.flags & set(options)) or _switched_off(install, variable, environment, text)
        cleaned |= any(directory in words or place in words for words in REMOVED.findall(text))
        cleaned |= "cache purge" in text or "uv cache clean" in text or "poetry cache clear" in text
        cleaned |= _mounted(one, directory, "cache")
        also = f", or ENV {variable}=1" if variable else ""
        remedy = f"{options[0]}{also}, or RUN --mount=type=cache"
    if cleaned:
        yield good(at(subject, one), f"{install.tool}'s cache is not in the layer")
    else:
        yield bad(at(subject, one), f"{install.tool}'s cache stays in the layer", remedy)


def _switched_off(install: Install, variable: str, environment: dict[str, str], text: str) -> bool:
    """Say whether a variable or pip's own configuration switches the cache off."""
    if not variable:
        return False
    inline = re.search(rf"\b{variable}=[\"']?([\w.-]+)", text)
    value = inline[1] if inline else environment.get(variable, "")
    if install.tool != "pip":
        return value.lower() not in OFF
    before = "\n".join(script(each) for each in install.stage.layers() if each.name == "RUN")
    return bool(value) or bool(
        re.search(r"config\s+(?:--\w+\s+)?set\s+(?:global|install)\.no-cache-dir", before)
    )


def _mounted(one: Instruction, *parts: str) -> bool:
    """Say whether a cache mount's target has one of `parts` in its path, other than apt's."""
    for key, value in one.flags:
        options = dict(part.partition("=")[::2] for part in value.split(",")) if key == "mount" else {}
        target = next((options[name] for name in ("target", "dst", "destination") if name in options), "")
        if options.get("type") == "cache" and "/apt" not in target and any(part in target for part in parts):
            return True
    return False


def _system_cache(subject: Subject, one: Instruction) -> Iterator[Verdict]:
    """Judge what apt, yum and apk leave in the layer of a RUN."""
    text = script(one)
    managers = {program(words) for words in commands(text) if {"install", "update", "add"} & set(words)}
    mounts = [value for key, value in one.flags if key == "mount" and "type=cache" in value]
    if managers & {"apt-get", "apt"}:
        if APT_LISTS.search(text) or any("/apt" in value for value in mounts):
            yield good(at(subject, one), "apt's lists are not in the layer")
        else:
            remedy = "&& rm -rf /var/lib/apt/lists/*, in the same RUN"
            yield bad(at(subject, one), "apt's lists stay in the layer", remedy)
    yum = managers & {"yum", "dnf", "microdnf"}
    if (
        yum
        and not re.search(r"clean all|/var/cache", text)
        and not any("/var/cache" in each for each in mounts)
    ):
        yield bad(at(subject, one), "yum's cache stays in the layer", "&& dnf clean all, in the same RUN")
    apk = "apk" in managers and not any("/apk" in value for value in mounts)
    if apk and not re.search(r"--no-cache|/var/cache/apk|apk cache clean", text):
        yield bad(at(subject, one), "apk's index stays in the layer", "apk add --no-cache")


def _environment(stage: Stage) -> dict[str, str]:
    values = dict(stage.environment)
    for one in stage.layers():
        if one.name == "ARG":
            values.update({name: value for name, value in one.pairs if value})
    return values


def _not_there(context: Path, source: str, sent: list[str]) -> tuple[str, str] | None:
    """Return what is wrong with a source, and what to do, or None."""
    name = source.strip("/").removeprefix("./")
    if name in ("", "."):
        return None
    if ".." in name.split("/"):
        return f"{source} lies outside of the context", "build from the directory above, with -f"
    if any(sign in name for sign in "*?["):
        found = [path.relative_to(context).as_posix() for path in context.glob(name)]
    else:
        found = [name] if (context / name).exists() else []
    if not found:
        return f"{source} is not in the context {context.name}/", "is the context the right directory?"
    if any(path == one or path.startswith(one.rstrip("/") + "/") for one in found for path in sent):
        return None
    if all((context / one).is_dir() and not any((context / one).iterdir()) for one in found):
        return None
    return f"{source} is held back by .dockerignore", f"!{name} in .dockerignore"
