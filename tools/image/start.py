"""What an image's configuration says about its start, from the local engine or else from the registry."""

import json
import shlex
from collections.abc import Iterable
from typing import Any

from tools.core import UserError, command_line, output
from tools.image.engine import Engine, failure, understood
from tools.simulator.node import Given, Image
from tools.workload import Workload

SECONDS = 20  # for one image


def given(jobs: Iterable[Workload], words: str | None, image_config: bool) -> Given:
    """Return what the user gives by hand, and what the images of containers without a command start."""
    try:
        command = shlex.split(words or "")
    except ValueError as problem:
        raise UserError(f"--command: {problem}", 'quote it as in a shell: --command "torchrun a.py"') from None
    templates = [role.template for job in jobs for role in job.roles] if image_config else []
    containers = [one for template in templates for one in template["spec"]["containers"]]
    images = {}
    for name in {str(one.get("image")) for one in containers if not one.get("command")}:
        output.note(f"asking for the configuration of {name}")
        try:
            images[name] = start_of(Engine(), name)
        except UserError as problem:
            output.note(f"{name}: {problem.message}")
    return Given(images, command)


def start_of(engine: Engine, name: str) -> Image:
    """Return entry point, command and variables of an image. Nothing is pulled.

    The engine's own image counts. Without it the registry is asked, with the credentials of the user's
    docker. Raises UserError where neither answers.
    """
    local = engine.run("image", "inspect", command_line.operand(name, "an image"), seconds=SECONDS)
    if local.returncode == 0:
        with understood("docker image inspect"):
            return _image((json.loads(local.stdout)[0] or {}).get("Config"))
    words = ("buildx", "imagetools", "inspect", "--format", "{{json .Image}}", command_line.operand(name, "an image"))
    asked = engine.run(*words, seconds=SECONDS)
    if asked.returncode != 0:
        raise failure("buildx imagetools inspect", asked.stderr)
    with understood("docker buildx imagetools inspect"):
        found = json.loads(asked.stdout)
        if not isinstance(found, dict):
            raise UserError("the registry's answer is not an image's configuration")
        one = found if "config" in found else found.get("linux/amd64") or next(iter(found.values()), {})
        return _image(one.get("config"))


def _image(config: Any) -> Image:
    config = config if isinstance(config, dict) else {}
    pairs = (str(entry).partition("=") for entry in config.get("Env") or [])
    return Image(
        entrypoint=[str(word) for word in config.get("Entrypoint") or []],
        command=[str(word) for word in config.get("Cmd") or []],
        variables={name: value for name, _, value in pairs},
    )
