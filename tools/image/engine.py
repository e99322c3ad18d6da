"""The Docker engine, through the user's own `docker` command.

A client library does not know the user's contexts, credential helpers and builders.
"""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.core import Say, UserError, command_line, output, tables

SECONDS = 60  # for one command
CANNOT_SEE = 3
UNREACHABLE: list[str] = tables.load("image/tables.yaml")["unreachable engine"]
FOREIGN = re.compile("|".join(tables.load("image/tables.yaml")["foreign answers"]), re.I)
PROXY = "a proxy may have answered: check the address, HTTPS_PROXY and the network"


@dataclass(frozen=True)
class Image:
    """An image of the engine. `id` is the digest of its configuration; sizes are in bytes."""

    id: str
    digests: tuple[str, ...]  # <repository>@sha256:..., after a push or pull
    size: int
    layers: tuple[str, ...]
    architecture: str
    user: str
    entrypoint: tuple[str, ...]

    def digest(self, repository: str) -> str | None:
        return next((one.split("@")[1] for one in self.digests if one.split("@")[0] == repository), None)


@dataclass(frozen=True)
class Engine:
    """The engine of `docker` on PATH."""

    program: str = "docker"

    def run(self, *words: str, seconds: float | None = SECONDS, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run docker and return its result, also after a failure.

        Raises UserError without docker, and with exit code 3 if it does not end within `seconds`.
        """
        try:
            done = command_line.captured([self.program, *words], stdin=stdin.encode(), seconds=seconds)
        except command_line.TooLarge as problem:
            raise UserError(f"docker {words[0]}: the answer has {problem}", code=CANNOT_SEE) from None
        except FileNotFoundError:
            raise missing() from None
        except subprocess.TimeoutExpired:
            raise UserError(f"docker {words[0]}: no answer within {seconds} s", code=CANNOT_SEE) from None
        out, error = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(done.args, done.returncode, out, error)

    def text(self, *words: str, seconds: float | None = SECONDS) -> str:
        """Return docker's output. Raises UserError with docker's error."""
        done = self.run(*words, seconds=seconds)
        if done.returncode != 0:
            raise failure(words[0], done.stderr)
        return done.stdout

    def check(self) -> str:
        """Return the version of the client. Raises UserError if no engine answers."""
        text = self.text("version", "--format", "{{json .}}")
        with understood("docker version"):
            found = json.loads(text)
            if not found.get("Server"):
                raise failure("version", "Cannot connect to the Docker daemon")
            return str(found["Client"]["Version"])

    def stream(self, words: Sequence[str], say: Say, variables: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Run docker, pass each line to `say`, and return the exit code and the last lines of the output."""
        try:
            environment = {**os.environ, **(variables or {})}
            code, lines = command_line.streamed([self.program, *words], say, environment=environment)
        except FileNotFoundError:
            raise missing() from None
        return code, "".join(lines)

    def image(self, name: str) -> Image | None:
        """Return the image with a name or id, or None."""
        done = self.run("image", "inspect", command_line.operand(name, "an image"))
        if done.returncode != 0:
            if "No such image" in done.stderr:
                return None
            raise failure("image inspect", done.stderr)
        with understood("docker image inspect"):
            return _image(json.loads(done.stdout)[0])

    def login(self, registry: str, user: str, password: str) -> None:
        """Log in to a registry, without the password in the process list. Raises UserError."""
        done = self.run("login", "--username", user, "--password-stdin", registry, stdin=password)
        if done.returncode != 0:
            raise failure("login", done.stderr)

    def data_root(self) -> str:
        """Return the directory of the engine's images, or an empty text."""
        done = self.run("info", "--format", "{{.DockerRootDir}}")
        return done.stdout.strip() if done.returncode == 0 else ""


def missing() -> UserError:
    hint = "install Docker (https://docs.docker.com/engine/install/), or build on AWS (--remote)"
    return UserError("no docker on PATH, and nothing was built", hint)


@contextlib.contextmanager
def understood(who: str) -> Iterator[None]:
    """Make an answer of another form than the one that is read an error with exit code 3."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise foreign(who) from None


def foreign(who: str) -> UserError:
    """Return the error for an answer that is not one of docker, a registry or AWS."""
    return UserError(f"{who}: the answer cannot be read", PROXY, CANNOT_SEE)


def failure(what: str, stderr: str) -> UserError:
    """Return docker's last line as an error, with exit code 3 if no engine or registry answered."""
    if FOREIGN.search(stderr):
        return foreign(f"docker {what}")
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    message = output.short((lines or [f"docker {what} failed without a message"])[-1])
    if any(sign in stderr for sign in UNREACHABLE):
        hint = "start it (systemctl start docker), or set DOCKER_HOST (docker context ls)"
        return UserError(f"no Docker engine answers: {message}", hint, CANNOT_SEE)
    return UserError(f"docker {what}: {message}", code=1)


def _image(found: Mapping[str, Any]) -> Image:
    config = found.get("Config") or {}
    return Image(
        id=str(found["Id"]),
        digests=tuple(found.get("RepoDigests") or ()),
        size=int(found["Size"]),
        layers=tuple((found.get("RootFS") or {}).get("Layers") or ()),
        architecture=str(found["Architecture"]),
        user=str(config.get("User") or ""),
        entrypoint=tuple(config.get("Entrypoint") or ()),
    )
