"""Build an image with the Docker engine, and check that the engine has it."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tools import __version__
from tools.core import Say, UserError, output, repo, secret_patterns
from tools.image import tags
from tools.image.build_failures import Cause, cause
from tools.image.dockerfile import context, dockerignore
from tools.image.engine import Engine, Image
from tools.image.rules.evaluate import Target

NAMESPACE = "localhost/trainyard"  # as in cells; docker asks no public registry for these names
ATTEMPTS = 3
WAIT = 5.0  # seconds before the second attempt, twice as long before the third
FULL = 1 << 30  # bytes; with less free space, a failure without a message is a full disk


@dataclass(frozen=True)
class Request:
    """What to build, and how."""

    target: Target
    names: tuple[str, ...]  # with their tags
    arguments: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # in the syntax of docker build --secret
    platform: str | None = None
    limit: int = context.LIMIT


@dataclass
class Record:
    """A build, as stored in local/images/<name>.json."""

    name: str
    tags: list[str]
    id: str
    size: int
    layers: int
    architecture: str
    revision: str
    seconds: float
    built: str
    builder: str
    attempts: int
    digests: dict[str, str] = field(default_factory=dict)  # repository -> digest at the registry

    def save(self) -> None:
        repo.write(record_path(self.name), json.dumps(asdict(self), indent=2) + "\n")


class BuildFailed(Exception):
    """A failed build: its cause, and the file with its whole output."""

    def __init__(self, found: Cause, log: Path, attempts: int) -> None:
        super().__init__(found.kind)
        self.cause, self.log, self.attempts = found, log, attempts


def record_path(name: str) -> Path:
    return repo.local() / "images" / f"{name}.json"


def write_log(name: str, said: str) -> Path:
    """Write the output of a build, with secrets masked, for this user only; return the file.

    What a build prints is decided by the Dockerfile and by everything that it downloads.
    """
    path = repo.local() / "images" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an older one may be readable for others, or a link
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(secret_patterns.mask(said))
    return path


def load_record(name: str) -> Record | None:
    """Return the record of the last build of `name`, or None."""
    try:
        return Record(**json.loads(record_path(name).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def refuse_secrets(arguments: Mapping[str, str]) -> None:
    """Raise UserError if a build argument is a secret, because the image's history would show its value."""
    for name, value in arguments.items():
        found = secret_patterns.find(f"{name}={value}")
        named = secret_patterns.is_secret_name(name)
        if found or named:
            kind = "a secret, by its name" if named else found[0].kind
            raise UserError(
                f"--build-arg {name}: the value is {kind}, and would stay in the image's history",
                f"--secret id={name.lower()},env={name}, and RUN --mount=type=secret,id={name.lower()}",
            )


def build(request: Request, engine: Engine, say: Say) -> tuple[Record, Image]:
    """Build an image, write its record, and return the record and the image.

    Raises BuildFailed with the cause, and UserError if the build did not start: no engine, a context that is
    too large, a secret as an argument. After a network failure it tries again, ATTEMPTS times in all.
    """
    refuse_secrets(request.arguments)
    ignore = dockerignore.read(request.target.context, request.target.dockerfile)
    sent = context.guard(request.target.context, ignore, request.limit)
    client = engine.check()
    name = request.target.name
    builder, head, variables = _builder(engine, client)
    say(f"building {name} with {builder}: {sent.files:,} files, {context.shown(sent.size)} of context")
    for text in sent.warnings():
        say(text)
    if request.secrets and builder == "classic":
        raise UserError("--secret needs BuildKit, and this engine only has the classic builder", "install buildx")
    began = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "id"
            words = [*head, *_options(request, file), str(request.target.context)]
            code, said = engine.stream(words, lambda line: say(secret_patterns.mask(line)), variables)
            log = write_log(name, said)
            identity = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
        if code == 0 and identity:
            break
        found = _cause(said, engine)
        if not found.retry or attempt == ATTEMPTS:
            raise BuildFailed(found, log, attempt)
        wait = WAIT * 2 ** (attempt - 1)
        say(f"{found.kind}: {found.line}; trying again in {wait:.0f} s ({attempt} of {ATTEMPTS})")
        time.sleep(wait)
    image = _read_back(request, engine, identity)
    record = Record(
        name=name,
        tags=list(request.names),
        id=image.id,
        size=image.size,
        layers=len(image.layers),
        architecture=image.architecture,
        revision=request.arguments.get("REVISION", "unknown"),
        seconds=round(time.monotonic() - began, 1),
        built=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        builder=builder,
        attempts=attempt,
    )
    record.save()
    return record, image


