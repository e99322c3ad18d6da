"""Push an image, and check that the registry has its digest."""

import re

from tools.core import Say, UserError, command_line, output
from tools.core.tables import load
from tools.image import ecr, registry
from tools.image.build import load_record
from tools.image.engine import FOREIGN, Engine, foreign

SAID = re.compile(r"digest: (sha256:[0-9a-f]{64}) size: \d+")
REFUSALS = [
    (re.compile(row["lines"], re.I), row["what"], row["fix"]) for row in load("image/tables.yaml")["refused pushes"]
]
IMMUTABLE: str = REFUSALS[0][2]


def push(name: str, target: str, engine: Engine, say: Say) -> str:
    """Push the local image `name` as `target` (repository and tag) and return its digest.

    The digests of the push, the engine and the registry must be equal. Raises UserError with exit code 1 if
    the push failed or the digests differ, and 3 if the registry does not answer.
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
    existing = registry.digest(engine, target)
    if existing is not None:
        if existing == known:
            say(f"{target} already exists with this digest")
            return existing
        raise UserError(f"{target} is another image: {existing}; it is not overwritten", IMMUTABLE, 1)
    if name != target:
        engine.text("tag", image.id, command_line.operand(target, "an image"))
    code, said = engine.stream(["push", command_line.operand(target, "an image")], say)
    match = SAID.search(said)
    if code != 0 or match is None:
        raise refusal(target, said)
    verify(engine, target, match[1])
    return match[1]


def refusal(target: str, said: str) -> UserError:
    """Return the error of a failed push."""
    if FOREIGN.search(said):
        return foreign(f"{target} was not pushed: {registry.host(target)}")
    lines = [output.short(line) for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "docker push printed nothing"
    for pattern, what, remedy in REFUSALS:
        line = next((line for line in reversed(lines) if pattern.search(line)), None)
        if line:
            return UserError(f"{target} was not pushed: {what}: {line}", remedy, 1)
    return UserError(f"{target} was not pushed: {last}", code=1)


def remember(name: str, repository: str, digest: str, engine: Engine) -> None:
    """Add a digest to the record of the build, if what was pushed is the image of that build."""
    record, image = load_record(name), engine.image(f"{repository}@{digest}")
    if record is not None and image is not None and image.id == record.id:
        record.digests[repository] = digest
        record.save()


def verify(engine: Engine, target: str, pushed: str) -> None:
    """Raise UserError if push, engine and registry have different digests."""
    repository, _ = registry.split(target)
    image = engine.image(target)
    found = {
        "the push": pushed,
        "the engine": image.digest(repository) if image else None,
        "the registry": registry.digest(engine, target),
    }
    if set(found.values()) != {pushed}:
        shown = ", ".join(f"{who} {what or 'nothing'}" for who, what in found.items())
        hint = "another push of this tag at the same time? Push again"
        raise UserError(f"the digests of {target} differ: {shown}", hint, 1)
