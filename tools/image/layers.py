"""Rules on what an image is made from and what stays in its layers: pins, caches, copied files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.image.dockerfile import Dockerfile, Instruction, Stage, unresolved
from tools.image.dockerignore import files
from tools.image.packages import Install
from tools.image.rule import Subject, at, of, rule
from tools.image.script import commands, program, script
from tools.verdict import Verdict, bad, good, unclear

DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
COMMIT = re.compile(r"@[0-9a-f]{7,40}(?:#|$)|@v?\d+(?:\.\d+)+(?:#|$)")
TOOLS = frozenset({"pip", "setuptools", "wheel", "uv", "build", "ninja"})  # none of them is in what runs
NO_CACHE = {"pip": ("PIP_NO_CACHE_DIR", "--no-cache-dir"), "uv": ("UV_NO_CACHE", "--no-cache")}
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
        elif ":" not in name.rsplit("/", 1)[-1] or name.endswith(":latest"):
            yield bad(
                at(subject, place),
                f"{name} is another image tomorrow",
                f"{name.removesuffix(':latest')}:<version>@sha256:<digest>",
            )
        else:
            yield good(at(subject, place), f"{name}: a version's tag, which can be moved; a digest cannot")


@rule("pins", "an unpinned package is another one at the next build, and the first to hear of it is a run")
def pins(subject: Subject) -> Iterator[Verdict]:
    """Python packages that the image ships: each pinned with `==`, or in a lock file with hashes; a
    repository by its commit or tag. pip's own tools are left out.
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


@rule("caches", "a package manager's cache is shipped to every node and read by nobody")
def caches(subject: Subject) -> Iterator[Verdict]:
    """pip, uv, conda and apt leave caches in the layer they run in: switched off, removed in the same RUN, or
    on a cache mount. Only in stages whose layers the image has.
    """
    stages = subject.dockerfile.shipped()
    for install in subject.installs:
        if install.stage in stages:
            yield from _python_cache(subject, install)
    for stage in stages:
        for one in stage.instructions:
            if one.name == "RUN":
                yield from _apt_cache(subject, one)


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
    mounted = any(key == "mount" and "type=cache" in value for key, value in one.flags)
    text = script(one)
    if install.tool == "conda":
        cleaned = "clean" in text
        remedy = "&& conda clean -afy, in the same RUN"
    else:
        variable, option = NO_CACHE[install.tool]
        known = _environment(install.stage).get(variable, "")
        cleaned = option in install.flags or known.lower() not in ("", "0", "false", "off", "no")
        cleaned |= "cache purge" in text or bool(re.search(r"rm -rf? [^;&]*\.cache", text))
        remedy = f"{option}, or ENV {variable}=1, or RUN --mount=type=cache"
    if cleaned or mounted:
        yield good(at(subject, one), f"{install.tool}'s cache is not in the layer")
    else:
        yield bad(at(subject, one), f"{install.tool}'s cache stays in the layer", remedy)


def _apt_cache(subject: Subject, one: Instruction) -> Iterator[Verdict]:
    text = script(one)
    managers = {program(words) for words in commands(text) if "install" in words or "update" in words}
    mounted = any(key == "mount" and "type=cache" in value for key, value in one.flags)
    if managers & {"apt-get", "apt"}:
        if "/var/lib/apt/lists" in text or mounted or "apt-get dist-clean" in text:
            yield good(at(subject, one), "apt's lists are not in the layer")
        else:
            remedy = "&& rm -rf /var/lib/apt/lists/*, in the same RUN"
            yield bad(at(subject, one), "apt's lists stay in the layer", remedy)
    if managers & {"yum", "dnf", "microdnf"} and not re.search(r"clean all|/var/cache", text) and not mounted:
        yield bad(at(subject, one), "yum's cache stays in the layer", "&& dnf clean all, in the same RUN")


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