def labels(target: Target) -> dict[str, str]:
    """Return the build arguments that name an image's commit and version."""
    return {"REVISION": tags.revision(target.context), "VERSION": __version__}


def _builder(engine: Engine, client: str) -> tuple[str, list[str], dict[str, str]]:
    """Return the builder's name, its command and its environment variables.

    buildx if it is installed, else the built-in BuildKit of clients before 23, else the classic builder.
    DOCKER_BUILDKIT=0 selects the classic one.
    """
    wanted = os.environ.get("DOCKER_BUILDKIT")
    if wanted != "0":
        if engine.run("buildx", "version").returncode == 0:
            return "buildx", ["buildx", "build", "--load", "--provenance=false", "--progress=plain"], {}
        if int(client.split(".")[0]) < 23:
            return "BuildKit", ["build", "--progress=plain"], {"DOCKER_BUILDKIT": "1"}
    return "classic", ["build"], {"DOCKER_BUILDKIT": "0"}


def _options(request: Request, identity: Path) -> list[str]:
    words = ["--file", str(request.target.dockerfile), "--iidfile", str(identity)]
    for name in request.names:
        words += ["--tag", name]
    for name, value in request.arguments.items():
        words += ["--build-arg", f"{name}={value}"]
    for text in request.secrets:
        words += ["--secret", text]
    if request.platform:
        words += ["--platform", request.platform]
    return words


def _cause(said: str, engine: Engine) -> Cause:
    """Return the cause. If the output only says that a command failed, check for a full disk."""
    found = cause(said)
    if not found.kind.startswith(("a command", "unknown")):
        return found
    root = engine.data_root()
    if root and Path(root).is_dir() and (free := shutil.disk_usage(root).free) < FULL:
        remedy = "free space with docker builder prune and docker image prune"
        return Cause("no space", f"{root} has {context.shown(free)} left; {found.line}", remedy, step=found.step)
    return found


def _read_back(request: Request, engine: Engine, identity: str) -> Image:
    """Return the built image. Raises UserError unless the engine has it under each of its names."""
    image = engine.image(identity)
    if image is None:
        raise UserError(f"the builder succeeded, but the engine does not have {identity}", code=1)
    for name in request.names:
        tagged = engine.image(name)
        if tagged is None or tagged.id != image.id:
            has = tagged.id if tagged else "nothing"
            raise UserError(f"{name} is {has}, not {image.id}, which was just built", code=1)
    wanted = (request.platform or "linux/amd64").split("/")[1]
    if image.architecture != wanted:
        raise UserError(
            f"the image is for {image.architecture}, and the nodes are {wanted}",
            f"--platform linux/{wanted}, with buildx and emulation; or --remote",
            code=1,
        )
    return image


def summary(record: Record) -> list[tuple[str, str]]:
    attempts = f", {record.attempts} attempts" if record.attempts > 1 else ""
    return [
        ("image", ", ".join(record.tags)),
        ("id", record.id),
        ("size", f"{context.shown(record.size)} in {output.count(record.layers, 'layer')}"),
        ("commit", record.revision),
        ("built", f"in {record.seconds:.1f} s{attempts} with {record.builder}"),
    ]
