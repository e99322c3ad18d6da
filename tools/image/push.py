"""Push an image, and believe it only when the registry has its digest."""

from __future__ import annotations

import re

from tools.core.errors import UserError
from tools.image import ecr, registry
from tools.image.build import load_record
from tools.image.engine import Engine, Say

SAID = re.compile(r"digest: (sha256:[0-9a-f]{64}) size: \d+")
IMMUTABLE = "a tag names one image for ever: push under another one (--tag-from)"
REFUSALS = (
    (re.compile(r"tag invalid|immutable", re.I), "the registry does not let the tag be moved", IMMUTABLE),
    (
        re.compile(r"denied|unauthorized|no basic auth|forbidden", re.I),
        "the registry refuses the push",
        "docker login; for ECR, may this identity push? (ecr:PutImage, ecr:InitiateLayerUpload)",
    ),
    (re.compile(r"no space left", re.I), "the disk is full", "docker system df; docker image prune"),
    (
        re.compile(r"connection refused|no such host|timeout|EOF|connection reset|broken pipe", re.I),
        "the registry does not answer",
        "is it up, and its address right? what was uploaded is not lost: push again",
    ),
)


def push(name: str, target: str, engine: Engine, say: Say) -> str:
    """Push the local image `name` as `target` (repository and tag) and return its digest.

    The digest is what the registry answers for the tag, the same that the engine has and that the push said.
    Raises UserError: 1 where the push failed or the digests differ, 3 where the registry cannot be asked.
    """
    repository, tag = registry.split(target)
    if not tag or "@" in target:
        raise UserError(f"{target}: not <repository>:<tag>")
    engine.check()
    image = engine.image(name)
    if image is None:
        raise UserError(f"the engine has no image {name}", "yard image build makes one")
    ecr.prepare(repository, engine, say)
    known = image.digest(repository)
    there = registry.digest(engine, target)
    if there is not None:
        if there == known:
            say(f"{target} is there already, with this digest")
            return there
        raise UserError(f"{target} is another image: {there}; it is not overwritten", IMMUTABLE, 1)
    if name != target:
        engine.text("tag", image.id, target)
    code, said = engine.stream(["push", target], say)
    match = SAID.search(said)
    if code != 0 or match is None:
        raise refusal(target, said)
    return verified(engine, target, match[1])


def refusal(target: str, said: str) -> UserError:
    """Return why a push failed, as one error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "docker push said nothing"
    for pattern, what, remedy in REFUSALS:
        line = next((line for line in reversed(lines) if pattern.search(line)), None)
        if line:
            return UserError(f"{target} was not pushed: {what}: {line}", remedy, 1)
    return UserError(f"{target} was not pushed: {last}", code=1)


def remember(name: str, repository: str, digest: str) -> None:
    """Add a digest that was read back to the record of the image's build, where there is one."""
    record = load_record(name)
    if record is not None:
        record.digests[repository] = digest
        record.save()


def verified(engine: Engine, target: str, said: str) -> str:
    """Return the digest when push, engine and registry agree on it. Raises UserError."""
    repository, _ = registry.split(target)
    image = engine.image(target)
    found = {
        "the push": said,
        "the engine": image.digest(repository) if image else None,
        "the registry": registry.digest(engine, target),
    }
    if set(found.values()) != {said}:
        shown = ", ".join(f"{who} {what or 'nothing'}" for who, what in found.items())
        raise UserError(
            f"the digests of {target} differ: {shown}", "somebody else pushed this tag: push again", 1
        )
    return said
