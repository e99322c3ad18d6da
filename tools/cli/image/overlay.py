"""Add the working tree to an image as one layer, without a full build."""

from pathlib import Path

import click

from tools.cli.image.build import failed
from tools.core import output
from tools.image import Engine, build, overlay, push, registry
from tools.image.dockerfile import context


def command(directory: Path, image: str, pushes: bool, as_json: bool) -> int:
    if pushes and registry.host(image) == "localhost":
        raise click.UsageError("--push needs an IMAGE with a registry in its name")
    try:
        with output.activity("adding a layer", every=0.0, fraction=output.BRACKETS) as now:
            made = overlay.add(directory.resolve(), image, Engine(), now.at)
    except build.BuildFailed as problem:
        failed(problem, as_json)
        return 1
    output.note(f"{made.name} {'exists' if made.old else 'is built'}: {context.shown(made.image.size)}")
    digest = push.push(made.name, made.name, Engine(), output.note) if pushes else None
    shown = f"{registry.split(made.name)[0]}@{digest}" if digest else made.name
    data = {"name": made.name, "id": made.image.id, "built": not made.old, "digest": digest, "image": shown}
    output.answer(data, [shown], as_json)
    return 0
